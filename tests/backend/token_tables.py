"""Random rows for each token in the place of a model file's tensors: operands of operations that are tried alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from puna.graph import Node, make

__all__ = ["TokenTables"]


class TokenTables:
    """Stands for an open file of F32 tensors, by name; row t of a table is for token t."""

    def __init__(self, tables: Mapping[str, np.ndarray]) -> None:
        self.tables = tables

    def data(self, name: str) -> np.ndarray:
        return self.tables[name].view(np.uint8)

    def drop(self, name: str, start: int, stop: int) -> None:
        pass

    def __call__(self, name: str, *shape: int) -> Node:
        """A table's rows for the tokens of a step, in this shape each; without one, the tensor as it is."""
        weight = make("weight", tensor=name, dtype="F32", shape=self.tables[name].shape)
        if not shape:
            return weight
        return make("reshape", make("embed", weight, make("tokens")), shape=("T", *shape))

"""How keys and values lie in memory, decided before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from puna.graph import Graph
from puna.quants import by_name

__all__ = ["KVLayout"]

PAGE = 64


@dataclass(frozen=True)
class KVLayout:
    """Pages of `page` positions; each layer has `pages` of them for keys and as many for values.

    widths: layer -> (key/value heads, key size, value size).  k_type, v_type: names of quantisation types.
    """

    widths: Mapping[int, tuple[int, int, int]]
    k_type: str
    v_type: str
    pages: int
    page: int = PAGE

    @classmethod
    def of(cls, graph: Graph, n_ctx: int, k_type: str, v_type: str) -> KVLayout:
        """The layout that holds `n_ctx` positions, over all sequences, for the layers of a graph."""
        stores = [node for node in graph.nodes if node.op == "kv_store"]
        widths = {node.attrs["layer"]: node.type.shape for node in stores}
        return cls(widths, k_type, v_type, -(-n_ctx // PAGE))  # type: ignore[arg-type]  # kv types hold numbers only

    @property
    def positions(self) -> int:
        return self.pages * self.page

    def row_bytes(self, layer: int) -> tuple[int, int]:
        """Bytes of one position's keys and of its values."""
        heads, key, value = self.widths[layer]
        return by_name(self.k_type).row_bytes(heads * key), by_name(self.v_type).row_bytes(heads * value)

    @property
    def position_bytes(self) -> int:
        """Bytes that one position takes in all layers."""
        return sum(sum(self.row_bytes(layer)) for layer in self.widths)

    @property
    def nbytes(self) -> int:
        return self.position_bytes * self.positions

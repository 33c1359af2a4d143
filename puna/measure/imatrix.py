"""Importance matrices: how much each column of a weight is used, over a text, which quantisers weigh errors by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.reference import ReferenceBackend
from puna.errors import BackendError, ModelError
from puna.gguf.imatrix import Importance
from puna.graph import Node
from puna.measure.windows import Windows, blocks, token_losses

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = ["Collector", "collect"]


class Collector:
    """Sums the squares of the columns that weights are multiplied with: an observer of the reference backend.

    Of the layers, and with `output` of the matrix that makes the logits as well: output.weight, or where the file
    ties it token_embd.weight.
    """

    def __init__(self, output: bool = False) -> None:
        self.output = output
        self.sums: dict[str, NDArray[np.float64]] = {}  # [experts, k], one for a plain weight
        self.counts: dict[str, NDArray[np.int64]] = {}  # [experts]
        self.mixed: set[str] = set()

    def __call__(self, weight: Node, x: NDArray[np.float32], ids: NDArray[np.int32] | None = None) -> None:
        name = cast(str, weight.attrs["tensor"])
        if not (self.output or name.startswith("blk.")):
            return
        shape = cast("tuple[int, ...]", weight.type.shape)
        experts, k = 1 if ids is None else shape[0], shape[-1]
        sums = self.sums.setdefault(name, np.zeros((experts, k)))
        counts = self.counts.setdefault(name, np.zeros(experts, np.int64))
        if ids is None:
            chosen = {0: x.reshape(-1, k)}
        else:
            self.mixed.add(name)
            rows = np.broadcast_to(x.reshape(len(x), -1, k), (*ids.shape, k))  # [rows, used, k]
            chosen = {int(expert): rows[ids == expert] for expert in np.unique(ids)}
        for expert, rows in chosen.items():
            sums[expert] += np.einsum("ij,ij->j", rows, rows)
            counts[expert] += len(rows)

    def entries(self) -> dict[str, Importance]:
        """What was seen. Raises ModelError where the model computed what is no number."""
        found = {}
        for name, sums in self.sums.items():
            if not np.isfinite(sums).all():
                raise ModelError(
                    f"what tensor {name!r} is multiplied with is no number", fix="check the model"
                )
            mixed = name in self.mixed
            found[name] = Importance(
                (sums if mixed else sums[0]).astype(np.float32), self.counts[name].astype(np.float32)
            )
        return found


def collect(model: Model, windows: Windows, collector: Collector) -> Iterator[NDArray[np.float64]]:
    """Have a collector see windows of a text. Yields the losses of each, as `losses` does.

    Raises BackendError where the model does not run on the reference backend.
    """
    if not isinstance(model.backend, ReferenceBackend):
        what = f"importance matrices come from the reference backend, and this is {model.about.name}"
        raise BackendError(what, fix="use --backend reference")
    found: list[NDArray[np.float64]] = []
    counted = windows.counted
    with model.backend.observed(collector):
        for block in blocks(model, windows, range(windows.length)):
            first = max(block.positions.start, counted.start)
            judged = range(first, max(first, min(block.positions.stop, counted.stop)))
            targets = windows.targets(block.window, judged)
            offset = first - block.positions.start
            found.append(token_losses(block.logits[offset : offset + len(targets)], targets))
            if block.positions.stop == windows.length:
                yield np.concatenate(found)
                found.clear()

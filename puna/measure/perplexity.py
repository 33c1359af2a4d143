"""How well a model predicts a text: perplexity, as llama-perplexity computes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puna.measure.saved_logits import Writer, saving
from puna.measure.windows import Windows, blocks, cut, token_losses

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = ["Mean", "losses", "mean", "perplexity", "perplexity_of"]


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error."""

    value: float
    error: float

    def times(self, factor: float) -> Mean:
        return Mean(self.value * factor, self.error * abs(factor))

    def exp(self) -> Mean:
        """e to the mean; the error to first order."""
        value = math.exp(self.value) if self.value < 700 else math.inf
        return Mean(value, value * self.error)


def mean(values: NDArray[np.float64]) -> Mean:
    """Of independent values; the error of a single one is 0."""
    error = float(values.std()) / math.sqrt(len(values) - 1) if len(values) > 1 else 0.0
    return Mean(float(values.mean()), error)


def losses(model: Model, windows: Windows, save: Writer | None = None) -> Iterator[NDArray[np.float64]]:
    """For each window: -ln of the probability of the ids that are judged.

    save: takes the logits as well.
    """
    found: list[NDArray[np.float64]] = []
    for block in blocks(model, windows):
        found.append(token_losses(block.logits, windows.targets(block.window, block.positions)))
        if save:
            save.add(block.logits)
        if block.positions.stop == windows.counted.stop:
            yield np.concatenate(found)
            found.clear()


def perplexity_of(losses: NDArray[np.float64]) -> Mean:
    """e to the mean loss."""
    return mean(losses).exp()


def perplexity(
    model: Model,
    ids: Sequence[int] | NDArray[np.int32],
    n_ctx: int = 512,
    *,
    chunks: int = -1,
    save: str | Path | None = None,
) -> Mean:
    """The perplexity of a text. ids: from `text_ids`; n_ctx and chunks as in `cut`.

    save: a file for all logits, which `puna.measure.divergence` compares other models with.
    Raises RequestError where the text is too short, or the file cannot be written.
    """
    windows = cut(model, ids, n_ctx, chunks)
    with saving(save, windows, model.n_vocab) if save else nullcontext() as writer:
        return perplexity_of(np.concatenate(list(losses(model, windows, writer))))

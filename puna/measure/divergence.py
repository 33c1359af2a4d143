"""How far a model's predictions are from a base's: Kullback-Leibler divergence, as llama-perplexity computes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puna.errors import RequestError
from puna.measure.perplexity import Mean, mean, perplexity_of
from puna.measure.saved_logits import SavedLogits
from puna.measure.windows import Windows, blocks, cut, log_totals, token_losses

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = [
    "Divergence",
    "base_windows",
    "divergence",
    "divergences",
    "joined",
    "kld",
    "row_divergences",
    "same_top",
]

LIKELY = -16.0  # ln of the least probability of the base that counts


@dataclass(frozen=True)
class Divergence:
    """A value for each judged id, [n].

    losses, base_losses: -ln of its probability under the model and the base.  kld: KL(base || model), in nats.
    same_top: whether both think the same id likeliest.
    """

    losses: NDArray[np.float64]
    base_losses: NDArray[np.float64]
    kld: NDArray[np.float64]
    same_top: NDArray[np.bool_]

    @property
    def p_diff(self) -> NDArray[np.float64]:
        """The id's probability under the model, less that under the base."""
        difference: NDArray[np.float64] = np.exp(-self.losses) - np.exp(-self.base_losses)
        return difference

    @property
    def perplexity(self) -> Mean:
        return perplexity_of(self.losses)

    @property
    def base_perplexity(self) -> Mean:
        return perplexity_of(self.base_losses)

    @property
    def log_ratio(self) -> Mean:
        """ln(perplexity / base perplexity)."""
        return mean(self.losses - self.base_losses)

    @property
    def difference(self) -> Mean:
        """Perplexity less base perplexity; the error to first order."""
        a, b = self.perplexity, self.base_perplexity
        weighted = a.value * self.losses - b.value * self.base_losses
        return Mean(a.value - b.value, mean(weighted).error)

    @property
    def correlation(self) -> float:
        """Of the losses of the two; nan where one of them does not vary."""
        spread = float(self.losses.std() * self.base_losses.std())
        centred = (self.losses - self.losses.mean()) * (self.base_losses - self.base_losses.mean())
        return float(centred.mean()) / spread if spread else math.nan

    @property
    def mean_kld(self) -> Mean:
        return mean(self.kld)

    @property
    def mean_p_diff(self) -> Mean:
        return mean(self.p_diff)

    @property
    def rms_p_diff(self) -> Mean:
        """Root of the mean square of p_diff; the error to first order."""
        square = mean(self.p_diff**2)
        root = math.sqrt(square.value)
        return Mean(root, 0.5 * square.error / root if root else 0.0)

    @property
    def top_agreement(self) -> Mean:
        """The share of ids where the likeliest is the same."""
        return mean(self.same_top.astype(np.float64))


def joined(parts: Sequence[Divergence]) -> Divergence:
    """Several as one."""
    names = ("losses", "base_losses", "kld", "same_top")
    return Divergence(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def base_windows(model: Model, base: SavedLogits, chunks: int = -1) -> Windows:
    """The base's windows, for a model. Raises RequestError where its vocabulary is another."""
    if base.n_vocab != model.n_vocab:
        what = f"it is of a model with {base.n_vocab} tokens, and this one has {model.n_vocab}"
        raise RequestError(what, where=base.where, fix="compare models with the same vocabulary")
    return cut(model, base.ids, base.n_ctx, chunks)


def divergences(model: Model, base: SavedLogits, chunks: int = -1) -> Iterator[Divergence]:
    """A model's from a base, window by window.

    Raises RequestError where the base is of another vocabulary, FormatError where its file is damaged.
    """
    windows, found = base_windows(model, base, chunks), list[Divergence]()
    base.rewind()
    for block in blocks(model, windows):
        targets = windows.targets(block.window, block.positions)
        found.append(row_divergences(block.logits, base.rows(len(targets)), targets))
        if block.positions.stop == windows.counted.stop:
            yield joined(found)
            found.clear()


def divergence(model: Model, base: SavedLogits, chunks: int = -1) -> Divergence:
    """A model's from a base, of all windows."""
    return joined(list(divergences(model, base, chunks)))


def row_divergences(
    logits: NDArray[np.float32], base: NDArray[np.float32], targets: NDArray[np.int32]
) -> Divergence:
    """Of rows of logits from rows of the base's logarithms of probabilities; both float32 [n, vocabulary]."""
    losses = token_losses(logits, targets)
    base_losses = -base[np.arange(len(targets)), targets].astype(np.float64)
    return Divergence(losses, base_losses, kld(base, logits), same_top(base, logits))


def kld(base: NDArray[np.float32], logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL(base || model) of each row: the sum of p * (ln p - ln q) over all ids that are not all too unlikely."""
    found = []
    for log_p, row, total in zip(base, logits, log_totals(logits), strict=True):
        likely = log_p > LIKELY
        log_p = log_p[likely]
        log_q = row[likely] - np.float32(total)
        found.append((np.exp(log_p) * (log_p - log_q)).sum(dtype=np.float64))
    return np.array(found, np.float64)


def same_top(base: NDArray[np.float32], logits: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether both think the same id likeliest, the first of equals."""
    same: NDArray[np.bool_] = base.argmax(axis=1) == logits.argmax(axis=1)
    return same

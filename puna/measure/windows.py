"""A text cut into windows of the context, as llama-perplexity cuts it, and the logits of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError, RequestError
from puna.steps import check_gives

if TYPE_CHECKING:
    from puna.engine import Model

__all__ = [
    "LEAST",
    "Block",
    "Windows",
    "blocks",
    "check_sizes",
    "cut",
    "log_totals",
    "text_ids",
    "token_losses",
]

LEAST = 8  # ids in a window: fewer leave too few to judge
LOGITS = 64 << 20  # bytes of logits computed at once, at most, unless a single row is more


@dataclass(frozen=True)
class Windows:
    """Stretches of a text, each computed in a context of its own.

    ids: int32, of the whole text.  starts: of each window in it.  length: ids in a window.
    counted: positions in a window after which the next id is judged.
    bos: the id that takes the place of a window's first, or None.
    """

    ids: NDArray[np.int32]
    starts: range
    length: int
    counted: range
    bos: int | None = None

    def inputs(self, window: int) -> list[int]:
        """What the model is given of a window."""
        start = self.starts[window]
        ids: list[int] = self.ids[start : start + self.length].tolist()
        return ids if self.bos is None else [self.bos, *ids[1:]]

    def targets(self, window: int, positions: range) -> NDArray[np.int32]:
        """The ids that follow positions of a window."""
        start = self.starts[window] + 1
        return self.ids[start + positions.start : start + positions.stop]


def text_ids(model: Model, text: str, parse_special: bool = False) -> NDArray[np.int32]:
    """A text's ids as llama-perplexity has them: with the model's marks, special tokens taken as plain text."""
    return np.array(model.tokenize(text, parse_special=parse_special), np.int32)


def check_sizes(n_ctx: int, stride: int = 0) -> None:
    """Raise RequestError unless windows can be cut so."""
    if n_ctx < LEAST:
        raise RequestError(f"windows of {n_ctx} tokens are too short", fix=f"take {LEAST} or more (-c)")
    if not 0 <= stride < n_ctx:
        raise RequestError(f"a stride of {stride} does not fit windows of {n_ctx}", fix="lower --ppl-stride")


def cut(
    model: Model, ids: Sequence[int] | NDArray[np.int32], n_ctx: int, chunks: int = -1, stride: int = 0
) -> Windows:
    """Windows of n_ctx ids, one after another, each with BOS for its first if the model wants one; the second half is
    judged.

    chunks: the most windows, -1 for all.  stride: instead, windows of n_ctx + stride / 2 ids that begin `stride`
    apart, of which the last `stride` are judged; they begin with the text's own id.
    Raises RequestError where the text is too short for one window.
    """
    check_sizes(n_ctx, stride)
    if chunks == 0:
        raise RequestError("no window is asked for", where="--chunks", fix="use -1 for all of them")
    check_gives(model.config, "logits")
    text = np.asarray(ids, np.int32)
    length = n_ctx + stride // 2
    if len(text) < length + bool(stride):
        what = f"the text has {len(text)} tokens, and one window takes {length + bool(stride)}"
        raise RequestError(what, fix="give a longer text, or lower -c")
    if length > model.n_ctx:
        what = f"windows of {length} tokens do not fit the context of {model.n_ctx}"
        raise RequestError(what, fix="raise n_ctx (-c)")
    if text.min() < 0 or text.max() >= model.n_vocab:
        raise RequestError(
            f"the text has ids that are not in the vocabulary of {model.n_vocab}", fix="use tokenize"
        )
    starts = range(0, len(text) - length, stride) if stride else range(0, len(text) - n_ctx + 1, n_ctx)
    counted = range(length - stride - 1 if stride else n_ctx // 2, length - 1)
    tokens = model.tokenizer
    bos = tokens.bos if tokens.add_bos and not stride else None
    return Windows(text, starts[: None if chunks < 0 else chunks], length, counted, bos)


class Block(NamedTuple):
    """Logits after some positions of a window: float32 [positions, vocabulary], overwritten by the next block."""

    window: int
    positions: range
    logits: NDArray[np.float32]


def blocks(model: Model, windows: Windows, wanted: range | None = None) -> Iterator[Block]:
    """The logits of all windows in order. wanted: positions of each window; None for those that are judged."""
    wanted = windows.counted if wanted is None else wanted
    most = max(1, min(model.plan.rows, LOGITS // (4 * model.n_vocab)))
    buffer: NDArray[np.float32] = np.empty((most, model.n_vocab), np.float32)
    for window in range(len(windows.starts)):
        ids = windows.inputs(window)[: wanted.stop]
        sequence = model.cache.open()
        try:
            for positions in pieces(wanted, model.plan.tokens, most):
                rows = range(len(positions)) if positions.start in wanted else ()
                logits = buffer[: len(rows)]
                model.run(sequence, ids[positions.start : positions.stop], rows, logits)
                if rows:
                    yield Block(window, positions, logits)
        finally:
            model.cache.close(sequence)


def pieces(wanted: range, tokens: int, rows: int) -> Iterator[range]:
    """Steps of at most `tokens` positions up to those that are wanted, then of at most `rows`."""
    for start in range(0, wanted.start, tokens):
        yield range(start, min(start + tokens, wanted.start))
    for start in range(wanted.start, wanted.stop, rows):
        yield range(start, min(start + rows, wanted.stop))


def log_totals(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """ln of the sum of exp over each row: what makes logits logarithms of probabilities. float64 [n]."""
    most = logits.max(axis=1)
    with np.errstate(invalid="ignore"):  # what is no number stays none
        sums = [np.exp(row - top).sum(dtype=np.float64) for row, top in zip(logits, most, strict=True)]
    totals: NDArray[np.float64] = most + np.log(np.array(sums, np.float64))
    return totals


def token_losses(logits: NDArray[np.float32], targets: NDArray[np.int32]) -> NDArray[np.float64]:
    """-ln of the probability of each target under its row of logits: float64 [n].

    Raises ModelError where that is no number.
    """
    losses: NDArray[np.float64] = log_totals(logits) - logits[np.arange(len(targets)), targets]
    if not np.isfinite(losses).all():
        raise ModelError("the logits are no numbers", fix="check that the model's file is whole: puna pull")
    return losses

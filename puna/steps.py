"""A loaded model, a step at a time: what is added to which sequences, and what comes out for which rows."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.cache import KVCache
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.graph import Graph
from puna.models import ModelConfig
from puna.planning import Prepared

__all__ = ["Steps", "check_gives", "check_ids", "check_rows", "check_whole"]


def check_gives(config: ModelConfig, what: str) -> None:
    """Raises RequestError where a model as it is loaded does not give "logits", "text" or "embeddings"."""
    embeds = config.pooling is not None
    if what == "embeddings":
        if not embeds:
            raise RequestError(
                "the model is loaded to give logits", where="embed", fix='load it with pooling="auto"'
            )
    elif embeds:
        raise RequestError(
            f"the model gives embeddings, no {what}", where=config.architecture, fix="use puna embed"
        )
    elif what == "text" and not config.causal:
        told = "its tokens see those after them: it fills texts in, and does not continue them"
        raise RequestError(told, where=config.architecture, fix="use another model, or logits()")


def check_whole(count: int, most: int) -> None:
    """Raises RequestError for a text that one step does not hold, where it must."""
    if count > most:
        what = f"{count} tokens that all see each other take one step, and a step has {most} at most"
        raise RequestError(what, fix="give a shorter text, or raise n_batch (-b)")


def check_ids(ids: Iterable[Any], n_vocab: int, n_ctx: int) -> list[int]:
    """Ids as a list. Raises RequestError for one that is not in the vocabulary, or for more than the context holds."""
    try:
        checked = [operator.index(i) for i in ids]
    except TypeError:
        raise RequestError("token ids are whole numbers", where="ids", fix="use tokenize") from None
    wrong = next((i for i in checked if not 0 <= i < n_vocab), None)
    if wrong is not None:
        raise RequestError(f"token id {wrong} is not in the vocabulary of {n_vocab}")
    if len(checked) > n_ctx:
        raise RequestError(f"{len(checked)} tokens do not fit the context of {n_ctx}", fix="raise n_ctx (-c)")
    return checked


def check_rows(rows: Sequence[int], count: int, out: NDArray[np.float32], n_vocab: int) -> None:
    """Raises RequestError where rows are not of a step of `count`, or their logits do not fit `out`."""
    if len(rows) and not 0 <= min(rows) <= max(rows) < count:
        raise RequestError(f"rows {min(rows)} to {max(rows)} of a step of {count}", where="rows")
    fits = out.shape == (len(rows), n_vocab) and out.dtype == np.float32 and out.flags.c_contiguous
    if not fits or not out.flags.writeable:
        what = f"{out.dtype} {list(out.shape)} where float32 [{len(rows)}, {n_vocab}], row by row, is wanted"
        raise RequestError(what, where="out")


class Steps:
    """The program of a model with its cache. Threads that share it take turns.

    config: hyper-parameters.  about: the backend's description.  plan: the kernel calls of a step.
    memory: bytes of the regions "weights", "compute", "kv" and "scratch".
    n_ctx: positions.  n_vocab: ids.  width: values that a token gets, logits or what it is embedded as.
    """

    def __init__(self, prepared: Prepared, program: object) -> None:
        self.config, self.memory, self.about = prepared.config, prepared.memory, prepared.about
        self.backend, self.program, self.plan = prepared.backend, program, prepared.steps
        self.cache, self.lock = KVCache(self.plan.kv, prepared.n_ctx), threading.Lock()
        self.n_ctx, self.n_vocab, self.width = prepared.n_ctx, *sizes(self.plan.graph)

    def step(self, sequence: CacheSequence, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append ids to a sequence: the logits after the last, float32 [vocabulary]."""
        row: NDArray[np.float32] = np.empty((1, self.n_vocab), np.float32)
        for start in range(0, len(ids), self.plan.tokens):
            part = ids[start : start + self.plan.tokens]
            last = start + len(part) == len(ids)
            self.run(sequence, part, [len(part) - 1] if last else [], row if last else row[:0])
        return row.reshape(-1)

    def run(
        self, sequence: CacheSequence, ids: Sequence[int], rows: Sequence[int], out: NDArray[np.float32]
    ) -> None:
        """One step of one sequence: logits after some of its rows into `out`, float32 [len(rows), vocabulary].

        When it fails, the sequence holds what it held before. Raises RequestError for ids, rows or an `out` that
        cannot be.
        """
        self.compute([(sequence, check_ids(ids, self.n_vocab, self.n_ctx))], rows, out)

    def compute(
        self,
        parts: Sequence[tuple[CacheSequence, Sequence[int]]],
        rows: Sequence[int],
        out: NDArray[np.float32],
    ) -> None:
        """As `run`, a step of several sequences, whose ids are checked."""
        check_rows(rows, sum(len(ids) for _, ids in parts), out, self.width)
        with self.lock:
            before = [len(sequence) for sequence, _ in parts]
            if any(before) and not self.config.causal:
                raise RequestError(
                    "tokens that see each other both ways take one step", fix="use a new sequence"
                )
            try:
                self.backend.run(self.program, self.cache.append(*parts, outputs=rows), out)
            except BaseException:
                for (sequence, _), length in zip(parts, before, strict=True):
                    self.cache.undo(sequence, length)
                raise


def sizes(graph: Graph) -> tuple[int, int]:
    """Ids that a graph embeds, and values that it gives for each."""
    width = int(graph.output.type.shape[1])
    table = next((n.inputs[0] for n in graph.nodes if n.op == "embed" and n.inputs[1].op == "tokens"), None)
    return width if table is None else int(table.type.shape[0]), width

"""A loaded model, a step at a time: what is added to which sequences, and what comes out for which rows."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.cache import KVCache, NoRoomError
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.graph import Graph
from puna.models import ModelConfig
from puna.planning import Prepared

__all__ = ["Steps", "check_gives", "check_ids", "check_rows", "check_whole", "more_room"]


Parts = Sequence[tuple[CacheSequence, Sequence[int]]]
# What an encoder-decoder does not give, and why.
ANSWERS: Mapping[str, str] = {
    "logits": "the model encodes a text and answers it: it has logits for the answer, and none for the text",
    "shifts": "the model encodes a text as a whole: no part of it can be dropped when the context is full",
}


def check_gives(config: ModelConfig, what: str) -> None:
    """Raises RequestError where a model as it is loaded does not give "logits", "text", "shifts" or "embeddings"."""
    embeds = config.pooling is not None
    if what == "embeddings":
        if not embeds:
            if config.start is not None:
                what, fix = "an encoder-decoder gives no embeddings", "convert its encoder alone"
                raise RequestError(what, where=config.architecture, fix=fix)
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
    elif what in ANSWERS and config.start is not None:
        raise RequestError(ANSWERS[what], where=config.architecture, fix="generate an answer to a text")


def check_whole(count: int, most: int, n_ctx: int) -> None:
    """Raises RequestError for a text that one step does not hold, where it must. most: n_batch, and n_ctx at most."""
    if count > most:
        what = f"{count} tokens that all see each other take one step, and a step has {most} at most"
        larger = "n_batch (-b)" if count <= n_ctx else "both n_batch (-b) and n_ctx (-c)"
        raise RequestError(what, fix=f"give a shorter text, or raise {larger} to {count} or more")


def more_room(count: int, positions: int | None) -> str:
    """What to do where so many tokens do not fit the context. positions: that the model knows, None for any."""
    if positions is None or count <= positions:
        return "raise n_ctx (-c)"
    return f"give less: the model knows {positions} positions"


def check_ids(ids: Iterable[Any], n_vocab: int, n_ctx: int, positions: int | None = None) -> list[int]:
    """Ids as a list. Raises RequestError for one that is not in the vocabulary, or for more than the context holds.

    positions: most that the model knows.
    """
    try:
        checked = [operator.index(i) for i in ids]
    except TypeError:
        raise RequestError("token ids are whole numbers", where="ids", fix="use tokenize") from None
    wrong = next((i for i in checked if not 0 <= i < n_vocab), None)
    if wrong is not None:
        raise RequestError(f"token id {wrong} is not in the vocabulary of {n_vocab}")
    if len(checked) > n_ctx:
        what = f"{len(checked)} tokens do not fit the context of {n_ctx}"
        raise RequestError(what, fix=more_room(len(checked), positions))
    return checked


def check_rows(rows: Sequence[int], count: int, out: NDArray[np.float32], n_vocab: int) -> None:
    """Raises RequestError where rows are not of a step of `count`, or their logits do not fit `out`."""
    if len(rows) and not 0 <= min(rows) <= max(rows) < count:
        raise RequestError(f"rows {min(rows)} to {max(rows)} of a step of {count}", where="rows")
    fits = out.shape == (len(rows), n_vocab) and out.dtype == np.float32 and out.flags.c_contiguous
    if not fits or not out.flags.writeable:
        what = f"{out.dtype} {list(out.shape)} where float32 [{len(rows)}, {n_vocab}], row by row, is wanted"
        raise RequestError(what, where="out")


def to_encode(sequence: CacheSequence, ids: Sequence[int], most: int, n_ctx: int) -> int:
    """How many of the ids that an encoder-decoder's sequence gets are to be encoded.

    Raises RequestError where it holds no text to answer, and for one that comes in pieces, or is too long.
    """
    held, border = len(sequence), sequence.border
    if not border:
        what = "the model answers a text that it has encoded, and the sequence holds none"
        raise RequestError(what, fix="encode one first, or generate an answer")
    if held >= border:
        return 0
    if held or len(ids) < border:
        raise RequestError(
            "a text is encoded as a whole", fix="use a new sequence, and encode the text first"
        )
    check_whole(border, most, n_ctx)
    return border


class Steps:
    """The program of a model with its cache. Threads that share it take turns.

    config: hyper-parameters.  about: the backend's description.  plan: the kernel calls of a step.
    memory: bytes of the regions "weights", "compute", "kv" and "scratch".
    n_ctx: positions.  n_vocab: ids.  width: values that a token gets, logits or what it is embedded as.
    positions: most that the model knows, None for any.
    """

    def __init__(self, prepared: Prepared, program: object) -> None:
        self.config, self.memory, self.about = prepared.config, prepared.memory, prepared.about
        self.backend, self.program, self.plan = prepared.backend, program, prepared.steps
        self.cache, self.lock = KVCache(self.plan.kv, prepared.n_ctx), threading.Lock()
        self.n_ctx, self.n_vocab, self.width = prepared.n_ctx, *sizes(self.plan.graph)
        self.positions = rows_of(self.plan.graph, "positions")

    def step(self, sequence: CacheSequence, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append ids to a sequence: the logits after the last, float32 [vocabulary].

        When it fails, the sequence holds what it held before; or, where a step of many ids failed half way, what a
        window, or a state, let the cache keep of that (`KVCache.truncate`). Raises RequestError for ids that cannot
        be or do not fit, and for none.
        """
        self.cache.refuse_closed(sequence)
        checked = check_ids(ids, self.n_vocab, self.n_ctx, self.positions)
        before = len(sequence)
        try:
            return self.feed(sequence, checked)
        except BaseException:
            if not sequence.closed and len(sequence) > before:
                self.cache.truncate(sequence, before)
            raise

    def refuse_long(self, sequence: CacheSequence, length: int) -> None:
        """Raise RequestError where a sequence has no room to become so long, before a part of that is computed."""
        if length > self.n_ctx:
            what = f"{length} tokens do not fit the context of {self.n_ctx}"
            raise RequestError(what, fix=more_room(length, self.positions))
        if length > (room := self.cache.room(sequence)):
            what = f"{length} tokens do not fit: the cache has room for {room} beside what its other sequences hold"
            raise NoRoomError(what, fix="raise n_ctx (-c), or close a sequence")

    def feed(self, sequence: CacheSequence, ids: Sequence[int]) -> NDArray[np.float32]:
        """As `step`; but what was computed before it failed stays in the sequence."""
        border = max(0, sequence.border - len(sequence))
        if len(ids) <= border:
            raise RequestError("logits come after a token, and none is given", where="ids", fix="give one")
        if len(ids) > self.plan.tokens:
            self.refuse_long(sequence, len(sequence) + len(ids))
        row: NDArray[np.float32] = np.empty((1, self.n_vocab), np.float32)
        if border:
            self.run(sequence, ids[:border], [], row[:0])
        for start in range(border, len(ids), self.plan.tokens):
            part = ids[start : start + self.plan.tokens]
            last = start + len(part) == len(ids)
            self.run(sequence, part, [len(part) - 1] if last else [], row if last else row[:0])
        return row.reshape(-1)

    def encode(self, sequence: CacheSequence, ids: Sequence[int]) -> None:
        """Encode a whole text into an empty sequence; what is computed next answers it.

        Raises RequestError for ids that cannot be, or are more than a step holds, for a sequence that is not empty,
        and without a decoder.
        """
        if self.config.start is None:
            raise RequestError(
                "the model does not encode texts to answer them", where=self.config.architecture
            )
        self.cache.refuse_closed(sequence)
        if len(sequence):
            raise RequestError(f"the sequence holds {len(sequence)} tokens already", fix="use an empty one")
        before, sequence.border = sequence.border, len(ids)
        try:
            self.run(sequence, ids, [], np.empty((0, self.width), np.float32))
        except BaseException:
            sequence.border = before
            raise

    def run(
        self, sequence: CacheSequence, ids: Sequence[int], rows: Sequence[int], out: NDArray[np.float32]
    ) -> None:
        """One step of one sequence: logits after some of its rows into `out`, float32 [len(rows), vocabulary].

        When it fails, the sequence holds what it held before. Raises RequestError for ids, rows or an `out` that
        cannot be.
        """
        checked = check_ids(ids, self.n_vocab, self.n_ctx, self.positions)
        self.compute([(sequence, checked)], rows, out)

    def compute(
        self,
        parts: Sequence[tuple[CacheSequence, Sequence[int]]],
        rows: Sequence[int],
        out: NDArray[np.float32],
    ) -> None:
        """As `run`, a step of several sequences, whose ids are checked.

        A text for an encoder (`Sequence.border`) comes as a whole, and gets a step of its own before.
        """
        for sequence, _ in parts:
            self.cache.refuse_closed(sequence)
        check_rows(rows, sum(len(ids) for _, ids in parts), out, self.width)
        with self.lock:
            before = [len(sequence) for sequence, _ in parts]
            if any(before) and not self.config.causal:
                raise RequestError(
                    "tokens that see each other both ways take one step", fix="use a new sequence"
                )
            try:
                parts, rows = self.encoded(parts, rows)
                batch = self.cache.append(*parts, outputs=rows)
                if len(batch.tokens):
                    self.backend.run(self.program, batch, out)
            except BaseException:
                for (sequence, _), length in zip(parts, before, strict=True):
                    self.cache.undo(sequence, length)
                raise

    def encoded(self, parts: Parts, rows: Sequence[int]) -> tuple[Parts, Sequence[int]]:
        """Encode what is to be: the parts that are left, and their rows."""
        if self.config.start is None:
            return parts, rows
        counts = [to_encode(sequence, ids, self.plan.tokens, self.n_ctx) for sequence, ids in parts]
        for (sequence, ids), count in zip(parts, counts, strict=True):
            if count:
                batch = self.cache.append((sequence, ids[:count]), outputs=[], encodes=True)
                self.backend.run(self.program, batch, np.empty((0, self.width), np.float32))
        left = [(sequence, ids[count:]) for (sequence, ids), count in zip(parts, counts, strict=True)]
        decoded = [np.arange(len(ids)) >= count for (_, ids), count in zip(parts, counts, strict=True)]
        kept = np.concatenate(decoded)
        if not kept[list(rows)].all():
            raise RequestError(
                "an encoded text has no logits", where="rows", fix="ask for those of its answer"
            )
        return left, (np.cumsum(kept) - 1)[list(rows)].tolist()


def sizes(graph: Graph) -> tuple[int, int]:
    """Ids that a graph embeds, and values that it gives for each."""
    width = int(graph.output.type.shape[1])
    return rows_of(graph, "tokens") or width, width


def rows_of(graph: Graph, what: str) -> int | None:
    """Rows of the table that "tokens", or "positions", are looked up in; None without one."""
    tables = (n.inputs[0] for n in graph.nodes if n.op == "embed" and n.inputs[1].op == what)
    return next((int(table.type.shape[0]) for table in tables), None)

"""Puna as a process that is told what to measure: a JSON object a line comes in, one goes out.

Started by compare.py. What each request does is said in `engines.py`.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from engines import answer, token_ids

import puna

__all__: list[str] = []

BATCH = 512


class Engine:
    """A loaded model and one sequence, which is filled to a depth once and cut back after each test."""

    def __init__(self, model: str, threads: int, n_ctx: int) -> None:
        self.model = puna.load(model, backend="cpu", threads=threads, n_ctx=n_ctx, n_batch=BATCH)
        self.sequence = self.model.cache.open()
        self.row = np.empty((1, self.model.n_vocab), np.float32)

    def feed(self, count: int) -> None:
        """Append tokens, a batch at a time; the last one's logits are computed."""
        ids = token_ids(count, self.model.n_vocab)
        for start in range(0, count, BATCH):
            part = ids[start : start + BATCH]
            last = start + len(part) == count
            self.model.run(self.sequence, part, [len(part) - 1] if last else [], self.row[:last])

    def at(self, depth: int) -> None:
        """Bring the sequence to a depth."""
        held = self.model.cache.truncate(self.sequence, min(len(self.sequence), depth))
        self.feed(depth - held)

    def prefill(self, tokens: int, depth: int) -> float:
        self.at(depth)
        begin = time.perf_counter()
        self.feed(tokens)
        return time.perf_counter() - begin

    def decode(self, tokens: int, depth: int) -> float:
        self.at(depth)
        begin = time.perf_counter()
        for token in token_ids(tokens, self.model.n_vocab):
            self.model.run(self.sequence, [token], [0], self.row)
        return time.perf_counter() - begin

    def together(self, sequences: int, tokens: int, depth: int) -> float:
        self.at(0)
        cache, model = self.model.cache, self.model
        opened = [cache.open() for _ in range(sequences)]
        rows = np.empty((sequences, model.n_vocab), np.float32)
        ids = token_ids(depth, model.n_vocab)
        for sequence in opened:
            model.run(sequence, ids, [], rows[:0])
        begin = time.perf_counter()
        for i in range(tokens):
            new = token_ids(sequences, model.n_vocab, i)
            batch = cache.append(
                *((s, [token]) for s, token in zip(opened, new, strict=True)), outputs=range(sequences)
            )
            model.backend.run(model.program, batch, rows)
        taken = time.perf_counter() - begin
        for sequence in opened:
            cache.close(sequence)
        return taken


def main() -> None:
    engine = Engine(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    answer(engine, f"Puna {puna.__version__}")


if __name__ == "__main__":
    main()

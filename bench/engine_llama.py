"""llama.cpp as a process that is told what to measure, through the library of `pip install llama-cpp-python`.

Started by compare.py under an interpreter that has llama_cpp; needs nothing of Puna's. With --first it loads the
model, continues a prompt by the likeliest token, prints that and ends: a command line as small as can be.
"""

from __future__ import annotations

import ctypes
import re
import sys
import time
from typing import Any

import llama_cpp as llama
import numpy as np
from engines import answer, token_ids

__all__: list[str] = []

BATCH = 512
SILENT = llama.llama_log_callback(lambda level, text, data: None)


def load(path: str) -> Any:
    llama.llama_log_set(SILENT, ctypes.c_void_p(0))
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"{path}: llama.cpp cannot load it")
    return model


def context(model: Any, threads: int, n_ctx: int, sequences: int = 1) -> Any:
    """A context with llama.cpp's own defaults for all but sizes and threads."""
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, 2048, BATCH, sequences
    params.n_threads = params.n_threads_batch = threads
    made = llama.llama_init_from_model(model, params)
    if not made:
        sys.exit(f"llama.cpp cannot make a context of {n_ctx}")
    return made


def decode(ctx: Any, batch: Any) -> None:
    status = llama.llama_decode(ctx, batch)
    if status:
        sys.exit(f"llama_decode: status {status}")


class Engine:
    """A loaded model and a context, whose sequence 0 is filled to a depth once and cut back after each test."""

    def __init__(self, model: str, threads: int, n_ctx: int) -> None:
        self.model, self.threads, self.held = load(model), threads, 0
        self.ctx = context(self.model, threads, n_ctx)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def feed(self, count: int) -> None:
        """Append tokens; the last one's logits are computed."""
        for start in range(0, count, 2048):
            part = token_ids(min(count - start, 2048), self.vocabulary, start)
            tokens = (llama.llama_token * len(part))(*part)
            decode(self.ctx, llama.llama_batch_get_one(tokens, len(part)))
        llama.llama_synchronize(self.ctx)
        self.held += count

    def at(self, depth: int) -> None:
        """Bring the sequence to a depth."""
        if self.held > depth:
            llama.llama_memory_seq_rm(llama.llama_get_memory(self.ctx), 0, depth, -1)
            self.held = depth
        self.feed(depth - self.held)

    def prefill(self, tokens: int, depth: int) -> float:
        self.at(depth)
        begin = time.perf_counter()
        self.feed(tokens)
        return time.perf_counter() - begin

    def decode(self, tokens: int, depth: int) -> float:
        self.at(depth)
        begin = time.perf_counter()
        for token in token_ids(tokens, self.vocabulary):
            decode(self.ctx, llama.llama_batch_get_one((llama.llama_token * 1)(token), 1))
            llama.llama_synchronize(self.ctx)
        taken = time.perf_counter() - begin
        self.held += tokens
        return taken

    def together(self, sequences: int, tokens: int, depth: int) -> float:
        ctx = context(self.model, self.threads, sequences * (depth + tokens), sequences)
        batch = llama.llama_batch_init(max(depth, sequences), 0, 1)
        held = list(enumerate(token_ids(depth, self.vocabulary)))
        for sequence in range(sequences):
            fill(batch, [(token, i, sequence, False) for i, token in held])
            decode(ctx, batch)
        llama.llama_synchronize(ctx)
        begin = time.perf_counter()
        for i in range(tokens):
            new = token_ids(sequences, self.vocabulary, i)
            fill(batch, [(token, depth + i, n, True) for n, token in enumerate(new)])
            decode(ctx, batch)
            llama.llama_synchronize(ctx)
        taken = time.perf_counter() - begin
        llama.llama_batch_free(batch)
        llama.llama_free(ctx)
        return taken


def fill(batch: Any, rows: list[tuple[int, int, int, bool]]) -> None:
    """Rows of token, position, sequence, and whether logits are wanted."""
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence


def instructions() -> str:
    """What its library was built with: instruction sets and the like."""
    return " ".join(re.findall(r"(\w+) = 1\b", llama.llama_print_system_info().decode()))


def first(path: str, threads: int, prompt: str) -> str:
    """The piece of the likeliest token after a prompt."""
    model = load(path)
    ctx, vocab, text = context(model, threads, 4096), llama.llama_model_get_vocab(model), prompt.encode()
    tokens = (llama.llama_token * (len(text) + 8))()
    count = llama.llama_tokenize(vocab, text, len(text), tokens, len(tokens), True, True)
    decode(ctx, llama.llama_batch_get_one(tokens, count))
    logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(ctx, -1), (llama.llama_vocab_n_tokens(vocab),))
    best = int(logits.argmax())
    piece = ctypes.create_string_buffer(256)
    length = llama.llama_token_to_piece(vocab, best, piece, len(piece), 0, True)
    return piece.raw[: max(0, length)].decode("utf-8", "replace")


def main() -> None:
    if sys.argv[1] == "--first":
        print(first(sys.argv[2], int(sys.argv[3]), sys.argv[4]), flush=True)  # noqa: T201 - the command's output
        return
    engine = Engine(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    answer(engine, f"llama.cpp (llama-cpp-python {llama.__version__}, with {instructions()})")


if __name__ == "__main__":
    main()

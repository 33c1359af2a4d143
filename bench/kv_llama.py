"""What types of the KV cache cost in llama.cpp, through the library of `pip install llama-cpp-python`.

Started by kv_quality.py under an interpreter that has llama_cpp and NumPy; needs nothing of Puna's. Token ids are in
the .npy file that is named; for each KEYS/VALUES a line of JSON comes out: the mean divergence from F16/F16, in nats,
and the share of positions with the same likeliest token, or null where llama.cpp does not have the pair.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import llama_cpp as llama
import numpy as np
from engine_llama import decode, fill, load
from numpy.typing import NDArray

__all__: list[str] = []

BATCH = 512
# ggml's numbers of types.
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """In place."""
    for row in logits:
        row -= row.max()
        row -= np.log(np.exp(row.astype(np.float64)).sum())
    return logits


def run(model: Any, ids: list[int], last: int, threads: int, keys: str, values: str) -> NDArray[np.float32]:
    """Log probabilities after the last ids, [last, vocabulary]."""
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = -(-len(ids) // 256) * 256, BATCH, BATCH
    params.n_threads = params.n_threads_batch = threads
    params.type_k, params.type_v = TYPES[keys], TYPES[values]
    params.flash_attn_type = 1  # quantised values need it
    ctx = llama.llama_init_from_model(model, params)
    if not ctx:
        raise ValueError(f"llama.cpp makes no context with {keys} and {values}")
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    out, batch, at = np.empty((last, n_vocab), np.float32), llama.llama_batch_init(BATCH, 0, 1), 0
    for start in range(0, len(ids), BATCH):
        part = range(start, min(start + BATCH, len(ids)))
        wanted = [i >= len(ids) - last for i in part]
        fill(batch, [(ids[i], i, 0, want) for i, want in zip(part, wanted, strict=True)])
        decode(ctx, batch)
        for i in np.flatnonzero(wanted):
            out[at] = np.ctypeslib.as_array(llama.llama_get_logits_ith(ctx, int(i)), (n_vocab,))
            at += 1
    llama.llama_batch_free(batch)
    llama.llama_free(ctx)
    return log_probabilities(out)


def main() -> None:
    path, file, last, threads, *pairs = sys.argv[1:]
    ids = np.load(file).tolist()
    model = load(path)
    base = run(model, ids, int(last), int(threads), "f16", "f16")
    for pair in pairs:
        try:
            other = run(model, ids, int(last), int(threads), *pair.split("/"))
        except ValueError:
            found = None
        else:
            kld = [
                float((np.exp(p.astype(np.float64)) * (p - q)).sum())
                for p, q in zip(base, other, strict=True)
            ]
            same = float((base.argmax(-1) == other.argmax(-1)).mean())
            found = {"kld": float(np.mean(kld)), "same": same}
        print(json.dumps(found), flush=True)  # noqa: T201 - the pipe


if __name__ == "__main__":
    main()

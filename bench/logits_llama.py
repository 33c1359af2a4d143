"""llama.cpp's logits after each of some tokens, through the library of `pip install llama-cpp-python`.

Started by scripts/architectures under an interpreter that has llama_cpp and NumPy; needs nothing of Puna's. Writes
float32 [tokens, vocabulary]; the cache is F32.
"""

from __future__ import annotations

import sys

import llama_cpp as llama
import numpy as np
from engine_llama import decode, fill, load

__all__: list[str] = []


def main() -> None:
    path, tokens, out = sys.argv[1:]
    ids = np.load(tokens).tolist()
    model = load(path)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 256, len(ids), len(ids)
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = 0  # ggml's number of F32
    ctx = llama.llama_init_from_model(model, params)
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = llama.llama_batch_init(len(ids), 0, 1)
    fill(batch, [(token, i, 0, True) for i, token in enumerate(ids)])
    decode(ctx, batch)
    np.save(out, np.ctypeslib.as_array(llama.llama_get_logits(ctx), (len(ids), n_vocab)))


if __name__ == "__main__":
    main()

"""Quantise a file of values by llama.cpp, through the library of `pip install llama-cpp-python`.

Started by quant_errors.py under an interpreter that has llama_cpp and NumPy; needs nothing of Puna's. The folder that
is named holds `values.npy` float32 [rows, k] and `weights.npy` float32 [k]. For each NAME=NUMBER of a type it gets
`NAME.npy` and `NAME-weighted.npy`, uint8 [rows, bytes of a row]. What is printed is llama.cpp's version.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

__all__: list[str] = []

# Types that ggml quantises only activations to, by functions of their own.
FUNCTIONS = {"Q8_1": "quantize_row_q8_1_ref", "Q8_K": "quantize_row_q8_K_ref"}


def library() -> ctypes.CDLL:
    folder = Path(llama_cpp.__file__).parent / "lib"
    found = sorted(path for path in folder.iterdir() if "ggml-base" in path.name)
    if not found:
        sys.exit(f"{folder}: there is no ggml-base")
    ggml = ctypes.CDLL(str(found[0]))
    ggml.ggml_row_size.restype = ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    return ggml


def pointer(array: NDArray[np.float32] | NDArray[np.uint8] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def quantised(
    ggml: ctypes.CDLL,
    name: str,
    number: int,
    values: NDArray[np.float32],
    weights: NDArray[np.float32] | None,
) -> NDArray[np.uint8]:
    rows, k = map(ctypes.c_int64, values.shape)
    out = np.zeros((rows.value, ggml.ggml_row_size(number, k)), np.uint8)
    if name in FUNCTIONS:
        ggml[FUNCTIONS[name]](pointer(values), pointer(out), ctypes.c_int64(values.size))
        return out
    ggml.ggml_quantize_init(number)
    first = ctypes.c_int64(0)
    size = ggml.ggml_quantize_chunk(number, pointer(values), pointer(out), first, rows, k, pointer(weights))
    if size != out.nbytes:
        sys.exit(f"{name}: {size} bytes of {out.nbytes}")
    return out


def main() -> None:
    folder, ggml = Path(sys.argv[1]), library()
    values, weights = (np.load(folder / f"{name}.npy") for name in ("values", "weights"))
    for word in sys.argv[2:]:
        name, _, number = word.partition("=")
        np.save(folder / f"{name}.npy", quantised(ggml, name, int(number), values, None))
        np.save(folder / f"{name}-weighted.npy", quantised(ggml, name, int(number), values, weights))
    sys.stdout.write(f"llama.cpp (llama-cpp-python {llama_cpp.__version__})\n")


if __name__ == "__main__":
    main()

"""The names that `llama-quantize` has for what it makes: a base type, and exceptions to it (see choice.py).

Numbers: `llama_ftype` in llama.cpp's include/llama.h, which a file keeps as general.file_type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from puna.errors import RequestError

__all__ = ["ALIASES", "FILE_TYPES", "MIXES", "READ_ONLY", "Mix", "find_mix"]


@dataclass(frozen=True)
class Mix:
    """base: GGML's name of the type of all matrices that no rule makes an exception of."""

    name: str
    file_type: int
    base: str


MIXES: Mapping[str, Mix] = {
    mix.name: mix
    for mix in (
        Mix("F32", 0, "F32"),
        Mix("F16", 1, "F16"),
        Mix("BF16", 32, "BF16"),
        Mix("Q4_0", 2, "Q4_0"),
        Mix("Q4_1", 3, "Q4_1"),
        Mix("Q5_0", 8, "Q5_0"),
        Mix("Q5_1", 9, "Q5_1"),
        Mix("Q8_0", 7, "Q8_0"),
        Mix("Q2_K", 10, "Q2_K"),
        Mix("Q2_K_S", 21, "Q2_K"),
        Mix("Q3_K_S", 11, "Q3_K"),
        Mix("Q3_K_M", 12, "Q3_K"),
        Mix("Q3_K_L", 13, "Q3_K"),
        Mix("Q4_K_S", 14, "Q4_K"),
        Mix("Q4_K_M", 15, "Q4_K"),
        Mix("Q5_K_S", 16, "Q5_K"),
        Mix("Q5_K_M", 17, "Q5_K"),
        Mix("Q6_K", 18, "Q6_K"),
        Mix("IQ4_NL", 25, "IQ4_NL"),
        Mix("IQ4_XS", 30, "IQ4_XS"),
        Mix("TQ1_0", 36, "TQ1_0"),
        Mix("TQ2_0", 37, "TQ2_0"),
        Mix("MXFP4_MOE", 38, "MXFP4"),
    )
}
ALIASES: Mapping[str, str] = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
# Files that Puna reads and does not make.
READ_ONLY: Mapping[str, int] = {
    "IQ1_S": 24,
    "IQ1_M": 31,
    "IQ2_XXS": 19,
    "IQ2_XS": 20,
    "IQ2_S": 28,
    "IQ2_M": 29,
    "IQ3_XXS": 23,
    "IQ3_XS": 22,
    "IQ3_S": 26,
    "IQ3_M": 27,
    "NVFP4": 39,
    "Q1_0": 40,
    "Q2_0": 41,
}
# What comes nearest to each of them in size; the ternary mixes are for models that were trained so.
NEAREST: Mapping[str, str] = {
    "IQ1": "Q2_K_S, Q2_K",
    "IQ2": "Q2_K_S, Q2_K",
    "IQ3_XXS": "Q2_K, Q3_K_S",
    "IQ3": "Q3_K_S, Q3_K_M",
    "NVFP4": "MXFP4_MOE, Q4_0",
    "Q1_0": "TQ1_0, TQ2_0",
    "Q2_0": "TQ2_0, Q2_K_S",
}
# general.file_type -> name.
FILE_TYPES: Mapping[int, str] = {
    **{mix.file_type: mix.name for mix in MIXES.values()},
    **{number: name for name, number in READ_ONLY.items()},
}


def find_mix(name: str) -> Mix:
    """The mix called `name`, in any case, or with this number. Raises RequestError with the nearest names."""
    word = FILE_TYPES.get(int(name), name) if name.isdecimal() and name.isascii() else name.upper()
    word = ALIASES.get(word, word)
    if word in MIXES:
        return MIXES[word]
    if word in READ_ONLY:
        what = f"Puna runs files of type {word}, but does not make them"
        near = next(names for start, names in NEAREST.items() if word.startswith(start))
        raise RequestError(what, where="TYPE", fix=f"the nearest in size that it makes are {near}")
    if word == "COPY":
        what = "Puna has no COPY, which leaves all tensors as they are"
        raise RequestError(what, where="TYPE", fix="use puna merge, puna split or puna set")
    refuse_tensor_type(word)
    raise RequestError(f"there is no type {name!r}", where="TYPE", fix=f"use one of {nearest(word)}")


def refuse_tensor_type(word: str) -> None:
    """Raise RequestError where this is the name of a type that only tensors have."""
    from puna.quants.quantizers import QUANTIZERS
    from puna.quants.registry import TYPES

    if word in {quant.name for quant in TYPES.values()}:
        what = f"{word} is a type of tensors, and no mix of llama-quantize's"
        fix = f"use one of {', '.join(MIXES)}"
        if word in QUANTIZERS:
            fix = f"give it to tensors, as in --tensor-type ffn_up={word}"
        raise RequestError(what, where="TYPE", fix=fix)


def nearest(word: str) -> str:
    return ", ".join(get_close_matches(word, MIXES, n=4, cutoff=0.5) or MIXES)

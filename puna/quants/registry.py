"""Finding a type by the number a file gives or the name a person gives."""

from __future__ import annotations

from difflib import get_close_matches

from puna.errors import FormatError, RequestError
from puna.quants.base import QuantType
from puna.quants.iq import IQ_TYPES
from puna.quants.k import K_TYPES
from puna.quants.legacy import LEGACY
from puna.quants.mx import MX
from puna.quants.plain import PLAIN
from puna.quants.ternary import TERNARY

__all__ = ["GGML_NAMES", "TYPES", "by_id", "by_name"]

TYPES: dict[int, QuantType] = {
    quant.id: quant for quant in (*PLAIN, *LEGACY, *K_TYPES, *IQ_TYPES, *TERNARY, *MX)
}

# Every type that ggml.h has ever numbered, withdrawn ones too, so that an error can name what it met.
GGML_NAMES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    4: "Q4_2",
    5: "Q4_3",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
    42: "Q2_0",
}


def by_id(type_id: int) -> QuantType:
    """The type a GGUF file numbers `type_id`. Raises FormatError, with the type's name where GGML had one."""
    if type_id in TYPES:
        return TYPES[type_id]
    if type_id in GGML_NAMES:
        raise FormatError(
            f"tensor type {GGML_NAMES[type_id]} (GGML type {type_id}) was withdrawn from GGML",
            fix="use another file of the model, such as one in Q4_0 or Q4_K",
        )
    raise FormatError(f"tensor type {type_id} is unknown", fix="check the file for damage, or update Puna")


def by_name(name: str) -> QuantType:
    """The type called `name`, in any case. Raises RequestError with the nearest names."""
    wanted = name.upper()
    names = {quant.name: quant for quant in TYPES.values()}
    if wanted in names:
        return names[wanted]
    what = "was withdrawn from GGML" if wanted in GGML_NAMES.values() else "is unknown"
    near = ", ".join(get_close_matches(wanted, names)) or supported()
    raise RequestError(f"quantisation type {name!r} {what}", fix=f"use one of {near}")


def supported() -> str:
    return ", ".join(quant.name for quant in TYPES.values())

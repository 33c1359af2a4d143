"""Types of the tensors that are written, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puna.convert.config import Config
from puna.convert.folder import Checkpoint
from puna.convert.tensors import Part, Planned, moved
from puna.errors import RequestError
from puna.quants import QuantType, by_name, quantize

__all__ = ["OUTTYPES", "OutType", "encoder", "out_type", "tensor_type"]

# Types that hold infinities: their bits as integers, and the exponent's among them.
EXPONENTS: Mapping[str, tuple[str, int]] = {
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
SLAB = 1 << 22  # values that are float32 at a time


@dataclass(frozen=True)
class OutType:
    """name: of the tensors' type. file_type: general.file_type, as llama.cpp numbers them."""

    name: str
    file_type: int


OUTTYPES: Mapping[str, OutType] = {
    "f32": OutType("F32", 0),
    "f16": OutType("F16", 1),
    "bf16": OutType("BF16", 32),
    "q8_0": OutType("Q8_0", 7),
}
AUTO: Mapping[str, str] = {"BF16": "bf16"}  # any other is f16, as llama.cpp has it
# Tensors that stay float32 beside vectors and norms: small, or read in full precision.
PRECISE = (
    "altup_correct_coef",
    "altup_predict_coef",
    "attn_rel_b",
    "ffn_gate_inp",
    "position_embd",
    "token_types",
    "rope_freqs",
    "rope_factors",
)


def out_type(name: str, checkpoint: Checkpoint, planned: tuple[Planned, ...]) -> OutType:
    """The type of a name; `auto` is the 16-bit type of the first matrix that has one, else f16."""
    if name != "auto":
        return OUTTYPES[name]
    stored = (
        checkpoint[part.source].dtype for tensor in planned for part in tensor.parts if len(tensor.shape) > 1
    )
    return OUTTYPES[next((AUTO.get(kind, "f16") for kind in stored if kind in {"BF16", "F16"}), "f16")]


def tensor_type(name: str, shape: tuple[int, ...], wanted: OutType) -> QuantType:
    """The type of one tensor: float32 for vectors and norms, float16 where rows do not fill blocks."""
    precise = len(shape) < 2 or name.endswith("_norm.weight") or not name.endswith(".weight")
    if precise or any(part in name for part in PRECISE):
        return by_name("F32")
    quant = by_name(wanted.name)
    return by_name("F16") if shape[-1] % quant.block else quant


def encoder(
    checkpoint: Checkpoint,
    tensor: Planned,
    quant: QuantType,
    config: Config,
    advance: Callable[[int], None],
    odd: dict[str, None],
) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    """A function that gives a tensor's bytes in pieces, uint8; `advance` is told how many are done.

    odd: gets the tensor's name where values are infinite or no numbers, and the type can hold them.
    """

    def encode() -> Iterator[NDArray[np.uint8]]:
        for part in tensor.parts:
            for raw in encoded(checkpoint, part, quant, config):
                if tensor.name not in odd and quant.name in EXPONENTS and has_odd(raw, quant.name):
                    odd[tensor.name] = None
                yield raw
                advance(raw.size)
            checkpoint.drop(part.source)

    return encode


def encoded(
    checkpoint: Checkpoint, part: Part, quant: QuantType, config: Config
) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a part, some rows at a time. Raises RequestError for a value that the type cannot hold."""
    stored = checkpoint[part.source].dtype
    values = moved(part, checkpoint.data(part.source), config, checkpoint)
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)  # [rows, k]
    step = max(1, SLAB // rows.shape[1])
    for start in range(0, len(rows), step):
        slab = rows[start : start + step]
        if stored == quant.name and not part.plus:
            yield np.ascontiguousarray(slab).view(np.uint8).reshape(-1)
            continue
        try:
            numbers = as_float32(slab, stored)
            yield quantize(quant, numbers + np.float32(part.plus) if part.plus else numbers).reshape(-1)
        except RequestError as error:
            what = f"tensor {part.source!r}: {error.what}"
            raise RequestError(what, where=checkpoint.where(part.source), fix=error.fix) from None
    for start in range(len(rows), part.rows, step):
        zeros = np.zeros((min(step, part.rows - start), rows.shape[1]), np.float32)
        yield quantize(quant, zeros).reshape(-1)


def has_odd(raw: NDArray[np.uint8], name: str) -> bool:
    """Whether an exponent is all ones: that of an infinity, or of what is no number."""
    kind, mask = EXPONENTS[name]
    return bool(((raw.view(kind) & mask) == mask).any())


def as_float32(values: NDArray[np.generic], stored: str) -> NDArray[np.float32]:
    """Values as numbers; bfloat16 is the upper half of a float32."""
    if stored == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)

"""The lane algebra: NumPy's verbs, a second implementation that runs the same lines, and byte order."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from puna.errors import FormatError
from puna.quants import QuantType, byteswapped, dequantize
from puna.quants.byteorder import words
from puna.quants.lanes import Block, Kind, Lanes, NumpyBlock, NumpyLanes, Verb, as_array
from puna.quants.registry import TYPES

QUANTS = sorted(TYPES.values(), key=lambda quant: quant.id)

# (offset, bytes) of the fields wider than a byte in ggml-common.h's structs.
FIELDS = {
    "F32": [(0, 4)],
    "F16": [(0, 2)],
    "BF16": [(0, 2)],
    "Q4_0": [(0, 2)],
    "Q4_1": [(0, 2), (2, 2)],
    "Q5_0": [(0, 2), (2, 4)],
    "Q5_1": [(0, 2), (2, 2), (4, 4)],
    "Q8_0": [(0, 2)],
    "Q4_K": [(0, 2), (2, 2)],
    "Q5_K": [(0, 2), (2, 2)],
    "Q6_K": [(208, 2)],
}

OPERATORS: dict[Verb, Callable[[Any, Any], Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
FORMATS = {"u8": "B", "i8": "b", "u16": "H", "u32": "I", "f16": "e", "f32": "f"}
WIDTHS = {"u8": 8, "i8": 8, "u16": 16, "u32": 32}


class ScalarLanes(Lanes):
    """One block's lanes as a Python list, held to the algebra's rules as a compiler would be."""

    def __init__(self, kind: str, lanes: list[Any]) -> None:
        if kind == "f32":
            self.lanes = [np.float32(lane) for lane in lanes]
        else:
            low = -128 if kind == "i8" else 0
            self.lanes = [(lane - low) % (1 << WIDTHS[kind]) + low for lane in lanes]
        self.kind = kind

    def apply(self, verb: Verb, other: Lanes | int) -> Lanes:
        if verb in {"shl", "shr"}:
            assert isinstance(other, int)
            assert self.kind in {"u8", "u16", "u32"}
            assert 0 <= other < WIDTHS[self.kind]
        right = ScalarLanes(self.kind, [other]) if isinstance(other, int) else other
        assert isinstance(right, ScalarLanes)
        assert right.kind == self.kind
        n = max(len(self.lanes), len(right.lanes))
        assert {len(self.lanes), len(right.lanes)} <= {1, n}
        pairs = zip(self.lanes * (n // len(self.lanes)), right.lanes * (n // len(right.lanes)), strict=True)
        return ScalarLanes(self.kind, [OPERATORS[verb](a, b) for a, b in pairs])

    def __neg__(self) -> Lanes:
        assert self.kind == "f32"
        return ScalarLanes("f32", [-lane for lane in self.lanes])

    def __getitem__(self, lanes: slice) -> Lanes:
        return ScalarLanes(self.kind, self.lanes[lanes])

    def bits(self) -> Lanes:
        return ScalarLanes("u8", [lane >> i & 1 for lane in self.lanes for i in range(WIDTHS[self.kind])])

    def u32(self) -> Lanes:
        assert self.kind in {"u8", "u16"}
        return ScalarLanes("u32", self.lanes)

    def f32(self) -> Lanes:
        assert self.kind != "f32"
        return ScalarLanes("f32", self.lanes)

    def as_f32(self) -> Lanes:
        assert self.kind == "u32"
        return ScalarLanes("f32", [np.uint32(lane).view(np.float32) for lane in self.lanes])


class ScalarBlock(Block):
    """One block of bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def read(self, kind: Kind, at: int, n: int) -> Lanes:
        return ScalarLanes(
            "f32" if kind == "f16" else kind, list(struct.unpack_from(f"<{n}{FORMATS[kind]}", self.raw, at))
        )

    def cat(self, *parts: Lanes) -> Lanes:
        lists = [part for part in parts if isinstance(part, ScalarLanes)]
        assert len({part.kind for part in lists}) == 1
        return ScalarLanes(lists[0].kind, [lane for part in lists for lane in part.lanes])


def random_blocks(quant: QuantType, n: int) -> np.ndarray[Any, Any]:
    """Blocks of any codes, under scales between 1 and 2 where the type has halves."""
    raw = np.random.default_rng(quant.id).integers(0, 256, (n, quant.bytes), dtype=np.uint8)
    for at, size in words(quant):
        if size > 1 and (quant.is_float or size == 2):
            raw[:, at + size - 1] = 0x3C
    return raw


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_second_implementation(quant: QuantType) -> None:
    """Other lanes, strict on kinds and shifts, run the same lines of every type to the same bits."""
    raw = random_blocks(quant, 3)
    for block, row in zip(raw, dequantize(quant, raw), strict=True):
        groups = [quant.values(ScalarBlock(block.tobytes()), g) for g in range(quant.groups)]
        lanes = [lane for group in groups if isinstance(group, ScalarLanes) for lane in group.lanes]
        assert np.array_equal(np.array(lanes, np.float32).view(np.uint32), row.view(np.uint32))


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_contract_of_a_type(quant: QuantType) -> None:
    """Codes fill a group in `bits` bits; scale and offset are one f32 lane, or None as the properties say."""
    x = NumpyBlock(random_blocks(quant, 2))
    for g in range(quant.groups):
        codes, scale, offset = as_array(quant.codes(x, g)), quant.scale(x, g), quant.offset(x, g)
        assert codes.shape == (2, quant.group)
        assert codes.dtype == (np.float32 if quant.is_float else np.uint8)
        assert quant.is_float or codes.max() < 1 << quant.bits
        assert (scale is None) == quant.is_float
        assert (offset is None) == (not quant.has_offset)
        for lanes in (scale, offset):
            assert lanes is None or as_array(lanes).shape == (2, 1)
            assert lanes is None or as_array(lanes).dtype == np.float32


@pytest.mark.parametrize("kind", ["u8", "u16", "u32"])
@pytest.mark.parametrize("verb", list(OPERATORS))
def test_integer_verbs_wrap(kind: Kind, verb: Verb) -> None:
    """NumPy's integer verbs agree with Python's, modulo the kind's width."""
    raw = np.random.default_rng(1).integers(0, 256, (1, 32), dtype=np.uint8)
    x, y = NumpyBlock(raw), ScalarBlock(raw.tobytes())
    for other in (3, 7) if verb in {"shl", "shr"} else (x.read(kind, 16, 4), 0, 100):
        right = y.read(kind, 16, 4) if isinstance(other, Lanes) else other
        result, truth = x.read(kind, 0, 4).apply(verb, other), y.read(kind, 0, 4).apply(verb, right)
        assert isinstance(truth, ScalarLanes)
        assert as_array(result).tolist() == [truth.lanes]


def test_shape_verbs() -> None:
    """Slices, concatenation, bits and conversions of NumPy lanes."""
    x = NumpyBlock(np.array([[0x80, 0x3F, 0xFF, 5]], np.uint8))
    assert as_array(x.cat(x.u8(2, 2), x.u8(0))).tolist() == [[0xFF, 5, 0x80]]
    assert as_array(x.u8(0, 4)[1:3]).tolist() == [[0x3F, 0xFF]]
    assert as_array(x.u8(3).bits()).tolist() == [[1, 0, 1, 0, 0, 0, 0, 0]]
    assert as_array(x.u16(0).bits()).tolist() == [[0] * 7 + [1] * 7 + [0] * 2]
    assert as_array((x.u16(0).u32() << 16).as_f32()).tolist() == [[1.0]]
    assert as_array(x.i8(2, 2).f32()).tolist() == [[-1.0, 5.0]]
    assert np.signbit(as_array(-(x.u8(2).f32() * 0)))


def test_mixed_kinds_are_refused() -> None:
    """Lanes of two kinds, a number outside the kind, and another implementation's lanes raise."""
    x = NumpyBlock(np.zeros((1, 4), np.uint8))
    with pytest.raises(TypeError, match="uint8 and uint16"):
        x.u8(0) + x.u16(0)
    with pytest.raises(TypeError, match="ScalarLanes"):
        x.u8(0) + ScalarLanes("u8", [1])
    with pytest.raises((OverflowError, DeprecationWarning)):  # NumPy 2, NumPy 1
        x.u8(0) + 256


def test_foreign_byte_order_lanes() -> None:
    """Reads give the host's byte order whatever the file's, so verbs see plain numbers."""
    lanes = NumpyBlock(np.array([[1, 2, 3, 4]], np.uint8)).u32(0)
    assert isinstance(lanes, NumpyLanes)
    assert lanes.array.dtype.isnative
    assert lanes.array.tolist() == [[0x04030201]]


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_words(quant: QuantType) -> None:
    """The words found in a type's lines are the struct's fields."""
    assert [word for word in words(quant) if word[1] > 1] == FIELDS[quant.name]


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_byteswap(quant: QuantType) -> None:
    """Big-endian blocks become the little-endian ones they were made from, in a new array; twice is none."""
    little = random_blocks(quant, 6).reshape(2, 3, quant.bytes)
    big = little.copy()
    for at, size in FIELDS[quant.name]:
        big[..., at : at + size] = big[..., at : at + size][..., ::-1]
    big.flags.writeable = False
    assert np.array_equal(byteswapped(quant, big), little)
    assert np.array_equal(byteswapped(quant, byteswapped(quant, big)), big)
    assert np.array_equal(byteswapped(quant, big[:, ::2].swapaxes(0, 1)), little[:, ::2].swapaxes(0, 1))
    assert byteswapped(quant, big[:0]).shape == (0, 3, quant.bytes)
    assert byteswapped(quant, big).flags.writeable


def test_byteswap_refuses_part_blocks() -> None:
    """A row that is not whole blocks is an error, not a guess."""
    with pytest.raises(FormatError, match="20 bytes"):
        byteswapped(TYPES[2], np.zeros(20, np.uint8))

"""The lane algebra: NumPy's verbs, a second implementation that runs the same lines, and byte order."""

from __future__ import annotations

import operator
import struct
from base64 import b85encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from quant_truths import finite_blocks

from puna.errors import FormatError
from puna.quants import QuantType, byteswapped, dequantize
from puna.quants.byteorder import words
from puna.quants.grids import Grid
from puna.quants.lanes import Block, Kind, Lanes, NumpyBlock, NumpyLanes, Verb, as_array
from puna.quants.registry import TYPES

QUANTS = sorted(TYPES.values(), key=lambda quant: quant.id)
SCALED = [quant for quant in QUANTS if not quant.is_float]

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
    "F64": [(0, 8)],
    "I8": [],
    "I16": [(0, 2)],
    "I32": [(0, 4)],
    "I64": [(0, 8)],
    "Q8_1": [(0, 2), (2, 2)],
    "Q2_K": [(80, 2), (82, 2)],
    "Q3_K": [(108, 2)],
    "Q8_K": [(0, 4), *((260 + 2 * i, 2) for i in range(16))],
    "IQ1_S": [(0, 2), *((34 + 2 * i, 2) for i in range(8))],
    "IQ1_M": [(48 + 2 * i, 2) for i in range(4)],
    "IQ2_XXS": [
        (0, 2),
        *((6 + 8 * i, 4) for i in range(8)),
    ],  # ggml reads two words, and four bytes in the first
    "IQ2_XS": [(0, 2), *((2 + 2 * i, 2) for i in range(32))],
    "IQ2_S": [(0, 2)],
    "IQ3_XXS": [(0, 2), *((66 + 4 * i, 4) for i in range(8))],
    "IQ3_S": [(0, 2)],
    "IQ4_NL": [(0, 2)],
    "IQ4_XS": [(0, 2), (2, 2)],
    "TQ1_0": [(52, 2)],
    "TQ2_0": [(64, 2)],
    "Q1_0": [(0, 2)],
    "Q2_0": [(0, 2)],
    "MXFP4": [],
    "NVFP4": [],
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
FORMATS: dict[Kind, str] = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "i64": "q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}
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

    def apply(self, verb: Verb, other: Lanes | float) -> Lanes:
        if verb in {"shl", "shr"}:
            assert isinstance(other, int)
            assert self.kind in {"u8", "u16", "u32"}
            assert 0 <= other < WIDTHS[self.kind]
        right = ScalarLanes(self.kind, [other]) if isinstance(other, int | float) else other
        assert isinstance(right, ScalarLanes)
        assert right is other or right.lanes == [other]  # a number that the kind holds
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

    def lookup(self, table: tuple[int, ...]) -> Lanes:
        assert self.kind == "u8"
        assert len(table) <= 16
        return ScalarLanes("u8", [table[lane] for lane in self.lanes])

    def gather(self, grid: Grid) -> Lanes:
        assert self.kind == "u16"
        entries = [grid.data[lane * grid.width : (lane + 1) * grid.width] for lane in self.lanes]
        assert all(len(entry) == grid.width for entry in entries)
        return ScalarLanes("u8", [code for entry in entries for code in entry])

    def u8(self) -> Lanes:
        assert self.kind in WIDTHS
        return ScalarLanes("u8", self.lanes)

    def u16(self) -> Lanes:
        assert self.kind in {"u8", "u16", "u32"}
        return ScalarLanes("u16", self.lanes)

    def u32(self) -> Lanes:
        assert self.kind in {"u8", "u16"}
        return ScalarLanes("u32", self.lanes)

    def f32(self) -> Lanes:
        assert self.kind != "f32"
        return ScalarLanes("f32", self.lanes)

    def as_i8(self) -> Lanes:
        assert self.kind == "u8"
        return ScalarLanes("i8", self.lanes)

    def as_f16(self) -> Lanes:
        assert self.kind == "u16"
        return ScalarLanes("f32", [np.uint16(lane).view(np.float16) for lane in self.lanes])

    def as_f32(self) -> Lanes:
        assert self.kind == "u32"
        return ScalarLanes("f32", [np.uint32(lane).view(np.float32) for lane in self.lanes])


class ScalarBlock(Block):
    """One block of bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def read(self, kind: Kind, at: int, n: int) -> Lanes:
        words = struct.unpack_from(f"<{n}{FORMATS[kind]}", self.raw, at)
        return ScalarLanes(kind if kind in WIDTHS else "f32", list(words))

    def cat(self, *parts: Lanes) -> Lanes:
        lists = [part for part in parts if isinstance(part, ScalarLanes)]
        assert len({part.kind for part in lists}) == 1
        return ScalarLanes(lists[0].kind, [lane for part in lists for lane in part.lanes])


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_second_implementation(quant: QuantType) -> None:
    """Other lanes, strict on kinds and shifts, run the same lines of every type to the same bits."""
    raw = finite_blocks(quant, 3)
    for block, row in zip(raw, dequantize(quant, raw), strict=True):
        groups = [quant.values(ScalarBlock(block.tobytes()), g) for g in range(quant.groups)]
        lanes = [lane for group in groups if isinstance(group, ScalarLanes) for lane in group.lanes]
        assert np.array_equal(np.array(lanes, np.float32).view(np.uint32), row.view(np.uint32))


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_contract_of_a_type(quant: QuantType) -> None:
    """Codes fill a group; scale and offset are one f32 lane, or None as the properties say."""
    x = NumpyBlock(finite_blocks(quant, 2))
    for g in range(quant.groups):
        codes, scale, offset = as_array(quant.codes(x, g)), quant.scale(x, g), quant.offset(x, g)
        assert codes.shape == (2, quant.group)
        assert codes.dtype == (np.float32 if quant.is_float else np.uint8)
        assert (scale is None) == quant.is_float
        assert (offset is None) == (not quant.has_offset)
        for lanes in (scale, offset):
            assert lanes is None or as_array(lanes).shape == (2, 1)
            assert lanes is None or as_array(lanes).dtype == np.float32


def places_of(quant: QuantType, x: NumpyBlock, g: int) -> np.ndarray[Any, Any]:
    """What is stored for each code, or each few of them."""
    coded = quant.table or quant.grid
    return as_array(quant.places(x, g) if coded else quant.codes(x, g))


@pytest.mark.parametrize("quant", SCALED, ids=repr)
def test_bits_hold_what_is_stored(quant: QuantType) -> None:
    """Codes, places or entries reach the greatest number of `bits` bits, or of `levels`, and none goes beyond."""
    x = NumpyBlock(finite_blocks(quant, 4000))
    most = max(int(places_of(quant, x, g).max()) for g in range(quant.groups))
    assert most == (quant.levels or 1 << quant.bits) - 1
    if quant.grid:
        assert quant.grid.entries == most + 1
    if quant.table:
        assert len(quant.table) == most + 1


@pytest.mark.parametrize("quant", [quant for quant in SCALED if quant.table or quant.grid], ids=repr)
def test_codes_from_a_codebook(quant: QuantType) -> None:
    """Codes are what the table or the grid has at the places, with signs around zero."""
    raw = finite_blocks(quant, 20)
    x = NumpyBlock(raw)
    for g in range(quant.groups):
        places, signs = places_of(quant, x, g), quant.signs(x, g)
        if quant.grid:
            assert places.dtype == np.uint16
            book = np.frombuffer(quant.grid.data, np.uint8).reshape(-1, quant.grid.width)
        else:
            assert places.dtype == np.uint8
            book = np.array(quant.table)[:, None]
        codes = book[places].reshape(20, quant.group).astype(int)
        if signs is not None:
            negative = np.unpackbits(as_array(signs), axis=-1, bitorder="little")
            assert codes.min() > 0
            assert codes.max() < quant.zero
            codes = np.where(negative, quant.zero - codes, quant.zero + codes)
        assert np.array_equal(as_array(quant.codes(x, g)), codes)


@pytest.mark.parametrize("quant", SCALED, ids=repr)
def test_scales_hold_in_their_kinds(quant: QuantType) -> None:
    """Units and lows are exact in `unit_kind` and the same in each `shared` values; steps fit `step_bits` bits."""
    x = NumpyBlock(finite_blocks(quant, 50))
    for g in range(quant.groups):
        first = g // quant.unit_groups * quant.unit_groups
        for part in (quant.unit, quant.low):
            if (lanes := part(x, g)) is not None:
                unit = as_array(lanes)
                assert np.array_equal(stored(quant.unit_kind, unit), unit)
                assert np.array_equal(unit, as_array(part(x, first)))  # type: ignore[arg-type]
        for part in (quant.step, quant.low_step):
            if (lanes := part(x, g)) is not None:
                assert as_array(lanes).max() < 1 << quant.step_bits


def stored(kind: str, unit: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 numbers after they have been kept in a kind."""
    if kind == "BF16":
        return (unit.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return unit.astype({"F16": np.float16, "F32": np.float32}[kind]).astype(np.float32)


@pytest.mark.parametrize("quant", SCALED, ids=repr)
def test_scales_of_their_parts(quant: QuantType) -> None:
    """A scale is unit * step * factor, a step s standing for 2 s + 1 where steps are odd; an offset low * low step."""
    x = NumpyBlock(finite_blocks(quant, 50))
    for g in range(quant.groups):
        unit, step, scale = (part(x, g) for part in (quant.unit, quant.step, quant.scale))
        whole = np.int64(1) if step is None else as_array(step).astype(np.int64)
        whole = 2 * whole + 1 if quant.odd_steps else whole
        product = as_array(unit) * whole.astype(np.float32) * np.float32(quant.factor)  # type: ignore[arg-type]
        assert np.array_equal(as_array(scale), product)  # type: ignore[arg-type]
        assert quant.factor == 2.0 ** round(np.log2(quant.factor))


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
    """Slices, concatenation, bits, codebooks and conversions of NumPy lanes."""
    x = NumpyBlock(np.array([[0x80, 0x3F, 0xFF, 5]], np.uint8))
    assert as_array(x.cat(x.u8(2, 2), x.u8(0))).tolist() == [[0xFF, 5, 0x80]]
    assert as_array(x.u8(0, 4)[1:3]).tolist() == [[0x3F, 0xFF]]
    assert as_array(x.u8(3).bits()).tolist() == [[1, 0, 1, 0, 0, 0, 0, 0]]
    assert as_array(x.u16(0).bits()).tolist() == [[0] * 7 + [1] * 7 + [0] * 2]
    assert as_array((x.u16(0).u32() << 16).as_f32()).tolist() == [[1.0]]
    assert as_array(x.i8(2, 2).f32()).tolist() == [[-1.0, 5.0]]
    assert as_array(x.u8(0, 4)[1::2]).tolist() == [[0x3F, 5]]
    assert as_array((x.u8(3) - 7).as_i8()).tolist() == [[-2]]
    assert as_array((x.u8(1).u16() << 8).as_f16()).tolist() == [[1.75]]
    assert as_array(x.u16(2).u8()).tolist() == [[0xFF]]
    assert as_array(x.u8(3).lookup((0, 1, 2, 3, 4, 50))).tolist() == [[50]]
    pairs = Grid("pairs", 4, (7, 9), b85encode(b"\1\x80").decode(), shifts=(0, 1))
    assert as_array((x.u8(2, 2) & 3).u16().gather(pairs)).tolist() == [[10] * 4 + [9] * 4]
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
    little = finite_blocks(quant, 6).reshape(2, 3, quant.bytes)
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

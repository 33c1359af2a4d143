"""Quantisation types: sizes, dequantised bits against the gguf package, and how arrays are walked."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from quant_truths import bits, expected, random_rows, set_halves

from puna.errors import FormatError, RequestError
from puna.quants import QuantType, by_id, by_name, dequantize, pieces
from puna.quants.byteorder import words
from puna.quants.lanes import NumpyBlock, as_array
from puna.quants.registry import GGML_NAMES, TYPES

QUANTS = sorted(TYPES.values(), key=lambda quant: quant.id)
SCALED = [quant for quant in QUANTS if not quant.is_float]
SCALES = {  # byte offsets of half floats in ggml-common.h's structs
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ1_M": (48,),
}
OTHER_SCALES = {"Q8_K", "MXFP4", "NVFP4"}
HALVES = [0, 0x8000, 1, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFC01]


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_sizes(quant: QuantType) -> None:
    """Block length and bytes are GGML's, groups divide a block, and bits per weight follow."""
    sizes = {type_.name: (type_.value, *size) for type_, size in gguf.GGML_QUANT_SIZES.items()}
    sizes |= {"Q8_1": (9, 32, 36)}  # the package counts its halves as float32
    assert sizes.get(quant.name, (42, 64, 18)) == (quant.id, quant.block, quant.bytes)
    assert quant.groups * quant.group == quant.block
    assert quant.bits_per_weight == quant.bytes * 8 / quant.block
    assert quant.row_bytes(3 * quant.block) == 3 * quant.bytes


def test_every_ggml_type_has_its_name() -> None:
    """The table of names agrees with the gguf package's and names withdrawn types too."""
    assert GGML_NAMES | {member.value: member.name for member in gguf.GGMLQuantizationType} == GGML_NAMES
    assert sorted(GGML_NAMES) == list(range(len(GGML_NAMES)))
    assert all(GGML_NAMES[quant.id] == quant.name for quant in QUANTS)


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_random_bytes(quant: QuantType) -> None:
    """Any bytes dequantise to the gguf package's bits."""
    raw = random_rows(quant, (64,), 512)
    assert np.array_equal(bits(dequantize(quant, raw)), bits(expected(quant, raw)))


@pytest.mark.parametrize("quant", [q for q in SCALED if q.name not in OTHER_SCALES], ids=repr)
def test_extreme_scales(quant: QuantType) -> None:
    """Zero, subnormal, infinite and NaN scales, all combined, give the gguf package's bits and no warning."""
    halves = SCALES.get(quant.name, (0,))
    pairs = np.array(list(itertools.product(HALVES, repeat=len(halves))), "<u2")
    raw = random_rows(quant, (len(pairs),), quant.block)
    for at, column in zip(halves, pairs.T.copy(), strict=True):
        set_halves(quant, raw, at, column)
    assert np.array_equal(bits(dequantize(quant, raw)), bits(expected(quant, raw)))


@pytest.mark.parametrize("quant", [quant for quant in QUANTS if quant.grid], ids=repr)
def test_every_entry_of_a_grid(quant: QuantType) -> None:
    """Enough random blocks to meet each entry of the grid give the gguf package's bits."""
    assert quant.grid
    raw = random_rows(quant, (2048,), 256)
    places = [as_array(quant.places(NumpyBlock(raw), g)) for g in range(quant.groups)]
    assert len(np.unique(np.stack(places))) == quant.grid.entries
    assert np.array_equal(bits(dequantize(quant, raw)), bits(expected(quant, raw)))


@pytest.mark.parametrize(("name", "scales"), [("MXFP4", 1), ("NVFP4", 4)])
def test_every_eight_bit_scale(name: str, scales: int) -> None:
    """All 256 bytes of a scale give the gguf package's bits."""
    raw = random_rows(by_name(name), (256,), by_name(name).block)
    raw[:, :scales] = np.arange(256)[:, None]
    assert np.array_equal(bits(dequantize(by_name(name), raw)), bits(expected(by_name(name), raw)))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_float(name: str) -> None:
    """All 65536 patterns widen to the gguf package's bits, NaN payloads included."""
    raw = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    values = dequantize(by_name(name), raw)
    assert np.array_equal(values.view(np.uint32), expected(by_name(name), raw).view(np.uint32))


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_types_read_their_block(quant: QuantType) -> None:
    """A type's lines read every byte of a block, none beyond it, and none as parts of two words."""
    end = 0
    for at, size in words(quant):
        assert at == end
        end = at + size
    assert end == quant.bytes


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_types_are_short(quant: QuantType) -> None:
    """A type takes at most 14 lines of code, its docstring aside."""
    node = ast.parse(textwrap.dedent(inspect.getsource(type(quant)))).body[0]
    assert isinstance(node, ast.ClassDef)
    assert ast.get_docstring(node)
    node.body.pop(0)
    assert 4 <= len(ast.unparse(node).replace("\n\n", "\n").splitlines()) <= 14


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_any_shape_and_strides(quant: QuantType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leading axes, strided rows and strided outputs in small pieces give the same values, in place."""
    monkeypatch.setattr(pieces, "PIECE", 2 * quant.block)
    k = 256 * 3
    raw = random_rows(quant, (2, 3, 4), k)
    whole = bits(expected(quant, raw.reshape(24, -1))).reshape(2, 3, 4, k)
    out = np.zeros((2, 8, 3, 2 * k), np.float32)[:, ::2, :, ::2].swapaxes(1, 2)
    assert dequantize(quant, raw, out) is out
    assert np.array_equal(bits(out), whole)
    assert np.array_equal(bits(dequantize(quant, raw[:, ::2, 1:])), whole[:, ::2, 1:])
    spread = np.zeros((*raw.shape, 2), np.uint8)[..., 0]
    spread[:] = raw
    assert np.array_equal(bits(dequantize(quant, spread)), whole)
    assert np.array_equal(bits(dequantize(quant, np.asfortranarray(raw))), whole)
    assert np.array_equal(bits(dequantize(quant, raw[1, 2, 3])), whole[1, 2, 3])


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_no_rows(quant: QuantType) -> None:
    """Empty arrays stay empty."""
    assert dequantize(quant, np.empty((0, quant.bytes), np.uint8)).shape == (0, quant.block)
    assert dequantize(quant, np.empty((3, 0), np.uint8)).shape == (3, 0)


def test_pieces_cover_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces hold at most PIECE values and together every block exactly once."""
    quant = by_name("Q4_0")
    for limit, shape in itertools.product([1, 3, 7, 40, 1000], [(5,), (3, 4), (2, 3, 5), (4, 1, 7), (0, 3)]):
        monkeypatch.setattr(pieces, "PIECE", limit * quant.block)
        seen = np.zeros(shape, int)
        for piece in pieces.pieces(quant, shape):
            assert seen[piece].size <= limit
            seen[piece] += 1
        assert (seen == 1).all()


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_mapped_file(quant: QuantType, tmp_path: Path) -> None:
    """A read-only memory map dequantises in place."""
    raw = random_rows(quant, (8,), 256)
    raw.tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", np.uint8, "r", shape=raw.shape)
    assert np.array_equal(bits(dequantize(quant, mapped)), bits(expected(quant, raw)))


def test_f32_is_a_view() -> None:
    """F32 without `out` shares the bytes it was given, and copies only where they are not aligned."""
    raw = np.arange(64, dtype="<f4").view(np.uint8).reshape(4, 64)
    values = dequantize(by_name("F32"), raw)
    assert np.shares_memory(values, raw)
    assert np.array_equal(values, np.arange(64).reshape(4, 16))
    odd = np.zeros(raw.size + 1, np.uint8)[1:].reshape(raw.shape)
    odd[:] = raw
    assert dequantize(by_name("F32"), odd).flags.aligned
    assert np.array_equal(dequantize(by_name("F32"), odd), values)


@pytest.mark.parametrize("quant", QUANTS, ids=repr)
def test_memory_is_bounded(quant: QuantType) -> None:
    """16 MiB of values, one long row or many, take under 4 MiB besides `out`."""
    k = 1 << 22
    for shape in [(1, k), (k // 256, 256)]:
        raw = np.zeros((shape[0], quant.row_bytes(shape[1])), np.uint8)
        out = np.empty(shape, np.float32)
        tracemalloc.start()
        dequantize(quant, raw, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20


def test_types_by_number() -> None:
    """A number gives its type; one that GGML withdrew is named; one nobody knows is called unknown."""
    assert by_id(12).name == "Q4_K"
    assert {by_id(type_.value).name for type_ in gguf.GGMLQuantizationType} <= {q.name for q in QUANTS}
    with pytest.raises(FormatError, match=r"Q4_0_4_8 \(GGML type 32\) was withdrawn from GGML; use another"):
        by_id(32)
    with pytest.raises(FormatError, match=r"4000000000 is unknown"):
        by_id(4_000_000_000)


def test_types_by_name() -> None:
    """A name in any case gives its type; a wrong one gives the nearest."""
    assert by_name("q6_k") is by_id(14)
    with pytest.raises(RequestError, match=r"'Q4K' is unknown; use one of .*Q4_K"):
        by_name("Q4K")
    with pytest.raises(RequestError, match=r"'q4_2' was withdrawn from GGML; use one of .*Q4_0"):
        by_name("q4_2")
    with pytest.raises(RequestError, match=r"'@@' is unknown; use one of F32, F16, "):
        by_name("@@")


def test_wrong_arrays() -> None:
    """Rows that are not whole blocks, wrong element types and wrong outputs are named in the error."""
    quant = by_name("Q4_0")
    for k in (33, -32):
        with pytest.raises(FormatError, match=rf"row of {k} values .* Q4_0 blocks of 32"):
            quant.row_bytes(k)
    with pytest.raises(FormatError, match=r"row of 19 bytes .* Q4_0 blocks of 18"):
        dequantize(quant, np.zeros(19, np.uint8))
    with pytest.raises(RequestError, match=r"uint8 rows, not int8 \[18\]"):
        dequantize(quant, np.zeros(18, np.int8))
    with pytest.raises(RequestError, match=r"uint8 rows, not uint8 \[\]"):
        dequantize(quant, np.array(0, np.uint8))
    for out in (np.zeros(32, np.float64), np.zeros((1, 32), np.float32)):
        with pytest.raises(RequestError, match=r"out must be float32 \[32\], not float"):
            dequantize(quant, np.zeros(18, np.uint8), out)  # type: ignore[arg-type]


def test_page_example() -> None:
    """The type on docs/add-a-quant.md dequantises to the gguf package's bits."""
    page = Path(__file__).resolve().parents[2] / "docs" / "add-a-quant.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(blocks[0], scope)
    quant = scope["Q2_K"]()
    raw = random_rows(quant, (16,), 512)
    assert np.array_equal(bits(dequantize(quant, raw)), bits(expected(quant, raw)))

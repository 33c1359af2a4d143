"""What the tests of the CPU backend share: kernels driven one at a time, memory with guards, blocks of every type.

The definitions here are NumPy's, or of this file's own; they share no line with the kernels.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from random_blocks import filled_rows, groups_of, random_rows
from tiny_model import VOCABULARIES, make_tensors, model_keys

import puna
from puna import backends
from puna.backends import cpu
from puna.backends.cpu.codecache import CodeCache, default_folder
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.kernels.direct import direct
from puna.backends.cpu.kernels.linear import few, many, many_scratch
from puna.backends.cpu.kernels.pack import PACK_SCRATCH, pack
from puna.backends.cpu.memory import allocate
from puna.backends.cpu.panels import Panel
from puna.gguf import write
from puna.quants import by_name, dequantize
from puna.quants.registry import TYPES

__all__ = [
    "FLOATS",
    "QUANTIZED",
    "Guarded",
    "activations",
    "as_they_are",
    "compiler",
    "filled_rows",
    "groups_of",
    "linear",
    "load",
    "pack_matrix",
    "random_rows",
    "run",
    "write_model",
]

FLOATS = [quant.name for quant in TYPES.values() if quant.is_float]
QUANTIZED = [quant.name for quant in TYPES.values() if not quant.is_float]
NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
GUARD = 4096  # bytes on each side


@functools.cache
def compiler() -> Compiler:
    """One for all tests, so that each kernel is linked once; for the processor that the backend would take."""
    return Compiler(backends.create("cpu").compiler.target, CodeCache(default_folder()))


def run(spec: Spec, args: Sequence[int], begin: int, end: int, scratch: int = 0) -> None:
    """Units begin to end - 1 of a kernel, with `scratch` bytes of scratch."""
    numbers, memory = np.array(args, np.int64), Guarded(scratch)
    native = NATIVE(compiler().addresses_of([spec])[spec])
    native(numbers.ctypes.data, begin, end, memory.address)
    assert memory.is_intact, f"{spec.label} writes beyond its scratch"


class Guarded:
    """Memory for a kernel to write to, that can tell whether anything beside it was written.

    array: uint8 [nbytes], filled with a pattern that no test expects as a result.
    """

    def __init__(self, nbytes: int, fill: int = 0xA5) -> None:
        self.memory = allocate(nbytes + 2 * GUARD)
        self.memory[:] = fill
        self.array = self.memory[GUARD : GUARD + nbytes]
        self.fill = fill

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data) + GUARD

    @property
    def is_intact(self) -> bool:
        beside = self.memory[:GUARD], self.memory[GUARD + len(self.array) :]
        return all(bool((part == self.fill).all()) for part in beside)

    def view(self, kind: Any, *shape: int) -> np.ndarray:
        return self.array.view(kind).reshape(shape)


def load(path: Path, threads: int | None = None, **options: Any) -> puna.Model:
    """A model on the CPU backend, its kernels from the compiler that all tests share."""
    shared = compiler()

    def create(threads: int | None, repack: bool, storage: backends.Storage) -> cpu.CPUBackend:
        backend = cpu.CPUBackend(shared.target, None, threads, repack, storage)
        backend.compiler = shared
        return backend

    with mock.patch.object(cpu, "create", create):
        return puna.load(path, backend="cpu", threads=threads, **options)


def write_model(path: Path, architecture: str, kind: str, n_ctx: int = 512) -> Path:
    """A tiny model whose matrices are random rows of any type, about as large as a tiny model's.

    Its width is that of the widest blocks for all types, so that they share what kernels they can.
    """
    quant, rng = by_name(kind), np.random.default_rng(1)
    width, tokens = 256, VOCABULARIES["bpe"]()

    def tensors() -> Iterator[tuple[str, Any, tuple[int, ...], np.ndarray]]:
        texts = list(tokens["tokenizer.ggml.tokens"])
        for name, values in make_tensors(architecture, width, texts, rng, None):
            matrix = values.ndim == 2
            stored = (
                random_rows(kind, *values.shape, rng, float(values.std()))
                if matrix
                else values.view(np.uint8)
            )
            yield name, quant if matrix else by_name("F32"), values.shape, stored

    write(path, {**model_keys(architecture, width, n_ctx), **tokens}, list(tensors()))
    return path


def activations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [T, k] in spans of 32 values, as bytes [T, k / 32 * 48], and the values they stand for, float64 [T, k].

    A span: 32 i8 codes, f32 scale, f32 scale * sum of the codes, i32 sum, i32 sum of the first 16.
    """
    spans = x.astype(np.float32).reshape(len(x), -1, 32)
    largest = np.abs(spans).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, where=largest > 0, out=np.zeros_like(largest))
    codes = np.rint(spans * inverse).astype(np.int32)
    scale = largest * np.float32(1 / 127)
    total, first = codes.sum(axis=-1, keepdims=True), codes[..., :16].sum(axis=-1, keepdims=True)
    words = [scale, scale * total.astype(np.float32), total.astype(np.int32), first.astype(np.int32)]
    parts = [codes.astype(np.int8).view(np.uint8), *(word.view(np.uint8) for word in words)]
    values = codes * scale.astype(np.float64)
    return np.concatenate(parts, axis=-1).reshape(len(x), -1), values.reshape(x.shape)


def pack_matrix(kind: str, raw: np.ndarray, k: int) -> Guarded:
    """Rows of blocks in panels."""
    panel, rows = Panel(kind), len(raw)
    out = Guarded(panel.matrix_bytes(rows, k))
    args = [raw.ctypes.data, out.address, rows, k, raw.strides[0], panel.nbytes(k)]
    run(Spec.of(pack, panel=panel), args, 0, -(-rows // 16), PACK_SCRATCH)
    assert out.is_intact
    return out


def linear_spec(kind: str, by: str, tokens: int) -> Spec:
    """The kernel that a step of so many tokens takes, of those called "few", "many" and "direct"."""
    panel = Panel(kind)
    if by == "many":
        width, tile = compiler().target.tile
        return Spec.of(many, panel=panel, width=width, tile=tile)
    if by == "few":
        return Spec.of(few, panel=panel, tokens=tokens)
    return Spec.of(direct, panel=panel, tile=min(4, tokens))


def linear(
    kind: str, weights: Guarded, rows: int, x: np.ndarray, *, by: str, units: Sequence[int] = ()
) -> np.ndarray:
    """x [T, bytes of spans] times the matrix, f32 [T, rows], by the kernel "few", "many" or "direct".

    weights: panels, or for "direct" rows of blocks.  units: where to cut the work into calls.
    Nothing but the result may be written.
    """
    panel, tokens, k = Panel(kind), len(x), x.shape[1] // 48 * 32
    width = compiler().target.tile[0]
    panels_a_unit, scratch = (width, many_scratch(panel, k, width)) if by == "many" else (1, 0)
    panel_bytes = panel.quant.row_bytes(k) if by == "direct" else panel.nbytes(k)
    stride = rows + 5  # results lie apart, and what lies between must stay as it is
    out = Guarded(4 * stride * tokens)
    args = [weights.address, x.ctypes.data, out.address, rows, k, panel_bytes, x.shape[1], 4 * stride, tokens]
    ends = [0, *units, -(-rows // (16 * panels_a_unit))]
    for begin, end in pairwise(ends):
        run(linear_spec(kind, by, tokens), args, begin, end, scratch)
    result = out.view(np.float32, tokens, stride)
    assert out.is_intact
    assert (result[:, rows:].view(np.uint32) == 0xA5A5A5A5).all(), "writes between the rows of results"
    return result[:, :rows].copy()


def as_they_are(raw: np.ndarray) -> Guarded:
    """Rows of blocks in memory whose surroundings are the worst that blocks can hold."""
    memory = Guarded(raw.size, fill=0xFF)
    memory.array[:] = raw.reshape(-1)
    return memory


@pytest.mark.parametrize("kind", QUANTIZED)
def test_random_rows_are_sound(kind: str) -> None:
    """Random blocks use every code, have finite values of about the size asked for, and scales of both signs."""
    raw, quant = random_rows(kind, 64, 512, np.random.default_rng(1), size=0.5), by_name(kind)
    values, parts = dequantize(quant, raw), groups_of(kind, raw)
    codes = quant.table or (quant.grid.data if quant.grid else range(quant.levels or 1 << quant.bits))
    found = np.abs(parts["codes"].astype(int) - quant.zero) if Panel(kind).has_signs else parts["codes"]
    assert set(np.unique(found)) == set(codes)
    assert 0.05 < values.std() < 1
    assert (parts["scale"] < 0).any() or kind in {"MXFP4", "NVFP4"}
    assert (parts["scale"] > 0).any()


def test_guards_tell() -> None:
    """A byte written just beside guarded memory is noticed."""
    for place in (GUARD - 1, GUARD + 10):
        memory = Guarded(10)
        memory.array[:] = 0
        assert memory.is_intact
        memory.memory[place] ^= 1
        assert not memory.is_intact

"""From the file to memory that kernels read: matrices in panels, small tensors as f32, tables left in the file."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.base import USUAL, Storage
from puna.backends.cpu import runner
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.kernels.floats import float_bytes, float_pack, form_of, is_plain
from puna.backends.cpu.kernels.pack import PACK_SCRATCH, pack
from puna.backends.cpu.memory import ALIGN, allocate, prefer_huge
from puna.backends.cpu.panels import ROWS, Panel
from puna.backends.cpu.threads import Team
from puna.gguf import GGUFFile
from puna.graph import Graph, Node
from puna.progress import Progress
from puna.quants import by_name, dequantize

__all__ = ["PRODUCTS", "Weights", "upload", "weight_bytes"]

PRODUCTS = {"linear", "linear_experts", "linear_heads"}  # what reads matrices
SLICE = 32 << 20  # bytes of the file that are packed, and then let go, at a time
SPARE = 8 << 10  # bytes that a read of whole blocks may have beside them


@dataclass
class Weights:
    """packed: what kernels read, by tensor.  raw: tables of which single rows are read, in the file's form."""

    packed: dict[str, NDArray[Any]]
    raw: dict[str, NDArray[np.uint8]]


def uses_of(graph: Graph, node: Node) -> set[str]:
    """The operations that read a weight."""
    return {user.op for user in graph.users[node]}


def weight_bytes(graph: Graph, node: Node, repack: bool, mapped: bool = True) -> int:
    """Bytes of a weight in memory of our own; what is read from the mapped file takes none."""
    kept = 0 if mapped else file_bytes(graph, node, repack)
    return kept + packed_bytes(graph, node, repack)


def file_bytes(graph: Graph, node: Node, repack: bool) -> int:
    """Bytes of a weight that kernels read in the file's form, or 0 where they do not."""
    uses, shape = uses_of(graph, node), cast("tuple[int, ...]", node.type.shape)
    is_read = "embed" in uses or (bool(uses & PRODUCTS) and not repack)
    return prod(shape[:-1]) * by_name(node.type.dtype).row_bytes(shape[-1]) if is_read else 0


def packed_bytes(graph: Graph, node: Node, repack: bool) -> int:
    """Bytes of a weight in the form that it is packed into, up to where the next one begins."""
    uses, shape = uses_of(graph, node), cast("tuple[int, ...]", node.type.shape)
    if uses & PRODUCTS:
        need = prod(shape[:-2]) * matrix_bytes(node.type.dtype, *shape[-2:]) if repack else 0
    else:
        need = 0 if uses == {"embed"} else prod(shape) * 4
    return -(-need // ALIGN) * ALIGN


def matrix_bytes(kind: str, rows: int, k: int) -> int:
    return float_bytes(kind, rows, k) if by_name(kind).is_float else Panel(kind).matrix_bytes(rows, k)


def upload(
    graph: Graph,
    source: GGUFFile,
    compiler: Compiler,
    threads: int,
    repack: bool,
    progress: Progress | None,
    storage: Storage = USUAL,
) -> Weights:
    """All weights in one block of memory, in the order in which a step reads them.

    repack: matrices go into panels, a slice of them at a time; without, they stay in the file's form.
    """
    sizes = {node: packed_bytes(graph, node, repack) for node in graph.weights}
    block, at = allocate(sum(sizes.values()), storage.align), 0
    weights, team = Weights({}, {}), Team(compiler, threads, allocate(PACK_SCRATCH * threads))
    packer = Packer(compiler, team, source)
    if progress:
        progress.start("packing", len(block))
    for node, size in sizes.items():
        name, uses = cast(str, node.attrs["tensor"]), uses_of(graph, node)
        place, at = block[at : at + size], at + size
        if "embed" in uses:
            weights.raw[name] = whole(source, node)
        if uses & PRODUCTS and not repack:
            weights.packed[name] = weights.raw[name] if name in weights.raw else whole(source, node)
        elif uses & PRODUCTS:
            packer.pack(node, form_for(graph, node), weights.raw.get(name), place)
            weights.packed[name] = place
        elif uses != {"embed"}:
            weights.packed[name] = fill(node, whole(source, node), place)
        if progress:
            progress.advance(size)
    team.close()
    if storage.huge_pages:
        prefer_huge(block)
    if progress:
        progress.done()
    return weights


def whole(source: GGUFFile, node: Node) -> NDArray[np.uint8]:
    """A tensor in the file's form, with the dimensions of 1 that a file drops."""
    raw = source.data(cast(str, node.attrs["tensor"]))
    return np.ascontiguousarray(raw.reshape(*cast("tuple[int, ...]", node.type.shape[:-1]), -1))


def fill(node: Node, raw: NDArray[np.uint8], place: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A small tensor as f32, in `place`."""
    shape = cast("tuple[int, ...]", node.type.shape)
    values = place[: prod(shape) * 4].view(np.float32).reshape(shape)
    return dequantize(by_name(node.type.dtype), raw, out=values)


def pack_spec(form: str) -> Spec:
    """The kernel that packs matrices of a form."""
    return Spec.of(float_pack, form=form) if is_plain(form) else Spec.of(pack, panel=Panel(form))


def form_for(graph: Graph, node: Node) -> str:
    """The form that the products of a matrix take."""
    (form,) = {form_of(user) for user in graph.users[node] if user.op in PRODUCTS}
    return form


class Packer:
    """Brings matrices into panels. room: memory that slices of them are read into, where nothing is mapped."""

    def __init__(self, compiler: Compiler, team: Team, source: GGUFFile) -> None:
        self.compiler, self.team, self.source = compiler, team, source
        self.room = allocate(SLICE + SPARE)
        self.record = allocate(runner.RECORD_BYTES).view(np.int64)

    def pack(self, node: Node, form: str, raw: NDArray[np.uint8] | None, place: NDArray[np.uint8]) -> None:
        """A matrix, or one of each expert, in panels, in `place`.

        raw: all of it, where it is in memory; else it is read in slices, whose pages of the file are let go when done.
        """
        name, kind = cast(str, node.attrs["tensor"]), node.type.dtype
        rows, k = cast("tuple[int, int]", node.type.shape[-2:])
        row_bytes, panel_bytes = (
            by_name(kind).row_bytes(k),
            0 if by_name(kind).is_float else Panel(kind).nbytes(k),
        )
        spec, step = pack_spec(form), ROWS * max(1, SLICE // (ROWS * row_bytes))
        kernel, flat = (
            self.compiler.addresses_of([spec])[spec],
            None if raw is None else raw.reshape(-1, row_bytes),
        )
        for expert in range(prod(cast("tuple[int, ...]", node.type.shape[:-2]))):
            target = place.ctypes.data + expert * matrix_bytes(kind, rows, k)
            for first in range(0, rows, step):
                begin, last = expert * rows + first, expert * rows + min(rows, first + step)
                part = self.source.rows(name, begin, last, self.room) if flat is None else flat[begin:last]
                # The kernel counts panels from the first of the matrix, wherever that may be.
                start = part.ctypes.data - first * row_bytes
                args = np.array([start, target, rows, k, row_bytes, panel_bytes], np.int64)
                panels = first // ROWS, -(-min(rows, first + step) // ROWS)
                self.record[:6] = kernel, args.ctypes.data, panels[1], 1 + step // (64 * ROWS), panels[0], 1
                self.team.run(self.record.ctypes.data, 1)
                self.source.drop(name, begin * row_bytes, last * row_bytes)

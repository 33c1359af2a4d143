"""From the file to memory that kernels read: matrices in panels, small tensors as f32, tables left in the file."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.cpu import runner
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.kernels.floats import float_bytes, float_pack
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
    """Bytes of a weight in the form that it is packed into."""
    uses, shape = uses_of(graph, node), cast("tuple[int, ...]", node.type.shape)
    if uses & PRODUCTS:
        need = prod(shape[:-2]) * matrix_bytes(node.type.dtype, *shape[-2:]) if repack else 0
    else:
        need = 0 if uses == {"embed"} else prod(shape) * 4
    return -(-need // ALIGN) * ALIGN


def matrix_bytes(kind: str, rows: int, k: int) -> int:
    return float_bytes(kind, rows, k) if by_name(kind).is_float else Panel(kind).matrix_bytes(rows, k)


def upload(
    graph: Graph, source: GGUFFile, compiler: Compiler, threads: int, repack: bool, progress: Progress | None
) -> Weights:
    """All weights in one block of memory, in the order in which a step reads them.

    repack: matrices go into panels; without, they stay in the file's form.
    """
    sizes = {node: packed_bytes(graph, node, repack) for node in graph.weights}
    block, at = allocate(sum(sizes.values())), 0
    weights, team = Weights({}, {}), Team(compiler, threads, allocate(PACK_SCRATCH * threads))
    if progress:
        progress.start("packing", len(block))
    for node, size in sizes.items():
        name, uses = cast(str, node.attrs["tensor"]), uses_of(graph, node)
        place, at = block[at : at + size], at + size
        raw = source.data(name)
        raw = raw.reshape(*cast("tuple[int, ...]", node.type.shape[:-1]), -1)  # a file drops dimensions of 1
        if "embed" in uses:
            weights.raw[name] = raw
        if uses & PRODUCTS and not repack:
            weights.packed[name] = np.ascontiguousarray(raw)
        elif uses & PRODUCTS:
            pack_matrix(node, raw, place, compiler, team, source)
            weights.packed[name] = place
        elif uses != {"embed"}:
            weights.packed[name] = fill(node, raw, place)
        if progress:
            progress.advance(size)
    team.close()
    prefer_huge(block)
    if progress:
        progress.done()
    return weights


def fill(node: Node, raw: NDArray[np.uint8], place: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A small tensor as f32, in `place`."""
    shape = cast("tuple[int, ...]", node.type.shape)
    values = place[: prod(shape) * 4].view(np.float32).reshape(shape)
    return dequantize(by_name(node.type.dtype), raw, out=values)


def pack_spec(kind: str) -> Spec:
    """The kernel that packs matrices of a type."""
    is_float = by_name(kind).is_float
    return Spec.of(float_pack, kind=kind) if is_float else Spec.of(pack, panel=Panel(kind))


def pack_matrix(
    node: Node,
    raw: NDArray[np.uint8],
    place: NDArray[np.uint8],
    compiler: Compiler,
    team: Team,
    source: GGUFFile,
) -> None:
    """A matrix, or one of each expert, in panels, in `place`; the file's pages are let go as they are done."""
    kind, (rows, k) = node.type.dtype, cast("tuple[int, int]", node.type.shape[-2:])
    spec, raw = pack_spec(kind), np.ascontiguousarray(raw)
    row_bytes, panel_bytes = raw.strides[-2], 0 if by_name(kind).is_float else Panel(kind).nbytes(k)
    kernel, record = compiler.addresses_of([spec])[spec], allocate(runner.RECORD_BYTES).view(np.int64)
    panels, step = -(-rows // ROWS), max(1, SLICE // (ROWS * row_bytes))
    for expert in range(raw.size // (rows * row_bytes)):
        begin, target = expert * rows * row_bytes, place.ctypes.data + expert * matrix_bytes(kind, rows, k)
        args = np.array([raw.ctypes.data + begin, target, rows, k, row_bytes, panel_bytes], np.int64)
        for first in range(0, panels, step):
            last = min(panels, first + step)
            record[:6] = kernel, args.ctypes.data, last, 1 + step // 64, first, 1
            team.run(record.ctypes.data, 1)
            done = begin + first * ROWS * row_bytes, begin + min(last * ROWS, rows) * row_bytes
            source.drop(cast(str, node.attrs["tensor"]), *done)

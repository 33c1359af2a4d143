"""The contract on the CPU: weights in panels, kernels made for this processor, one native call a step and thread."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.base import Backend, Description, Progress, free_memory
from puna.backends.cpu import runner
from puna.backends.cpu.codecache import CodeCache
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.kernels.attention import Shape, attend_scratch
from puna.backends.cpu.kernels.floats import float_bytes, float_pack
from puna.backends.cpu.kernels.linear import many_scratch
from puna.backends.cpu.kernels.pack import PACK_SCRATCH, pack
from puna.backends.cpu.kernels.rows import EMITTERS
from puna.backends.cpu.memory import allocate
from puna.backends.cpu.panels import ROWS, Panel
from puna.backends.cpu.program import QUERIES, WIDTH, Program, row_bytes
from puna.backends.cpu.target import Target
from puna.backends.cpu.threads import Team, default_threads
from puna.gguf import GGUFFile
from puna.graph import Graph, Node
from puna.plan import Batch, KVLayout, Plan
from puna.quants import by_name, dequantize

__all__ = ["CPUBackend", "create"]


@dataclass
class Weights:
    """packed: what kernels read, by tensor.  raw: tables whose rows are read from the file's form."""

    packed: dict[str, NDArray[Any]]
    raw: dict[str, NDArray[np.uint8]]


class CPUBackend(Backend[Weights, Program]):
    """LLVM code for the processor at hand."""

    def __init__(self, target: Target, cache: CodeCache | None, threads: int | None) -> None:
        self.threads = threads or default_threads()
        self.compiler = Compiler(target, cache)

    def describe(self) -> Description:
        target = self.compiler.target
        return Description(
            name="cpu",
            device=f"{target.cpu} ({target.dot}), {self.threads} threads",
            free=free_memory(),
            ops=frozenset({*EMITTERS, "linear", "attend"}),
            row_ops=frozenset(EMITTERS),
            kv_types=("F16", "F32", "BF16"),
        )

    def resident(self, graph: Graph) -> int:
        return sum(weight_bytes(graph, node) for node in graph.weights)

    def scratch(self, node: Node, tokens: int, rows: int, kv: KVLayout) -> int:
        if node.op == "linear":
            kind, k = node.inputs[1].type.dtype, cast(int, node.inputs[1].type.shape[1])
            need = 0 if by_name(kind).is_float else many_scratch(Panel(kind), k, WIDTH)
        elif node.op == "attend":
            value = cast(int, node.type.shape[2])
            need = attend_scratch(Shape(1, 1, 1, value, "F32", "F32", 1.0, 0, 0.0), QUERIES)
        else:
            need = 0 if node.op == "kv_store" else -(-row_bytes(node) // 64) * 64
        return need * self.threads

    def upload(self, graph: Graph, source: GGUFFile, progress: Progress | None) -> Weights:
        weights = Weights({}, {})
        team = Team(self.compiler, self.threads, PACK_SCRATCH)
        if progress:
            progress.start("packing", self.resident(graph))
        for node in graph.weights:
            name, uses = cast(str, node.attrs["tensor"]), uses_of(graph, node)
            raw = source.data(name)
            if "embed" in uses:
                weights.raw[name] = raw
            if "linear" in uses:
                weights.packed[name] = self.packed(node, raw, team)
            elif uses != {"embed"}:
                weights.packed[name] = np.array(dequantize(by_name(node.type.dtype), raw))
            if progress:
                progress.advance(weight_bytes(graph, node))
        team.close()
        if progress:
            progress.done()
        return weights

    def packed(self, node: Node, raw: NDArray[np.uint8], team: Team) -> NDArray[np.uint8]:
        """A matrix in panels."""
        kind, (rows, k) = node.type.dtype, cast("tuple[int, int]", node.type.shape)
        is_float = by_name(kind).is_float
        spec = Spec.of(float_pack, kind=kind) if is_float else Spec.of(pack, panel=Panel(kind))
        raw = np.ascontiguousarray(raw)
        out = allocate(matrix_bytes(kind, rows, k))
        panel = 0 if is_float else Panel(kind).nbytes(k)
        args = np.array([raw.ctypes.data, out.ctypes.data, rows, k, raw.strides[0], panel], np.int64)
        panels = -(-rows // ROWS)
        record = allocate(runner.RECORD_BYTES).view(np.int64)
        record[:6] = (
            self.compiler.addresses_of([spec])[spec],
            args.ctypes.data,
            panels,
            1 + panels // 64,
            0,
            1,
        )
        team.run(record.ctypes.data, 1)
        return out

    def compile(self, plan: Plan, weights: Weights) -> Program:
        return Program(plan, weights.packed, weights.raw, self.compiler, self.threads)

    def run(self, program: Program, batch: Batch, logits: NDArray[np.float32]) -> None:
        program.run(batch, logits)


def uses_of(graph: Graph, node: Node) -> set[str]:
    """The operations that read a weight, or its factors."""
    return {user.op for user in graph.nodes if node in user.inputs}


def weight_bytes(graph: Graph, node: Node) -> int:
    """Bytes of a weight in memory of our own; rows that are read from the mapped file take none."""
    uses = uses_of(graph, node)
    if "linear" in uses:
        return matrix_bytes(node.type.dtype, *cast("tuple[int, int]", node.type.shape))
    return 0 if uses == {"embed"} else prod(cast("tuple[int, ...]", node.type.shape)) * 4


def matrix_bytes(kind: str, rows: int, k: int) -> int:
    return float_bytes(kind, rows, k) if by_name(kind).is_float else Panel(kind).matrix_bytes(rows, k)


def create(threads: int | None) -> CPUBackend:
    """The CPU backend on `threads` threads; None takes the physical cores that this process may use."""
    from platformdirs import user_cache_path

    folder: Path = user_cache_path("puna", appauthor=False) / "code"
    return CPUBackend(Target.host(), CodeCache(folder), threads)

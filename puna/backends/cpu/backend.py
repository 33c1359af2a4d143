"""The contract on the CPU: weights in panels, kernels made for this processor, one native call a step and thread."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.base import Backend, Description, Memory, free_memory
from puna.backends.cpu.codecache import CodeCache, default_folder
from puna.backends.cpu.compiler import Compiler
from puna.backends.cpu.kernels.attention import Shape, attend_scratch, parts_bytes
from puna.backends.cpu.kernels.experts import list_bytes
from puna.backends.cpu.kernels.linear import many_scratch
from puna.backends.cpu.kernels.recurrent import RECURRENT
from puna.backends.cpu.kernels.rows import EMITTERS
from puna.backends.cpu.memory import ALIGN
from puna.backends.cpu.panels import Panel
from puna.backends.cpu.program import Program, row_bytes
from puna.backends.cpu.scans import KernelScans
from puna.backends.cpu.target import Target
from puna.backends.cpu.threads import default_threads
from puna.backends.cpu.upload import PRODUCTS, Weights, upload, weight_bytes
from puna.gguf import GGUFFile
from puna.graph import Graph, Node
from puna.plan import Batch, KVLayout, Plan
from puna.progress import Progress
from puna.quants import by_name
from puna.scans import Scans
from puna.settings import Settings

__all__ = ["CPUBackend", "create"]

QUANTISED = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")  # types for keys and values


class CPUBackend(Backend[Weights, Program]):
    """LLVM code for the processor at hand."""

    def __init__(
        self, target: Target, cache: CodeCache | None, threads: int | None, repack: bool = True
    ) -> None:
        self.threads, self.repack = threads or default_threads(), repack
        self.compiler = Compiler(target, cache)

    def describe(self) -> Description:
        target = self.compiler.target
        return Description(
            name="cpu",
            device=f"{target.cpu} ({target.dot}), {self.threads} thread{'s' * (self.threads > 1)}",
            free=free_memory(),
            ops=frozenset({*EMITTERS, *PRODUCTS, *RECURRENT, "attend"}),
            row_ops=frozenset(EMITTERS),
            kv_types=("F16", "F32", "BF16", *QUANTISED),
            notes=()
            if self.repack
            else ("weights stay in the mapped file: slower, for models larger than memory",),
        )

    def resident(self, graph: Graph, mapped: bool) -> int:
        return sum(weight_bytes(graph, node, self.repack, mapped) for node in graph.weights)

    def scratch(self, nodes: tuple[Node, ...], tokens: int, rows: int, kv: KVLayout) -> int:
        each = sum(-(-self.need(node, tokens) // ALIGN) * ALIGN for node in nodes)
        return each * self.threads + parts_bytes(kv, self.threads)

    def need(self, node: Node, tokens: int) -> int:
        """Bytes that one thread wants for a node in a step of `tokens`."""
        if node.op in PRODUCTS:
            kind, k = node.inputs[1].type.dtype, cast(int, node.inputs[1].type.shape[-1])
            slots = list_bytes(tokens * cast(int, node.type.shape[1])) if node.op != "linear" else 0
            width = self.compiler.target.tile[0]
            return slots + (0 if by_name(kind).is_float else many_scratch(Panel(kind), k, width))
        if node.op == "attend":
            value = cast(int, node.type.shape[2])
            return attend_scratch(
                Shape(1, 1, 1, value, "F32", "F32", 1.0, 0, 0.0), self.compiler.target.queries
            )
        return 0 if node.op == "kv_store" or node.op in RECURRENT else row_bytes(node)

    def upload(self, graph: Graph, source: GGUFFile, progress: Progress | None) -> Weights:
        return upload(graph, source, self.compiler, self.threads, self.repack, progress)

    def compile(self, plan: Plan, weights: Weights) -> Program:
        return Program(plan, weights, self.compiler, self.threads, self.repack)

    def run(self, program: Program, batch: Batch, logits: NDArray[np.float32]) -> None:
        program.run(batch, logits)

    def memory(self, program: Program) -> Memory:
        return Memory(program.cache, program.states)

    def scans(self) -> Scans:
        return KernelScans(self.compiler)


def create(threads: int | None, repack: bool = True) -> CPUBackend:
    """The CPU backend on `threads` threads; None takes the physical cores that this process may use.

    repack: matrices go into panels; without, kernels read the rows of the file.
    """
    target = Target.host(Settings.from_environment().cpu)
    return CPUBackend(target, CodeCache(default_folder()), threads, repack)

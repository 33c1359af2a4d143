"""The contract on the CPU: weights in panels, kernels made for this processor, one native call a step and thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.base import USUAL, Backend, Description, Memory, Storage
from puna.backends.cpu.attends import ATTENDS, scratch_bytes
from puna.backends.cpu.codecache import CodeCache, default_folder
from puna.backends.cpu.compiler import Compiler
from puna.backends.cpu.kernels.experts import list_bytes
from puna.backends.cpu.kernels.linear import many_scratch
from puna.backends.cpu.kernels.recurrent import RECURRENT
from puna.backends.cpu.kernels.rows import EMITTERS
from puna.backends.cpu.kernels.shapes import parts_bytes
from puna.backends.cpu.memory import ALIGN, row_bytes
from puna.backends.cpu.panels import Panel
from puna.backends.cpu.program import Program, calls_bytes
from puna.backends.cpu.scans import KernelScans
from puna.backends.cpu.tables import table_bytes
from puna.backends.cpu.target import Target
from puna.backends.cpu.threads import default_threads
from puna.backends.cpu.upload import PRODUCTS, Weights, upload, weight_bytes
from puna.backends.free import free_memory
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
        self,
        target: Target,
        cache: CodeCache | None,
        threads: int | None,
        repack: bool = True,
        storage: Storage = USUAL,
    ) -> None:
        self.threads, self.repack, self.storage = threads or default_threads(), repack, storage
        self.compiler = Compiler(target, cache)

    def describe(self) -> Description:
        target = self.compiler.target
        row_ops = frozenset(EMITTERS) - ({"round"} if not target.pairs else set())
        return Description(
            name="cpu",
            device=f"{target.cpu} ({target.dot}), {self.threads} thread{'s' * (self.threads > 1)}",
            free=free_memory(),
            ops=frozenset({*row_ops, *PRODUCTS, *RECURRENT, *ATTENDS}),
            row_ops=row_ops,
            shares_values=True,
            kv_types=("F16", "F32", "BF16", *QUANTISED),
            notes=()
            if self.repack
            else ("weights are read in the file's form: slower, for models larger than memory",),
        )

    def resident(self, graph: Graph, mapped: bool) -> int:
        return sum(weight_bytes(graph, node, self.repack, mapped) for node in graph.weights)

    def scratch(self, nodes: tuple[Node, ...], tokens: int, rows: int, kv: KVLayout) -> int:
        each = sum(-(-self.need(node, tokens, kv) // ALIGN) * ALIGN for node in nodes)
        return each * self.threads + parts_bytes(kv, self.threads)

    def need(self, node: Node, tokens: int, kv: KVLayout) -> int:
        """Bytes that one thread wants for a node in a step of `tokens`."""
        if node.op in PRODUCTS:
            kind, k = node.inputs[1].type.dtype, cast(int, node.inputs[1].type.shape[-1])
            slots = list_bytes(tokens * cast(int, node.type.shape[1])) if node.op != "linear" else 0
            width = self.compiler.target.tile[0]
            return slots + (0 if by_name(kind).is_float else many_scratch(Panel(kind), k, width))
        if node.op in ATTENDS:
            return scratch_bytes(node, kv, self.compiler.target)
        return 0 if node.op == "kv_store" or node.op in RECURRENT else row_bytes(node)

    def tables(self, plan: Plan) -> int:
        return table_bytes(plan) + calls_bytes(plan)

    def upload(self, graph: Graph, source: GGUFFile, progress: Progress | None) -> Weights:
        return upload(graph, source, self.compiler, self.threads, self.repack, progress, self.storage)

    def compile(self, plan: Plan, weights: Weights) -> Program:
        return Program(plan, weights, self.compiler, self.threads, self.repack, self.storage.align)

    def run(self, program: Program, batch: Batch, logits: NDArray[np.float32]) -> None:
        program.run(batch, logits)

    def memory(self, program: Program) -> Memory:
        return Memory(program.cache, program.states)

    def kept(self, weights: Weights, program: Program) -> Iterator[NDArray[Any]]:
        yield from (*weights.packed.values(), *weights.raw.values(), program.compute, program.scratch)
        yield from (*program.states.values(), *(part for parts in program.cache.values() for part in parts))

    def scans(self) -> Scans:
        return KernelScans(self.compiler)


def create(threads: int | None, repack: bool = True, storage: Storage = USUAL) -> CPUBackend:
    """The CPU backend on `threads` threads; None takes the physical cores that this process may use.

    repack: matrices go into panels; without, kernels read the rows of the file.
    """
    target = Target.host(Settings.from_environment().cpu)
    return CPUBackend(target, CodeCache(default_folder()), threads, repack, storage)

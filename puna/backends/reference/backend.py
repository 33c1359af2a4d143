"""The contract on NumPy: weights as float32, one function call a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.base import USUAL, Backend, Description, Memory, Storage, copy_pages
from puna.backends.free import free_memory
from puna.backends.reference.attention import scratch_bytes
from puna.backends.reference.kernels import KERNELS
from puna.backends.reference.recurrent import RECURRENT, recurrent_bytes
from puna.backends.reference.step import Step
from puna.errors import BackendError
from puna.gguf import GGUFFile
from puna.graph import Graph, Node
from puna.plan import Batch, KVLayout, Plan
from puna.progress import Progress
from puna.quants import by_name, dequantize

__all__ = ["Observer", "ReferenceBackend", "create"]

Weights = dict[str, NDArray[Any]]
# Told of each matrix product before it is computed: the weight's node, x, and where it has experts their ids.
Observer = Callable[..., None]
PRODUCTS = frozenset({"linear", "linear_experts"})
# A temporary of the operand's size, which NumPy takes while it works.
TEMPORARIES = {
    "hadamard": 2,
    "act": 4,
    "gated": 4,
    "normalize": 2,
    "norm": 2,
    "rope": 2,
    "softmax": 1,
    "softcap": 1,
}


@dataclass
class Program:
    """A plan with its memory."""

    plan: Plan
    weights: Weights
    compute: NDArray[np.uint8]
    scratch: NDArray[np.float32]
    cache: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]]
    states: dict[str, NDArray[np.float32]]
    views: dict[tuple[int, int], dict[Node, NDArray[Any]]] = field(default_factory=dict)

    def buffers(self, tokens: int, rows: int) -> dict[Node, NDArray[Any]]:
        """Every placed value as an array of this step's size; kept for the last size, which decode repeats."""
        if (tokens, rows) not in self.views:
            made: dict[Node, NDArray[Any]] = {}
            for node, buffer in self.plan.buffers.items():
                if buffer.offset is None:
                    continue
                shape = node.type.resolve(tokens, rows)
                count = node.type.count(tokens, rows) * 4
                block = self.compute[buffer.offset : buffer.offset + count]
                made[node] = block.view(np.int32 if node.type.dtype == "i32" else np.float32).reshape(shape)
            self.views = {(tokens, rows): made}
        return self.views[tokens, rows]


class ReferenceBackend(Backend[Weights, Program]):
    """NumPy on the machine's BLAS. Rounding follows that BLAS, so results agree closely, not to the bit."""

    def __init__(self, threads: int | None) -> None:
        from threadpoolctl import ThreadpoolController

        self.pools = ThreadpoolController().select(user_api="blas")
        self.threads = threads
        self.observer: Observer | None = None

    @contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """While it lasts, `observer(weight, x)`, or `observer(weight, x, ids)`, is called for each matrix product.

        weight: its node, which names the tensor.  x: float32 [.., k], [rows, k] or [rows, used, k] for experts;
        to be left as it is, and good during the call alone.  ids: int32 [rows, used].
        """
        self.observer = observer
        try:
            yield
        finally:
            self.observer = None

    def describe(self) -> Description:
        infos = self.pools.info()
        notes = []
        if not infos and self.threads:
            notes.append("this BLAS sets its own number of threads: --threads has no effect")
        names = ", ".join(f"{info['internal_api']} {info['version'] or ''}".strip() for info in infos)
        count = self.threads or max((info["num_threads"] for info in infos), default=1)
        threads = "1 thread" if count == 1 else f"{count} threads"
        return Description(
            name="reference",
            device=f"NumPy {np.__version__}, {names or 'BLAS'}, {threads}",
            free=free_memory(),
            ops=frozenset(KERNELS),
            kv_types=("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL"),
            shares_values=True,
            notes=tuple(notes),
        )

    def resident(self, graph: Graph, mapped: bool) -> int:
        return sum(self.weight_bytes(graph, node) for node in graph.weights)

    def weight_bytes(self, graph: Graph, node: Node) -> int:
        if only_gathered(graph, node):
            quant, (rows, k) = by_name(node.type.dtype), cast("tuple[int, int]", node.type.shape)
            return rows * quant.row_bytes(k)
        return node.type.count(0, 0) * 4

    def scratch(self, nodes: tuple[Node, ...], tokens: int, rows: int, kv: KVLayout) -> int:
        node = nodes[0]  # a record is one node here
        if node.op in {"attend", "attend_both", "attend_chosen", "index", "index_blocks"}:
            return scratch_bytes(node, kv, tokens)
        if node.op in RECURRENT:
            return recurrent_bytes(node, tokens)
        return TEMPORARIES.get(node.op, 0) * node.type.count(tokens, rows) * 4

    def upload(self, graph: Graph, source: GGUFFile, progress: Progress | None) -> Weights:
        weights: Weights = {}
        if progress:
            progress.start("loading", self.resident(graph, True))
        for node in graph.weights:
            name = cast(str, node.attrs["tensor"])
            raw = source.data(name)
            packed = only_gathered(graph, node)
            shape = cast("tuple[int, ...]", node.type.shape)  # a file drops leading ones
            values = raw if packed else dequantize(by_name(node.type.dtype), raw)
            weights[name] = values.reshape(*shape[:-1], -1)
            if not packed and node.type.dtype != "F32":
                source.drop(name)
            if progress:
                progress.advance(self.weight_bytes(graph, node))
        if progress:
            progress.done()
        return weights

    def compile(self, plan: Plan, weights: Weights) -> Program:
        cache = {layer: kv_memory(plan.kv, layer) for layer in plan.kv.widths}
        compute, scratch = np.zeros(plan.compute, np.uint8), np.zeros(plan.scratch // 4, np.float32)
        states = {
            name: np.zeros((plan.kv.slots, *shape), np.float32) for name, shape in plan.kv.states.items()
        }
        return Program(plan, weights, compute, scratch, cache, states)

    def run(self, program: Program, batch: Batch, logits: NDArray[np.float32]) -> None:
        plan = program.plan
        copy_pages(plan.kv, program.cache, batch.copies)
        step = Step(batch, plan.kv, program.cache, program.scratch, program.states)
        buffers = program.buffers(len(batch.tokens), len(batch.outputs))

        def operand(node: Node) -> NDArray[Any] | None:
            if node.op == "weight":
                return program.weights[cast(str, node.attrs["tensor"])]
            if node.op == "constant":
                return np.array(node.attrs["values"], np.float32).reshape(node.type.resolve(0, 0))
            if node.op == "tokens":
                return batch.tokens
            if node.op == "positions":
                return batch.positions
            if node.op == "types":
                return np.zeros_like(batch.tokens)
            if node.op == "kv_store":
                return None
            return buffers.get(node, logits)

        with self.pools.limit(limits=self.threads):
            for record in plan.records[plan.of(batch)]:
                for node in record.nodes:
                    inputs = [operand(n) for n in node.inputs]
                    if self.observer and node.op in PRODUCTS:
                        x, _, *ids = inputs
                        self.observer(node.inputs[1], x, *ids)
                    KERNELS[node.op](step, node, operand(node), *inputs)

    def memory(self, program: Program) -> Memory:
        return Memory(program.cache, program.states)

    def kept(self, weights: Weights, program: Program) -> Iterator[NDArray[Any]]:
        yield from (*weights.values(), program.compute, program.scratch, *program.states.values())
        yield from (part for parts in program.cache.values() for part in parts)


def kv_memory(layout: KVLayout, layer: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Keys and values of a layer: uint8 [rows, row bytes] each."""
    count = layout.pages(layer) * layout.rows(layer)
    keys, values = (np.zeros((count, width), np.uint8) for width in layout.row_bytes(layer))
    return keys, values


def only_gathered(graph: Graph, node: Node) -> bool:
    """Whether single rows of a weight are all that is read, so that it can stay in the file's form."""
    return {user.op for user in graph.users[node]} == {"embed"}


def create(threads: int | None, repack: bool = True, storage: Storage = USUAL) -> ReferenceBackend:
    """The reference backend, its BLAS limited to `threads`; None leaves the BLAS its own choice.

    Raises BackendError without `repack`: the BLAS wants weights as f32.
    """
    if not repack:
        raise BackendError(
            "the reference backend cannot run from the file's form", fix="leave --no-repack out"
        )
    return ReferenceBackend(threads)

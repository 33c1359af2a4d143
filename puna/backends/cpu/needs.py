"""Which kernels there are and which a model needs, without packing its weights: for looking at, not for running."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from puna.backends.cpu.backend import CPUBackend
from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.linear import few, many
from puna.backends.cpu.memory import allocate
from puna.backends.cpu.panels import Panel
from puna.backends.cpu.target import Target
from puna.backends.cpu.upload import Weights, form_for, pack_spec, uses_of, weight_bytes
from puna.gguf import GGUFFile
from puna.graph import Graph, Node
from puna.models.registry import build
from puna.plan import KVLayout, context_length, lower, make_plan
from puna.quants import by_name, dequantize
from puna.quants.registry import TYPES

__all__ = ["compile_needs", "matrix_kernels"]


def compile_needs(file: GGUFFile, backend: CPUBackend, batch: int = 512) -> list[Spec]:
    """Compile what a model needs to load, to read a prompt of `batch` tokens and to write a token.

    `backend.compiler.seconds` then tells how long each took. Raises ModelError or BackendError where the model
    cannot run on this backend.
    """
    graph, config = build(file)
    about = backend.describe()
    graph = lower(graph, about.ops)
    n_ctx, kind = context_length(None, config.n_ctx_train), about.kv_types[0]
    kv = KVLayout.of(graph, n_ctx, kind, kind, share=about.shares_values)
    batch = min(batch, kv.positions)
    plan = make_plan(graph, tokens=batch, rows=1, kv=kv, scratch=backend.scratch, row_ops=about.row_ops)
    matrices = [node for node in graph.weights if is_matrix(graph, node)]
    backend.compiler.addresses_of(pack_spec(form_for(graph, node)) for node in matrices)
    program = backend.compile(plan, unpacked(graph, file))
    for tokens, mode in ((batch, "prefill"), (1, "decode"), (1, "split")):
        program.prepare(tokens, 1, mode)
    program.team.close()
    return list(backend.compiler.seconds)


def is_matrix(graph: Graph, node: Node) -> bool:
    """Whether kernels read a weight in panels."""
    return any(use.startswith("linear") for use in uses_of(graph, node))


def matrix_kernels(target: Target) -> list[Spec]:
    """Those that every model has some of: packing, and products with one token and with many, of each type."""
    specs, (width, tile) = [pack_spec(quant.name) for quant in TYPES.values()], target.tile
    for panel in (Panel(quant.name) for quant in TYPES.values() if not quant.is_float):
        specs += [Spec.of(few, panel=panel, tokens=1), Spec.of(many, panel=panel, width=width, tile=tile)]
    return specs


def unpacked(graph: Graph, file: GGUFFile) -> Weights:
    """Weights in their places, but the matrices are empty memory that is never touched, so takes none."""
    weights = Weights({}, {})
    for node in graph.weights:
        name, uses = cast(str, node.attrs["tensor"]), uses_of(graph, node)
        if "embed" in uses:
            weights.raw[name] = file.data(name)
        if is_matrix(graph, node):
            weights.packed[name] = allocate(weight_bytes(graph, node, True))
        elif uses != {"embed"}:
            weights.packed[name] = small(file, name, node.type.dtype)
    return weights


def small(file: GGUFFile, name: str, kind: str) -> NDArray[Any]:
    return np.asarray(dequantize(by_name(kind), file.data(name)))

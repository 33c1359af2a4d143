"""A computation as data."""

from __future__ import annotations

from puna.graph.alibi import slopes
from puna.graph.dump import dump
from puna.graph.node import Dim, Graph, Node, Type, make
from puna.graph.ops import ACTIVATIONS, ELEMENTWISE, NORMS, OPS, SpecError, hadamard_size
from puna.graph.parts import decodes, encodes, has_encoder
from puna.graph.recurrent import state_shape
from puna.graph.relative import FAR, bias_of, biases, sinks_of
from puna.graph.rope import Rope, Yarn
from puna.graph.spec import check

__all__ = [
    "ACTIVATIONS",
    "ELEMENTWISE",
    "FAR",
    "NORMS",
    "OPS",
    "Dim",
    "Graph",
    "Node",
    "Rope",
    "SpecError",
    "Type",
    "Yarn",
    "bias_of",
    "biases",
    "check",
    "decodes",
    "dump",
    "encodes",
    "hadamard_size",
    "has_encoder",
    "make",
    "sinks_of",
    "slopes",
    "state_shape",
]

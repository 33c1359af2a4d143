"""A computation as data."""

from __future__ import annotations

from puna.graph.alibi import slopes
from puna.graph.dump import dump
from puna.graph.node import Dim, Graph, Node, Type, make
from puna.graph.ops import ELEMENTWISE, OPS, SpecError
from puna.graph.rope import Rope, Yarn
from puna.graph.spec import check

__all__ = [
    "ELEMENTWISE",
    "OPS",
    "Dim",
    "Graph",
    "Node",
    "Rope",
    "SpecError",
    "Type",
    "Yarn",
    "check",
    "dump",
    "make",
    "slopes",
]

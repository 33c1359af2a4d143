"""The executable spec of a graph, run before and after every pass in tests and on every model that is loaded."""

from __future__ import annotations

from puna.graph.node import Graph, Type
from puna.graph.ops import OPS, SpecError
from puna.graph.parts import decodes, encodes

__all__ = ["check"]


def check(graph: Graph) -> None:
    """Raise SpecError unless the graph keeps the rules.

    Every operation is in the table and its type follows from the table's rule; a layer's keys and values are stored
    once by each part, and a state has one user; tensors have one type each; a step runs an encoder or a decoder, with
    nothing but leaves in both; the output is f32 [R, vocabulary].
    """
    stored: set[object] = set()
    tensors: dict[object, Type] = {}
    for node in graph.nodes:
        if node.op not in OPS:
            raise SpecError(f"no such operation: {node.op}")
        inferred = OPS[node.op].infer([n.type for n in node.inputs], node.attrs)
        if inferred != node.type:
            raise SpecError(f"{node.op} is typed {node.type}, its rule says {inferred}")
        if node.op == "kv_store":
            place = node.attrs["layer"], node.attrs.get("part")
            if place in stored:
                raise SpecError(f"layer {node.attrs['layer']} stores its keys twice")
            stored.add(place)
        if "state" in node.attrs:
            if node.attrs["state"] in stored:
                raise SpecError(f"state {node.attrs['state']} is used twice")
            stored.add(node.attrs["state"])
        if node.op == "weight" and tensors.setdefault(node.attrs["tensor"], node.type) != node.type:
            raise SpecError(f"{node.attrs['tensor']} has two types")
    twice = next((node for node in encodes(graph) & decodes(graph) if node.inputs), None)
    if twice:
        raise SpecError(f"{twice} is both the encoder's and the decoder's")
    out = graph.output.type
    if out.dtype != "f32" or len(out.shape) != 2 or out.shape[0] != "R":
        raise SpecError(f"the output is {out}, not f32[R, vocabulary]")

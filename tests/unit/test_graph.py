"""Nodes, the type rules of the ops table, the spec and the dump."""

from __future__ import annotations

import numpy as np
import pytest

from puna.graph import OPS, Graph, Node, Rope, SpecError, Type, Yarn, check, dump, make


def weight(name: str, *shape: int) -> Node:
    return make("weight", tensor=name, dtype="F32", shape=shape)


def small() -> Graph:
    x = make("embed", weight("token_embd.weight", 50, 8), make("tokens"))
    y = make(
        "linear",
        make("normalize", x, kind="rms", eps=1e-5) * weight("norm.weight", 8),
        weight("up.weight", 8, 8),
    )
    return Graph(make("linear", make("select", x + y), weight("output.weight", 50, 8)))


def test_types_follow_from_operands() -> None:
    """Each node's type comes from the table's rule, symbolic dimensions included."""
    assert str(small().output.type) == "f32[R, 50]"
    assert Type("f32", ("T", 3, "R")).resolve(5, 2) == (5, 3, 2)
    assert Type("f32", ("T", 3, "R")).count(5, 2) == 30


def test_nodes_come_after_their_inputs() -> None:
    """Graph.nodes is a topological order without repeats."""
    nodes = small().nodes
    assert len(set(nodes)) == len(nodes)
    for i, node in enumerate(nodes):
        assert set(node.inputs) <= set(nodes[:i])


def test_deep_graphs_need_no_recursion() -> None:
    """A graph deeper than Python's stack can be ordered."""
    x = make("embed", weight("e", 4, 2), make("tokens"))
    for _ in range(5000):
        x = make("scale", x, by=2.0)
    assert len(Graph(x).nodes) == 5003


X = make("embed", weight("e", 9, 8), make("tokens"))
Q = make("reshape", X, shape=("T", 2, 4))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("linear", (X, weight("w", 3, 7)), {}),
        ("linear", (X,), {}),
        ("add", (X, weight("w", 7)), {}),
        ("scale", (X,), {}),
        ("reshape", (X,), {"shape": ("T", 3, 3)}),
        ("rope", (Q,), {"rope": Rope(6, 1e4, "halves")}),
        ("rope", (Q, weight("f", 3)), {"rope": Rope(4, 1e4, "halves")}),
        ("top", (X,), {"k": 9}),
        ("select", (weight("w", 3, 7),), {}),
        ("gated", (X, X), {"kind": "cubic"}),
        ("act", (X,), {"kind": "cubic"}),
        ("normalize", (X,), {"kind": "mean", "eps": 1e-5}),
        ("norm", (X, weight("w", 4)), {"kind": "rms", "eps": 1e-5}),
        ("mul", (Q, weight("w", 3, 1)), {}),
        ("div", (X, weight("w", 4)), {}),
        ("slice", (X,), {"start": 4, "size": 5}),
        ("slice", (X,), {"start": -1, "size": 2}),
        ("cat", (X, X), {}),
        ("cat", (Q, make("reshape", X, shape=("T", 4, 2))), {}),
        ("attend", (Q, X), {"scale": 1.0, "window": 0, "softcap": 0.0, "alibi": 0.0}),
        ("linear_experts", (X, weight("w", 2, 3, 7), make("top", X, k=2)), {}),
        ("kv_store", (Q, X), {"layer": 0}),
    ],
)
def test_misfits_are_refused(op: str, inputs: tuple[Node, ...], attrs: dict[str, object]) -> None:
    """Operands or constants that do not fit an operation raise SpecError when the node is made."""
    with pytest.raises(SpecError):
        make(op, *inputs, **attrs)


def test_shapes_of_parts_and_broadcasts() -> None:
    """A part keeps all dimensions but the last; one value may stand for a run; one head joins all heads."""
    assert str(make("slice", Q, start=1, size=2).type) == "f32[T, 2, 2]"
    one = make("reshape", make("slice", X, start=0, size=3), shape=("T", 1, 3))
    assert str(make("cat", Q, one).type) == "f32[T, 2, 7]"
    assert (Q * weight("gain", 2, 1)).type == (Q * weight("gain", 1)).type == Q.type


def test_heads_share_evenly() -> None:
    """Query heads that are no multiple of the key/value heads are refused."""
    kv = make("kv_store", Q, Q, layer=0)
    three = make("reshape", make("embed", weight("t", 9, 12), make("tokens")), shape=("T", 3, 4))
    with pytest.raises(SpecError, match="evenly"):
        make("attend", three, kv, scale=1.0, window=0, softcap=0.0, alibi=0.0)


def test_check_finds_a_wrong_type() -> None:
    """The spec re-derives every type, so a pass cannot lie about one."""
    graph = small()
    check(graph)
    wrong = Node("linear", graph.output.inputs, Type("f32", ("R", 51)))
    with pytest.raises(SpecError, match="its rule says"):
        check(Graph(wrong))


def test_check_wants_logits() -> None:
    """The output must be f32 [R, vocabulary]."""
    with pytest.raises(SpecError, match="output"):
        check(Graph(X))


def test_check_allows_one_store_a_layer() -> None:
    """Two stores of one layer would write the cache twice."""
    y = X
    for _ in range(2):
        kv = make("kv_store", Q, Q, layer=0)
        y = y + make(
            "reshape", make("attend", Q, kv, scale=1.0, window=0, softcap=0.0, alibi=0.0), shape=("T", 8)
        )
    with pytest.raises(SpecError, match="twice"):
        check(Graph(make("select", y)))


def test_dump_names_every_node() -> None:
    """The dump is one line a node and names tensors as the file does."""
    text = dump(small())
    assert text.splitlines()[-1] == "%7 = linear(%6, output.weight) -> f32[R, 50]"
    assert "normalize(%1, kind=rms, eps=1e-05)" in text


def test_fused_operations_are_defined_by_plain_ones() -> None:
    """Every fused row of the table expands to nodes of the same type."""
    fused = {
        "norm": make("norm", X, weight("w", 8), kind="rms", eps=1e-5),
        "gated": make("gated", X, X, kind="silu"),
        "quantize": make("quantize", make("embed", weight("t", 9, 32), make("tokens"))),
        "round": make("round", make("embed", weight("t", 9, 32), make("tokens"))),
    }
    assert set(fused) == {name for name, op in OPS.items() if op.definition}
    for node in fused.values():
        definition = OPS[node.op].definition
        assert definition is not None
        assert definition(node).type.shape == node.type.shape


def test_rope_frequencies() -> None:
    """base ** (-2i / dims), divided by the linear factor and by per-pair factors."""
    rope = Rope(8, 10000.0, "halves", factor=4.0)
    plain = 10000.0 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(rope.frequencies(), plain / 4)
    factors = np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_allclose(rope.frequencies(factors), plain / factors / 4)
    assert rope.magnitude == 1.0


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones() -> None:
    """YaRN: the fastest pair turns as before, the slowest is divided by the factor, and values are stretched."""
    rope = Rope(64, 10000.0, "halves", factor=8.0, yarn=Yarn(context=4096))
    own = Rope(64, 10000.0, "halves").frequencies()
    ratio = rope.frequencies() / own
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(1 / 8)
    assert (np.diff(ratio) <= 1e-12).all()
    assert rope.magnitude == pytest.approx(0.1 * np.log(8.0) + 1.0)
    carried = Rope(64, 10000.0, "halves", factor=8.0, yarn=Yarn(context=4096, log_multiplier=1.0))
    assert carried.magnitude == pytest.approx(1.0)

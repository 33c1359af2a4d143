"""Passes keep the meaning of a graph; the plan never lets two live values share bytes."""

from __future__ import annotations

import itertools

import pytest

from puna.graph import ELEMENTWISE, Graph, Node, Rope, check, make
from puna.plan import PASSES, KVLayout, Plan, context_length, expand, human, lower, make_plan, regions
from puna.plan.passes import select_early


def weight(name: str, *shape: int) -> Node:
    return make("weight", tensor=name, dtype="F32", shape=shape)


def norm(x: Node, name: str) -> Node:
    return make("rms_norm", x, eps=1e-5) * weight(f"{name}.weight", 8)


def decoder(layers: int = 2) -> Graph:
    """A small decoder of the plain operations, as models write them."""
    x = make("embed", weight("token_embd.weight", 50, 8), make("tokens"))
    for i in range(layers):
        y = norm(x, f"{i}.attn_norm")
        q, k, v = (
            make("reshape", make("linear", y, weight(f"{i}.{n}", 8, 8)), shape=("T", 2, 4)) for n in "qkv"
        )
        q = make("rope", q, rope=Rope(4, 1e4, "halves"))
        kv = make("kv_store", make("rope", k, rope=Rope(4, 1e4, "halves")), v, layer=i)
        y = make("reshape", make("attend", q, kv, scale=0.5, window=0, softcap=0.0), shape=("T", 8))
        x = x + make("linear", y, weight(f"{i}.o", 8, 8))
        y = norm(x, f"{i}.ffn_norm")
        gate = make("silu", make("linear", y, weight(f"{i}.gate", 16, 8)))
        x = x + make("linear", gate * make("linear", y, weight(f"{i}.up", 16, 8)), weight(f"{i}.down", 8, 16))
    return Graph(make("linear", norm(make("select", x), "output_norm"), weight("token_embd.weight", 50, 8)))


ALL_OPS = frozenset({"norm", "gated"})


def counts(graph: Graph) -> dict[str, int]:
    names = [node.op for node in graph.nodes]
    return {name: names.count(name) for name in names}


def test_every_pass_keeps_the_spec() -> None:
    """The spec holds before and after each pass."""
    graph = decoder()
    check(graph)
    for run in PASSES.values():
        graph = run(graph)
        check(graph)


def test_passes_fuse() -> None:
    """Norms and gates become one node each, and equal weights one node."""
    before, after = counts(decoder()), counts(lower(decoder(), ALL_OPS))
    assert after["norm"] == before["rms_norm"] == 5
    assert after["gated"] == before["silu"] == 2
    assert "rms_norm" not in after
    assert "silu" not in after
    assert len(lower(decoder(), ALL_OPS).weights) == 20


def test_expand_undoes_fusion() -> None:
    """A backend without fused kernels gets the plain operations back."""
    assert counts(expand(lower(decoder(), ALL_OPS))) == counts(lower(decoder(), ()))
    assert "norm" not in counts(lower(decoder(), ()))


def test_select_moves_above_the_last_feed_forward() -> None:
    """Only the last layer's row-wise operations narrow to R; everything that feeds the cache stays at T."""
    graph = select_early(decoder(layers=3))
    check(graph)
    wide = [n for n in graph.nodes if n.op == "silu" and n.type.shape[0] == "T"]
    narrow = [n for n in graph.nodes if n.op == "silu" and n.type.shape[0] == "R"]
    assert (len(wide), len(narrow)) == (2, 1)
    stores = [n for n in graph.nodes if n.op == "kv_store"]
    assert len(stores) == 3
    assert all(operand.type.shape[0] == "T" for n in stores for operand in n.inputs)


def planned(graph: Graph, tokens: int = 7, rows: int = 3) -> Plan:
    kv = KVLayout.of(graph, 100, "F32", "F16")
    return make_plan(graph, tokens=tokens, rows=rows, kv=kv, scratch=lambda node, t, r, kv: 8 * t)


@pytest.mark.parametrize("ops", [(), ALL_OPS])
def test_live_values_never_share_bytes(ops: frozenset[str]) -> None:
    """At every call, values still to be read lie apart, except where the plan lets a result replace an operand."""
    plan = planned(lower(decoder(3), ops))
    order = {node: i for i, node in enumerate(plan.graph.nodes)}
    last = {operand: order[node] for node in plan.graph.nodes for operand in node.inputs}
    roots = {node: root_of(node) for node in plan.buffers}
    for a, b in itertools.combinations(plan.buffers, 2):
        if roots[a] is roots[b] or plan.buffers[a].offset is None or plan.buffers[b].offset is None:
            continue
        first, second = (a, b) if order[a] < order[b] else (b, a)
        if last.get(first, 0) < order[second]:
            continue  # dead before the other is made
        if last.get(first, 0) == order[second] and second.op in ELEMENTWISE and first in second.inputs:
            continue  # overwritten by its last reader
        x, y = plan.buffers[a], plan.buffers[b]
        assert x.offset is not None
        assert y.offset is not None
        assert x.offset + x.nbytes <= y.offset or y.offset + y.nbytes <= x.offset, (a, b)


def root_of(node: Node) -> Node:
    while node.op == "reshape":
        node = node.inputs[0]
    return node


def test_plan_sizes() -> None:
    """Compute bytes cover every buffer, scratch is the neediest kernel's, and the table shows both."""
    plan = planned(lower(decoder(), ALL_OPS))
    assert plan.compute == max(b.offset + b.nbytes for b in plan.buffers.values() if b.offset is not None)
    assert plan.scratch == 56
    assert f"compute buffer {plan.compute} bytes, scratch 56 bytes" in plan.table()
    assert plan.buffers[plan.graph.output].offset is None
    assert {record.kernel for record in plan.records}.isdisjoint({"weight", "tokens", "reshape"})


def test_compute_buffer_is_reused() -> None:
    """More layers need no more compute memory."""
    assert planned(lower(decoder(2), ALL_OPS)).compute == planned(lower(decoder(9), ALL_OPS)).compute


def test_kv_bytes() -> None:
    """KV memory is positions x layers x widths x bytes, in whole pages."""
    layout = KVLayout.of(decoder(3), 100, "F32", "F16")
    assert layout.positions == 128
    assert layout.row_bytes(0) == (32, 16)
    assert layout.nbytes == 128 * 3 * 48


def test_rule_of_thumb_for_kv() -> None:
    """A 70B of 80 layers with 8 heads of 128 takes 640 MiB at 2048 in f16; a 7B with 32 full layers 1 GiB."""
    big = KVLayout(dict.fromkeys(range(80), (8, 128, 128)), "F16", "F16", 2048 // 64)
    small = KVLayout(dict.fromkeys(range(32), (32, 128, 128)), "F16", "F16", 2048 // 64)
    assert (big.nbytes, small.nbytes) == (640 << 20, 1 << 30)


def test_regions() -> None:
    """The four regions are named, and the logits of a row count with the compute buffer."""
    plan = planned(lower(decoder(), ALL_OPS))
    memory = regions(plan, 1000)
    assert memory == {
        "weights": 1000,
        "compute": plan.compute + 200,
        "kv": plan.kv.nbytes,
        "scratch": plan.scratch,
    }


def test_context_length() -> None:
    """None is the model's own up to 4096, 0 all of it, a number itself."""
    assert [context_length(n, 8192) for n in (None, 0, 100)] == [4096, 8192, 100]
    assert context_length(None, 256) == 256


def test_human() -> None:
    """Bytes are shown in binary units."""
    assert [human(n) for n in (12, 1536, 5 << 20, 3 << 40)] == ["12 B", "1.5 KiB", "5.0 MiB", "3.0 TiB"]

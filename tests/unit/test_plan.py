"""Passes keep the meaning of a graph; the plan never lets two live values share bytes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tiny_model import write_tiny

import puna
from puna import planning
from puna.errors import PunaError, RequestError
from puna.graph import ELEMENTWISE, Graph, Node, Rope, check, make
from puna.plan import (
    PASSES,
    KVLayout,
    Plan,
    context_length,
    expand,
    lower,
    make_plan,
    positive,
    regions,
    thread_count,
)
from puna.plan.passes import select_early
from puna.quants import by_name
from puna.units import human


def weight(name: str, *shape: int, kind: str = "F32") -> Node:
    return make("weight", tensor=name, dtype=kind, shape=shape)


def norm(x: Node, name: str) -> Node:
    return make("normalize", x, kind="rms", eps=1e-5) * weight(f"{name}.weight", 8)


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
        y = make(
            "reshape", make("attend", q, kv, scale=0.5, window=0, softcap=0.0, alibi=0.0), shape=("T", 8)
        )
        x = x + make("linear", y, weight(f"{i}.o", 8, 8))
        y = norm(x, f"{i}.ffn_norm")
        gate = make("act", make("linear", y, weight(f"{i}.gate", 16, 8)), kind="silu")
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
    assert after["norm"] == before["normalize"] == 5
    assert after["gated"] == before["act"] == 2
    assert "normalize" not in after
    assert "act" not in after
    assert len(lower(decoder(), ALL_OPS).weights) == 20


def test_activations_are_rounded_for_pairs() -> None:
    """What meets weights of BF16 is rounded to that once for all that read it; rows that make no pairs are not."""
    x = make("embed", weight("table", 50, 6), make("tokens"))
    each = [
        make("linear", x, weight(kind + name, 3, 6, kind=kind))
        for kind, name in (("BF16", "a"), ("BF16", "b"))
    ]
    plain, odd = make("linear", x, weight("c", 3, 6, kind="F16")), weight("odd", 8, 3, kind="BF16")
    graph = Graph(make("linear", each[0] + each[1] + plain, odd))
    paired = lower(graph, frozenset({"linear", "round"}))
    check(paired)
    assert counts(paired)["round"] == 1
    took = [node.inputs[0].type.dtype for node in paired.nodes if node.op == "linear"]
    assert sorted(took) == ["bf16", "bf16", "f32", "f32"]
    assert "round" not in counts(lower(graph, frozenset({"linear"})))


def test_expand_undoes_fusion() -> None:
    """A backend without fused kernels gets the plain operations back."""
    assert counts(expand(lower(decoder(), ALL_OPS))) == counts(lower(decoder(), ()))
    assert "norm" not in counts(lower(decoder(), ()))


def test_select_moves_above_the_last_feed_forward() -> None:
    """Only the last layer's row-wise operations narrow to R; everything that feeds the cache stays at T."""
    graph = select_early(decoder(layers=3))
    check(graph)
    wide = [n for n in graph.nodes if n.op == "act" and n.type.shape[0] == "T"]
    narrow = [n for n in graph.nodes if n.op == "act" and n.type.shape[0] == "R"]
    assert (len(wide), len(narrow)) == (2, 1)
    stores = [n for n in graph.nodes if n.op == "kv_store"]
    assert len(stores) == 3
    assert all(operand.type.shape[0] == "T" for n in stores for operand in n.inputs)


ROW_OPS = frozenset(
    {"embed", "norm", "normalize", "rope", "kv_store", "gated", "act", "mul", "add", "select"}
)


def planned(graph: Graph, tokens: int = 7, rows: int = 3, row_ops: frozenset[str] = frozenset()) -> Plan:
    kv = KVLayout.of(graph, 100, "F32", "F16")
    return make_plan(
        graph, tokens=tokens, rows=rows, kv=kv, scratch=lambda node, t, r, kv: 8 * t, row_ops=row_ops
    )


@pytest.mark.parametrize("row_ops", [frozenset(), ROW_OPS])
@pytest.mark.parametrize("ops", [(), ALL_OPS])
def test_live_values_never_share_bytes(ops: frozenset[str], row_ops: frozenset[str]) -> None:
    """Values alive in the same stage lie apart, except where a result replaces an operand it reads last."""
    plan = planned(lower(decoder(3), ops), row_ops=row_ops)
    stage = {node: record.stage for record in plan.records for node in record.nodes}
    place = {node: i for i, node in enumerate(n for record in plan.records for n in record.nodes)}
    for node in plan.graph.nodes:  # a reshape is where its operand is
        if node.op == "reshape":
            stage[node], place[node] = stage[node.inputs[0]], place[node.inputs[0]]
    readers: dict[Node, list[Node]] = {}
    for node in plan.graph.nodes:
        for operand in node.inputs:
            readers.setdefault(root_of(operand), []).append(node)
    placed = {root_of(node): buffer for node, buffer in plan.buffers.items() if buffer.offset is not None}
    for a, b in itertools.combinations(placed, 2):
        first, second = (a, b) if place[a] < place[b] else (b, a)
        if max(stage[r] for r in readers.get(first, [first])) < stage[second]:
            continue  # dead before the other is made
        if placed[first] == placed[second]:
            # Overwritten: its last reader is the second, or what the second itself overwrote.
            assert second.op in ELEMENTWISE
            assert max(place[r] for r in readers[first]) <= place[second]
            continue
        x, y = placed[a], placed[b]
        assert x.offset is not None
        assert y.offset is not None
        assert x.offset + x.nbytes <= y.offset or y.offset + y.nbytes <= x.offset, (a, b)


def test_row_operations_join() -> None:
    """A chain of row operations is one record, whose inner values take no memory of the step."""
    plan = planned(lower(decoder(2), ALL_OPS), row_ops=ROW_OPS)
    kernels = [record.kernel for record in plan.records]
    assert kernels[0] == "embed+norm"
    assert "add+norm" in kernels
    assert "rope+rope+kv_store" in kernels
    assert len(plan.records) < len(planned(lower(decoder(2), ALL_OPS)).records)
    linears = [r.stage for r in plan.records if r.kernel == "linear"]
    assert linears[:3] == [1, 1, 1]


def test_stages_follow_their_operands() -> None:
    """Whatever a record reads was made in an earlier stage, or earlier in the record itself."""
    for row_ops in (frozenset(), ROW_OPS):
        plan = planned(lower(decoder(2), ALL_OPS), row_ops=row_ops)
        made: dict[Node, int] = {}
        for record in plan.records:
            for node in record.nodes:
                for operand in map(root_of, node.inputs):
                    if operand.op not in {"weight", "tokens"}:
                        assert (
                            made[operand] < record.stage
                            or operand in record.nodes[: record.nodes.index(node)]
                        )
                made[node] = record.stage


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
    big = KVLayout.uniform(dict.fromkeys(range(80), (8, 128, 128)), "F16", "F16", 2048)
    small = KVLayout.uniform(dict.fromkeys(range(32), (32, 128, 128)), "F16", "F16", 2048)
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


IMPOSSIBLE = [2.0, 2.5, "2", True, b"2", [2], float("nan")]


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=repr)
def test_only_whole_numbers_are_sizes(value: Any) -> None:
    """Floats, texts and bools are refused for context, threads and batch, in one line that names the option."""
    for refuse, where in (
        (lambda: context_length(value, 8192), r"n_ctx \(-c\)"),
        (lambda: thread_count(value), r"threads \(-t\)"),
        (lambda: positive(value, "n_batch (-b)"), r"n_batch \(-b\)"),
    ):
        with pytest.raises(RequestError, match=rf"^{where}: .* is not a whole number; use [01] ") as caught:
            refuse()
        assert repr(value) in str(caught.value)


def test_load_refuses_sizes_that_are_none(tmp_path: Path) -> None:
    """puna.load promises a PunaError for what it cannot do, whatever type the number comes in."""
    model, wrong = (
        write_tiny(tmp_path / "a.gguf"),
        {"n_ctx": "9", "threads": 2.0, "n_batch": 2.5, "parallel": True},
    )
    for name, value in wrong.items():
        with pytest.raises(PunaError, match=rf"^{name} .* is not a whole number"):
            puna.load(model, backend="reference", **{name: value})  # type: ignore[arg-type]


def test_numpys_whole_numbers_are_sizes() -> None:
    """What counts as a whole number for Python does so here, and comes out as an int."""
    found = context_length(np.int64(64), 8192), thread_count(np.uint8(2)), positive(np.int32(3), "n_batch")  # type: ignore[arg-type]
    assert found == (64, 2, 3)
    assert [type(n) for n in found] == [int] * 3


def test_sizes_out_of_range() -> None:
    """A negative context, no thread, more threads than help, and an empty batch are refused with the range."""
    with pytest.raises(RequestError, match="a context of -1 is impossible; use 0 to 2147483647"):
        context_length(-1, 8192)
    for count in (0, -1, 10**6):
        with pytest.raises(RequestError, match=f"{count} threads are impossible; use 1 to "):
            thread_count(count)
    with pytest.raises(RequestError, match="n_batch: 0 is too few; use 1 or more"):
        positive(0, "n_batch")
    assert thread_count(None) is None


def test_human() -> None:
    """Bytes are shown in binary units."""
    assert [human(n) for n in (12, 1536, 5 << 20, 3 << 40)] == ["12 B", "1.5 KiB", "5.0 MiB", "3.0 TiB"]


def test_turned_keys_give_the_same_scores(tmp_path: Path) -> None:
    """Turning queries and keys by one orthogonal matrix changes the graph, and no logit but by rounding."""
    path, ids = write_tiny(tmp_path / "m.gguf"), list(range(50))
    plain = puna.load(path, backend="reference")
    with mock.patch.object(planning, "by_name", return_value=by_name("Q8_0")):
        turned = puna.load(path, backend="reference")
    count = [sum(node.op == "hadamard" for node in model.plan.graph.nodes) for model in (plain, turned)]
    assert count[0] == 0
    assert count[1] == 4  # queries and keys of two layers
    np.testing.assert_allclose(turned.logits(ids), plain.logits(ids), atol=1e-4)

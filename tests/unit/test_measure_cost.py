"""What a step has to move and to compute, against counts taken from the file and by brute force."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from tiny_model import write_tiny

import puna
from puna.engine import Model
from puna.graph import Graph, Node, make
from puna.measure import Cost, record_cost, step_cost
from puna.plan import KVLayout, Plan, Record


def load(folder: Path, **options: str) -> Model:
    return puna.load(write_tiny(folder / "a.gguf", **options), backend="reference", n_ctx=256)  # type: ignore[arg-type]


def tensor_bytes(model: Model, *left_out: str) -> int:
    return sum(t.nbytes for name, t in model.file.tensors.items() if name not in left_out)


@pytest.mark.parametrize("quant", ["F32", "Q8_0", "Q4_0"])
def test_weights_are_the_files_bytes(tmp_path: Path, quant: str) -> None:
    """A decode step reads every tensor once, as the file holds it, but one row of the embedding."""
    model = load(tmp_path, quant=quant)
    table = model.file.tensors["token_embd.weight"]
    row = table.nbytes // table.shape[0]
    cost = step_cost(model.plan, [(10, 1)], 1)
    assert cost.weights == tensor_bytes(model, "token_embd.weight") + row


def elements(model: Model, *names: str) -> int:
    """Elements of the matrices whose names begin with one of `names`."""
    tensors = model.file.tensors.items()
    return sum(prod(t.shape) for name, t in tensors if len(t.shape) == 2 and name.startswith(names))


# What every token goes through; the rest of the last layer, and the output, serve rows that want logits alone.
BEFORE = "blk.0.", "blk.1.attn_q", "blk.1.attn_k", "blk.1.attn_v"


def test_weights_do_not_grow_with_tokens(tmp_path: Path) -> None:
    """More tokens read the same matrices and as many more rows of the embedding; operations grow with them."""
    model = load(tmp_path, quant="Q8_0")
    one, many = (step_cost(model.plan, [(0, count)], 1) for count in (1, 50))
    row = model.file.tensors["token_embd.weight"].nbytes // model.n_vocab
    assert many.weights - one.weights == 49 * row
    assert many.ops - one.ops == 49 * 2 * elements(model, *BEFORE)


def test_logits_that_nobody_wants_cost_nothing(tmp_path: Path) -> None:
    """Without rows that want logits, what serves them alone is neither read nor multiplied."""
    model = load(tmp_path, quant="Q8_0")
    with_, without = (step_cost(model.plan, [(0, 8)], rows) for rows in (1, 0))
    assert without.ops == 8 * 2 * elements(model, *BEFORE)
    assert with_.ops - without.ops == 2 * (elements(model, "blk.", "output.") - elements(model, *BEFORE))
    assert with_.weights - without.weights > model.file.tensors["output.weight"].nbytes


@pytest.mark.parametrize(("quant", "share"), [("Q8_0", 1), ("F16", 0), ("F32", 0)])
def test_only_integer_weights_are_byte_dots(tmp_path: Path, quant: str, share: int) -> None:
    """All products of a Q8_0 model are byte dots, none of a model of floats."""
    cost = step_cost(load(tmp_path, quant=quant).plan, [(0, 8)], 1)
    assert cost.dots == share * cost.ops
    assert cost.ops


@pytest.mark.parametrize("spans", [[(0, 1)], [(100, 1)], [(0, 40)], [(20, 30), (90, 1)]])
def test_attention_sees_its_window(tmp_path: Path, spans: list[tuple[int, int]]) -> None:
    """Cache bytes are the positions that some row sees, operations those that each row sees, window minded."""
    model = load(tmp_path, architecture="gemma3")
    cost, layout = step_cost(model.plan, spans, 1), model.plan.kv
    kv = ops = 0
    for node in model.plan.graph.nodes:
        if node.op != "attend":
            continue
        window, layer = int(str(node.attrs["window"])) or 10**9, int(str(node.inputs[1].attrs["layer"]))
        heads, size = int(node.type.shape[1]), int(node.type.shape[2])
        for past, count in spans:
            seen = [set(range(max(0, p + 1 - window), p + 1)) for p in range(past, past + count)]
            kv += len(set().union(*seen)) * sum(layout.row_bytes(layer))
            ops += sum(map(len, seen)) * heads * size * 4
    assert (cost.kv, cost.attention) == (kv, ops)


@pytest.mark.parametrize(("past", "count", "seen", "held"), [(0, 12, 15, 3), (40, 1, 5, 5), (40, 2, 10, 10)])
def test_chosen_blocks(past: int, count: int, seen: int, held: int) -> None:
    """Of a cache of blocks a query sees those that have ended, or 5 chosen; its window counts as ever."""
    q = make("reshape", make("embed", weight(9, 32), make("tokens")), shape=("T", 4, 8))
    k = make("reshape", make("embed", weight(9, 8), make("tokens")), shape=("T", 1, 8))
    stores = [make("kv_store", k, k, layer=0), make("kv_store", k, k, layer=1, every=4)]
    chosen = make("index", q, make("embed", weight(9, 4), make("tokens")), stores[1], k=5)
    node = make("attend_both", q, *stores, weight(4), chosen, scale=1.0, window=3)
    graph = Graph(node)
    plan = Plan(graph, (), {}, 16, 16, 0, 0, KVLayout.of(graph, 64, "F32", "F32"))
    cost = record_cost(plan, Record((node,), 0, 0), [(past, count)], 1)
    window = sum(min(3, past + i + 1) for i in range(count))
    assert cost.attention == 2 * 4 * 16 * (seen + window)
    assert cost.kv == 4 * 16 * (held + min(past, 2) + count)
    all_blocks = record_cost(plan, Record((chosen,), 0, 0), [(past, count)], 1)
    assert all_blocks.kv == 4 * 16 * ((past + count) // 4)


def weight(*shape: int) -> Node:
    return make("weight", tensor=str(shape), dtype="F32", shape=shape)


def test_experts_are_read_once_each() -> None:
    """A mixture reads the experts that are chosen, each at most once, and multiplies by every choice."""
    x, ids = make("tokens"), make("tokens")
    x = make("embed", make("weight", tensor="e", dtype="F32", shape=(9, 32)), x)
    ids = make("top", make("linear", x, make("weight", tensor="r", dtype="F32", shape=(8, 32))), k=2)
    weight = make("weight", tensor="w", dtype="Q8_0", shape=(8, 64, 32))
    node = make("linear_experts", x, weight, ids)
    plan = Plan(Graph(node), (), {}, 16, 16, 0, 0, KVLayout.uniform({}, "F32", "F32", 64))
    costs = [record_cost(plan, Record((node,), 0, 0), [(0, count)], 1) for count in (1, 3, 16)]
    assert [cost.weights for cost in costs] == [n * 64 * 34 for n in (2, 6, 8)]
    assert [cost.ops for cost in costs] == [2 * n * 64 * 32 for n in (2, 6, 32)]
    assert [cost.dots for cost in costs] == [cost.ops for cost in costs]


def test_costs_add_up() -> None:
    """A sum has every part of its parts, and what must be read is weights and cache."""
    total = Cost(1, 2, 3, 4, 5, 6) + Cost(10, 20, 30, 40, 50, 60)
    assert total == Cost(11, 22, 33, 44, 55, 66)
    assert total.read == 33

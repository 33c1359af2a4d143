"""Attention to pooled blocks: what the reference model does not show: long contexts, and what files get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_archs import WIDTH, f32, u32, write_arch

from puna.errors import ModelError
from puna.gguf import GGUFFile, Value, ValueType
from puna.graph import Graph
from puna.models.registry import build
from puna.plan import KVLayout

HEADS, SIZE, RANK, TURNED, STREAMS, EXPERTS, USED = 4, 16, 8, 4, 2, 4, 2
MIX = STREAMS * (2 + STREAMS)
DROP = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
EACH = {
    "attn_sinks": (HEADS,),
    "attn_q_a": (RANK, WIDTH),
    "attn_q_a_norm": (RANK,),
    "attn_q_b": (HEADS * SIZE, RANK),
    "attn_kv": (SIZE, WIDTH),
    "attn_kv_a_norm": (SIZE,),
    "attn_output_a": (2 * RANK, HEADS * SIZE // 2),
    "attn_output_b": (WIDTH, 2 * RANK),
    "ffn_gate_inp": (EXPERTS, WIDTH),
    "ffn_gate_tid2eid": (20, USED),
    **{f"ffn_{part}_exps": (EXPERTS, SIZE, WIDTH) for part in ("gate", "up")},
    "ffn_down_exps": (EXPERTS, WIDTH, SIZE),
    **{f"hc_{block}_fn": (MIX, STREAMS * WIDTH) for block in ("attn", "ffn")},
    **{f"hc_{block}_base": (MIX,) for block in ("attn", "ffn")},
    **{f"hc_{block}_scale": (3,) for block in ("attn", "ffn")},
    "indexer.proj": (2, WIDTH),
    "indexer.attn_q_b": (2 * 8, RANK),
    **{
        f"{kind}_compressor_{part}": (2 * size, WIDTH)
        for kind, size in (("attn", SIZE), ("indexer", 8))
        for part in ("kv", "gate")
    },
    **{f"{kind}_compressor_ape": (4, 2 * size) for kind, size in (("attn", SIZE), ("indexer", 8))},
    **{f"{kind}_compressor_norm": (size,) for kind, size in (("attn", SIZE), ("indexer", 8))},
}
EXTRA = {
    "output_hc_fn.weight": (STREAMS, STREAMS * WIDTH),
    "output_hc_base.weight": (STREAMS,),
    "output_hc_scale.weight": (1,),
}


def ratios(*values: int) -> Value:
    return Value(ValueType.UINT32, list(values))


KEYS = {
    "attention.key_length": u32(SIZE),
    "attention.value_length": u32(SIZE),
    "attention.sliding_window": u32(32),
    "attention.q_lora_rank": u32(RANK),
    "attention.output_group_count": u32(2),
    "attention.output_lora_rank": u32(RANK),
    "attention.compress_rope_freq_base": f32(1e5),
    "attention.compress_ratios": ratios(4, 4),
    "attention.indexer.head_count": u32(2),
    "attention.indexer.key_length": u32(8),
    "attention.indexer.top_k": u32(16),
    "rope.dimension_count": u32(TURNED),
    "hyper_connection.count": u32(STREAMS),
    "hyper_connection.epsilon": f32(1e-6),
    "hyper_connection.sinkhorn_iterations": u32(2),
    "hash_layer_count": u32(2),
    "expert_count": u32(EXPERTS),
    "expert_used_count": u32(USED),
    "expert_feed_forward_length": u32(SIZE),
}


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Writes a model and builds its graph for a context."""

    def build_one(context: int = 256, **keys: Value) -> Graph:
        named = {**KEYS, **{key.replace("__", "."): value for key, value in keys.items()}}
        path = write_arch(tmp_path / "m.gguf", "deepseek4", keys=named, drop=DROP, each=EACH, extra=EXTRA)
        with GGUFFile.open(path) as file:
            return build(file, lambda trained: context)[0]

    return build_one


def count(graph: Graph, op: str) -> int:
    return [node.op for node in graph.nodes].count(op)


def test_blocks_are_chosen_where_there_may_be_more(made: Any) -> None:
    """A context of more blocks than are chosen has an indexer with a cache and a state of its own, a shorter none."""
    assert [count(made(context), "index") for context in (64, 68)] == [0, 2]
    kv = KVLayout.of(made(256), 256, "F16", "F16")
    assert kv.every == {2: 4, 3: 4, 4: 4, 5: 4}
    assert {layer for group in kv.groups if group.window for layer in group.layers} == {0, 1}
    assert kv.states["blk.0.attn_compressor_kv"] == (8, 2, 2 * SIZE)
    assert kv.states["blk.1.indexer_compressor_kv"] == (8, 2, 16)


def test_first_experts_follow_from_the_token(made: Any) -> None:
    """As many layers as the file says look their experts up; the router only weighs them."""
    graph = made()
    assert (count(graph, "whole"), count(graph, "top")) == (2, 0)
    assert all(n.inputs[0].op == "clamp" for n in graph.nodes if n.op == "whole")


@pytest.mark.parametrize("values", [(4,), (4, 1), (4, 1 << 20)])
def test_blocks_that_cannot_be(made: Any, values: tuple[int, ...]) -> None:
    """Too few sizes, and sizes that are none, are refused by the key's name."""
    with pytest.raises(ModelError, match=r"compress_ratios.*needs 2 numbers, one a layer"):
        made(attention__compress_ratios=ratios(*values))


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.compress_rope_freq_base", 0.0), ("hyper_connection.epsilon", -1.0)],
)
def test_numbers_that_cannot_be(made: Any, key: str, value: float) -> None:
    """A number that would make no sense of any result is refused by the key's name, with the range."""
    with pytest.raises(ModelError, match=rf"{key}': {value} is not between"):
        made(**{key: f32(value)})


def test_a_layer_without_blocks(made: Any) -> None:
    """Tensors of blocks in a layer that has none are left over."""
    with pytest.raises(ModelError, match="without a place"):
        made(attention__compress_ratios=ratios(0, 4))

"""Dense architectures: what the reference models do not show, such as what files leave out or may ask for."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from small_archs import WIDTH, f32, u32, write_arch

from puna.errors import ModelError
from puna.gguf import GGUFFile, Value, ValueType
from puna.graph import Graph, Node, Rope
from puna.models.config import ModelConfig
from puna.models.registry import SHARED, architectures, build

NORMED = {"attn_q_norm": (16,), "attn_k_norm": (16,)}
AFTER = {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
NO_GATE = ("ffn_gate",)
WINDOWS = {
    "attention.sliding_window": u32(32),
    "attention.sliding_window_pattern": Value(ValueType.BOOL, [True, True, False, False]),
}
FACTORS = {"rope_factors_short.weight": (8,), "rope_factors_long.weight": (8,)}


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Writes a model and builds its graph."""

    def build_one(architecture: str, context: int | None = None, **how: Any) -> tuple[Graph, ModelConfig]:
        with GGUFFile.open(write_arch(tmp_path / "m.gguf", architecture, **how)) as file:
            return build(file, lambda trained: context or trained)

    return build_one


def nodes(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph.nodes if node.op == op]


def ropes(graph: Graph) -> list[Rope]:
    """The rotation of each layer's queries."""
    return [cast(Rope, node.attrs["rope"]) for node in nodes(graph, "rope")][::2]


def scales(graph: Graph) -> list[float]:
    return [round(cast(float, node.attrs["by"]), 6) for node in nodes(graph, "scale")]


def test_shared_files_are_listed() -> None:
    """A name that leads to another's file stands in the registry's table, and no other does."""
    stems = {name: cls.__module__.rsplit(".", 1)[-1] for name, cls in architectures().items()}
    odd = {name: stem for name, stem in stems.items() if name.replace("-", "_") != stem}
    assert odd == {name: of.replace("-", "_") for name, of in SHARED.items()}


def test_only_the_file_of_an_architecture_is_imported() -> None:
    """Finding one architecture does not import the others."""
    script = (
        "import sys, puna.models.registry as r; r.find('granite_swa', '');"
        "print(*sorted(m for m in sys.modules if m.startswith('puna.models.gr')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["puna.models.granite", "puna.models.granite_swa"]


def test_longrope_factors_follow_the_context(made: Any) -> None:
    """Short ones up to the context first trained on, long ones beyond; the others are not refused."""
    keys = {"rope.scaling.original_context_length": u32(128), "rope.scaling.type": "longrope"}
    for context, chosen in ((128, "short"), (129, "long")):
        graph, _ = made("phi3", context, keys=keys, extra=FACTORS)
        names = {node.inputs[1].attrs["tensor"] for node in nodes(graph, "rope")}
        assert names == {f"rope_factors_{chosen}.weight"}


def test_positions_are_only_those_learned(made: Any) -> None:
    """A context longer than the table of positions is refused with both numbers."""
    how: dict[str, Any] = {"drop": NO_GATE, "extra": {"position_embd.weight": (64, WIDTH)}}
    graph, _ = made("gpt2", 64, **how)
    assert len(nodes(graph, "positions")) == 1
    assert not nodes(graph, "rope")
    with pytest.raises(ModelError, match=r"knows 64 positions, not 65; use a context \(-c\) of at most 64"):
        made("gpt2", 65, **how)


def test_missing_and_unknown_tensors_are_named_together(made: Any) -> None:
    """One line names both, and the architecture."""
    match = (
        r"'orion': 2 tensors missing: 'blk.0.ffn_up.weight' \(in 2 layers\); 1 tensor without a place: 'odd'"
    )
    with pytest.raises(ModelError, match=match):
        made("orion", drop=["ffn_up"], extra={"odd": (3,)})


def test_what_some_layers_lack_is_missing(made: Any) -> None:
    """A bias that the other layers have is named; one that no layer has is not needed, nor one of another kind."""
    biases = {f"blk.{i}.attn_q.bias": (WIDTH,) for i in range(3)}
    made("qwen2", layers=3, extra=biases)
    made("qwen2", layers=3)
    with pytest.raises(ModelError, match=r"1 tensor missing: 'blk\.1\.attn_q\.bias'$"):
        made("qwen2", layers=3, extra={name: biases[name] for name in biases if "1" not in name})
    sinks = {f"blk.{i}.attn_sinks.weight": (4,) for i in range(2)}
    made("mimo2", layers=4, keys=WINDOWS, extra=sinks)
    with pytest.raises(ModelError, match=r"1 tensor missing: 'blk\.1\.attn_sinks\.weight'$"):
        made("mimo2", layers=4, keys=WINDOWS, extra={"blk.0.attn_sinks.weight": (4,)})


def test_required_tensors_are_missing_in_all_layers(made: Any) -> None:
    """What no file of an architecture lacks is named, though blocks do without it in others."""
    made("llama", drop=["output"])
    with pytest.raises(ModelError, match=r"'internlm2': 1 tensor missing: 'output\.weight'$"):
        made("internlm2", drop=["output"])


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("llama", "logit_scale"),
        ("llama", "residual_scale"),
        ("qwen2", "embedding_scale"),
        ("gemma", "attention.clamp_kqv"),
        ("orion", "attention.max_alibi_bias"),
        ("internlm2", "rope.scaling.alpha"),
        ("xverse", "attention.temperature_scale"),
    ],
)
def test_keys_with_an_effect_are_refused_where_they_have_none(architecture: str, key: str, made: Any) -> None:
    """A key that would change the results, and that an architecture does not read, is an error; 0 is not."""
    made(architecture, keys={key: f32(0.0)})
    with pytest.raises(
        ModelError, match=rf"'{architecture}\.{key}': 3\.0 is not supported for this architecture"
    ):
        made(architecture, keys={key: f32(3.0)})


def test_granite_scales(made: Any) -> None:
    """Embeddings, what blocks add, and logits, which are divided; scores by a factor of the file."""
    keys = {
        "embedding_scale": f32(12.0),
        "residual_scale": f32(0.5),
        "logit_scale": f32(8.0),
        "attention.scale": f32(0.25),
    }
    graph, _ = made("granite", keys=keys)
    assert scales(graph) == [12.0, 0.5, 0.5, 0.5, 0.5, 0.125]
    assert {node.attrs["scale"] for node in nodes(graph, "attend")} == {0.25}
    graph, _ = made("granite", keys={"rope.scaling.finetuned": False})
    assert not nodes(graph, "rope")
    assert not [by for by in scales(graph) if by != 1.0]


def test_minicpm_scales_without_keys(made: Any) -> None:
    """Old files of MiniCPM leave its factors out: 12, 1.4 / sqrt(layers), and 256 / width."""
    graph, _ = made("minicpm")
    added = round(1.4 / math.sqrt(2), 6)
    assert scales(graph) == [12.0, added, added, added, added, 256 / WIDTH]


@pytest.mark.parametrize(("layers", "rotated", "alibi"), [(2, 0, 0.0), (32, 32, 0.0), (40, 0, 8.0)])
def test_baichuan_by_its_layers(layers: int, rotated: int, alibi: float, made: Any) -> None:
    """The 7B rotates, the 13B has ALiBi."""
    graph, _ = made("baichuan", layers=layers)
    assert len(ropes(graph)) == rotated
    assert {node.attrs["alibi"] for node in nodes(graph, "attend")} == {alibi}


def test_windows_by_layer(made: Any) -> None:
    """Which layers are windowed where files leave it out; OLMo 3 does not stretch the rotation of those."""

    def windows(graph: Graph) -> list[int]:
        return [cast(int, node.attrs["window"]) for node in nodes(graph, "attend")]

    keys = {"attention.sliding_window": u32(8)}
    graph, _ = made("gemma2", layers=4, each=AFTER)
    assert windows(graph) == [4096, 0, 4096, 0]
    graph, _ = made("cohere2", layers=4, keys=keys, drop=["ffn_norm"])
    assert windows(graph) == [8, 8, 8, 0]
    assert len(ropes(graph)) == 3
    after = {**AFTER, "attn_q_norm": (64,), "attn_k_norm": (32,)}
    keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": f32(8.0)}
    graph, _ = made("olmo2", layers=4, keys=keys, each=after, drop=["attn_norm", "ffn_norm"])
    assert windows(graph) == [8, 8, 8, 0]
    assert [rope.factor for rope in ropes(graph)] == [1.0, 1.0, 1.0, 8.0]
    with pytest.raises(ModelError, match=r"'olmo2\.attention\.key_length_swa': 32 is not supported"):
        made("olmo2", keys=keys | {"attention.key_length_swa": u32(32)}, each=after)


@pytest.mark.parametrize(("layers", "window"), [(30, None), (64, [8, 8, 8, 0])])
def test_exaone4_by_its_layers(layers: int, window: list[int] | None, made: Any) -> None:
    """The 32B has windows in three of four layers and rotates in those; smaller ones see all and rotate everywhere."""
    keys = {"attention.sliding_window": u32(8)}
    how = {"each": {**AFTER, **NORMED}, "drop": ["attn_norm", "ffn_norm"]}
    graph, _ = made("exaone4", layers=layers, keys=keys, **how)
    found = [cast(int, node.attrs["window"]) for node in nodes(graph, "attend")]
    assert found[:4] == (window or [0, 0, 0, 0])
    assert len(ropes(graph)) == (48 if window else 30)


def test_rotations(made: Any) -> None:
    """SmolLM 3 leaves out each fourth layer; sections change GLM-4's layout; alpha raises Hunyuan's base."""
    graph, _ = made("smollm3", layers=4)
    assert len(ropes(graph)) == 3
    for sections, layout in (([0, 0, 0, 0], "interleaved"), ([4, 2, 2, 0], "halves")):
        key = {"rope.dimension_sections": u32(sections)}
        graph, _ = made("glm4", keys=key, each=AFTER)
        assert {rope.layout for rope in ropes(graph)} == {layout}
    graph, _ = made("hunyuan-dense", keys={"rope.scaling.alpha": f32(1000.0)}, each=NORMED)
    assert ropes(graph)[0].base == pytest.approx(10000.0 * 1000.0 ** (16 / 14))


def test_layers_that_guess_further_tokens_are_left_out(made: Any) -> None:
    """nextn_predict_layers are counted in block_count, and their tensors are known, but not run."""
    graph, config = made("glm4", layers=3, keys={"nextn_predict_layers": u32(1)}, each=AFTER)
    assert (config.n_layer, config.n_next, len(nodes(graph, "attend"))) == (2, 1, 2)
    with pytest.raises(ModelError, match="3 is not between 0 and 2"):
        made("glm4", layers=3, keys={"nextn_predict_layers": u32(3)}, each=AFTER)


def test_layers_that_run_more_than_once(made: Any) -> None:
    """Nanbeige's runs share weights and have keys and values of their own; their number is bounded."""
    graph, _ = made("nanbeige", keys={"num_loops": u32(3)})
    assert sorted(cast(int, node.attrs["layer"]) for node in nodes(graph, "kv_store")) == list(range(6))
    assert len({node.attrs["tensor"] for node in graph.weights}) == 21
    with pytest.raises(ModelError, match=r"'nanbeige\.num_loops': 4000000000 is not between 1 and 1024"):
        made("nanbeige", keys={"num_loops": u32(4_000_000_000)})
    with pytest.raises(ModelError, match=r"'nanbeige\.num_loops': 'two' is not a number"):
        made("nanbeige", keys={"num_loops": "two"})


def test_hrm_text_counts_must_agree(made: Any) -> None:
    """Its layers are stacks times cycles, each a place in the cache."""
    keys = {"hrm.layers_per_stack": u32(1), "hrm.h_cycles": u32(2), "hrm.l_cycles": u32(2)}
    with pytest.raises(ModelError, match=r"'hrm_text\.block_count': 5 is not 1 \* 2 \* \(2 \+ 1\)"):
        made("hrm_text", layers=5, keys=keys)


def test_blocks_side_by_side_or_one_after_the_other(made: Any) -> None:
    """GPT-NeoX runs its blocks side by side unless the file says otherwise; StableLM without a second norm."""

    def depth(graph: Graph) -> int:
        found: dict[Node, int] = {}
        for node in graph.nodes:
            own = node.op == "attend" or (node.op == "act")
            found[node] = max((found[n] for n in node.inputs), default=0) + own
        return found[graph.output]

    assert depth(made("gptneox", drop=NO_GATE)[0]) == 2
    assert depth(made("gptneox", drop=NO_GATE, keys={"use_parallel_residual": False})[0]) == 4
    assert depth(made("stablelm", keys={"use_parallel_residual": True})[0]) == 4
    assert depth(made("stablelm", drop=["ffn_norm"])[0]) == 2


def test_deci_layers_of_their_own_shape(made: Any) -> None:
    """A layer without heads has no attention, without key/value heads one matrix, without width no feed-forward."""
    keys = {
        "attention.head_count": u32([4, 0]),
        "attention.head_count_kv": u32([0, 0]),
        "feed_forward_length": u32([0, 96]),
        "attention.key_length": u32(16),
    }
    shapes = {
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.1.ffn_norm.weight": (WIDTH,),
        "blk.1.ffn_gate.weight": (96, WIDTH),
        "blk.1.ffn_up.weight": (96, WIDTH),
        "blk.1.ffn_down.weight": (WIDTH, 96),
    }
    graph, _ = made("deci", tensors=0, keys=keys, extra=shapes)
    assert not nodes(graph, "attend")
    assert len(nodes(graph, "linear")) == 5


def test_yarn_may_be_turned_off(made: Any) -> None:
    """An extrapolation of 0 leaves plain interpolation; a base or rotations of nothing are refused."""
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": f32(4.0)}
    graph, config = made("llama", keys=keys | {"rope.scaling.yarn_ext_factor": f32(0.0)})
    assert config.yarn is None
    assert ropes(graph)[0].factor == 4.0
    assert made("llama", keys=keys | {"rope.scaling.yarn_ext_factor": f32(-1.0)})[1].yarn.keeps == 1.0
    for key, value in (("rope.freq_base", 1.0), ("rope.scaling.yarn_beta_fast", 0.0)):
        with pytest.raises(ModelError, match=key):
            made("llama", keys=keys | {key: f32(value)})

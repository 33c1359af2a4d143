"""RoPE of config.json, old form and new, as metadata keys and frequency factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from puna.convert.config import Config
from puna.convert.rope import Rope, rope
from puna.errors import ModelError

KINDS = ("linear", "yarn", "dynamic", "llama3", "longrope", "su")
BASE: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rope_theta": 500.0,
}


def of(**values: Any) -> Rope:
    return rope(Config({**BASE, **values}, "config.json"), kinds=KINDS)


def plain(found: Rope) -> dict[str, Any]:
    return {key.removeprefix("rope."): value.value for key, value in found.keys.items()}


def test_plain_rope() -> None:
    """The base and the rotated values of a head; transformers' default base where none is given."""
    assert plain(of()) == {"freq_base": 500.0, "dimension_count": 16}
    assert plain(of(rope_theta=None)) == {"freq_base": 10000.0, "dimension_count": 16}
    assert plain(of(partial_rotary_factor=0.5))["dimension_count"] == 8
    assert plain(of(head_dim=32))["dimension_count"] == 32


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_both_forms_of_config_are_read(key: str, kind: str) -> None:
    """The scaling stands under an old or a new name, its type too."""
    keys = plain(of(**{key: {kind: "linear", "factor": 4}}))
    assert keys == {
        "freq_base": 500.0,
        "dimension_count": 16,
        "scaling.type": "linear",
        "scaling.factor": 4.0,
    }


def test_base_and_share_in_the_parameters() -> None:
    """The new form holds them beside the scaling, and goes first."""
    keys = plain(
        of(rope_parameters={"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.25})
    )
    assert keys == {"freq_base": 7.0, "dimension_count": 4}


def test_windowed_layers_have_a_base_of_their_own() -> None:
    """As a key of its own, or as parameters for each kind of layer."""
    wanted = {"freq_base": 500.0, "freq_base_swa": 10.0, "dimension_count": 16}
    assert plain(of(rope_local_base_freq=10.0)) == wanted
    full, sliding = (
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "default", "rope_theta": 10.0},
    )
    nested = {"full_attention": full, "sliding_attention": sliding}
    assert plain(of(rope_theta=None, rope_parameters=nested)) == wanted


def test_dynamic_scaling_acts_beyond_the_context_only() -> None:
    """There is no key for it, and a note says up to where the file has it."""
    found = of(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert plain(found) == {"freq_base": 500.0, "dimension_count": 16}
    assert "beyond 256 positions" in found.notes[0]


def test_llama3_divides_slow_frequencies() -> None:
    """Fast pairs are kept, slow ones divided by the factor, those between blended: by the published formula."""
    given = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    found = of(rope_scaling={**given, "original_max_position_embeddings": 64})
    divisors, wanted = found.tensors["rope_freqs.weight"], []
    for pair in range(8):
        frequency = 500.0 ** (-2 * pair / 16)
        wavelength = 2 * math.pi / frequency
        if wavelength < 64 / 4:
            wanted.append(1.0)
        elif wavelength > 64 / 1:
            wanted.append(8.0)
        else:
            smooth = (64 / wavelength - 1) / (4 - 1)
            wanted.append(frequency / ((1 - smooth) * frequency / 8 + smooth * frequency))
    assert {1.0, 8.0} < set(wanted)
    assert np.allclose(divisors, wanted, rtol=1e-6)
    assert divisors.dtype == np.float32


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("more", "stretch"),
    [
        ({}, None),
        ({"attention_factor": 0.1 * math.log(4) + 1}, None),
        ({"attention_factor": 1.3}, 1.3 / (0.1 * math.log(4) + 1)),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0 / (0.1 * math.log(4) + 1)),
        ({"mscale": 0.5}, None),
    ],
)
def test_yarn(more: Mapping[str, float], stretch: float | None) -> None:
    """What stretches the values beyond the paper's temperature is the attention factor, written where it is not 1."""
    keys = plain(of(rope_scaling={**YARN, "beta_fast": 16.0, **more}))
    found = keys.pop("scaling.attn_factor", None)
    assert found is stretch is None or math.isclose(found, stretch)
    assert keys == {
        "freq_base": 500.0,
        "dimension_count": 16,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 32,
        "scaling.yarn_beta_fast": 16.0,
    }


def test_yarn_with_what_is_left_out() -> None:
    """Without a factor it is how much longer the context is; without a first context, that is the model's."""
    keys = plain(of(rope_scaling={"type": "yarn", "original_max_position_embeddings": 32}))
    assert keys["scaling.factor"] == 8.0
    keys = plain(of(rope_scaling={"type": "yarn", "factor": 2.0}, original_max_position_embeddings=128))
    assert keys["scaling.original_context_length"] == 128


def test_longrope() -> None:
    """Two lists of divisors, and a stretch by how much longer the context is than the first one."""
    short, long = [1.0] * 8, [float(n) for n in range(1, 9)]
    given = {"type": "longrope", "short_factor": short, "long_factor": long}
    found = of(rope_scaling=given, original_max_position_embeddings=64)
    assert found.tensors["rope_factors_short.weight"].tolist() == short
    assert found.tensors["rope_factors_long.weight"].tolist() == long
    assert math.isclose(plain(found)["scaling.attn_factor"], math.sqrt(1 + math.log(4) / math.log(64)))


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "an unknown type": ({"rope_scaling": {"type": "spiral"}}, "has the type 'spiral'"),
    "no object": ({"rope_scaling": [1]}, "is no JSON object"),
    "no factor": ({"rope_scaling": {"type": "linear"}}, "'factor' is missing"),
    "a factor of 0": ({"rope_scaling": {"type": "yarn", "factor": 0}}, "scales nothing"),
    "a parameter of another": ({"rope_scaling": {**YARN, "mrope_section": [1, 2]}}, "'mrope_section'"),
    "an uncut range": ({"rope_scaling": {**YARN, "truncate": False}}, "'truncate' is false"),
    "a list of another length": (
        {"rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1]}},
        "no list of 8 numbers",
    ),
    "layers without parameters": ({"rope_parameters": {"full_attention": {}}}, "does not hold"),
    "scaled windowed layers": (
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {"type": "linear", "factor": 2}}},
        "has the type 'linear'",
    ),
    "an odd share": ({"partial_rotary_factor": 0.3125}, "rotates 5 values of a head of 16"),
    "bands that cross": (
        {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
        "not between 0 and high_freq_factor",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_expressed_is_refused(what: str) -> None:
    """Unknown scalings, parameters and values are errors that name the key."""
    values, message = REFUSED[what]
    with pytest.raises(ModelError, match=message):
        of(**values)

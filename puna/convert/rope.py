"""RoPE as config.json has it -> metadata keys, and factors of single frequencies as tensors.

The scalings are those of transformers (`modeling_rope_utils.py`): linear, YaRN, Llama 3's, LongRoPE, dynamic NTK.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from puna.convert.config import Config
from puna.convert.typed import f32, text, u32
from puna.gguf import Value

__all__ = ["Rope", "parameters", "rope"]

DEFAULT_BASE = 10000.0
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Rope:
    """keys: without the architecture's prefix. tensors: factors by name, float32. notes: a line each."""

    keys: Mapping[str, Value]
    tensors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def rope(
    config: Config, *, kinds: tuple[str, ...], log_multiplier: float = 0.0, taken: tuple[str, ...] = ()
) -> Rope:
    """RoPE of a model. Raises ModelError for what cannot be expressed.

    kinds: the scalings, by transformers' names, that the architecture can have beside the plain one.
    log_multiplier: YaRN's temperature that the model carries elsewhere, as the file will say it.
    taken: parameters that the architecture reads itself.
    """
    full, sliding = parameters(config)
    full.used.update(taken)
    base = full.optional_number("rope_theta") or DEFAULT_BASE
    dims = rotated(config, full)
    found = scaled(config, full, dims, base, kinds, log_multiplier)
    keys = {"rope.freq_base": f32(base), "rope.dimension_count": u32(dims), **found.keys}
    if sliding is not None:
        plain = scaled(config, sliding, dims, base, (), 0.0)
        assert not plain.keys
        keys["rope.freq_base_swa"] = f32(sliding.optional_number("rope_theta") or DEFAULT_BASE)
    return Rope(keys, found.tensors, found.notes)


def parameters(config: Config) -> tuple[Config, Config | None]:
    """The parameters of full layers, and of sliding-window ones where they have their own."""
    held = config.get("rope_parameters") or {}
    base, local = config.optional_number("rope_theta"), config.optional_number("rope_local_base_freq")
    context = config.optional_count("original_max_position_embeddings")
    if not isinstance(held, dict):
        raise config.error("rope_parameters", "is no JSON object")
    if FULL in held or SLIDING in held:
        if not all(isinstance(held.get(kind), dict) for kind in (FULL, SLIDING)) or len(held) > 2:
            raise config.error("rope_parameters", f"does not hold {FULL} and {SLIDING} alone")
        full, sliding = held[FULL], held[SLIDING]
    else:
        full, sliding = held, None if local is None else {"rope_theta": local}
    defaults = {"rope_theta": base, "original_max_position_embeddings": context}
    full = {**{key: value for key, value in defaults.items() if value is not None}, **full}
    return Config(full, config.where), None if sliding is None else Config(sliding, config.where)


def rotated(config: Config, full: Config) -> int:
    """Values of a head that are rotated."""
    share, outer = (given.optional_number("partial_rotary_factor") for given in (full, config))
    share = outer if share is None else share
    dims = int(config.head_size * (1.0 if share is None else share))
    if not 0 < dims <= config.head_size or dims % 2:
        what = f"of {share} rotates {dims} values of a head of {config.head_size}"
        raise config.error("partial_rotary_factor", what)
    return dims


def scaled(
    config: Config, given: Config, dims: int, base: float, kinds: tuple[str, ...], log_multiplier: float
) -> Rope:
    kind = given.text("rope_type") or given.text("type") or "default"
    given.get("type")
    if kind not in SCALINGS or (kind not in kinds and kind != "default"):
        known = ", ".join(("default", *kinds))
        raise config.error("rope_parameters", f"has the type {kind!r}, and this architecture has {known}")
    for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        given.get(key)
    found = SCALINGS[kind](Call(config, given, dims, base, log_multiplier))
    if left := given.refuse_unread(frozenset()):
        what = f"holds {', '.join(map(repr, left))}, which RoPE of type {kind!r} does not have here"
        raise config.error("rope_parameters", what)
    return found


@dataclass(frozen=True)
class Call:
    """What a scaling is made from. given: the RoPE parameters. dims: rotated values."""

    config: Config
    given: Config
    dims: int
    base: float
    log_multiplier: float

    @property
    def context(self) -> int:
        """Positions that the model was first trained on."""
        first = self.given.optional_count("original_max_position_embeddings")
        return first or self.config.count("max_position_embeddings")

    @property
    def factor(self) -> float:
        factor = self.given.optional_number("factor")
        if factor is None:
            factor = self.config.count("max_position_embeddings") / self.context
        if factor <= 0:
            raise self.given.error("factor", f"is {factor}, which scales nothing")
        return factor


def plain(call: Call) -> Rope:
    return Rope({})


def linear(call: Call) -> Rope:
    return Rope(
        {"rope.scaling.type": text("linear"), "rope.scaling.factor": f32(call.given.number("factor"))}
    )


def dynamic(call: Call) -> Rope:
    """The base grows with texts that are longer than the context; up to it, nothing is scaled."""
    call.given.number("factor")
    call.given.get("alpha")
    length = call.config.count("max_position_embeddings")
    note = f"RoPE is scaled dynamically beyond {length} positions: the file has it up to there, unscaled"
    return Rope({}, notes=(note,))


def llama3(call: Call) -> Rope:
    """Slow pairs are interpolated, those between are blended: a divisor for each pair's frequency.

    Source: Llama 3.1's `apply_scaling`, https://github.com/meta-llama/llama-models
    """
    factor, low = call.factor, call.given.number("low_freq_factor")
    high, context = call.given.number("high_freq_factor"), call.context
    if not 0 < low < high:
        raise call.given.error("low_freq_factor", f"is {low}, not between 0 and high_freq_factor, {high}")
    turns = context * call.base ** (-2.0 * np.arange(call.dims // 2) / call.dims) / (2 * math.pi)
    own = np.clip((turns - low) / (high - low), 0.0, 1.0)  # how much of its frequency a pair keeps
    divisors = 1.0 / ((1.0 - own) / factor + own)
    return Rope({}, {"rope_freqs.weight": divisors.astype(np.float32)})


def yarn(call: Call) -> Rope:
    """YaRN; what transformers stretches the rotated values by beyond the paper's is the attention factor."""
    given, factor = call.given, call.factor
    if given.get("truncate") not in (None, True):
        raise given.error("truncate", "is false, which GGUF has no key for")
    if given.optional_number("extrapolation_factor") not in (None, 1.0):
        raise given.error("extrapolation_factor", "is not 1, which is not supported")
    keys = {
        "rope.scaling.type": text("yarn"),
        "rope.scaling.factor": f32(factor),
        "rope.scaling.original_context_length": u32(call.context),
    }
    for name in ("beta_fast", "beta_slow"):
        if beta := given.optional_number(name):
            keys[f"rope.scaling.yarn_{name}"] = f32(beta)
    if call.log_multiplier:
        keys["rope.scaling.yarn_log_multiplier"] = f32(call.log_multiplier)
    implied = temperature(factor, 1.0) / temperature(factor, call.log_multiplier)
    stretch = yarn_stretch(given, factor) / implied
    if abs(stretch - 1.0) > 1e-6:
        keys["rope.scaling.attn_factor"] = f32(stretch)
    return Rope(keys)


def yarn_stretch(given: Config, factor: float) -> float:
    """What transformers multiplies cosine and sine with."""
    stretch, mscale = given.optional_number("attention_factor"), given.optional_number("mscale")
    everywhere = given.optional_number("mscale_all_dim")
    if stretch is not None:
        return stretch
    if mscale and everywhere:
        return temperature(factor, mscale) / temperature(factor, everywhere)
    return temperature(factor, 1.0)


def temperature(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def longrope(call: Call) -> Rope:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a divisor for each pair, one list for long texts."""
    given, config = call.given, call.config
    given.get("short_mscale"), given.get("long_mscale")
    tensors = {
        f"rope_factors_{length}.weight": divisors(call, f"{length}_factor") for length in ("long", "short")
    }
    scale = config.count("max_position_embeddings") / call.context
    stretch = given.optional_number("attention_factor")
    if stretch is None:
        stretch = 1.0 if scale <= 1.0 else math.sqrt(1.0 + math.log(scale) / math.log(call.context))
    given.get("factor")
    keys = {
        "rope.scaling.original_context_length": u32(call.context),
        "rope.scaling.attn_factor": f32(stretch),
    }
    return Rope(keys, tensors)


def divisors(call: Call, key: str) -> NDArray[np.float32]:
    held = call.given.get(key)
    if not isinstance(held, list) or len(held) != call.dims // 2:
        raise call.given.error(key, f"is no list of {call.dims // 2} numbers")
    return np.array([call.given.checked(key, value) for value in held], np.float32)


SCALINGS: Mapping[str, Callable[[Call], Rope]] = {
    "default": plain,
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
    "su": longrope,
}

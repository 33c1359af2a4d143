"""What a model is, read from its metadata. A default means that the feature is absent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from puna.errors import ModelError
from puna.gguf import Metadata
from puna.graph import Rope, Yarn
from puna.graph.rope import Layout
from puna.models.keys import BEYOND, LEAST, Keys, all_but_first
from puna.models.mixture import Mixture
from puna.models.pooling import pooling

__all__ = ["MOST_LAYERS", "ModelConfig", "Norm", "first_full"]

# Beyond any model there is; it bounds what a hostile count can make us build.
MOST_LAYERS = 2048
Norm = Literal["rms", "layer", "any"]
EPSILONS: Mapping[str, str] = {
    "rms": "attention.layer_norm_rms_epsilon",
    "layer": "attention.layer_norm_epsilon",
}


@dataclass(frozen=True)
class ModelConfig:
    """Hyper-parameters under GGUF's names (`<architecture>.<key>`); per-layer values are tuples of n_layer.

    n_next: layers after the n_layer, which guess the tokens after the next; they are not run.
    n_ctx_train: positions the model was trained on.  n_ctx: positions that a sequence may hold now.
    n_embd: width.  n_ff: feed-forward width.
    n_head, n_head_kv: query and key/value heads.  head_k, head_v: size of a key and a value head.
    head_k_windowed, head_v_windowed: those of a sliding-window layer, 0 for the same.
    norm, norm_eps: which norm, and what it adds below the root.
    rope_context: positions it was trained on before any extension.
    rope_sections: pairs that turn by each coordinate of an image position; in text those are all the same.
    rope_windowed: base of a sliding-window layer's rotation, which is not stretched; None for as in a full layer.
    stretch_windowed: it is, as a full layer's.  rope_dims_windowed: values of a head that it turns, 0 for as many.
    window: positions a sliding-window layer sees, 0 for all.  windowed: which layers those are.
    windowed_each: of how many layers the last is not windowed, where the file has a number; 0 where it has flags.
    chunked: those see the positions from the last multiple of `window` on.
    scale: factor on attention scores, 0 for 1 / sqrt(head_k).  clamp: most a query, key or value may be, 0 for any.
    alibi: the most that ALiBi takes, 0 without it.
    embedding_scale, residual_scale, logit_scale: factors on embeddings, on what a block adds, on logits; 0 for none.
    q_rank, kv_rank: widths that queries, and keys with values, are pressed through.
    indexed: layers that choose the positions they attend to; the others take the choice of the one before.
    moe: the mixture of experts, where there is one.
    causal: tokens see none of those after them.
    pooling: what is made of the rows of a text, of `puna.models.pooling.POOLINGS`; None where they become logits.
    act: an activation that the file names.
    start: the token that a decoder begins with, after an encoder has read the text; None where there is no encoder.
    sparsity: deviations above the mean that an inner value has to be to count, by layer; -inf for any that is.
    own: values of the keys that only this architecture reads.  lists: of those that have arrays of whole numbers.
    unread: keys of the file that have no effect.
    """

    architecture: str
    n_layer: int
    n_next: int
    n_embd: int
    n_ctx_train: int
    n_ctx: int
    n_ff: tuple[int, ...]
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    head_k: int
    head_v: int
    norm: Norm
    norm_eps: float
    rope_dims: int
    rope_context: int
    head_k_windowed: int = 0
    head_v_windowed: int = 0
    rope_base: float = 10000.0
    rope_windowed: float | None = None
    rope_dims_windowed: int = 0
    stretch_windowed: bool = False
    rope_factor: float = 1.0
    rope_stretch: float = 1.0
    rope_sections: tuple[int, ...] = ()
    yarn: Yarn | None = None
    window: int = 0
    windowed: tuple[bool, ...] = ()
    windowed_each: int = 0
    chunked: bool = False
    scale: float = 0.0
    softcap: float = 0.0
    final_softcap: float = 0.0
    temper_scale: float = 0.0
    clamp: float = 0.0
    alibi: float = 0.0
    embedding_scale: float = 0.0
    residual_scale: float = 0.0
    logit_scale: float = 0.0
    q_rank: int = 0
    kv_rank: int = 0
    indexed: tuple[bool, ...] = ()
    moe: Mixture | None = None
    causal: bool = True
    pooling: str | None = None
    act: str = ""
    start: int | None = None
    sparsity: tuple[float, ...] = ()
    own: Mapping[str, float] = field(default_factory=dict)
    lists: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    where: str = field(default="", repr=False)

    @classmethod
    def read(
        cls,
        metadata: Metadata,
        *,
        norm: Norm = "rms",
        causal: bool = True,
        reads: Collection[str] = (),
        context: Callable[[int], int] = int,
    ) -> ModelConfig:
        """The configuration of a model file.

        causal: where the file does not tell.
        reads: the keys that this architecture reads beyond those that all do, of OPTIONAL or its own.
        context: from the positions trained on to those that a sequence may hold.
        Raises ModelError naming a key that is missing or has an impossible value, FormatError for a wrong type.
        """
        keys = Keys(metadata)
        if norm == "any":  # as the file tells
            norm = "rms" if keys.number(EPSILONS["rms"], 0.0) else "layer"
        every, width = keys.count("block_count", most=MOST_LAYERS), keys.count("embedding_length")
        later = keys.count("nextn_predict_layers", default=0, least=0, most=every - 1)
        keys.layers = layers = every - later
        heads, heads_kv = (counts[:layers] for counts in keys.heads(every))
        head_k = keys.count("attention.key_length", default=width // max(1, *heads))
        trained, sees_back = keys.count("context_length"), keys.flag("attention.causal")
        config = cls(
            architecture=keys.architecture,
            n_layer=layers,
            n_next=later,
            n_embd=width,
            n_ctx_train=trained,
            n_ctx=context(trained),
            n_ff=keys.each_layer("feed_forward_length", every)[:layers],
            n_head=heads,
            n_head_kv=heads_kv,
            head_k=head_k,
            head_v=keys.count("attention.value_length", default=width // max(1, *heads)),
            norm=norm,
            norm_eps=keys.number(EPSILONS[norm]),
            **rope_fields(keys, head_k, trained),
            scale=keys.number("attention.scale", 0.0),
            moe=Mixture.read(keys, every),
            causal=causal if sees_back is None else sees_back,
            pooling=pooling(keys),
            where=metadata.where,
        )
        chosen: dict[str, Any] = {
            OPTIONAL[key][0]: OPTIONAL[key][1](keys, key, every) for key in reads if key in OPTIONAL
        }
        lists = {key: keys.whole(key) for key in reads if key not in OPTIONAL}
        rest = [key for key in reads if key not in OPTIONAL and not lists[key]]
        own = {key: keys.own(key) for key in rest if keys.name(key) in metadata}
        full = {
            "attention.key_length": head_k,
            "attention.value_length": config.head_v,
            "rope.dimension_count": config.rope_dims,
        }
        return dataclasses.replace(
            config, **chosen, windowed_each=keys.each, own=own, lists=lists, unread=keys.unread(full)
        )

    def rope(self, layout: Layout, *, windowed: bool = False) -> Rope:
        """The rotation of a full layer, or of a sliding-window one where those differ."""
        dims, base = self.rope_dims, self.rope_base
        if windowed and self.rope_windowed:
            dims, base = self.rope_dims_windowed or dims, self.rope_windowed
            if not self.stretch_windowed:
                return Rope(dims, base, layout)
        return Rope(dims, base, layout, self.rope_factor, self.rope_stretch, self.yarn)

    def value(
        self, key: str, default: float | None = None, *, least: float = -BEYOND, most: float = BEYOND
    ) -> float:
        """A number among the architecture's own keys.

        Raises ModelError for one that is out of range, or that the file does not have where there is no default.
        """
        self.check_reads(key)
        value = self.own.get(key, default)
        if value is None:
            raise ModelError(f"missing metadata key '{self.architecture}.{key}'", where=self.where)
        if not least <= value <= most:
            raise self.error(key, f"{value} is not between {least:.9g} and {most:.9g}")
        return value

    def count(self, key: str, default: int = 1, *, least: int = 1, most: int = MOST_LAYERS) -> int:
        """A whole number among the architecture's own keys. Raises ModelError for one that is out of range."""
        self.check_reads(key)
        value = self.own.get(key, default)
        if value != int(value) or not least <= value <= most:
            raise self.error(key, f"{value} is not between {least} and {most}")
        return int(value)

    def check_reads(self, key: str) -> None:
        """Raise ModelError for a key that the file has and the class does not say it reads."""
        if f"{self.architecture}.{key}" in self.unread:
            raise self.error(key, f"the class uses it, and has to name '{key}' in 'reads'")

    def error(self, key: str, what: str) -> ModelError:
        return ModelError(f"metadata key '{self.architecture}.{key}': {what}", where=self.where)


def rope_fields(keys: Keys, head_k: int, trained: int) -> dict[str, Any]:
    """The fields of the rotation that all architectures read."""
    first = keys.count("rope.scaling.original_context_length", default=trained)
    base = keys.above_zero("rope.freq_base", 10000.0)
    return {
        "rope_dims": keys.rope_dims(head_k),
        "rope_context": first,
        "rope_base": base,
        "rope_factor": keys.rope_factor(),
        "rope_stretch": keys.number("rope.scaling.attn_factor", 1.0),
        "rope_sections": keys.sections(),
        "yarn": keys.yarn(first, base) if keys.scaling == "yarn" else None,
    }


def first_full(c: ModelConfig, each: int) -> tuple[bool, ...]:
    """Which layers are windowed where the first of some is not: as the file has it, or the first of each `each`."""
    if c.windowed and not c.windowed_each:
        return c.windowed
    return all_but_first(c.windowed_each or each, c.n_layer)


Reader = Callable[[Keys, str, int], object]


def number(keys: Keys, key: str, layers: int) -> float:
    return keys.number(key, 0.0)


def count(keys: Keys, key: str, layers: int) -> int:
    return keys.count(key, default=0, least=0)


def pairs(keys: Keys, key: str, layers: int) -> int:
    dims = count(keys, key, layers)
    if dims % 2:
        raise keys.error(key, f"cannot rotate {dims} values in pairs")
    return dims


def flags(keys: Keys, key: str, layers: int) -> tuple[bool, ...]:
    return tuple(bool(v) for v in keys.each_layer(key, layers, default=()))


def deviations(keys: Keys, key: str, layers: int) -> tuple[float, ...]:
    name = keys.name(key)
    values = tuple(map(float, keys.metadata.numbers(name))) if name in keys.metadata else ()
    if len(values) not in (0, layers) or any(math.isnan(v) for v in values):
        raise keys.error(key, f"needs {layers} numbers, one a layer")
    return values


def word(keys: Keys, key: str, layers: int) -> str:
    return keys.metadata.string(keys.name(key), default="")


def base(keys: Keys, key: str, layers: int) -> float | None:
    return keys.above_zero(key, LEAST) if keys.name(key) in keys.metadata else None


# Keys that only the architectures which name them read: field, and how. Others refuse a file that sets them.
OPTIONAL: Mapping[str, tuple[str, Reader]] = {
    "activation_sparsity_scale": ("sparsity", deviations),
    "attention.clamp_kqv": ("clamp", number),
    "attention.indexer.types": ("indexed", flags),
    "attention.key_length_swa": ("head_k_windowed", count),
    "attention.kv_lora_rank": ("kv_rank", count),
    "attention.max_alibi_bias": ("alibi", number),
    "attention.q_lora_rank": ("q_rank", count),
    "attention.sliding_window": ("window", count),
    "attention.sliding_window_pattern": ("windowed", Keys.pattern),
    "attention.temperature_scale": ("temper_scale", number),
    "attention.value_length_swa": ("head_v_windowed", count),
    "attn_logit_softcapping": ("softcap", number),
    "decoder_start_token_id": ("start", count),
    "embedding_scale": ("embedding_scale", number),
    "final_logit_softcapping": ("final_softcap", number),
    "hidden_activation": ("act", word),
    "logit_scale": ("logit_scale", number),
    "residual_scale": ("residual_scale", number),
    "rope.dimension_count_swa": ("rope_dims_windowed", pairs),
    "rope.freq_base_swa": ("rope_windowed", base),
}

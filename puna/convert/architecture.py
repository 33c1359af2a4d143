"""What sets an architecture apart in a conversion: a subclass is a table, and a few lines where that is not enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from puna.convert.config import Config
from puna.convert.rope import Rope, rope
from puna.convert.tensors import Rule, Rules, prefixed
from puna.convert.typed import f32, flags, u32
from puna.gguf import Value

__all__ = ["Architecture", "features", "names", "rules", "values"]

# Buffers that some checkpoints hold beside the weights, and parts for pictures and sound, which are other models.
BUFFERS = (
    ".rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)
OTHER_MODELS = (
    "vision_tower.",
    "multi_modal_projector.",
    "vision_model.",
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "mtp.",
)
TEXT_MODEL = "language_model."


def names(*given: str) -> tuple[str, ...]:
    """Names of one kind."""
    return given


def values(base: Mapping[str, Any] | None = None, /, **given: Any) -> Mapping[str, Any]:
    """Values by keys of config.json, over those of a base."""
    return {**(base or {}), **given}


def rules(*tables: Rules) -> Rules:
    """Several tables as one, later rows in place of earlier ones."""
    return {source: rule for table in tables for source, rule in table.items()}


class Architecture:
    """One or more of transformers' model classes as one of GGUF's architectures.

    hf: names in `architectures` of config.json.  name: general.architecture.
    defaults: of the class, for keys that config.json leaves out.
    demands: keys that are right for GGUF with these values alone; missing or null is None.
    counts, numbers: keys of GGUF without prefix, and the keys of config.json that they come from: whole numbers, and
        others; those with `?` may be missing.
    stem, layers: the modules outside of layers and in them, without their prefixes, and where they go.
    stem_prefix, layer_prefix: those prefixes, {l} being the layer.
    eps: the key of GGUF for the epsilon of norms, and that of config.json.
    rope_kinds: transformers' names of RoPE scalings beside the plain one; None where there is no RoPE.
    windows: whether readers heed sliding windows: True; where they do not, "unheeded" writes them with a note.
    head_bias: whether the output matrix has a bias.
    tied: whether the output matrix may be the embedding.
    pres: names of pre-tokenizers to prefer among equal ones.
    """

    hf: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = {}
    demands: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    counts: ClassVar[Mapping[str, str]] = {}
    numbers: ClassVar[Mapping[str, str]] = {}
    stem: ClassVar[Rules] = {
        "embed_tokens": "token_embd",
        "norm": "output_norm",
    }
    layers: ClassVar[Rules] = {}
    stem_prefix: ClassVar[str] = "model."
    layer_prefix: ClassVar[str] = "model.layers.{l}."
    head: ClassVar[str] = "lm_head"
    head_bias: ClassVar[bool] = False
    eps: ClassVar[tuple[str, str]] = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
    rope_kinds: ClassVar[tuple[str, ...] | None] = ("linear", "yarn", "dynamic")
    windows: ClassVar[bool | Literal["unheeded"]] = False
    pres: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Config) -> None:
        """Raises ModelError for a configuration that this architecture cannot have in GGUF."""
        config.assume({"tie_word_embeddings": False, **self.defaults})
        self.config = config
        for key, allowed in self.demands.items():
            config.demand(key, allowed)
        self.tied = config.flag("tie_word_embeddings")
        self.rope = Rope({}) if self.rope_kinds is None else self.find_rope(self.rope_kinds)

    def find_rope(self, kinds: tuple[str, ...]) -> Rope:
        return rope(self.config, kinds=kinds)

    def keys(self) -> dict[str, Value]:
        """Hyper-parameters by their GGUF names without the prefix. Raises ModelError."""
        c, (eps, source) = self.config, self.eps
        found = {
            "block_count": u32(c.layers),
            "context_length": u32(c.count("max_position_embeddings")),
            "embedding_length": u32(c.count("hidden_size")),
            "feed_forward_length": self.feed_forward(),
            "attention.head_count": u32(c.heads),
            "attention.head_count_kv": u32(c.heads_kv),
            "attention.key_length": u32(c.head_size),
            "attention.value_length": u32(c.head_size),
            eps: f32(c.number(source)),
        }
        return {**found, **self.rope.keys, **self.window_keys(), **self.expert_keys(), **self.table_keys()}

    def feed_forward(self) -> Value:
        """The width of feed-forward blocks."""
        return u32(self.config.count("intermediate_size"))

    def window_keys(self) -> dict[str, Value]:
        """The sliding window and the layers that have it, where any has."""
        layers = self.windowed()
        if not any(layers):
            return {}
        window = self.config.count("sliding_window")
        if not self.windows:
            what = f"of {window} is set, and this architecture is converted without"
            raise self.config.error("sliding_window", what)
        return {"attention.sliding_window": u32(window), "attention.sliding_window_pattern": flags(layers)}

    def notes(self) -> list[str]:
        """What the file says that readers do not heed, a line each."""
        found = list(self.rope.notes)
        if self.windows == "unheeded" and any(self.windowed()):
            window = self.config.count("sliding_window")
            found.append(
                f"the sliding window of {window} positions is written, but readers of {self.name!r} see all of them"
            )
        if self.config.get("hidden_act") == "gelu":
            found.append("the activation is the exact GELU: readers take its approximation by tanh")
        return found

    def windowed(self) -> list[bool]:
        """Which layers have a sliding window."""
        c = self.config
        layers, window = c.windowed, c.optional_count("sliding_window")
        off = c.get("use_sliding_window") is False or window is None
        return [not off] * c.layers if layers is None else layers

    def expert_keys(self) -> dict[str, Value]:
        c = self.config
        if not c.experts:
            return {}
        return {"expert_count": u32(c.experts), "expert_used_count": u32(c.count("num_experts_per_tok"))}

    def table_keys(self) -> dict[str, Value]:
        """The keys of `counts` and `numbers`."""
        c, found = self.config, {}
        for key, source in self.counts.items():
            if (count := c.optional_count(source.removesuffix("?"), 0)) is not None or needed(source):
                found[key] = u32(c.required(source, count))
        for key, source in self.numbers.items():
            if (number := c.optional_number(source.removesuffix("?"))) is not None or needed(source):
                found[key] = f32(c.required(source, number))
        return found

    def rules(self) -> Rules:
        """Where each module goes."""
        stem = prefixed(self.stem, self.stem_prefix, "")
        head: Rules = {self.head: Rule("output", optional=self.tied, bias=self.head_bias)}
        return {**stem, **head, **self.of_layer(self.layers)}

    def of_layer(self, table: Rules) -> Rules:
        """The rules of modules in a layer, under their whole names."""
        return prefixed(table, self.layer_prefix, "blk.{l}.")

    def names(self, tensors: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        """The tensors to convert with the names that `rules` knows, and those that are another model's."""
        own, others = {}, []
        for source in tensors:
            name = source.replace(TEXT_MODEL, "", 1)
            if name.removeprefix("model.").startswith(OTHER_MODELS):
                others.append(source)
            elif not self.is_dropped(name):
                own[source] = self.renamed(name)
        return own, others

    def is_dropped(self, name: str) -> bool:
        """Whether a tensor is no weight, or the embedding again."""
        return name.endswith(BUFFERS) or (self.tied and name == f"{self.head}.weight")

    def renamed(self, name: str) -> str:
        """The name that `rules` knows."""
        return name

    def tensors(self) -> Mapping[str, NDArray[np.float32]]:
        """Tensors that no checkpoint holds."""
        return self.rope.tensors


def needed(source: str) -> bool:
    return not source.endswith("?")


def features(cls: type[Architecture]) -> frozenset[str]:
    """Keys of config.json that a class gives a meaning."""
    sources = (*cls.counts.values(), *cls.numbers.values())
    return frozenset({*cls.demands, *(source.removesuffix("?") for source in sources)})

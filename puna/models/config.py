"""What a model is, read from its metadata. A default means that the feature is absent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from puna.errors import ModelError
from puna.gguf import Metadata, ValueType
from puna.graph import Rope, Yarn
from puna.graph.rope import Layout

__all__ = ["Keys", "ModelConfig"]

# Beyond any model there is; it bounds what a hostile count can make us build.
MOST_LAYERS = 2048
LEAST = 1e-6  # of bases and factors that something is divided by


@dataclass(frozen=True)
class ModelConfig:
    """Hyper-parameters under GGUF's names (`<architecture>.<key>`); per-layer values are tuples of n_layer.

    n_ctx_train: positions the model was trained on.  n_embd: width.  n_ff: feed-forward width.
    n_head, n_head_kv: query and key/value heads.  head_k, head_v: size of a key and a value head.
    window: positions a sliding-window layer sees, 0 for all.  windowed: which layers those are.
    scale: factor on attention scores, 0 for 1 / sqrt(head_k).  unread: keys of the file that have no effect.
    """

    architecture: str
    n_layer: int
    n_embd: int
    n_ctx_train: int
    n_ff: tuple[int, ...]
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    head_k: int
    head_v: int
    norm_eps: float
    rope_dims: int
    rope_base: float = 10000.0
    rope_base_windowed: float | None = None
    rope_factor: float = 1.0
    rope_stretch: float = 1.0
    yarn: Yarn | None = None
    window: int = 0
    windowed: tuple[bool, ...] = ()
    scale: float = 0.0
    softcap: float = 0.0
    final_softcap: float = 0.0
    temper_scale: float = 0.0
    n_expert: int = 0
    n_expert_used: int = 0
    unread: tuple[str, ...] = ()

    @classmethod
    def read(cls, metadata: Metadata) -> ModelConfig:
        """The configuration of a model file.

        Raises ModelError naming a key that is missing or has an impossible value, FormatError for a wrong type.
        """
        keys = Keys(metadata)
        layers, width = keys.count("block_count", most=MOST_LAYERS), keys.count("embedding_length")
        heads = keys.each_layer("attention.head_count", layers)
        heads_kv = keys.each_layer("attention.head_count_kv", layers, default=heads)
        uneven = next((pair for pair in zip(heads, heads_kv, strict=True) if pair[0] % pair[1]), None)
        if uneven:
            raise keys.error("attention.head_count_kv", "{} heads do not divide among {}".format(*uneven))
        head_k = keys.count("attention.key_length", default=width // max(1, heads[0]))
        factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0) or 1.0
        if factor < LEAST:
            raise keys.error("rope.scaling.factor", f"{factor} is out of range")
        config = cls(
            architecture=keys.architecture,
            n_layer=layers,
            n_embd=width,
            n_ctx_train=keys.count("context_length"),
            n_ff=keys.each_layer("feed_forward_length", layers),
            n_head=heads,
            n_head_kv=heads_kv,
            head_k=head_k,
            head_v=keys.count("attention.value_length", default=width // max(1, heads[0])),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope_dims=keys.rope_dims(head_k),
            rope_base=keys.above_zero("rope.freq_base", 10000.0),
            rope_base_windowed=keys.number("rope.freq_base_swa", 0.0) or None,
            rope_factor=1.0 if keys.scaling == "none" else factor,
            rope_stretch=keys.number("rope.scaling.attn_factor", 1.0),
            yarn=keys.yarn() if keys.scaling == "yarn" else None,
            window=keys.count("attention.sliding_window", default=0, least=0),
            windowed=keys.pattern("attention.sliding_window_pattern", layers),
            scale=keys.number("attention.scale", 0.0),
            softcap=keys.number("attn_logit_softcapping", 0.0),
            final_softcap=keys.number("final_logit_softcapping", 0.0),
            temper_scale=keys.number("attention.temperature_scale", 0.0),
            n_expert=keys.count("expert_count", default=0, least=0),
            n_expert_used=keys.count("expert_used_count", default=0, least=0),
        )
        return dataclasses.replace(config, unread=keys.unread())

    def rope(self, layout: Layout, *, windowed: bool = False) -> Rope:
        """The rotation of a full layer, or of a sliding-window one where those differ."""
        if windowed and self.rope_base_windowed:
            return Rope(self.rope_dims, self.rope_base_windowed, layout)
        return Rope(self.rope_dims, self.rope_base, layout, self.rope_factor, self.rope_stretch, self.yarn)


# Keys that change the results of models that have them, and the values with which they do not.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.value_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "expert_shared_count": (0,),
    "expert_weights_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
}
# Keys that only describe, or repeat what the tensors show.
SILENT = frozenset(
    {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"}
)


class Keys:
    """Reads keys under the architecture's prefix and checks their range."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.read: set[str] = set()
        self.architecture = metadata.string("general.architecture")
        self.scaling = metadata.string(self.name("rope.scaling.type"), default="linear")
        if self.scaling not in {"none", "linear", "yarn"}:
            raise self.error("rope.scaling.type", f"no RoPE scaling is called {self.scaling!r}")

    def name(self, key: str) -> str:
        """The whole key, noted as read."""
        self.read.add(key)
        return f"{self.architecture}.{key}"

    def unread(self) -> tuple[str, ...]:
        """Keys of the architecture that nothing has read and that say something.

        Raises ModelError for one that would change the results.
        """
        prefix = f"{self.architecture}."
        left = [key.removeprefix(prefix) for key in self.metadata if key.startswith(prefix)]
        left = [key for key in left if key not in self.read and key not in SILENT]
        for key in left:
            if key in NEUTRAL and self.metadata[prefix + key] not in NEUTRAL[key]:
                raise self.error(key, f"{self.metadata[prefix + key]} is not supported for this architecture")
        return tuple(sorted(prefix + key for key in left if key not in NEUTRAL))

    def error(self, key: str, what: str) -> ModelError:
        return ModelError(f"metadata key '{self.architecture}.{key}': {what}", where=self.metadata.where)

    def number(self, key: str, default: float | None = None) -> float:
        name = self.name(key)
        value = self.metadata.number(name) if default is None else self.metadata.number(name, default=default)
        if not 0.0 <= value < 1e12:  # also refuses NaN
            raise self.error(key, f"{value} is out of range")
        return float(value)

    def above_zero(self, key: str, default: float) -> float:
        value = self.number(key, default)
        if value < LEAST:
            raise self.error(key, f"{value} is out of range")
        return value

    def count(self, key: str, *, default: int | None = None, least: int = 1, most: int = 2**31 - 1) -> int:
        name = self.name(key)
        value = (
            self.metadata.integer(name) if default is None else self.metadata.integer(name, default=default)
        )
        if not least <= value <= most:
            raise self.error(key, f"{value} is not between {least} and {most}")
        return value

    def each_layer(self, key: str, layers: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """One value for all layers, or an array of one a layer."""
        name = self.name(key)
        if name not in self.metadata and default is not None:
            return tuple(default)
        if name not in self.metadata or self.metadata.type_of(name) is not ValueType.ARRAY:
            return (self.count(key),) * layers
        values = tuple(int(v) for v in self.metadata.integers(name))
        if len(values) != layers:
            raise self.error(key, f"{len(values)} values for {layers} layers")
        if not all(0 < v < 2**31 for v in values):
            raise self.error(key, f"values {sorted(set(values))} are out of range")
        return values

    def pattern(self, key: str, layers: int) -> tuple[bool, ...]:
        """Which layers are windowed: a flag a layer, or n for "all but each n-th"; () when absent."""
        name = self.name(key)
        if name not in self.metadata:
            return ()
        if self.metadata.type_of(name) is not ValueType.ARRAY:
            every = self.count(key, least=0)
            return tuple(every == 0 or i % every < every - 1 for i in range(layers))
        flags = tuple(bool(v) for v in self.metadata[name])
        if len(flags) != layers:
            raise self.error(key, f"{len(flags)} values for {layers} layers")
        return flags

    def rope_dims(self, head_k: int) -> int:
        dims = self.count("rope.dimension_count", default=head_k)
        if dims % 2 or dims > head_k:
            raise self.error("rope.dimension_count", f"cannot rotate {dims} values of a head of {head_k}")
        return dims

    def yarn(self) -> Yarn:
        return Yarn(
            context=self.count("rope.scaling.original_context_length", default=self.count("context_length")),
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
            log_multiplier=self.number("rope.scaling.yarn_log_multiplier", 0.0),
        )

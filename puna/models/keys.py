"""Reads a model's metadata keys, checks their range, and tells what nothing has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from puna.errors import ModelError
from puna.gguf import Metadata, ValueType
from puna.graph import Yarn

__all__ = ["BEYOND", "LEAST", "Keys", "all_but_each", "all_but_first"]

LEAST = 1e-6  # of bases and factors that something is divided by
BEYOND = 1e12  # any number that a model can use
SCALINGS = frozenset({"none", "linear", "yarn", "longrope"})
# Keys that change the results of models that have them, and the values with which they do not.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.temperature_scale": (0.0,),
    "attention.value_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.alpha": (0.0,),
    "use_parallel_residual": (False,),
}
# Keys that only describe, or repeat what the tensors show.
SILENT = frozenset(
    {
        "attention.recurrent_layers",
        "classifier.output_labels",
        "dense_2_feat_in",
        "dense_2_feat_out",
        "dense_3_feat_in",
        "dense_3_feat_out",
        "expert_shared_count",
        "expert_shared_feed_forward_length",
        "full_attention_interval",
        "interleave_moe_layer_step",
        "leading_dense_block_count",
        "rope.scaling.finetuned",
        "tensor_data_layout",
        "vocab_size",
    }
)
# Keys of architectures whose layers may be all recurrent.
STATES = ("ssm.state_size", "wkv.head_size")


class Keys:
    """Reads keys under the architecture's prefix and checks their range."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.read: set[str] = set()
        self.each = 0  # of how many layers the last is not windowed, where a file has a number and no flags
        self.layers = 0  # those that are run; arrays may leave out the others
        self.architecture = metadata.string("general.architecture")
        states = tuple(f"{self.architecture}.{key}" for key in STATES)
        # Without attention, or a feed-forward block, in any layer: their sizes may be 0.
        self.is_recurrent = any(key in metadata for key in states)
        self.scaling = metadata.string(self.name("rope.scaling.type"), default="linear")
        if self.scaling not in SCALINGS:
            raise self.error("rope.scaling.type", f"no RoPE scaling is called {self.scaling!r}")

    def name(self, key: str) -> str:
        """The whole key, noted as read."""
        self.read.add(key)
        return f"{self.architecture}.{key}"

    def unread(self, full: Mapping[str, int]) -> tuple[str, ...]:
        """Keys of the architecture that nothing has read and that say something.

        full: what keys that end in "_swa" have to repeat, where layers are windowed.
        Raises ModelError for one that would change the results.
        """
        prefix = f"{self.architecture}."
        left = {key.removeprefix(prefix): key for key in self.metadata if key.startswith(prefix)}
        neutral = {**NEUTRAL, **{f"{key}_swa": (value,) for key, value in full.items()}}
        windowed = "attention.sliding_window" in self.read
        told = []
        for key in sorted(left.keys() - self.read - SILENT):
            value = self.metadata[left[key]]
            if key not in neutral or (key.endswith("_swa") and not windowed):
                told.append(left[key])
            elif not isinstance(value, int | float | str):
                raise self.error(key, "an array is not supported for this architecture")
            elif value not in neutral[key]:
                raise self.error(key, f"{value} is not supported for this architecture")
        return tuple(told)

    def error(self, key: str, what: str) -> ModelError:
        return ModelError(f"metadata key '{self.architecture}.{key}': {what}", where=self.metadata.where)

    def number(self, key: str, default: float | None = None) -> float:
        name = self.name(key)
        value = self.metadata.number(name) if default is None else self.metadata.number(name, default=default)
        if not 0.0 <= value < BEYOND:  # also refuses NaN
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

    def flag(self, key: str) -> bool | None:
        """A flag, None where the file does not say."""
        name = self.name(key)
        return self.metadata.boolean(name) if name in self.metadata else None

    def whole(self, key: str) -> tuple[int, ...]:
        """An array of whole numbers, none of them negative; () where the file has none."""
        name = self.name(key)
        if name not in self.metadata or self.metadata.type_of(name) is not ValueType.ARRAY:
            return ()
        values = tuple(int(v) for v in self.metadata.integers(name))
        if not all(0 <= v < 2**64 for v in values):
            raise self.error(key, "there are negative numbers")
        return values

    def numbers(self, key: str, layers: int) -> tuple[float, ...]:
        """One number for all layers, or an array of one a layer; zeros where absent."""
        name = self.name(key)
        if name not in self.metadata or self.metadata.type_of(name) is not ValueType.ARRAY:
            return (self.number(key, 0.0),) * layers
        values = tuple(float(v) for v in self.metadata.numbers(name))
        if len(values) not in (layers, self.layers) or not all(0.0 <= v < BEYOND for v in values):
            raise self.error(key, f"needs {layers} numbers that are not negative, one a layer")
        return values

    def own(self, key: str) -> float:
        """A number or a flag, as a number."""
        value = self.metadata[self.name(key)]
        if not isinstance(value, int | float) or not -BEYOND < value < BEYOND:
            raise self.error(key, f"{value!r} is not a number that can be used")
        return value

    def each_layer(self, key: str, layers: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """One value for all layers, or an array of one a layer, where 0 stands for none."""
        name = self.name(key)
        if name not in self.metadata and default is not None:
            return tuple(default)
        if name not in self.metadata or self.metadata.type_of(name) is not ValueType.ARRAY:
            return (self.count(key, least=0 if self.is_recurrent else 1),) * layers
        values = tuple(int(v) for v in self.metadata.integers(name))
        if len(values) not in (layers, self.layers):
            raise self.error(key, f"{len(values)} values for {layers} layers")
        if not all(0 <= v < 2**31 for v in values):
            raise self.error(key, f"values {sorted(set(values))} are out of range")
        return values

    def heads(self, layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Query and key/value heads of each layer, which divide evenly; 0 for none."""
        heads = self.each_layer("attention.head_count", layers)
        heads_kv = self.each_layer("attention.head_count_kv", layers, default=heads)
        for n, among in zip(heads, heads_kv, strict=True):
            if among and n % among:
                raise self.error("attention.head_count_kv", f"{n} heads do not divide among {among}")
        if not any(heads) and not self.is_recurrent:
            raise self.error("attention.head_count", "no layer has a head")
        return heads, heads_kv

    def pattern(self, key: str, layers: int) -> tuple[bool, ...]:
        """Which layers are windowed: a flag a layer, or n for "all but each n-th"; () when absent."""
        name = self.name(key)
        if name not in self.metadata:
            return ()
        if self.metadata.type_of(name) is not ValueType.ARRAY:
            self.each = self.count(key, least=0)
            return all_but_each(self.each, layers)
        flags = tuple(bool(v) for v in self.metadata[name])
        if len(flags) not in (layers, self.layers):
            raise self.error(key, f"{len(flags)} values for {layers} layers")
        return flags

    def rope_dims(self, head_k: int) -> int:
        dims = self.count("rope.dimension_count", default=head_k, least=0)
        if dims % 2 or dims > head_k:
            raise self.error("rope.dimension_count", f"cannot rotate {dims} values of a head of {head_k}")
        return dims

    def sections(self) -> tuple[int, ...]:
        """Sizes of the sections of rotated pairs; () where a file has none, or all are 0."""
        name = self.name("rope.dimension_sections")
        sizes = tuple(int(v) for v in self.metadata.integers(name)) if name in self.metadata else ()
        return sizes if any(sizes) else ()

    def rope_factor(self) -> float:
        """How far the context is extended."""
        factor = self.number("rope.scaling.factor", 0.0) or self.number("rope.scale_linear", 0.0) or 1.0
        if factor < LEAST:
            raise self.error("rope.scaling.factor", f"{factor} is out of range")
        return 1.0 if self.scaling == "none" else factor

    def yarn(self, context: int, base: float) -> Yarn | None:
        """YaRN, for a model first trained on `context` positions; None where the file turns it off."""
        if base == 1.0:
            raise self.error(
                "rope.freq_base", "with a base of 1 all pairs turn alike; YaRN needs slow and fast ones"
            )
        key = self.name("rope.scaling.yarn_ext_factor")
        keeps = self.own("rope.scaling.yarn_ext_factor") if key in self.metadata else -1.0
        if keeps == 0.0:
            return None
        return Yarn(
            context=context,
            beta_fast=self.above_zero("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.above_zero("rope.scaling.yarn_beta_slow", 1.0),
            log_multiplier=self.number("rope.scaling.yarn_log_multiplier", 0.0),
            keeps=1.0 if keeps < 0.0 else keeps,
        )


def all_but_first(n: int, layers: int) -> tuple[bool, ...]:
    """Flags that are unset for the first of each n layers."""
    return tuple(i % n > 0 for i in range(layers))


def all_but_each(n: int, layers: int) -> tuple[bool, ...]:
    """Flags that are unset for each n-th layer; for none where n is 0."""
    return tuple(n == 0 or i % n < n - 1 for i in range(layers))

"""T5, Flan-T5, mT5 and UMT5: encoder and decoder, or the encoder alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from puna.convert.architecture import Architecture, names, rules, values
from puna.convert.config import Config
from puna.convert.tensors import Rule, Rules, as_rules, prefixed
from puna.convert.typed import boolean, u32
from puna.gguf import Value

__all__ = ["MT5", "T5", "T5Encoder"]

SHARED, HEAD = "shared.weight", "lm_head.weight"
EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # the shared one again
# Of the decoder, or said by feed_forward_proj.
UNUSED = ("decoder_start_token_id", "is_gated_act", "num_decoder_layers", "scale_decoder_outputs")
LATER = ("MT5", "UMT5")
PLACE = re.compile(r"\.layer\.(\d)\.")
BIAS = Rule("attn_rel_b", optional=True)  # the first layer's, or one of each
FEED_FORWARD: Rules = {"wo": "ffn_down"}
GATED: Rules = {"wi_0": "ffn_gate", "wi_1": "ffn_up"}


def attention(kind: str, target: str, bias: Rule) -> Rules:
    found: Rules = {f"{kind}.{part}": f"{target}_{part}" for part in "qkvo"}
    return {**found, f"{kind}.relative_attention_bias": bias, "layer_norm": f"{target}_norm"}


class T5Encoder(Architecture):
    """The encoder. A folder with a decoder, too, gives it where config.json names this class."""

    hf = names("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel")
    name = "t5encoder"
    defaults = values(
        d_kv=64,
        feed_forward_proj="relu",
        layer_norm_epsilon=1e-6,
        n_positions=512,
        relative_attention_max_distance=128,
        relative_attention_num_buckets=32,
        tie_word_embeddings=True,
    )
    demands = values(
        dense_act_fn=(None, "relu", "gelu_new"),
        feed_forward_proj=("relu", "gated-gelu"),
        relative_attention_max_distance=(128,),
    )
    counts = values({"attention.relative_buckets_count": "relative_attention_num_buckets"})
    rope_kinds = None
    eps = ("attention.layer_norm_rms_epsilon", "layer_norm_eps")
    stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    def __init__(self, config: Config) -> None:
        if "".join(config.classes[:1]).startswith(LATER):
            config.assume({"feed_forward_proj": "gated-gelu"})
        super().__init__(config)
        for key in UNUSED:
            config.get(key)
        self.gated = config.text("feed_forward_proj") == "gated-gelu"
        self.has_head = True

    def keys(self) -> dict[str, Value]:
        return {**super().keys(), "attention.causal": boolean(False)}

    def layer(self, stack: str) -> Rules:
        """The modules of a layer, by their places in it."""
        feed = {**FEED_FORWARD, **(GATED if self.gated else {"wi": "ffn_up"})}
        places = [attention("SelfAttention", "attn", BIAS)]
        if stack == "decoder":
            places.append(attention("EncDecAttention", "cross_attn", Rule("cross_attn_rel_b", optional=True)))
        places.append({**prefixed(feed, "DenseReluDense.", ""), "layer_norm": "ffn_norm"})
        return rules(*(prefixed(place, f"layer_{n}.", "") for n, place in enumerate(places)))

    def rules(self) -> Rules:
        found: Rules = {SHARED.removesuffix(".weight"): "token_embd"}
        for stack in self.stacks:
            short = stack[:3]
            table = prefixed(self.layer(stack), f"{stack}.block.{{l}}.", f"{short}.blk.{{l}}.")
            found = rules(found, table, {f"{stack}.final_layer_norm": f"{short}.output_norm"})
        return found

    def names(self, tensors: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        held = set(tensors)
        again = set(EMBEDDINGS) if SHARED in held else {EMBEDDINGS[1]}
        own = {name: self.renamed(name) for name in sorted(held - again) if self.is_own(name)}
        self.has_head = HEAD in own
        return own, sorted(held - again - own.keys())

    def is_own(self, name: str) -> bool:
        return not name.startswith(("decoder.", HEAD))

    def renamed(self, name: str) -> str:
        return SHARED if name in EMBEDDINGS else PLACE.sub(r".layer_\1.", name)


class T5(T5Encoder):
    """Encoder and decoder. A head that is the embedding again takes scaled rows, and only that one."""

    hf = names("T5ForConditionalGeneration", "T5WithLMHeadModel", "UMT5ForConditionalGeneration")
    name = "t5"
    stacks = ("encoder", "decoder")
    scales: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        said = config.get("scale_decoder_outputs")
        self.tied = self.scales and (self.tied if said is None else said is True)
        self.encoder_layers = config.layers
        self.decoder_layers = config.optional_count("num_decoder_layers") or config.layers
        config.values["num_hidden_layers"] = max(self.encoder_layers, self.decoder_layers)

    def keys(self) -> dict[str, Value]:
        start = self.config.optional_count("decoder_start_token_id", 0) or 0
        found = {
            **super().keys(),
            "block_count": u32(self.encoder_layers),
            "decoder_block_count": u32(self.decoder_layers),
            "decoder_start_token_id": u32(start),
        }
        del found["attention.causal"]
        return found

    def layer(self, stack: str) -> Rules:
        found = super().layer(stack)
        if self.encoder_layers == self.decoder_layers:
            return found
        return {source: replace(as_rules(rule)[0], optional=True) for source, rule in found.items()}

    def rules(self) -> Rules:
        found = super().rules()
        if self.tied:
            return found
        if self.has_head:
            return rules(found, {HEAD.removesuffix(".weight"): "output"})
        return rules(found, {SHARED.removesuffix(".weight"): (Rule("token_embd"), Rule("output"))})

    def is_own(self, name: str) -> bool:
        return not (self.tied and name == HEAD)


class MT5(T5):
    """T5 of many languages, whose rows are never scaled."""

    hf = names("MT5ForConditionalGeneration")
    scales = False

"""Embeddings of the last few tokens together, looked up in hashed tables and added to the residual streams."""

from __future__ import annotations

from dataclasses import dataclass

from puna.graph import Node, make
from puna.models import streams
from puna.models.blocks import heads, linear
from puna.models.config import ModelConfig
from puna.models.recurrent import flat, silu, taps
from puna.models.weights import Layer

__all__ = ["KEYS", "Tables", "together"]

# What an architecture with such embeddings reads.
KEYS = (
    "embedding_length_per_layer_input",
    "ple.conv_kernel",
    "ple.eos_token_id",
    "ple.head_offsets",
    "ple.head_vocab_sizes",
    "ple.heads_per_ngram",
    "ple.layer_multipliers",
    "ple.layers",
    "ple.ngram_size",
)
MOST = 2**31 - 1


@dataclass(frozen=True)
class Tables:
    """The tables of embeddings of n tokens together.

    size: of one.  end: id before which nothing counts.  factors: of the latest token, the one before it ...
    sizes, starts: of each table.
    """

    size: int
    end: int
    factors: tuple[int, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, c: ModelConfig) -> Tables:
        """As a file has it. Raises ModelError where its parts do not fit together."""
        n = c.count("ple.ngram_size", 0, least=2, most=8)
        tables = (n - 1) * c.count("ple.heads_per_ngram", 0, most=64)
        names = "layer_multipliers", "head_vocab_sizes", "head_offsets"
        factors, sizes, starts = (
            c.lists.get(f"ple.{name}", ())[:k] for name, k in zip(names, (n, tables, tables), strict=True)
        )
        if (len(factors), len(sizes), len(starts)) != (n, tables, tables) or not all(sizes):
            raise c.error("ple.head_vocab_sizes", f"there are not {tables} tables for {n} tokens together")
        size = c.count("embedding_length_per_layer_input", 0, most=2**24)
        end = c.count("ple.eos_token_id", 0, least=0, most=MOST)
        return cls(size, end, factors, sizes, starts)

    @property
    def rows(self) -> int:
        """Of all tables, which lie in one."""
        return max(start + size for start, size in zip(self.starts, self.sizes, strict=True))


def together(x: Node, l: Layer, n: int) -> Node:
    """What the last tokens' embeddings add to n streams x [T, n, width]: [T, n, width]."""
    c, width, t = l.config, l.config.n_embd, Tables.of(l.config)
    table = l.weights.per_layer_token_embd
    if table and table.rows < t.rows:
        raise c.error("ple.head_offsets", f"tables of {t.rows} rows, and the file has {table.rows}")
    how = {"end": t.end, "factors": t.factors, "sizes": t.sizes, "starts": t.starts}
    ids = make("ngrams", make("tokens"), state=l.ple_key.name, **how)
    found = flat(make("embed", table.weight(None, t.size), ids))  # [T, tables * size]
    key = streams.normed(heads(linear(found, l.ple_key, n * width), n, width), l.ple_norm_key)
    alike = make("sum", key * streams.normed(x, l.ple_norm_query)) * width**-0.5  # [T, n, 1]
    gate = make("act", make("act", alike, kind="signed_root"), kind="sigmoid")
    value = streams.spread(linear(found, l.ple_value, width), n) * gate
    w = l.ple_conv1d.weight(n * width, taps(c, "ple.conv_kernel"))
    y = flat(streams.normed(value, l.ple_norm_conv))
    y = make("conv", y, w, apart=len(t.factors), state=l.ple_conv1d.name)
    return value + heads(silu(y), n, width)

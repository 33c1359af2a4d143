"""Hyper-connections (Zhu et al. 2024, arXiv:2409.19606): residual streams that blocks read and write by weights.

A block reads a weighted sum of the streams, and what it makes is added to each of them by a weight of its own. Both
sets of weights are made from the streams themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from puna.graph import Node, make
from puna.models.blocks import heads, linear, norm, split
from puna.models.decoder import Decoder
from puna.models.weights import Layer, Parameter

__all__ = [
    "KEYS",
    "MIXED",
    "MOST",
    "Mixed",
    "gated_mean",
    "gates",
    "injected",
    "joined",
    "last",
    "normed",
    "read",
    "scores",
    "spread",
    "write",
]

MOST = 16  # streams
# What an architecture with hyper-connections reads.
KEYS = ("hyper_connection.count", "hyper_connection.epsilon", "hyper_connection.magnitude")
# What one does whose streams are mixed.
MIXED = (*KEYS, "hyper_connection.sinkhorn_iterations")


def spread(x: Node, n: int) -> Node:
    """n streams that all begin as x [T, width]: [T, n, width]."""
    width = cast(int, x.type.shape[1])
    one = many = make("reshape", x, shape=(x.type.shape[0], 1, width))
    for _ in range(n - 1):
        many = make("cat", many, one)
    return make("reshape", many, shape=(x.type.shape[0], n, width))


def gates(x: Node, fn: Parameter, scale: Parameter, base: Parameter, sets: int, *, eps: float) -> Node:
    """`sets` gates between 0 and 1 for each of the streams x [T, n, width]: [T, sets * n].

    fn: from normed streams to gates.  scale: one factor for each set.  base: added to each gate.
    """
    rows, n, _ = x.type.shape
    n = cast(int, n)
    y = make("normalize", flat(x), kind="rms", eps=eps)
    y = make("reshape", linear(y, fn, sets * n), shape=(rows, sets, n)) * scale.weight(sets, 1)
    return make("act", make("reshape", y, shape=(rows, sets * n)) + base.weight(sets * n), kind="sigmoid")


def scores(
    x: Node, fn: Parameter, scale: Parameter, base: Parameter, sizes: Sequence[int], *, eps: float
) -> list[Node]:
    """What gates of the streams x [T, n, width] are made of, in sets of these sizes: [T, size] each.

    fn: from normed streams to scores.  scale: one factor for each set.  base: added to each score.
    """
    rows = x.type.shape[0]
    every_stream = make("normalize", flat(x), kind="rms", eps=eps)
    found = list[Node]()
    for i, part in enumerate(split(linear(every_stream, fn, sum(sizes)), sizes)):
        # A row for each factor, of which one is kept.
        every = spread(part, len(sizes)) * scale.weight(len(sizes), 1)
        every = make("reshape", every, shape=(rows, len(sizes) * sizes[i]))
        found.append(make("slice", every, start=i * sizes[i], size=sizes[i]))
    return split(joined(found) + base.weight(sum(sizes)), sizes)


def joined(parts: Sequence[Node]) -> Node:
    """Values [T, any] side by side: [T, sum of all]."""
    rows, size = parts[0].type.shape[0], 0
    whole: Node | None = None
    for part in parts:
        one = make("reshape", part, shape=(rows, 1, part.type.shape[1]))
        whole, size = make("cat", whole, one) if whole else one, size + cast(int, part.type.shape[1])
    assert whole is not None
    return make("reshape", whole, shape=(rows, size))


def read(x: Node, weights: Node) -> Node:
    """The sum of the streams x [T, n, width] by weights [T, n]: [T, width]."""
    return make("weighted_sum", x, weights)


def write(x: Node, y: Node, weights: Node) -> Node:
    """Add y [T, width], times weights [T, n], to the streams x [T, n, width]."""
    rows, n, width = x.type.shape
    each = make("reshape", weights, shape=(rows, n, 1))
    return x + make("weighted_sum", make("reshape", y, shape=(rows, 1, width)), each)


def normed(x: Node, w: Parameter) -> Node:
    """The streams x [T, n, width] normed, each with weights of its own."""
    _, n, width = x.type.shape
    return make("normalize", x, kind="rms", eps=w.config.norm_eps) * w.weight(n, width)


def gated_mean(x: Node, down: Parameter, up: Parameter, rank: int) -> Node:
    """The mean of normed streams x [T, n, width], each value by a gate made through `rank` values: [T, width]."""
    n, width = cast(int, x.type.shape[1]), cast(int, x.type.shape[2])
    low = make("act", linear(flat(x), down, rank) * (1.0 / n), kind="silu")
    gate = make("act", linear(low, up, n * width), kind="sigmoid")
    return make("weighted_sum", x * make("reshape", gate, shape=x.type.shape)) * (1.0 / n)


def injected(x: Node, into: Parameter) -> Node:
    """Weights to write to streams by, up to 2, made of the normed streams x [T, n, width]: [T, n]."""
    n = cast(int, x.type.shape[1])
    return make("act", linear(flat(x), into, n) * (1.0 / n), kind="sigmoid") * 2.0


def flat(x: Node) -> Node:
    rows, n, width = cast("tuple[str, int, int]", x.type.shape)
    return make("reshape", x, shape=(rows, n * width))


class Mixed(Decoder):
    """Pre-norm decoder on streams that each block mixes (Xie et al. 2025, arXiv:2512.24880)."""

    @property
    def streams(self) -> int:
        return self.config.count("hyper_connection.count", 0, most=MOST)

    def embed(self, x: Node) -> Node:
        return spread(x, self.streams)

    def layer(self, x: Node, l: Layer) -> Node:
        x = self.block(x, l, "attn", self.attention)
        return self.block(x, l, "ffn", self.feed_forward)

    def block(self, x: Node, l: Layer, kind: str, block: Callable[[Node, Layer], Node]) -> Node:
        """Streams x [T, n, width] read, through a block after its norm, mixed and written: [T, n, width]."""
        fn, scale, base = (
            cast(Parameter, getattr(l, f"hc_{kind}_{part}")) for part in ("fn", "scale", "base")
        )
        weights, back, mix = self.mixing(x, fn, scale, base)
        y = block(norm(read(x, weights), getattr(l, f"{kind}_norm")), l)
        return write(make("weighted_sum", x, mix), y, back)

    def mixing(self, x: Node, fn: Parameter, scale: Parameter, base: Parameter) -> tuple[Node, Node, Node]:
        """The weights to read streams with, to write them with, and to mix them by: [T, n], [T, n], [T, n, n]."""
        c, n, eps = (
            self.config,
            self.streams,
            self.config.value("hyper_connection.epsilon", least=0.0, most=1.0),
        )
        reads, writes, mix = scores(x, fn, scale, base, (n, n, n * n), eps=c.norm_eps)
        reads = make("shift", make("act", reads, kind="sigmoid"), by=eps)
        rounds = c.count("hyper_connection.sinkhorn_iterations", 0)
        mix = make("sinkhorn", heads(mix, n, n), rounds=rounds, eps=eps)
        return reads, make("act", writes, kind="sigmoid") * 2.0, mix


def last(x: Node, model: Decoder) -> Node:
    """What the streams x [T, n, width] come to in the end, by gates of their own: [T, width]."""
    w, c = model.weights, model.config
    weights = gates(x, w.output_hc_fn, w.output_hc_scale, w.output_hc_base, 1, eps=c.norm_eps)
    return norm(
        read(x, make("shift", weights, by=c.value("hyper_connection.epsilon", least=0.0, most=1.0))),
        w.output_norm,
    )

"""Blocks with a state in place of attention's cache: short convolutions and selective state spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from puna.graph import Node, make
from puna.models.blocks import heads, linear, norm, normalize, split
from puna.models.config import ModelConfig
from puna.models.weights import Layer, Parameter

__all__ = ["SSM", "StateSpace", "flat", "mamba", "mamba2", "own_bias", "short_conv", "silu", "taps"]

# Keys that architectures with a state space, or a delta rule, read.
SSM = (
    "ssm.conv_kernel",
    "ssm.dt_b_c_rms",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
)
MOST_SIZE, MOST_TAPS = 2**24, 64


@dataclass(frozen=True)
class StateSpace:
    """inner: width of what is put in.  rank: of the time step, or heads.  size: of a state's side.

    groups: of heads that share b and c.  kernel: inputs that a convolution sees.
    """

    inner: int
    rank: int
    size: int
    groups: int
    kernel: int

    @classmethod
    def of(cls, c: ModelConfig) -> StateSpace:
        """As a file has it. Raises ModelError for a key that is missing or impossible."""
        inner, rank, size = (
            c.count(f"ssm.{key}", 0, most=MOST_SIZE) for key in ("inner_size", "time_step_rank", "state_size")
        )
        groups = max(1, c.count("ssm.group_count", 0, least=0, most=MOST_SIZE))
        return cls(inner, rank, size, groups, taps(c, "ssm.conv_kernel"))

    def head(self, c: ModelConfig) -> int:
        """Size of a head, where `rank` is their number."""
        if self.inner % self.rank or self.rank % self.groups:
            what = f"{self.inner} values do not divide among {self.rank} heads of {self.groups} groups"
            raise c.error("ssm.time_step_rank", what)
        return self.inner // self.rank


def taps(c: ModelConfig, key: str) -> int:
    """How many inputs a convolution sees."""
    return c.count(key, 0, least=2, most=MOST_TAPS)


def silu(x: Node) -> Node:
    return make("act", x, kind="silu")


def flat(x: Node) -> Node:
    """[T, heads, size] as [T, heads * size]."""
    _, n, size = cast("tuple[str, int, int]", x.type.shape)
    return make("reshape", x, shape=("T", n * size))


def own_bias(x: Node, p: Parameter) -> Node:
    """x [T, n] and a bias that comes without a matrix."""
    return x + p.weights.node(f"{p.name}.bias", (x.type.shape[1],))


def short_conv(x: Node, p: Parameter, kernel: int) -> Node:
    """Each channel of x [T, channels] convolved over its last `kernel` values, and the bias where there is one."""
    channels = x.type.shape[1]
    y = make("conv", x, p.weight(channels, kernel), state=p.name)
    bias = p.bias(channels)
    return y + bias if bias else y


def mamba(x: Node, l: Layer) -> Node:
    """Mamba (Gu & Dao 2023, arXiv:2312.00752) on x [T, width]: a state for each inner value: [T, width].

    Jamba norms the time step, b and c, Falcon Mamba without weights.
    """
    c, s = l.config, StateSpace.of(l.config)
    x, z = split(linear(x, l.ssm_in, 2 * s.inner), (s.inner, s.inner))
    x = silu(short_conv(x, l.ssm_conv1d, s.kernel))
    parts = split(linear(x, l.ssm_x, s.rank + 2 * s.size), (s.rank, s.size, s.size))
    norms = l.ssm_dt_norm, l.ssm_b_norm, l.ssm_c_norm
    if norms[0]:
        parts = [norm(part, p) for part, p in zip(parts, norms, strict=True)]
    elif c.own.get("ssm.dt_b_c_rms"):
        parts = [normalize(part, c) for part in parts]
    dt = make("act", linear(parts[0], l.ssm_dt, s.inner), kind="softplus")  # [T, inner]
    b, to = (heads(part, 1, s.size) for part in parts[1:])
    a = l.ssm_a.weight(s.inner, s.size)
    y = make("scan", heads(x, s.inner, 1), b, to, a, dt, state=l.ssm_a.name)  # [T, inner, 1]
    y = flat(y) + x * l.ssm_d.weight(s.inner)
    return linear(silu(z) * y, l.ssm_out, c.n_embd)


def mamba2(x: Node, l: Layer) -> Node:
    """Mamba 2 (Dao & Gu 2024, arXiv:2405.21060) on x [T, width]: a state for each head: [T, width]."""
    s, size = StateSpace.of(l.config), StateSpace.of(l.config).head(l.config)
    shared = s.groups * s.size
    mixed = s.inner + 2 * shared
    z, x, dt = split(linear(x, l.ssm_in, s.inner + mixed + s.rank), (s.inner, mixed, s.rank))
    x = silu(short_conv(x, l.ssm_conv1d, s.kernel))
    x, b, to = split(x, (s.inner, shared, shared))
    x, b, to = heads(x, s.rank, size), heads(b, s.groups, s.size), heads(to, s.groups, s.size)
    dt = make("act", own_bias(dt, l.ssm_dt), kind="softplus")  # [T, heads]
    y = make("scan", x, b, to, l.ssm_a.weight(s.rank, 1), dt, state=l.ssm_a.name)  # [T, heads, size]
    y = silu(z) * flat(y + x * l.ssm_d.weight(s.rank, 1))
    if l.ssm_norm:  # of each group
        y = heads(y, s.groups, s.inner // s.groups)
        y = flat(normalize(y, l.config) * l.ssm_norm.weight(s.groups, s.inner // s.groups))
    return linear(y, l.ssm_out, l.config.n_embd)

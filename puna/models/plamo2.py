"""PLaMo 2: Mamba with heads in most layers, attention in the others, norms before and after each block."""

from __future__ import annotations

from puna.graph import Node, make
from puna.models.blocks import attention, heads, linear, norm, split
from puna.models.decoder import Decoder
from puna.models.recurrent import SSM, StateSpace, flat, short_conv, silu
from puna.models.weights import Layer

__all__ = ["PLaMo2"]

LEAST_STEP = 64  # width of the time step, where a sixteenth of the model's is less


class PLaMo2(Decoder):
    """A layer's tensors tell what it is."""

    names = ("plamo2",)
    reads = SSM
    requires = ("ssm_dt.bias",)

    def layer(self, x: Node, l: Layer) -> Node:
        y = norm(x, l.attn_norm)
        y = self.mamba(y, l) if l.ssm_in else attention(y, l, self.rope(l), qk_norm=True)
        x = x + norm(y, l.post_attention_norm)
        return x + norm(self.feed_forward(norm(x, l.ffn_norm), l), l.post_ffw_norm)

    def mamba(self, x: Node, l: Layer) -> Node:
        """A state for each head, as in Mamba 2, from b, c and a time step that all heads share, as in Mamba."""
        c, s = self.config, StateSpace.of(self.config)
        n, size, step = s.rank, s.head(c), max(LEAST_STEP, c.n_embd // 16)
        z, x = split(heads(linear(x, l.ssm_in, 2 * s.inner), n, 2 * size), (size, size))  # [T, heads, size]
        x = silu(short_conv(flat(x), l.ssm_conv1d, s.kernel))
        b, to, dt = split(linear(x, l.ssm_x, 2 * s.size + step), (s.size, s.size, step))
        b, to = heads(norm(b, l.ssm_b_norm), 1, s.size), heads(norm(to, l.ssm_c_norm), 1, s.size)
        dt = make("act", linear(norm(dt, l.ssm_dt_norm), l.ssm_dt, n), kind="softplus")  # [T, heads]
        x = heads(x, n, size)
        y = make("scan", x, b, to, l.ssm_a.weight(n, 1), dt, state=l.ssm_a.name)
        return linear(flat(silu(z) * (y + x * l.ssm_d.weight(n, 1))), l.ssm_out, c.n_embd)

"""What a mixture of experts is, read from a model's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from puna.models.keys import Keys

__all__ = ["Gating", "Mixture"]

# How a router's scores become the weights of the chosen experts; "late" is softmax over the chosen alone.
Gating = Literal["softmax", "sigmoid", "late", "sqrt_softplus"]
GATINGS: Mapping[int, Gating] = {1: "softmax", 2: "sigmoid", 3: "late", 4: "sqrt_softplus"}


@dataclass(frozen=True)
class Mixture:
    """Hyper-parameters under GGUF's names; per-layer values are tuples.

    count: experts of a layer.  used: how many a token takes.
    n_ff: width of an expert, 0 where the tensors alone tell it.
    gating: how scores become weights, None where the architecture alone tells.
    normed: whether the weights of the chosen are made to sum to 1, None likewise.
    scale: factor on the weights.
    groups, groups_used: experts are chosen from the best `groups_used` of `groups` groups; 0 for no groups.
    limit, limit_shared: most that the two factors of an expert's inner values may be, 0 for any; for the shared one.
    """

    count: int
    used: int
    n_ff: tuple[int, ...]
    gating: Gating | None
    normed: bool | None
    scale: float
    groups: int
    groups_used: int
    limit: tuple[float, ...]
    limit_shared: tuple[float, ...]

    @classmethod
    def read(cls, keys: Keys, layers: int) -> Mixture | None:
        """The mixture of a model file, None where it has no experts.

        layers: as many as a file's arrays have values.
        Raises ModelError naming a key that has an impossible value.
        """
        count = keys.count("expert_count", default=0, least=0, most=2**16)
        used = keys.count("expert_used_count", default=0, least=0)
        if not count:
            return None
        if not 0 < used <= count:
            raise keys.error("expert_used_count", f"cannot use {used} of {count} experts")
        gating = keys.count("expert_gating_func", default=0, least=0)
        if gating and gating not in GATINGS:
            raise keys.error("expert_gating_func", f"no gating function has the number {gating}")
        groups = keys.count("expert_group_count", default=0, least=0)
        groups_used = keys.count("expert_group_used_count", default=0, least=0)
        if groups > 1 and (
            count % groups or not 0 < groups_used <= groups or count // groups * groups_used < used
        ):
            raise keys.error(
                "expert_group_used_count",
                f"cannot choose {used} of {count} experts from {groups_used} of {groups} groups",
            )
        return cls(
            count=count,
            used=used,
            n_ff=keys.each_layer("expert_feed_forward_length", layers, default=(0,) * layers),
            gating=GATINGS.get(gating),
            normed=keys.flag("expert_weights_norm"),
            scale=keys.number("expert_weights_scale", 0.0) or 1.0,
            groups=groups if groups > 1 else 0,
            groups_used=groups_used,
            limit=keys.numbers("swiglu_clamp_exp", layers),
            limit_shared=keys.numbers("swiglu_clamp_shexp", layers),
        )

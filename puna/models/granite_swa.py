"""Granite with sliding windows and attention sinks, and layers without rotary positions."""

from __future__ import annotations

from puna.models.granite import Granite

__all__ = ["GraniteWindowed"]


class GraniteWindowed(Granite):
    """Granite whose files tell which layers are windowed; a head's sink takes part of its attention."""

    names = ("granite_swa",)
    reads = (
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "embedding_scale",
        "logit_scale",
        "residual_scale",
    )
    requires = ("attn_sinks",)

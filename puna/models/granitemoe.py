"""Granite's mixtures of experts: Granite, with experts where the file has them."""

from __future__ import annotations

from puna.models.granite import Granite

__all__ = ["GraniteMoE"]


class GraniteMoE(Granite):
    """Pre-norm decoder."""

    names = ("granitemoe",)

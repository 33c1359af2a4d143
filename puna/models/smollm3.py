"""SmolLM 3: Llama without rotary positions in each fourth layer."""

from __future__ import annotations

from puna.graph import Rope
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["SmolLM3"]


class SmolLM3(Decoder):
    """Llama's layer."""

    names = ("smollm3",)
    rope_layout = "interleaved"

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if (l.index + 1) % 4 else None

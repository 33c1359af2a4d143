"""Granite, dense and with experts: factors on embeddings, on what blocks add, on scores and logits."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from puna.graph import Rope
from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer

__all__ = ["Granite"]


class Granite(Decoder):
    """Pre-norm decoder; a file may say that it has no rotary positions."""

    names: ClassVar[tuple[str, ...]] = ("granite", "granitemoe")
    rope_layout = "interleaved"
    reads: ClassVar[tuple[str, ...]] = (
        "embedding_scale",
        "logit_scale",
        "residual_scale",
        "rope.scaling.finetuned",
    )

    @classmethod
    def configure(cls, config: ModelConfig) -> ModelConfig:
        # Its files hold what logits are divided by.
        return dataclasses.replace(config, logit_scale=1.0 / (config.logit_scale or 1.0))

    def rope(self, l: Layer) -> Rope | None:
        return super().rope(l) if self.config.own.get("rope.scaling.finetuned", True) else None

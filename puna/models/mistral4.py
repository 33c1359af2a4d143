"""Mistral Small 4: DeepSeek 2 with the temperature of queries that its relatives have."""

from __future__ import annotations

from typing import ClassVar

from puna.models.deepseek2 import DeepSeek2

__all__ = ["Mistral4"]


class Mistral4(DeepSeek2):
    """DeepSeek 2, whose weight for YaRN is taken as the file has it."""

    names: ClassVar[tuple[str, ...]] = ("mistral4",)

    @classmethod
    def carried(cls, weight: float) -> float:
        return weight

"""Metadata values of the types that llama.cpp reads."""

from __future__ import annotations

from collections.abc import Sequence

from puna.gguf import Value, ValueType

__all__ = ["boolean", "f32", "flags", "text", "u32"]


def u32(value: int) -> Value:
    """A count."""
    return Value(ValueType.UINT32, value)


def f32(value: float) -> Value:
    """A factor or an epsilon."""
    return Value(ValueType.FLOAT32, value)


def boolean(value: bool) -> Value:
    """Whether."""
    return Value(ValueType.BOOL, value)


def text(value: str) -> Value:
    """A name."""
    return Value(ValueType.STRING, value)


def flags(values: Sequence[bool]) -> Value:
    """Whether, for each layer."""
    return Value(ValueType.BOOL, list(values))

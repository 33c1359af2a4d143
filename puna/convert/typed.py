"""Metadata values of the types that llama.cpp reads."""

from __future__ import annotations

from collections.abc import Sequence

from puna.gguf import Value, ValueType

__all__ = ["boolean", "f32", "f32s", "flags", "text", "u32", "u32s"]


def u32(value: int) -> Value:
    """A count."""
    return Value(ValueType.UINT32, value)


def u32s(values: Sequence[int]) -> Value:
    """A count for each layer, or one for all of them."""
    return u32(values[0]) if len(set(values)) == 1 else Value(ValueType.UINT32, list(values))


def f32s(values: Sequence[float]) -> Value:
    """A number for each layer."""
    return Value(ValueType.FLOAT32, list(values))


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

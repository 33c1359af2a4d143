"""How values move between what transformers and GGML keep in a matrix. None of them is altered."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.convert.config import Config

__all__ = [
    "first_half",
    "flat",
    "grouped_qkv",
    "headwise_qkv",
    "interleaved_k",
    "interleaved_q",
    "second_half",
    "transposed",
]


def interleaved_q(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """Rows of q as GGML's interleaved RoPE wants them: the two of a pair beside each other."""
    return interleaved(values, config.heads)


def interleaved_k(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """The same of k."""
    return interleaved(values, config.heads_kv)


def interleaved(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """[heads * size, ...], each head's first half of pairs before its second -> pair by pair."""
    paired: NDArray[Any] = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2)
    return paired.reshape(values.shape)


def first_half(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """The first of two matrices in one: [..., 2 * rows, k] -> [..., rows, k]."""
    return np.split(values, 2, axis=-2)[0]


def second_half(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """The second of two matrices in one."""
    return np.split(values, 2, axis=-2)[1]


def transposed(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """[k, rows] -> [rows, k], and the same for each of a stack; a bias stays."""
    return values.swapaxes(-1, -2) if values.ndim > 1 else values


def flat(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """A matrix of one row as a vector."""
    return values.reshape(values.size)


def headwise_qkv(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """q, k and v of each head in turn -> all of q, then k, then v: [3 * heads * size, ...]."""
    parted: NDArray[Any] = values.reshape(config.heads, 3, -1, *values.shape[1:]).swapaxes(0, 1)
    return parted.reshape(values.shape)


def grouped_qkv(values: NDArray[Any], config: Config) -> NDArray[Any]:
    """Groups of query heads, each followed by its key and its value -> all of q, then k, then v."""
    groups, rest = config.heads_kv, values.shape[1:]
    parts = values.reshape(
        groups, config.heads // groups + 2, -1, *rest
    )  # [groups, heads of a group, size, ...]
    cut = [parts[:, :-2], parts[:, -2:-1], parts[:, -1:]]
    return np.concatenate([part.reshape(-1, *rest) for part in cut])

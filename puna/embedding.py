"""Texts as vectors: whole texts side by side in a step, pooled and brought to one length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.cache import KVCache
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.models import ModelConfig

__all__ = ["EUCLIDEAN", "Run", "embed", "normalized", "texts_of"]

Parts = Sequence[tuple[CacheSequence, Sequence[int]]]
# One step: what it adds to which sequences, the rows that are wanted, and where they go.
Run = Callable[[Parts, Sequence[int], NDArray[np.float32]], None]
Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]

EUCLIDEAN = 2
INT16 = 32760.0  # the largest value of normalisation 0


def texts_of(given: Texts, tokenize: Callable[[str], list[int]]) -> list[Sequence[int]]:
    """The ids of each text. given: a text, its ids, or several of either."""
    items: list[Any] = [given] if isinstance(given, str) else list(given)
    if items and not any(isinstance(item, str | Sequence | np.ndarray) for item in items):
        items = [items]
    texts = [tokenize(item) if isinstance(item, str) else item for item in items]
    empty = next((n for n, text in enumerate(texts) if not len(text)), None)
    if empty is not None or not texts:
        where = "texts" if empty is None else f"texts[{empty}]"
        raise RequestError("there is nothing to embed", where=where, fix="give a text")
    return texts


def embed(
    texts: Sequence[Sequence[int]],
    run: Run,
    cache: KVCache,
    config: ModelConfig,
    *,
    tokens: int,
    width: int,
    normalize: int = EUCLIDEAN,
) -> NDArray[np.float32]:
    """A vector for each text, or with pooling "none" for each token, text after text: float32 [n, width].

    tokens: most of a step.  normalize: as `normalized`; scores of a classifier stay as they are.
    """
    found = []
    for group in groups(texts, cache, tokens):
        rows = (
            together(group, run, cache, config, width)
            if len(group) > 1
            else [alone(group[0], run, cache, config, tokens, width)]
        )
        found += [pooled(part, config) for part in rows]
    vectors = np.concatenate(found)
    return vectors if config.pooling == "rank" else normalized(vectors, normalize)


def groups(texts: Sequence[Sequence[int]], cache: KVCache, tokens: int) -> Iterator[list[Sequence[int]]]:
    """Runs of texts that fit into one step and into the cache; a text that does not is alone."""
    group: list[Sequence[int]] = []
    for text in texts:
        lengths = [len(one) for one in (*group, text)]
        if group and (sum(lengths) > tokens or not cache.fits(lengths)):
            yield group
            group = []
        group.append(text)
    yield group


def together(
    group: Sequence[Sequence[int]], run: Run, cache: KVCache, config: ModelConfig, width: int
) -> list[NDArray[np.float32]]:
    """The wanted rows of each text, all computed in one step."""
    wanted = [wanted_rows(len(text), config) for text in group]
    starts = np.cumsum([0, *map(len, group)]).tolist()
    rows = [start + row for start, part in zip(starts, wanted, strict=False) for row in part]
    out = np.empty((len(rows), width), np.float32)
    sequences = [cache.open() for _ in group]
    try:
        run(list(zip(sequences, group, strict=True)), rows, out)
    finally:
        for sequence in sequences:
            cache.close(sequence)
    return np.split(out, np.cumsum([len(part) for part in wanted])[:-1].tolist())


def alone(
    text: Sequence[int], run: Run, cache: KVCache, config: ModelConfig, tokens: int, width: int
) -> NDArray[np.float32]:
    """The wanted rows of a text, computed in as many steps as it takes."""
    wanted, sequence = wanted_rows(len(text), config), cache.open()
    out = np.empty((len(wanted), width), np.float32)
    try:
        for start in range(0, len(text), tokens):
            part = text[start : start + tokens]
            rows = [row - start for row in wanted if start <= row < start + len(part)]
            first = sum(row < start for row in wanted)
            run([(sequence, part)], rows, out[first : first + len(rows)])
    finally:
        cache.close(sequence)
    return out


def wanted_rows(count: int, config: ModelConfig) -> range:
    """The rows of a text that its pooling reads. A classifier reads the one that has seen all of the text."""
    last = config.pooling == "last" or (config.pooling == "rank" and config.causal)
    if config.pooling in ("none", "mean"):
        return range(count)
    return range(count - 1, count) if last else range(1)


def pooled(rows: NDArray[np.float32], config: ModelConfig) -> NDArray[np.float32]:
    """[rows, width] to [1, width], but for "none"."""
    return rows.mean(axis=0, keepdims=True) if config.pooling == "mean" else rows


SIZES: Mapping[int, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    0: lambda x: x.max(axis=-1, keepdims=True) / INT16,
    1: lambda x: x.sum(axis=-1, keepdims=True),
    2: lambda x: np.sqrt(np.square(x).sum(axis=-1, keepdims=True)),
}


def normalized(x: NDArray[np.float32], kind: int) -> NDArray[np.float32]:
    """Rows of x [n, width] over their size: -1 as they are, 0 to the range of int16, else by the p-norm of that p."""
    if kind < 0:
        return x
    sizes = np.abs(x.astype(np.float64))
    if kind in SIZES:
        total = SIZES[kind](sizes)
    else:  # the largest is taken out, so that no power overflows
        most = np.maximum(sizes.max(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
        total = most * np.power(np.power(sizes / most, kind).sum(axis=-1, keepdims=True), 1.0 / kind)
    return np.where(total > 0, x / np.where(total > 0, total, 1.0), 0.0).astype(np.float32)

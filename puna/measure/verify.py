"""Whether a backend computes what the reference backend computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puna import backends
from puna.errors import BackendError
from puna.gguf import GGUFFile
from puna.measure.divergence import kld, same_top
from puna.measure.windows import log_totals
from puna.models.registry import build

__all__ = ["PROMPTS", "Agreement", "agreement", "joined", "needs"]

PROMPTS = (
    "The river had been rising since the early morning, and by noon the fields lay under water. Nobody was surprised;",
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n    return total / ",
    "Question: A train leaves at 9:40 and arrives at 12:15. How long does the journey take?\nAnswer: 2 hours and",
    "Der Zug nach München fährt um 8 Uhr ab. Le train pour Paris part à midi. El tren llega tarde. 今日は天気がいい。",
)


@dataclass(frozen=True)
class Agreement:
    """A value for each row of logits, [n].

    nmse: mean squared error, over the mean square of the reference's.  kld: KL(reference || backend), in nats.
    same_top: whether both think the same id likeliest.
    """

    nmse: NDArray[np.float64]
    kld: NDArray[np.float64]
    same_top: NDArray[np.bool_]


def needs(file: GGUFFile, backend: str, repack: bool = True) -> dict[str, int]:
    """Bytes of weights: on the reference backend, then on the one that will be verified, which takes their place.

    Raises BackendError where that is the reference backend itself.
    """
    graph, _ = build(file)
    found = {}
    for name, unpacked in (("reference", True), (backend, repack)):
        engine, about, lowered = backends.choose(name, None, unpacked, graph)
        if about.name in found:
            why = f" ({about.notes[0]})" if about.notes else ""
            what = f"this would compare the reference backend with itself{why}"
            raise BackendError(what, where="--backend", fix="name another")
        found[about.name] = engine.resident(lowered, True)
    return found


def agreement(logits: NDArray[np.float32], reference: NDArray[np.float32]) -> Agreement:
    """Of logits with the reference's, both [n, vocabulary]."""
    log_p = reference - log_totals(reference)[:, None].astype(np.float32)
    with np.errstate(invalid="ignore"):
        errors = np.array([np.mean((a - b) ** 2) for a, b in zip(logits, reference, strict=True)], np.float64)
        squares = np.array([np.mean(row**2) for row in reference], np.float64)
        return Agreement(errors / squares, kld(log_p, logits), same_top(log_p, logits))


def joined(parts: Sequence[Agreement]) -> Agreement:
    """Several as one."""
    names = ("nmse", "kld", "same_top")
    return Agreement(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

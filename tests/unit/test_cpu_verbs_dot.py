"""The dot product of bytes: exact for every recipe that this machine can run."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from small_kernels import CPUS, run, target

from puna.backends.cpu import verbs
from puna.backends.cpu.features import family_of
from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.target import DOTS

EXTREMES = [(255, -128), (255, 127), (0, -128), (1, -1), (128, -128), (127, -128), (127, 127), (128, 127)]


def dots(total: np.ndarray, u: np.ndarray, s: np.ndarray, bits: int, cpu: str | None) -> np.ndarray:
    """total [n, lanes] + the sums of four products, by the kernel language."""
    out, lanes = np.zeros_like(total), total.shape[1]

    def write(k: Kernel, target: Any, totals: Any, us: Any, ss: Any) -> None:
        for i in k.loop(0, len(total)):
            start = totals.load("i32", lanes, i * (4 * lanes))
            a, b = us.load("u8", 4 * lanes, i * (4 * lanes)), ss.load("i8", 4 * lanes, i * (4 * lanes))
            target.store(verbs.dot_u8s8(start, a, b, bits), i * (4 * lanes))

    run(write, out, total, u, s, cpu=cpu)
    return out


def exact(total: np.ndarray, u: np.ndarray, s: np.ndarray) -> np.ndarray:
    products = u.astype(np.int64) * s.astype(np.int64)
    return total + products.reshape(*total.shape, 4).sum(axis=-1).astype(np.int32)


@pytest.mark.parametrize("lanes", [4, 16, 32])
@pytest.mark.parametrize("cpu", CPUS)
def test_random_bytes(cpu: str | None, lanes: int) -> None:
    """All bits of both sides, and totals of both signs that do not overflow."""
    rng = np.random.default_rng(8)
    total = rng.integers(-(1 << 30), 1 << 30, (64, lanes), np.int32)
    u, s = (rng.integers(0, 256, (64, 4 * lanes), np.uint8) for _ in range(2))
    np.testing.assert_array_equal(dots(total, u, s.view(np.int8), 8, cpu), exact(total, u, s.view(np.int8)))


@pytest.mark.parametrize("bits", [8, 7, 4, 1])
@pytest.mark.parametrize("cpu", CPUS)
def test_extreme_bytes(cpu: str | None, bits: int) -> None:
    """The largest products side by side, where 16 bits would overflow: 255 * -128 four times, 255 * 127, mixed."""
    pairs = [(min(u, 2**bits - 1), s) for u, s in EXTREMES]
    fours = [[a] * 4 for a in pairs] + [[a, b, a, b] for a in pairs for b in pairs]
    flat = np.resize(np.array(fours).reshape(-1, 2), (len(fours) * 16 * 4, 2))  # [steps * lanes * 4, (u, s)]
    u = flat[:, 0].astype(np.uint8).reshape(-1, 64)
    s = flat[:, 1].astype(np.int8).reshape(-1, 64)
    total = np.full((len(u), 16), 7, np.int32)
    np.testing.assert_array_equal(dots(total, u, s, bits, cpu), exact(total, u, s))


@pytest.mark.parametrize("lanes", [1, 2])
def test_fewer_lanes_than_the_instruction_has(lanes: int) -> None:
    """Totals too few for the processor's instruction are computed all the same."""
    rng = np.random.default_rng(9)
    total = np.zeros((16, lanes), np.int32)
    u, s = (rng.integers(0, 256, (16, 4 * lanes), np.uint8) for _ in range(2))
    np.testing.assert_array_equal(dots(total, u, s.view(np.int8), 8, None), exact(total, u, s.view(np.int8)))


def test_every_recipe_is_reached() -> None:
    """The processors that tests compile for have all recipes of this machine's family that it can run."""
    family = family_of(llvm.get_process_triple())
    own = {recipe for feature, recipe in DOTS.get(family, ()) if feature in target(None).have}
    assert own <= {reached(cpu) for cpu in CPUS}


def reached(cpu: str | None) -> str | None:
    try:
        return target(cpu).dot
    except pytest.skip.Exception:
        return None


def test_every_recipe_has_an_implementation() -> None:
    """The table of recipes covers what targets name, for every family."""
    named = {recipe for choices in DOTS.values() for _, recipe in choices}
    assert named | {"plain"} == set(verbs.DOTS)

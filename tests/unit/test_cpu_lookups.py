"""Lookups in tables and grids, for each kind of processor, against NumPy."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from small_kernels import CPUS, run, target

from puna.backends.cpu import target as targets
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.lookups import LOOKUPS, constant, gather, lookup, wide_lookup
from puna.backends.cpu.target import Target

TABLE = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 255)


@pytest.mark.parametrize("entries", [2, 11, 16])
@pytest.mark.parametrize("lanes", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("cpu", CPUS)
def test_lookup(cpu: str | None, lanes: int, entries: int) -> None:
    """Each lane becomes the table's byte at its place, for any number of lanes and entries."""
    table = TABLE[-entries:]
    places = np.random.default_rng(1).integers(0, entries, 256, np.uint8)
    found = np.zeros_like(places)

    def write(k: Kernel, source: Any, out: Any) -> None:
        for i in k.loop(0, len(places), lanes):
            out.store(lookup(source.load("u8", lanes, i), table), i)

    run(write, places, found, cpu=cpu)
    np.testing.assert_array_equal(found, np.array(table)[places])


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("lanes", [1, 2, 16])
@pytest.mark.parametrize("cpu", CPUS)
def test_gather(cpu: str | None, lanes: int, width: int) -> None:
    """Entries of a grid one after another, the last one too; two grids of a kernel are kept apart."""
    rng = np.random.default_rng(2)
    grid = rng.integers(0, 256, (4096, width), np.uint8)
    entries = rng.integers(0, 4096, 64, np.uint16)
    entries[:2] = 4095, 0
    found, other = np.zeros((64, width), np.uint8), np.zeros((64, width), np.uint8)

    def write(k: Kernel, source: Any, out: Any, second: Any) -> None:
        one, two = constant(k, "one", grid.tobytes()), constant(k, "two", (grid ^ 255).tobytes())
        for i in k.loop(0, len(entries), lanes):
            places = [source.load("u16", 1, i * 2 + 2 * n).to("i64") for n in range(lanes)]
            out.store(gather(one, places, width), i * width)
            second.store(gather(two, places, width), i * width)

    run(write, entries, found, other, cpu=cpu)
    np.testing.assert_array_equal(found, grid[entries])
    np.testing.assert_array_equal(other, grid[entries] ^ 255)


def test_a_grid_is_kept_once() -> None:
    """Many uses of a constant leave one array in the kernel."""

    def write(k: Kernel) -> None:
        for _ in range(3):
            place = k.args[0].load("u8").to("i64")
            k.args[0].store(gather(constant(k, "numbers", bytes(range(128))), [place], 8))

    spec = Spec(write, (), ("ptr",))
    compiler = Compiler(target(None), None)
    assert compiler.write(spec, compiler.key(spec)).count("internal constant") == 1


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("cpu", CPUS)
def test_wide_lookup(cpu: str | None, bits: int) -> None:
    """Of a table of 128 entries for each combination of the upper bits, the one at each place."""
    if not target(cpu).wide_lookups:
        pytest.skip("this processor has no wide lookups")
    rng = np.random.default_rng(3)
    table, places = rng.integers(0, 256, 128 << bits, np.uint8), rng.integers(0, 128 << bits, 640)
    low, upper, found = places.astype(np.uint8), (places >> 7).astype(np.uint8), np.zeros(640, np.uint8)

    def write(k: Kernel, lows: Any, uppers: Any, out: Any) -> None:
        for i in k.loop(0, len(places), 64):
            above = [(uppers.load("u8", 64, i) & (1 << n)).compare("!=", 0) for n in range(bits)]
            held = constant(k, "table", table.tobytes())
            out.store(wide_lookup(lows.load("u8", 64, i), above, held), i)

    run(write, low, upper, found, cpu=cpu)
    np.testing.assert_array_equal(found, table[places])


@pytest.mark.parametrize("cpu", CPUS)
def test_recipes(cpu: str | None) -> None:
    """Recipes are those that the target has, the widest first."""
    widths = [LOOKUPS[recipe][1] for recipe in target(cpu).lookups]
    assert widths == sorted(widths, reverse=True)


def test_every_recipe_has_an_instruction() -> None:
    """The table covers what targets name, for every family, and LLVM takes each: what is not known would be a call."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    named = {recipe for choices in targets.LOOKUPS.values() for _, recipe in choices}
    assert named == set(LOOKUPS)
    for family, cpu in (("x86_64", "skylake-avx512"), ("aarch64", "cortex-a53")):
        compiler = Compiler(Target.of(f"{family}-unknown-linux-gnu", cpu), None)
        assert len(compiler.target.lookups) == len(targets.LOOKUPS[family])
        for name, lanes in (LOOKUPS[recipe] for recipe in compiler.target.lookups):

            def write(k: Kernel, lanes: int) -> None:
                k.args[0].store(lookup(k.args[0].load("u8", lanes), TABLE))

            spec = Spec(write, (("lanes", lanes),), ("ptr",))
            assert name in compiler.write(spec, compiler.key(spec))
            assert "call" not in compiler.assembly(spec)

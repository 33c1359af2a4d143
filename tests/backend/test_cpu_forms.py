"""Every form of panel with code for other processors: the bits of the one at hand, and nothing left to link."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import llvmlite.binding as llvm
import numpy as np
import pytest
import test_cpu_rig as rig
from small_kernels import CPUS, target
from test_cpu_rig import activations, as_they_are, groups_of, linear, pack_matrix, random_rows
from test_cpu_targets import FOREIGN, HARMLESS, undefined

import puna
from puna.backends.cpu.codecache import CodeCache, default_folder
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.features import family_of
from puna.backends.cpu.kernels.direct import direct, float_direct
from puna.backends.cpu.kernels.floats import PAIRS, float_linear
from puna.backends.cpu.kernels.linear import few
from puna.backends.cpu.kernels.pack import pack
from puna.backends.cpu.panels import Panel
from puna.backends.cpu.target import Target
from puna.quants import by_name

# Of each way that kernels differ by, one: steps of six bits and of four, tables, units a group, grids of both widths,
# with and without signs and upper bits, trits.
KINDS = ("Q4_K", "Q2_K", "IQ4_XS", "NVFP4", "IQ2_XS", "IQ3_XXS", "IQ1_S", "TQ1_0")
ROWS = 20
IDS = np.random.default_rng(3).integers(0, 280, 40).tolist()


@functools.cache
def compiler(cpu: str | None) -> Compiler:
    return Compiler(target(cpu), CodeCache(default_folder()))


@functools.cache
def results(kind: str, cpu: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The panels, a token's products from them, and from the file's rows."""
    k, rng = by_name(kind).block * 2, np.random.default_rng(1)
    raw, (x, _) = random_rows(kind, ROWS, k, rng), activations(rng.standard_normal((1, k)))
    with mock.patch.object(rig, "compiler", return_value=compiler(cpu)):
        packed = pack_matrix(kind, raw, k)
        products = linear(kind, packed, ROWS, x, by="few")
        rows = linear(kind, as_they_are(raw), ROWS, x, by="direct") if kind in KINDS[-4:] else products
    return packed.array.copy(), products, rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cpu", CPUS)
def test_products_on_other_processors(cpu: str | None, kind: str) -> None:
    """Panels are the same bytes on all; products are the float64 ones but for rounding, from panels and from rows."""
    packed, products, rows = results(kind, cpu)
    np.testing.assert_array_equal(packed, results(kind, None)[0])
    np.testing.assert_array_equal(products.view(np.uint32), rows.view(np.uint32))
    want, bound = expected(kind)
    assert (np.abs(products - want) <= bound).all()
    if target(cpu).fused == target(None).fused:
        np.testing.assert_array_equal(products, results(kind, None)[1])


def expected(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The products in float64, and how far they may be off."""
    quant, rng = by_name(kind), np.random.default_rng(1)
    k = quant.block * 2
    parts, (_, x) = groups_of(kind, random_rows(kind, ROWS, k, rng)), activations(rng.standard_normal((1, k)))
    codes = parts["codes"].astype(np.float64).reshape(ROWS, -1, quant.group) - quant.zero
    weights = codes * parts["scale"][..., None] + parts.get("offset", np.zeros((ROWS, 1)))[..., None]
    flat = weights.reshape(ROWS, -1)
    return x @ flat.T, 2.0**-20 * (np.abs(x) @ np.abs(flat).T)


def test_code_for_other_families() -> None:
    """The kernels of all forms can be written for the other family and for Windows, with nothing left to link."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    foreign = FOREIGN[family_of(llvm.get_process_triple())]
    for triple, cpu in (foreign[0], foreign[-1]):
        other = Compiler(Target.of(triple, cpu), None)
        specs = [Spec.of(few, panel=Panel(kind), tokens=1) for kind in KINDS]
        if (triple, cpu) == foreign[0]:
            specs += [Spec.of(pack, panel=Panel(kind)) for kind in KINDS]
            specs += [Spec.of(direct, panel=Panel(kind), tile=1) for kind in ("TQ1_0", "IQ1_S")]
        for spec in specs:
            code = other.object_code(spec, other.key(spec))
            assert undefined(code) <= HARMLESS | ({"__chkstk"} if "windows" in triple else set()), spec.name


@pytest.mark.parametrize(
    ("triple", "cpu", "recipe"),
    [
        ("x86_64-unknown-linux-gnu", "znver4", "vdpbf16ps"),
        ("aarch64-unknown-linux-gnu", "neoverse-v1", "bfdot"),
        ("x86_64-unknown-linux-gnu", "haswell", ""),
        ("aarch64-unknown-linux-gnu", "neoverse-n1", ""),
    ],
)
def test_pairs_of_bf16(triple: str, cpu: str, recipe: str) -> None:
    """Processors that multiply pairs of BF16 are known, and kernels of these can be written for them."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    other = Compiler(Target.of(triple, cpu), None)
    assert other.target.pairs == recipe
    specs = [
        Spec.of(float_linear, form=PAIRS, width=1, tile=4),
        Spec.of(float_direct, form=PAIRS, tile=1),
    ]
    for spec in specs * bool(recipe):
        assert undefined(other.object_code(spec, other.key(spec))) <= HARMLESS


# How far the mean square of the difference may be from that of the logits: BF16 where activations are rounded to it.
COSTS = dict.fromkeys(rig.FLOATS, 1e-5) | ({"BF16": 3e-4} if rig.compiler().target.pairs else {})


@pytest.mark.parametrize("kind", [*rig.FLOATS, *rig.QUANTIZED])
def test_models_of_every_type(kind: str, tmp_path: Path) -> None:
    """Logits are the reference backend's, up to what quantised activations cost, and the same bits without panels."""
    path = rig.write_model(tmp_path / "m.gguf", "llama", kind)
    got = rig.load(path, threads=1).logits(IDS)
    want = puna.load(path, backend="reference").logits(IDS)
    assert np.isfinite(want).all()
    assert want.std() > 0
    assert np.mean((got - want) ** 2) <= COSTS.get(kind, 2e-3) * np.mean(want**2)
    np.testing.assert_array_equal(rig.load(path, threads=1, repack=False).logits(IDS[:3], batch=1), got[:3])

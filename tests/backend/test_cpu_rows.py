"""Row operations against the reference backend's kernels, evaluated in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from test_cpu_rig import Guarded, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.mixture import MIXTURE
from puna.backends.cpu.kernels.rows import EMITTERS, Operand, RowOp, rows
from puna.backends.reference.kernels import KERNELS
from puna.backends.reference.step import Step
from puna.graph import ELEMENTWISE, NORMS, OPS, Rope, Type
from puna.plan import Batch, KVLayout
from puna.quants import by_name, dequantize, quantize

COUNT = 5  # rows of a step
POSITIONS = np.array([0, 3, 77, 1000, 40_000], np.int32)
NONE = np.zeros(0, np.int32)
BATCH = Batch(np.zeros(COUNT, np.int32), POSITIONS, (), NONE)
STEP = Step(BATCH, KVLayout.uniform({}, "F32", "F32", 0), {}, NONE.view(np.float32))


@dataclass(frozen=True)
class Case:
    """An operation with the shapes of its operands; a shape without rows is a weight's. ulps: how far it may be off."""

    op: str
    shapes: tuple[tuple[int | str, ...], ...]
    ulps: float
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, shape)) for shape in self.shapes)
        rope = self.attrs.get("rope")
        attrs = [rope.dims, rope.layout] if rope else self.attrs.values()
        return " ".join([self.op, shapes, *map(str, attrs)])


# Kinds of activation -> how far one may be off.
ACTS = {
    "gelu": 3.0,
    "gelu_erf": 3.0,
    "gelu_quick": 4.0,
    "relu": 0.0,
    "relu2": 0.5,
    "sigmoid": 4.0,
    "silu": 4.0,
    "softplus": 4.0,
    "sqrt_softplus": 4.0,
    "tanh": 2.0,
}


def cases() -> list[Case]:
    made = []
    for width in (20, 33, 48):
        x: tuple[int | str, ...] = ("T", width)
        made += [
            Case("add", (x, x), 0.5),
            Case("add", (x, (width,)), 0.5),
            Case("mul", (x, x), 0.5),
            Case("mul", (("T", 3, width), (width,)), 0.5),
            Case("scale", (x,), 0.5, {"by": 0.1}),
            Case("shift", (x,), 0.5, {"by": 0.1}),
            Case("mul", (("T", 3, width), ("T", 3, 1)), 0.5),
            Case("add", (("T", 3, width), (3, 1)), 0.5),
            Case("mul", (x, (1,)), 0.5),
            Case("div", (x, (width,)), 0.5),
            Case("clamp", (x,), 0, {"least": -0.25, "most": 0.5}),
            Case("clamp", (x,), 0, {"least": float("-inf"), "most": 0.5}),
            *(Case("act", (x,), ulps, {"kind": kind}) for kind, ulps in ACTS.items()),
            Case("slice", (x,), 0, {"start": 3, "size": width - 5}),
            Case("slice", (("T", 3, width),), 0, {"start": 0, "size": 1}),
            Case("softcap", (x,), 4, {"cap": 30.0}),
            Case("gated", (x, x), 4, {"kind": "silu"}),
            Case("gated", (x, x), 4, {"kind": "gelu"}),
            *(Case("norm", (x, (width,)), 6, {"kind": kind, "eps": 1e-5}) for kind in NORMS),
            *(Case("normalize", (x,), 6, {"kind": kind, "eps": 1e-6}) for kind in NORMS),
        ]
    for width in (8, 20, 96):
        head: tuple[int | str, ...] = ("T", 3, width)
        made += [
            *(Case("norm", (head, (width,)), 6, {"kind": kind, "eps": 1e-6}) for kind in NORMS),
            *(Case("normalize", (head,), 6, {"kind": kind, "eps": 1e-6}) for kind in NORMS),
            Case("cat", (head, ("T", 3, 5)), 0),
            Case("cat", (head, ("T", 1, width)), 0),
            Case("temper", (head,), 1, {"length": 64, "by": 0.1}),
        ]
    made += [Case("hadamard", (("T", 3, width),), 12) for width in (1, 2, 12, 16, 48, 64, 80, 256)]
    for dims, width in ((2, 2), (8, 8), (10, 20), (64, 64), (32, 96), (80, 80)):
        for layout in ("halves", "interleaved"):
            made.append(
                Case("rope", (("T", 3, width),), 2, {"rope": Rope(dims, 10000.0, layout, stretch=1.25)})
            )
    return made


CASES = cases()
# What an error is measured against where it is not the result: what sums to it may be larger than itself.
SCALES: Mapping[str, Callable[..., Any]] = {
    "act": lambda case, want, x: of_activation(case.attrs["kind"], want, x),
    "gated": lambda case, want, gate, up: np.abs(gate * up) if case.attrs["kind"] == "gelu" else np.abs(want),
    "norm": lambda case, want, x, w: np.abs(w) * np.abs(x).max(axis=-1, keepdims=True) / spread(case, x),
    "normalize": lambda case, want, x: np.abs(x).max(axis=-1, keepdims=True) / spread(case, x),
    "rope": lambda case, want, x: np.abs(x).max(axis=-1, keepdims=True),
    "softcap": lambda case, want, x: case.attrs["cap"],
    "hadamard": lambda case, want, x: np.abs(x).max(axis=-1, keepdims=True),
}


def of_activation(kind: str, want: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Its input where that may be far more than its result; for tanh its limit."""
    return np.abs(x) if kind.startswith("gelu") else np.ones_like(x) if kind == "tanh" else np.abs(want)


def spread(case: Case, x: np.ndarray) -> np.ndarray:
    """What a norm divides by."""
    centred = x - x.mean(axis=-1, keepdims=True) if case.attrs["kind"] == "layer" else x
    return np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + case.attrs["eps"])


# Operations that other files of tests take up.
ELSEWHERE = {"embed", "kv_store", "quantize", "round", "select", *MIXTURE}


def test_every_operation_is_tried() -> None:
    """There is a case for each operation that has an emitter."""
    assert {case.op for case in CASES} | ELSEWHERE == set(EMITTERS)


def inputs_of(case: Case, rng: np.random.Generator) -> list[np.ndarray]:
    """Normal numbers, with some large and small ones among them."""
    made = []
    for shape in case.shapes:
        sizes = sizes_of(shape)
        values = rng.standard_normal(sizes) * rng.choice([0.01, 1, 1, 8], sizes)
        made.append(values.astype(np.float32))
    return made


def tables_of(case: Case) -> list[np.ndarray]:
    """What the step gives: the angles of a rope, the factors of a temper."""
    if case.op == "rope":
        cos, sin = STEP.angles(case.attrs["rope"], None)  # [T, 1, dims / 2] each
        return [np.concatenate([cos, sin], axis=-1)]
    if case.op == "temper":
        steps = np.floor(POSITIONS / case.attrs["length"])
        return [(1 + case.attrs["by"] * np.log1p(steps)).astype(np.float32)]
    return []


def sizes_of(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    return tuple(COUNT if size == "T" else cast(int, size) for size in shape)


def result_shape(case: Case) -> tuple[int | str, ...]:
    """By the rule of the ops table."""
    return OPS[case.op].infer([Type("f32", shape) for shape in case.shapes], case.attrs).shape


def expected(case: Case, inputs: list[np.ndarray]) -> np.ndarray:
    """The reference backend's kernel in float64."""
    wide = [values.astype(np.float64) for values in inputs]
    out = np.empty(sizes_of(result_shape(case)))
    KERNELS[case.op](STEP, cast(Any, SimpleNamespace(attrs=case.attrs)), out, *wide)
    return out


def computed(
    case: Case, inputs: list[np.ndarray], place: int | None, begin: int = 0, end: int = COUNT
) -> np.ndarray:
    """By the kernel, over rows begin to end - 1; the result lies in operand `place`, or apart for None."""
    held = [Guarded(values.nbytes) for values in inputs]
    for memory, values in zip(held, inputs, strict=True):
        memory.array[:] = values.view(np.uint8).reshape(-1)
    operands = []
    for n, shape in enumerate(case.shapes):
        sizes = tuple(cast(int, size) for size in shape if size != "T")
        operands.append(Operand(n, 4 * prod(sizes) if shape[0] == "T" else 0, sizes))
    shape = result_shape(case)
    sizes = cast("tuple[int, ...]", shape[1:])
    target = held[place] if place is not None else Guarded(4 * COUNT * prod(sizes))
    out = operands[place] if place is not None else Operand(len(held), 4 * prod(sizes), sizes)
    tables = tables_of(case)
    names = tuple(range(len(held) + 1, len(held) + 1 + len(tables)))
    kept = case.attrs if case.op != "temper" else {}  # a table holds its factors
    attrs = tuple(kept.items())
    op = RowOp(case.op, out, tuple(operands), attrs, names)
    args = [*(memory.address for memory in held), target.address, *(table.ctypes.data for table in tables)]
    run(Spec.of(rows, ops=(op,)), args, begin, end)
    assert target.is_intact
    for memory, values in zip(held, inputs, strict=True):
        assert memory is target or (memory.array == values.view(np.uint8).reshape(-1)).all(), (
            "writes to an input"
        )
    return target.view(np.float32, *sizes_of(shape)).copy()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operation(case: Case) -> None:
    """The float64 result, but for a few roundings; the same bits where it overwrites an operand."""
    inputs = inputs_of(case, np.random.default_rng(len(str(case))))
    want, got = expected(case, inputs), computed(case, inputs, None)
    scale = SCALES.get(case.op, lambda case, want, x, *rest: np.abs(want))(case, want, *inputs)
    assert (np.abs(got - want) <= case.ulps * 2.0**-23 * scale).all()
    if case.op in ELEMENTWISE:
        for place, shape in enumerate(case.shapes):
            if shape == case.shapes[0]:
                again = computed(case, inputs, place)
                np.testing.assert_array_equal(again.view(np.uint32), got.view(np.uint32))


def test_only_the_rows_asked_for() -> None:
    """A call for rows 1 to 3 leaves the others as they were."""
    case = Case("act", (("T", 33),), 4, {"kind": "silu"})
    inputs = inputs_of(case, np.random.default_rng(1))
    whole, part = computed(case, inputs, None), computed(case, inputs, None, 1, 4)
    np.testing.assert_array_equal(part[1:4], whole[1:4])
    assert (part[[0, 4]].view(np.uint32) == 0xA5A5A5A5).all()


# How the names of cases begin that are looked at closely.
FAR = ("act Tx20", "softcap Tx20", "gated Tx20", "norm Tx20 20")
NAN = (*FAR, "mul Tx3x20", "clamp Tx20", "div Tx20")


@pytest.mark.parametrize("case", [case for case in CASES if str(case).startswith(FAR)], ids=str)
def test_far_from_one(case: Case) -> None:
    """Large, tiny and zero operands give what the float64 result rounds to, without infinities on the way."""
    sizes = [1e4, 300, 89, 88.5, 87, 20, 1e-3, 1e-9, 1e-30, 0.0]
    row = np.array([*sizes, *(-size for size in sizes)])
    inputs = [np.broadcast_to(row.astype(np.float32), (COUNT, 20)).copy() for _ in case.shapes]
    if case.op == "norm":
        inputs[1] = np.ones(20, np.float32)
    want, got = expected(case, inputs), computed(case, inputs, None)
    lost = 1e-5 if case.op == "softcap" else 2e-7 if case.attrs.get("kind") == "tanh" else 1e-9
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=lost)


@pytest.mark.parametrize("case", [case for case in CASES if str(case).startswith(NAN)], ids=str)
def test_what_is_not_a_number_stays_so(case: Case) -> None:
    """A fault upstream shows: no operation turns NaN into a number."""
    inputs = [np.ones_like(values) for values in inputs_of(case, np.random.default_rng(1))]
    inputs[0][2, ..., 3] = np.nan
    got = computed(case, inputs, None)
    assert np.isnan(got[2, ..., 3]).all()
    assert np.isfinite(got[3]).all()


def test_a_row_of_zeros_is_normed_to_zeros() -> None:
    """Nothing is divided by zero: eps alone is under the root."""
    for case in CASES:
        if case.op in {"norm", "normalize"}:
            inputs = [np.zeros_like(values) for values in inputs_of(case, np.random.default_rng(1))]
            assert (computed(case, inputs, None) == 0).all()


def test_rounding_to_bf16() -> None:
    """As the model-file type's quantiser rounds: to nearest even; NaN and infinity stay what they are."""
    x = np.random.default_rng(3).standard_normal((COUNT, 50)).astype(np.float32)
    x[1, :6] = [np.nan, np.inf, -np.inf, 3.4e38, 0, 1e-40]
    x[2, :2] = np.array([0x7FFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    out = Guarded(COUNT * 100)
    op = RowOp("round", Operand(1, 100, (50,)), (Operand(0, 200, (50,)),), (), ())
    run(Spec.of(rows, ops=(op,)), [x.ctypes.data, out.address], 0, COUNT)
    assert out.is_intact
    got = (out.view(np.uint16, COUNT, 50).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        want = dequantize(by_name("BF16"), quantize(by_name("BF16"), x)).reshape(x.shape)
    np.testing.assert_array_equal(got, want)


def test_a_chain_keeps_what_lies_between_to_itself() -> None:
    """Operations that hand values on through a thread's scratch give the bits that they give one by one."""
    rng = np.random.default_rng(7)
    norm = Case("norm", (("T", 48), (48,)), 4, {"kind": "rms", "eps": 1e-5})
    gated = Case("gated", (("T", 48), ("T", 48)), 4, {"kind": "silu"})
    x, w = inputs_of(norm, rng)
    between = computed(norm, [x, w], None)
    want = computed(gated, [between, x], None)
    full, weight, own = Operand(0, 192, (48,)), Operand(1, 0, (48,)), Operand(None, 64, (48,))
    out = Guarded(x.nbytes)
    ops = (
        RowOp("norm", own, (full, weight), (("kind", "rms"), ("eps", 1e-5))),
        RowOp("gated", Operand(2, 192, (48,)), (own, full), (("kind", "silu"),)),
    )
    run(Spec.of(rows, ops=ops), [x.ctypes.data, w.ctypes.data, out.address], 0, COUNT, scratch=256)
    np.testing.assert_array_equal(out.view(np.float32, COUNT, 48), want)

"""The kernel language's operators and conversions against NumPy's, on random and extreme lanes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_kernels import CPUS, KINDS, apply, run

from puna.backends.cpu.lang import BITS, Kernel, Value
from puna.backends.cpu.target import Target

ENDS = (CPUS[0], None)  # the oldest processor and the one at hand
INTEGERS = [dtype for dtype in KINDS if dtype.kind in "iu"]
F32 = np.dtype(np.float32)
COUNT = 256


def numbers(dtype: np.dtype, seed: int = 0) -> np.ndarray:
    """Extreme numbers first, then random bits; floats are finite."""
    rng = np.random.default_rng([seed, dtype.num])
    if dtype == F32:
        edges = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 3.4e38, -3.4e38, 0.5, 1 / 3]
        values = rng.standard_normal(COUNT) * 10.0 ** rng.integers(-30, 30, COUNT)
    else:
        info = np.iinfo(dtype)
        edges = [0, 1, 2, info.max, info.max - 1, info.min, info.min + 1, info.max // 2, info.max // 2 + 1]
        values = rng.integers(info.min, info.max, COUNT, dtype, endpoint=True)
    out = values.astype(dtype)
    out[: len(edges)] = edges
    return np.roll(out, 7 * seed)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Bit for bit."""
    word = f"u{want.itemsize}"
    np.testing.assert_array_equal(got.view(word), want.view(word))


@pytest.mark.parametrize("cpu", ENDS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
@np.errstate(all="ignore")
def test_float_operators(name: str, cpu: str | None) -> None:
    """+ - * / of f32 round once, as NumPy's do, with infinities and denormals."""
    a, b = numbers(F32, 1), numbers(F32, 2)
    b[3:6] = np.inf, -np.inf, 1e-42
    how = getattr(operator, name)
    same(apply(how, a, b, to=F32, cpu=cpu), how(a, b))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "and_", "or_", "xor"])
@pytest.mark.parametrize("lanes", [1, 64])
def test_integer_operators(name: str, dtype: np.dtype, lanes: int) -> None:
    """+ - * & | ^ wrap around, for any number of lanes."""
    a, b, how = numbers(dtype, 1), numbers(dtype, 2), getattr(operator, name)
    same(apply(how, a, b, to=dtype, lanes=lanes), how(a, b))


@pytest.mark.parametrize("cpu", ENDS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(dtype: np.dtype, cpu: str | None) -> None:
    """<< and >> by a number of each lane's own; >> keeps the sign of a signed kind."""
    a = numbers(dtype)
    by = np.random.default_rng(3).integers(0, 8 * dtype.itemsize, COUNT).astype(dtype)
    for how in (operator.lshift, operator.rshift):
        same(apply(how, a, by, to=dtype, cpu=cpu), how(a, by))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_goes_toward_zero(dtype: np.dtype) -> None:
    """// loses the fraction, and % has the sign of the left side: a == a // b * b + a % b."""
    a, b = numbers(dtype, 1), numbers(dtype, 2)
    b[b == 0] = 3
    if dtype.kind == "i":
        b[b == -1] = -3  # the smallest number over -1 has no result
    quotient = apply(operator.floordiv, a, b, to=dtype)
    rest = apply(operator.mod, a, b, to=dtype)
    same(rest, np.fmod(a, b))
    same(quotient, ((a - np.fmod(a, b)) // b).astype(dtype))


@pytest.mark.parametrize("dtype", [*INTEGERS, F32], ids=str)
def test_negation(dtype: np.dtype) -> None:
    """-x is NumPy's, the sign of a float zero too."""
    a = numbers(dtype)
    same(apply(operator.neg, a, to=dtype), -a)


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@pytest.mark.parametrize("dtype", [*INTEGERS, F32], ids=str)
@pytest.mark.parametrize("how", COMPARISONS)
def test_comparisons(how: str, dtype: np.dtype) -> None:
    """Each comparison gives 1 or 0 a lane, with and without signs."""
    a, b = numbers(dtype, 1), numbers(dtype, 2)
    b[::3] = a[::3]
    got = apply(lambda x, y: x.compare(how, y).to("u8"), a, b, to=np.uint8)
    same(got, COMPARISONS[how](a, b).astype(np.uint8))


@pytest.mark.parametrize("how", COMPARISONS)
def test_comparisons_with_nan_are_false(how: str) -> None:
    """NaN is not less than, equal to or unlike anything."""
    nan, one = np.full(16, np.nan, np.float32), np.ones(16, np.float32)
    for a, b in ((nan, one), (one, nan), (nan, nan)):
        assert not apply(lambda x, y: x.compare(how, y).to("u8"), a, b, to=np.uint8).any()


@pytest.mark.parametrize("cpu", ENDS)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("wanted", INTEGERS, ids=str)
def test_integers_to_integers(source: np.dtype, wanted: np.dtype, cpu: str | None) -> None:
    """A wider kind keeps the number, a narrower one the lower bits, one as wide the bits."""
    a = numbers(source)
    same(apply(lambda x: x.to(KINDS[wanted]), a, to=wanted, cpu=cpu), a.astype(wanted))


@pytest.mark.parametrize("cpu", ENDS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_and_floats(dtype: np.dtype, cpu: str | None) -> None:
    """To f32 an integer rounds to nearest even; back, a float that fits loses its fraction."""
    a = numbers(dtype)
    same(apply(lambda x: x.to("f32"), a, to=F32, cpu=cpu), a.astype(F32))
    most = min(float(np.iinfo(dtype).max) / 1.01, 2.0**62)
    least = max(float(np.iinfo(dtype).min) / 1.01, -(2.0**62))
    floats = np.random.default_rng(4).uniform(least, most, COUNT).astype(F32)
    floats[:6] = 0, 0.99, 1.5, 2.5, max(least, -0.99), max(least, -1.5)
    same(apply(lambda x: x.to(KINDS[dtype]), floats, to=dtype, cpu=cpu), floats.astype(dtype))


def test_bits_as_another_kind() -> None:
    """`as_` keeps all bits, for as many lanes or more or fewer."""
    a = numbers(F32)
    same(apply(lambda x: x.as_("u32"), a, to=np.uint32), a.view(np.uint32))
    same(apply(lambda x: x.as_("u8").as_("f32"), a, to=F32), a)
    got = apply(lambda x: x.as_("u8").as_("u16")[0::2].to("u32"), a, to=np.uint32)
    same(got, a.view(np.uint32) & 0xFFFF)


def test_numbers_become_constants() -> None:
    """A Python number on the right is repeated in all lanes; so is a single lane on either side."""
    a = numbers(np.dtype(np.int16))
    same(apply(lambda x: x * 3 - 7, a, to=np.int16), a * np.int16(3) - np.int16(7))
    same(apply(lambda x: x[0] + x, np.resize(a[:16], 32), to=np.int16), np.resize(a[0] + a[:16], 32))
    same(apply(lambda x: x + x[1], np.resize(a[:16], 32), to=np.int16), np.resize(a[:16] + a[1], 32))
    f = numbers(F32)
    same(apply(lambda x: x * 0.1, f, to=F32), f * np.float32(0.1))


def test_lanes_move() -> None:
    """Slices, single lanes, `shuffle` of one and two values, and `cat` of unequal ones."""
    a, b = np.arange(16, dtype=np.int32), np.arange(100, 116, dtype=np.int32)

    def move(how: Callable[[Value, Value], Value]) -> list[int]:
        found: list[int] = apply(how, a, b, to=np.int32).tolist()
        return found

    assert move(lambda x, y: x[::-1]) == a[::-1].tolist()
    assert move(lambda x, y: x[4:8].cat(y[:8]).cat(x[12:])) == [
        *range(4, 8),
        *range(100, 108),
        *range(12, 16),
    ]
    assert move(lambda x, y: x[:2].cat(y[:14])) == [0, 1, *range(100, 114)]
    assert move(lambda x, y: x.shuffle([0, 16] * 8, y)) == [0, 100] * 8
    assert move(lambda x, y: y[3].splat(16)) == [103] * 16
    assert move(lambda x, y: x[5].pair(y[6]).shuffle([0, 1] * 8)) == [5, 106] * 8


def test_select() -> None:
    """`select` takes each lane from one of two values; `both` and `either` join conditions."""
    a = numbers(np.dtype(np.int32))

    def clamp(x: Value) -> Value:
        k = x.k
        low, high = k.const("i32", -1000, 16), k.const("i32", 1000, 16)
        x = k.select(k.either(x < low, x > high), k.zeros("i32", 16), x)
        return k.select(k.both(x >= 0, x < 500), x + 1, x)

    want = np.where(np.abs(a.astype(np.int64)) > 1000, 0, a)
    same(apply(clamp, a, to=np.int32), np.where((want >= 0) & (want < 500), want + 1, want).astype(np.int32))


def test_loads_and_stores_at_any_byte() -> None:
    """Addresses are bytes: a load or a store may begin anywhere, and touches just its own."""
    raw, out = np.arange(80, dtype=np.uint8), np.full(80, 255, np.uint8)

    def copy(k: Kernel, source: Any, target: Any) -> None:
        target.at(3).store(source.load("i32", 4, 5), 4)
        target.store(source.at(k.const("i64", 1)).load("u8"))

    run(copy, raw, out)
    want = np.full(80, 255, np.uint8)
    want[7:23], want[0] = raw[5:21], 1
    same(out, want)


def test_stored_addresses() -> None:
    """`ptr` reads an address that lies in memory."""
    a, out = np.array([5, 6], np.int64), np.zeros(1, np.int64)
    places = np.array([0, a.ctypes.data], np.int64)
    run(lambda k, p, o: o.store(p.ptr(8).load("i64", 1, 8)), places, out)
    assert out[0] == 6


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda k: k.zeros("f32") & 1.0, TypeError),
        (lambda k: k.zeros("f32") // 2.0, TypeError),
        (lambda k: k.zeros("i32") / 2, TypeError),
        (lambda k: k.zeros("f32") + k.zeros("i32"), TypeError),
        (lambda k: k.zeros("u8") + k.zeros("i8"), TypeError),
        (lambda k: k.zeros("i32", 4) + k.zeros("i32", 8), TypeError),
        (lambda k: k.zeros("u8") + 256, OverflowError),
        (lambda k: k.lanes("i8", [0, -129]), OverflowError),
    ],
)
def test_mistakes_are_errors(wrong: Callable[[Kernel], Value], error: type[Exception]) -> None:
    """Kinds do not mix, floats have no bits, lanes agree, and constants fit: told while the kernel is written."""
    import llvmlite.ir as ir

    with pytest.raises(error):
        wrong(Kernel(ir.Module(), "k", Target("", "", "", frozenset()), ()))


def test_kinds() -> None:
    """Every kind that arrays have here has its bits in the table."""
    assert all(BITS[kind] == 8 * dtype.itemsize for dtype, kind in KINDS.items())

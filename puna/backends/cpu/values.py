"""Values of the kernel language: lanes of one kind, variables, addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import llvmlite.ir as ir

if TYPE_CHECKING:
    from puna.backends.cpu.lang import Kernel

__all__ = ["BITS", "BYTE", "FLOATS", "INDEX", "LANE", "Number", "Ptr", "Value", "Var", "type_of"]

BITS = {
    "bool": 1,
    "u8": 8,
    "i8": 8,
    "u16": 16,
    "i16": 16,
    "u32": 32,
    "i32": 32,
    "i64": 64,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
}


class BFloat(ir.Type):  # type: ignore[misc]
    """The upper half of an f32, which llvmlite has no class for."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


FLOATS = {"f16": ir.HalfType(), "bf16": BFloat(), "f32": ir.FloatType(), "f64": ir.DoubleType()}
POINTER = ir.PointerType()
BYTE, INDEX, LANE = ir.IntType(8), ir.IntType(64), ir.IntType(32)


def type_of(kind: str, lanes: int) -> ir.Type:
    if kind == "ptr":
        return POINTER
    scalar = FLOATS.get(kind) or ir.IntType(BITS[kind])
    return scalar if lanes == 1 else ir.VectorType(scalar, lanes)


class Value:
    """Lanes of one kind, as an IR value of the kernel `k`."""

    __slots__ = ("ir", "k", "kind")

    def __init__(self, k: Kernel, value: ir.Value, kind: str) -> None:
        self.k, self.ir, self.kind = k, value, kind

    @property
    def lanes(self) -> int:
        return self.ir.type.count if isinstance(self.ir.type, ir.VectorType) else 1

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS

    @property
    def is_signed(self) -> bool:
        return self.kind[0] == "i"

    def with_(self, other: Number) -> tuple[Value, Value]:
        """Both operands with the same kind and lanes; a single lane is repeated."""
        if not isinstance(other, Value):
            other = self.k.const(self.kind, other)
        if other.kind != self.kind:
            raise TypeError(f"{self.kind} with {other.kind}")
        lanes = max(self.lanes, other.lanes)
        return self.splat(lanes), other.splat(lanes)

    def binary(self, other: Number, of_floats: str, of_ints: str) -> Value:
        """An instruction on both; an empty name is an operator that floats, or integers, do not have."""
        a, b = self.with_(other)
        name = of_floats if self.is_float else of_ints
        if not name:
            raise TypeError(f"{self.kind} has no such operator")
        return Value(self.k, getattr(self.k.b, name)(a.ir, b.ir), self.kind)

    def __add__(self, other: Number) -> Value:
        return self.binary(other, "fadd", "add")

    def __sub__(self, other: Number) -> Value:
        return self.binary(other, "fsub", "sub")

    def __mul__(self, other: Number) -> Value:
        return self.binary(other, "fmul", "mul")

    def __truediv__(self, other: Number) -> Value:
        return self.binary(other, "fdiv", "")

    def __floordiv__(self, other: Number) -> Value:
        """Toward zero, as machines divide; `%` takes the sign of the left side."""
        return self.binary(other, "", "sdiv" if self.is_signed else "udiv")

    def __mod__(self, other: Number) -> Value:
        return self.binary(other, "", "srem" if self.is_signed else "urem")

    def remainder(self, other: Number) -> Value:
        """Of integers, whatever their kind, as numbers without a sign."""
        a, b = self.with_(other)
        return Value(self.k, self.k.b.urem(a.ir, b.ir), self.kind)

    def __and__(self, other: Number) -> Value:
        return self.binary(other, "", "and_")

    def __or__(self, other: Number) -> Value:
        return self.binary(other, "", "or_")

    def __xor__(self, other: Number) -> Value:
        return self.binary(other, "", "xor")

    def __lshift__(self, other: Number) -> Value:
        return self.binary(other, "", "shl")

    def __rshift__(self, other: Number) -> Value:
        return self.binary(other, "", "ashr" if self.is_signed else "lshr")

    def __neg__(self) -> Value:
        return Value(self.k, (self.k.b.fneg if self.is_float else self.k.b.neg)(self.ir), self.kind)

    def compare(self, how: str, other: Number) -> Value:
        """A bool a lane; `how` is < <= > >= == or !=. A comparison with NaN is false."""
        a, b = self.with_(other)
        builder = self.k.b
        if self.is_float:
            emit = builder.fcmp_ordered
        else:
            emit = builder.icmp_signed if self.is_signed else builder.icmp_unsigned
        return Value(self.k, emit(how, a.ir, b.ir), "bool")

    def __lt__(self, other: Number) -> Value:
        return self.compare("<", other)

    def __le__(self, other: Number) -> Value:
        return self.compare("<=", other)

    def __gt__(self, other: Number) -> Value:
        return self.compare(">", other)

    def __ge__(self, other: Number) -> Value:
        return self.compare(">=", other)

    def splat(self, lanes: int) -> Value:
        """A single lane repeated."""
        if lanes == self.lanes:
            return self
        if self.lanes > 1:
            raise TypeError(f"{self.lanes} lanes where {lanes} are wanted")
        empty = ir.Constant(ir.VectorType(self.ir.type, lanes), ir.Undefined)
        first = self.k.b.insert_element(empty, self.ir, ir.Constant(LANE, 0))
        return Value(self.k, first, self.kind).shuffle([0] * lanes)

    def shuffle(self, order: Iterable[int], other: Value | None = None) -> Value:
        """Lanes in the given order; those of `other` count on from this value's."""
        places = list(order)
        if len(places) == 1 and other is None:
            return self[places[0]]
        mask = ir.Constant(ir.VectorType(LANE, len(places)), places)
        second = ir.Constant(self.ir.type, ir.Undefined) if other is None else other.ir
        return Value(self.k, self.k.b.shuffle_vector(self.ir, second, mask), self.kind)

    def __getitem__(self, place: int | slice) -> Value:
        if isinstance(place, slice):
            return self.shuffle(range(*place.indices(self.lanes)))
        return Value(self.k, self.k.b.extract_element(self.ir, ir.Constant(LANE, place)), self.kind)

    def cat(self, other: Value) -> Value:
        """These lanes, then those of `other`; both have two at least."""
        size = max(self.lanes, other.lanes)
        a, b = (
            v.shuffle([min(i, v.lanes - 1) for i in range(size)]) if v.lanes < size else v
            for v in (self, other)
        )
        return a.shuffle([*range(self.lanes), *range(size, size + other.lanes)], b)

    def pair(self, other: Value) -> Value:
        """Two single lanes as a vector."""
        second = ir.Constant(LANE, 1)
        return Value(self.k, self.k.b.insert_element(self.splat(2).ir, other.ir, second), self.kind)

    def as_(self, kind: str) -> Value:
        """The same bits as lanes of another kind."""
        lanes = self.lanes * BITS[self.kind] // BITS[kind]
        return Value(self.k, self.k.b.bitcast(self.ir, type_of(kind, lanes)), kind)

    def to(self, kind: str) -> Value:
        """The same numbers in another kind. A narrower integer loses its upper bits, a float its fraction.

        A float that does not fit the integer kind, NaN among them, gives any number. Halves go to f32 and back only
        where the target has an instruction for it: see `load_halves` and `round_halves`.
        """
        if kind == self.kind:
            return self
        grows = BITS[kind] > BITS[self.kind]
        names = {
            (True, True): "fpext" if grows else "fptrunc",
            (True, False): "fptosi" if kind[0] == "i" else "fptoui",
            (False, True): "sitofp" if self.is_signed else "uitofp",
            (False, False): ("sext" if self.is_signed else "zext") if grows else "trunc",
        }
        name = names[self.is_float, kind in FLOATS]
        if name == "trunc" and BITS[kind] == BITS[self.kind]:
            return Value(self.k, self.ir, kind)
        return Value(self.k, getattr(self.k.b, name)(self.ir, type_of(kind, self.lanes)), kind)


Number = Value | int | float


class Var:
    """A value that changes while the kernel runs: read `.now`, assign with `set`."""

    def __init__(self, k: Kernel, start: Value) -> None:
        self.k, self.kind = k, start.kind
        with k.b.goto_entry_block():
            self.slot = k.b.alloca(start.ir.type)
        self.set(start)

    def set(self, value: Value) -> None:
        self.k.b.store(value.ir, self.slot)

    @property
    def now(self) -> Value:
        return Value(self.k, self.k.b.load(self.slot), self.kind)


class Ptr:
    """An address."""

    def __init__(self, k: Kernel, address: ir.Value) -> None:
        self.k, self.ir = k, address

    def at(self, offset: Value | int) -> Ptr:
        """The address `offset` bytes on."""
        if isinstance(offset, int):
            if offset == 0:
                return self
            offset = self.k.const("i64", offset)
        return Ptr(self.k, self.k.b.gep(self.ir, [offset.to("i64").ir], source_etype=BYTE))

    def load(self, kind: str, lanes: int = 1, offset: Value | int = 0, align: int = 1) -> Value:
        """`lanes` values from `offset` bytes on, which lie at a multiple of `align` bytes."""
        loaded = self.k.b.load(self.at(offset).ir, typ=type_of(kind, lanes))
        loaded.align = align
        return Value(self.k, loaded, kind)

    def store(self, value: Value, offset: Value | int = 0, align: int = 1) -> None:
        stored = self.k.b.store(value.ir, self.at(offset).ir)
        stored.align = align

    def ptr(self, offset: Value | int = 0) -> Ptr:
        """The address that is stored `offset` bytes on."""
        loaded = self.k.b.load(self.at(offset).ir, typ=POINTER)
        loaded.align = 8
        return Ptr(self.k, loaded)

    def prefetch(self, offset: Value | int = 0, *, level: int = 3) -> None:
        """Ask for the cache line at `offset` ahead of its use; level 3 keeps it nearest."""
        flags = [ir.Constant(LANE, n) for n in (0, level, 1)]
        self.k.intrinsic("llvm.prefetch.p0", ir.VoidType(), [self.at(offset).ir, *flags])

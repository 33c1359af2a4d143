"""The kernel language: a Python function runs once and leaves LLVM IR behind.

    def scale(k: Kernel) -> None:
        x, count, by = k.args
        for i in k.loop(0, count, 16):             # a loop in the machine code
            x.at(i * 4).store(x.at(i * 4).load("f32", 16) * by)

Operators on values emit instructions; `for i in k.loop(...)` emits a loop; a plain Python `for` unrolls; Python
numbers become constants. A value has a kind (u8 i8 u16 i16 u32 i32 i64 f16 f32 bool) and a number of lanes; the
vectors are LLVM's own, so a kernel is right on any processor that LLVM targets. A `Var` is a value that
changes; LLVM keeps it in a register. Addresses are bytes. Float operations round once each, in the order written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.ir as ir

from puna.backends.cpu.target import Target

__all__ = ["BITS", "Kernel", "Number", "Ptr", "Value", "Var"]

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
    "f32": 32,
}
FLOATS = {"f16": ir.HalfType(), "f32": ir.FloatType()}
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
        a, b = self.with_(other)
        emit = getattr(self.k.b, of_floats if self.is_float else of_ints)
        return Value(self.k, emit(a.ir, b.ir), self.kind)

    def __add__(self, other: Number) -> Value:
        return self.binary(other, "fadd", "add")

    def __sub__(self, other: Number) -> Value:
        return self.binary(other, "fsub", "sub")

    def __mul__(self, other: Number) -> Value:
        return self.binary(other, "fmul", "mul")

    def __truediv__(self, other: Number) -> Value:
        return self.binary(other, "fdiv", "")

    def __floordiv__(self, other: Number) -> Value:
        return self.binary(other, "", "sdiv" if self.is_signed else "udiv")

    def __mod__(self, other: Number) -> Value:
        return self.binary(other, "", "srem" if self.is_signed else "urem")

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
        """The same numbers in another kind. A float loses its fraction; a narrower integer its upper bits."""
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


class Callee:
    """An address with the signature that llvmlite asks a callee for."""

    def __init__(self, address: ir.Value, signature: ir.FunctionType) -> None:
        self.function_type, self.type = signature, address.type
        self.get_reference = address.get_reference


class Kernel:
    """A function being written: `args` are its parameters, a Ptr for "ptr" and a Value for any other kind."""

    def __init__(self, module: ir.Module, name: str, target: Target, params: Sequence[str]) -> None:
        self.module, self.target = module, target
        self.exits: list[ir.Block] = []
        signature = ir.FunctionType(ir.VoidType(), [type_of(kind, 1) for kind in params])
        self.function = ir.Function(module, signature, name)
        self.function.attributes.add("nounwind")
        entry = self.function.append_basic_block("entry")
        self.b = ir.IRBuilder(entry)
        # Variables live in the entry block, ahead of the branch to where the kernel's own code begins.
        start = self.function.append_basic_block("start")
        self.b.branch(start)
        self.b.position_at_end(start)
        self.args: list[Any] = [
            Ptr(self, arg) if kind == "ptr" else Value(self, arg, kind)
            for kind, arg in zip(params, self.function.args, strict=True)
        ]

    def const(self, kind: str, number: Number, lanes: int = 1) -> Value:
        scalar, value = type_of(kind, 1), float(number) if kind in FLOATS else int(number)  # type: ignore[arg-type]
        constant = ir.Constant(scalar, value)
        if lanes > 1:
            constant = ir.Constant(ir.VectorType(scalar, lanes), [value] * lanes)
        return Value(self, constant, kind)

    def lanes(self, kind: str, numbers: Sequence[int | float]) -> Value:
        """A constant with a number a lane."""
        return Value(self, ir.Constant(type_of(kind, len(numbers)), list(numbers)), kind)

    def zeros(self, kind: str, lanes: int = 1) -> Value:
        return self.const(kind, 0, lanes)

    def var(self, start: Value) -> Var:
        return Var(self, start)

    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """`for i in k.loop(a, b)`: the body is written once and runs for i = a, a + step, ... below b."""
        first, last, stride = (self.index(n) for n in (start, stop, step))
        before = self.b.block
        head, body, done = (self.function.append_basic_block(n) for n in ("head", "loop", "done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        counter = self.b.phi(INDEX)
        counter.add_incoming(first, before)
        self.b.cbranch(self.b.icmp_signed("<", counter, last), body, done)
        self.b.position_at_end(body)
        yield Value(self, counter, "i64")
        counter.add_incoming(self.b.add(counter, stride), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(done)

    def repeat(self) -> Iterator[None]:
        """`for _ in k.repeat()`: the body runs until a `leave_if` in it holds."""
        body, done = (self.function.append_basic_block(n) for n in ("repeat", "left"))
        self.b.branch(body)
        self.b.position_at_end(body)
        self.exits.append(done)
        yield
        self.exits.pop()
        self.b.branch(body)
        self.b.position_at_end(done)

    def leave_if(self, condition: Value) -> None:
        """Leave the innermost `repeat` if the condition holds."""
        rest = self.function.append_basic_block("rest")
        self.b.cbranch(condition.ir, self.exits[-1], rest)
        self.b.position_at_end(rest)

    def index(self, number: Value | int) -> ir.Value:
        return ir.Constant(INDEX, number) if isinstance(number, int) else number.to("i64").ir

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """The block runs only if the condition holds."""
        with self.b.if_then(condition.ir):
            yield

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return Value(self, self.b.select(condition.ir, yes.ir, no.ir), yes.kind)

    def intrinsic(self, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        """Call an LLVM function by its full name."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [arg.type for arg in args]), name)
        return self.b.call(known, args)

    def procedure(self, name: str, *args: Value) -> None:
        """Call an LLVM function that returns nothing."""
        self.intrinsic(name, ir.VoidType(), [arg.ir for arg in args])

    def both(self, a: Value, b: Value) -> Value:
        return Value(self, self.b.and_(a.ir, b.ir), "bool")

    def either(self, a: Value, b: Value) -> Value:
        return Value(self, self.b.or_(a.ir, b.ir), "bool")

    def call(self, function: Ptr, *args: Ptr | Value) -> None:
        """Call a function that returns nothing, by its address."""
        self.b.call(
            Callee(function.ir, ir.FunctionType(ir.VoidType(), [arg.ir.type for arg in args])),
            [arg.ir for arg in args],
        )

    def add_shared(self, place: Ptr, count: Number) -> Value:
        """Add to an i64 that threads share, and give what it was before. What was written before is seen after."""
        amount = self.const("i64", count) if not isinstance(count, Value) else count
        return Value(self, self.b.atomic_rmw("add", place.ir, amount.ir, "acq_rel"), "i64")

    def load_shared(self, place: Ptr) -> Value:
        """An i64 that threads share; what its writer wrote before it is seen after."""
        return Value(self, self.b.load_atomic(place.ir, "acquire", 8, typ=INDEX), "i64")

    def swap_shared(self, place: Ptr, value: Number) -> Value:
        """Put a value into an i64 that threads share, and give what was there."""
        new = self.const("i64", value) if not isinstance(value, Value) else value
        return Value(self, self.b.atomic_rmw("xchg", place.ir, new.ir, "acq_rel"), "i64")

    def end(self) -> None:
        """The kernel is complete."""
        self.b.ret_void()

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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.ir as ir

from puna.backends.cpu.target import Target
from puna.backends.cpu.values import BITS, FLOATS, INDEX, Number, Ptr, Value, Var, type_of

__all__ = ["BITS", "Kernel", "Number", "Ptr", "Value", "Var"]


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
        """A number, the same in all lanes. Raises OverflowError for an integer that the kind cannot hold."""
        scalar, value = type_of(kind, 1), fitting(kind, number)  # type: ignore[arg-type]
        constant = ir.Constant(scalar, value)
        if lanes > 1:
            constant = ir.Constant(ir.VectorType(scalar, lanes), [value] * lanes)
        return Value(self, constant, kind)

    def lanes(self, kind: str, numbers: Sequence[int | float]) -> Value:
        """A constant with a number a lane."""
        values = [fitting(kind, number) for number in numbers]
        return Value(self, ir.Constant(type_of(kind, len(numbers)), values), kind)

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


def fitting(kind: str, number: int | float) -> int | float:
    """A number as a constant of a kind; the bits of an integer may be meant with a sign or without."""
    if kind in FLOATS:
        return float(number)
    value = int(number)
    if not -(1 << BITS[kind] - 1) <= value < 1 << BITS[kind]:
        raise OverflowError(f"{value} does not fit {kind}")
    return value

"""Kernels that do nothing but read memory, or nothing but byte dots: what the machine can do at best."""

from __future__ import annotations

from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.verbs import dot_u8s8
from puna.measure.peaks import CHUNK

__all__ = ["OPERANDS", "ROUNDS", "dots", "dots_of", "read"]

STREAMS = 8  # sums, so that a load need not wait for the addition before it
ROUNDS = 256  # how often a unit of `dots` goes over its operands
OPERANDS = 4096  # bytes of operands, which stay in the nearest cache


def read(k: Kernel) -> None:
    """Sum up units of CHUNK bytes. Arguments: 0 memory."""
    args, begin, end, scratch = k.args
    memory, width = args.ptr(0), k.target.vector
    sums = [k.var(k.zeros("i32", width // 4)) for _ in range(STREAMS)]
    for unit in k.loop(begin, end):
        at = memory.at(unit * CHUNK)
        for i in k.loop(0, CHUNK, STREAMS * width):
            for j, total in enumerate(sums):
                total.set(total.now + at.load("i32", width // 4, i + j * width, width))
    for j, total in enumerate(sums):
        scratch.store(total.now, j * width, width)


def tile(registers: int) -> int:
    """Vectors on either side of the tile whose products are summed in registers."""
    return 4 if registers >= 32 else 3


def dots_of(vector: int, registers: int) -> int:
    """Operations of a unit of `dots`: two for each product of bytes."""
    side = tile(registers)
    steps = OPERANDS // (2 * side * vector)
    return ROUNDS * steps * side * side * vector * 2


def dots(k: Kernel) -> None:
    """Byte dots of all pairs of a few vectors, as a matrix product does them. Arguments: 0 operands."""
    args, begin, end, scratch = k.args
    operands, width, side = args.ptr(0), k.target.vector, tile(k.target.registers)
    totals = [k.var(k.zeros("i32", width // 4)) for _ in range(side * side)]
    step = 2 * side * width
    for _ in k.loop(begin, end):
        for _ in k.loop(0, ROUNDS):
            for i in k.loop(0, OPERANDS // step * step, step):
                at = operands.at(i)
                codes = [at.load("u8", width, j * width, width) for j in range(side)]
                others = [at.load("i8", width, (side + j) * width, width) for j in range(side)]
                for j, total in enumerate(totals):
                    total.set(dot_u8s8(total.now, codes[j // side], others[j % side], bits=7))
    for j, total in enumerate(totals):
        scratch.store(total.now, j * width, width)

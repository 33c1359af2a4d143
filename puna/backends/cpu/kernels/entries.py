"""What a grid holds for the entries of a panel's block: 32 values of 16 rows at a time.

A small grid can lie in registers, a table for each of an entry's codes, where a processor looks 64 bytes up at once.
From any other the entries are loaded one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from puna.backends.cpu.kernels.planes import room, unpack
from puna.backends.cpu.lang import Ptr, Value
from puna.backends.cpu.lookups import constant, gather, wide_lookup
from puna.backends.cpu.panels import ROWS, SPAN, STEPS, VECTOR, Panel

__all__ = ["GridCodes", "grid_of", "in_entry_order"]

MOST = 512  # entries of a grid up to which lookups in registers are faster than loads
# The place of entry j of row r among four entries of 16 rows: of each four rows first the first entries, and so on.
PLACES = [[16 * (r // 4) + 4 * j + r % 4 for j in range(4)] for r in range(ROWS)]


class GridCodes(ABC):
    """The codes of a block. codes: of all entries, as the grid has them or above a zero."""

    def __init__(self, panel: Panel, at: Ptr, codes: bytes) -> None:
        grid = panel.quant.grid
        assert grid is not None
        self.at, self.fields, self.bits = at, panel.fields, panel.quant.bits
        self.name, self.width, self.codes = f"grid_{grid.name}", grid.width, codes
        self.vectors = SPAN // grid.width * ROWS // VECTOR  # of entries, in a span
        self.open()

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def steps(self, span: Value | int) -> list[Value]:
        """The codes of a span: 8 steps, u8 [64] each."""

    def upper(self) -> list[Value]:
        """The entries' bits above the lowest eight: u8 [64] of each vector of the block."""
        low, upper = self.fields[:2]
        spans = range(low.count // SPAN)
        return [
            vector
            for i in spans
            for vector in unpack(self.at.at(upper.at + i * upper.span_bytes), upper.bits, STEPS)
        ]


class Loads(GridCodes):
    """Entries loaded one by one."""

    def open(self) -> None:
        self.grid = constant(self.at.k, self.name, self.codes)
        self.places, self.size = self.at, 1
        if self.bits > 8:
            self.places, self.size = room(self.at.k, self.fields[0].nbytes * 2), 2
            for i, upper in enumerate(self.upper()):
                low = self.at.load("u8", VECTOR, i * VECTOR, VECTOR).to("u16")
                self.places.store(low | (upper.to("u16") << 8), i * (VECTOR * 2), VECTOR)

    def steps(self, span: Value | int) -> list[Value]:
        at, steps = self.places.at(span * (self.vectors * VECTOR * self.size)), list[Value]()
        for v in range(self.vectors):
            for j in range(4):
                places = [(v * VECTOR + PLACES[r][j]) * self.size for r in range(ROWS)]
                entries = [at.load(f"u{8 * self.size}", 1, p, self.size).to("i64") for p in places]
                steps += [gather(self.grid, entries, 4)] if self.width == 4 else halves(self.grid, entries)
        return steps


def halves(grid: Ptr, entries: Sequence[Value]) -> list[Value]:
    """The first four codes of each of 16 rows' entries, and the last four: two steps."""
    # Two rows of every four in one vector, two in the other: the halves then meet without crossing 16 bytes.
    parts = [[entries[r] for r in range(ROWS) if r % 4 // 2 == i] for i in range(2)]
    a, b = (gather(grid, part, 8).as_("i32") for part in parts)
    order = [r // 4 * 4 + r % 2 * 2 + r % 4 // 2 * ROWS for r in range(ROWS)]
    return [a.shuffle([lane + half for lane in order], b).as_("u8") for half in range(2)]


class Columns(GridCodes):
    """Entries looked up in registers: the first code of 64 entries, the second of these, and so on."""

    def open(self) -> None:
        k = self.at.k
        columns = [self.codes[j :: self.width] for j in range(self.width)]
        self.tables = [constant(k, f"{self.name}_{j}", column) for j, column in enumerate(columns)]
        if self.bits > 8:
            self.high = room(k, self.fields[0].nbytes)
            for i, upper in enumerate(self.upper()):
                self.high.store(upper, i * VECTOR, VECTOR)

    def steps(self, span: Value | int) -> list[Value]:
        steps = list[Value]()
        for v in range(self.vectors):
            at = span * (self.vectors * VECTOR)
            low = self.at.at(at).load("u8", VECTOR, v * VECTOR, VECTOR)
            bits = [low.compare(">=", 128)]
            if self.bits > 8:
                high = self.high.at(at).load("u8", VECTOR, v * VECTOR, VECTOR)
                bits += [(high & (1 << i)).compare("!=", 0) for i in range(self.bits - 8)]
            columns = [wide_lookup(low, bits, table) for table in self.tables]
            parts = [woven(columns[i : i + 4]) for i in range(0, self.width, 4)]
            steps += [part[j] for j in range(4) for part in parts]
        return steps


def woven(columns: Sequence[Value]) -> list[Value]:
    """Four codes, each of four entries of 16 rows, as a step for each of the entries."""
    pairs = [[beside(columns[i], columns[i + 1], 1, half) for i in (0, 2)] for half in range(2)]
    return [beside(first, second, 2, half) for first, second in pairs for half in range(2)]


def beside(a: Value, b: Value, size: int, half: int) -> Value:
    """Of each 16 bytes of a and of b the first or the second eight, `size` of a and of b by turns."""
    order = list[int]()
    for at in range(0, VECTOR, 16):
        for i in range(at + 8 * half, at + 8 * half + 8, size):
            order += [*range(i, i + size), *range(VECTOR + i, VECTOR + i + size)]
    return a.shuffle(order, b)


def grid_of(panel: Panel, at: Ptr) -> GridCodes:
    """The way that is fastest on the kernel's target. Where the grid has sizes, codes are zero + size."""
    quant = panel.quant
    assert quant.grid is not None
    way = Columns if at.k.target.wide_lookups and quant.grid.entries <= MOST else Loads
    zero = quant.zero if panel.has_signs else 0
    return way(panel, at, bytes(code + zero for code in quant.grid.data))


def in_entry_order(step: Value) -> Value:
    """Four numbers of 16 rows, from the order of a step to that of entries."""
    order = [0] * VECTOR
    for r in range(ROWS):
        for j in range(4):
            order[PLACES[r][j]] = 4 * r + j
    return step.shuffle(order)

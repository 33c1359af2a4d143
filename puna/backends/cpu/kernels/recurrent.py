"""Operations with a state: a unit is a sequence with one head, or some channels; see `walks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import cast

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.pooled import pool_work
from puna.backends.cpu.kernels.walks import Work, carry, operands, sizes, units
from puna.backends.cpu.lang import Kernel, Ptr, Value, Var
from puna.backends.cpu.verbs import exp, fma, sum_lanes
from puna.graph import Node

__all__ = [
    "RECURRENT",
    "conv",
    "delta",
    "ngrams",
    "previous",
    "scan",
    "wkv",
    "wkv7",
]

LANES = 16
VECTORS = 8  # of a state's row that are taken at once: as many sums are in registers


def conv(k: Kernel, *, channels: int, taps: int, apart: int) -> None:
    """The last inputs of some channels stay in registers, the oldest first."""
    past = (taps - 1) * apart
    lanes = gcd(channels, LANES)
    out, x, w = operands(k, 2)
    for part, found in units(k, channels // lanes, past * channels):
        at = part * (lanes * 4)
        every = w.load("f32", lanes * taps, at * taps, 4)
        weights = [every[j::taps] for j in range(taps)]
        for rows in found:
            known = [k.var(rows.source.load("f32", lanes, at + j * channels * 4, 4)) for j in range(past)]
            for row in k.loop(rows.first, rows.first + rows.count):
                place = row * (channels * 4) + at
                values = [*(value.now for value in known), x.load("f32", lanes, place, 4)]
                total = values[0] * weights[0]
                for value, weight in zip(values[apart::apart], weights[1:], strict=True):
                    total = fma(value, weight, total)
                out.store(total, place, 4)
                for variable, value in zip(known, values[1:], strict=True):
                    variable.set(value)
            for j, variable in enumerate(known):
                rows.target.store(variable.now, at + j * channels * 4, 4)


def scan(k: Kernel, *, heads: int, size: int, groups: int, state: int, shared: bool, timed: bool) -> None:
    """shared: one decay for all of a head's state, which is [size, state].  timed: there are time steps."""
    lanes = gcd(state, LANES)
    out, x, b, c, a, *dt = operands(k, 5 if timed else 4)
    for head, found in units(k, heads, heads * size * state):
        group, decays = head // (heads // groups), a.at(head * ((1 if shared else state) * 4))
        for rows in found:
            kept = carry(k, rows, head * (size * state * 4), size * state // lanes, lanes * 4, (lanes, 1))
            for row in k.loop(rows.first, rows.first + rows.count):
                step = dt[0].load("f32", 1, (row * heads + head) * 4, 4) if timed else k.const("f32", 1.0)
                both = (row * groups + group) * (state * 4)
                factor = exp(step * decays.load("f32", 1, 0, 4)) if shared else None
                for p in k.loop(0, size):
                    place = ((row * heads + head) * size + p) * 4
                    put, total = x.load("f32", 1, place, 4) * step, k.var(k.zeros("f32", lanes))
                    for n in k.loop(0, state * 4, lanes * 4):
                        by = factor if factor is not None else exp(decays.load("f32", lanes, n, 4) * step)
                        old = kept.load("f32", lanes, p * (state * 4) + n, 4) * by
                        new = fma(b.load("f32", lanes, both + n, 4), put, old)
                        kept.store(new, p * (state * 4) + n, 4)
                        total.set(fma(new, c.load("f32", lanes, both + n, 4), total.now))
                    out.store(sum_lanes(total.now), place, 4)


@dataclass(frozen=True)
class Cell:
    """One row of a unit that has some columns of a head's state [key, value].

    No other column has a say in what becomes of them.
    place: of the row and head among all.  column: bytes to the first.  state: where that column begins.
    """

    row: Value
    head: Value
    place: Value
    column: Value
    state: Ptr
    value: int
    lanes: int
    vectors: int

    def at(self, i: Value) -> Ptr:
        """The columns of a row of the state."""
        return self.state.at(i * (self.value * 4))

    @property
    def target(self) -> Value:
        """Bytes to the columns in a [T, heads, value]."""
        return self.place * (self.value * 4) + self.column

    def load(self, source: Ptr, n: int) -> Value:
        return source.load("f32", self.lanes, n * self.lanes * 4, 4)

    def store(self, target: Ptr, n: int, value: Value) -> None:
        target.store(value, n * self.lanes * 4, 4)

    def sums(self) -> list[Var]:
        k = self.row.k
        return [k.var(k.zeros("f32", self.lanes)) for _ in range(self.vectors)]


def column_parts(value: int) -> tuple[int, int, int]:
    """Lanes, vectors that are taken at once, and how many such runs make a row of the state."""
    lanes = gcd(value, LANES)
    vectors = gcd(value // lanes, VECTORS)
    return lanes, vectors, value // (lanes * vectors)


def cells(k: Kernel, heads: int, key: int, value: int) -> Iterator[Cell]:
    """All rows of all units."""
    lanes, vectors, columns = column_parts(value)
    for part, found in units(k, heads * columns, heads * key * value):
        head, column = part // columns, part % columns * (lanes * vectors * 4)
        for rows in found:
            kept = carry(k, rows, head * (key * value * 4) + column, key, value * 4, (lanes, vectors))
            for row in k.loop(rows.first, rows.first + rows.count):
                yield Cell(row, head, row * heads + head, column, kept, value, lanes, vectors)


def delta(k: Kernel, *, heads: int, groups: int, key: int, value: int, shared: bool, tiled: bool) -> None:
    """shared: one decay for all of a head's state, else one for each of its rows."""
    out, q, keys, v, decay, beta = operands(k, 5)
    for cell in cells(k, heads, key, value):
        group = cell.head % groups if tiled else cell.head // (heads // groups)
        both = (cell.row * groups + group) * (key * 4)
        decays = decay.at(cell.place * ((1 if shared else key) * 4))
        factor = exp(decays.load("f32", 1, 0, 4)) if shared else None
        known, sums, target = cell.sums(), cell.sums(), cell.target
        for i in k.loop(0, key):
            by = factor if factor is not None else exp(decays.load("f32", 1, i * 4, 4))
            weight, at = keys.load("f32", 1, both + i * 4, 4), cell.at(i)
            for n, total in enumerate(known):
                old = cell.load(at, n) * by
                cell.store(at, n, old)
                total.set(fma(old, weight, total.now))
        learned = beta.load("f32", 1, cell.place * 4, 4)
        changes = [(cell.load(v.at(target), n) - total.now) * learned for n, total in enumerate(known)]
        for i in k.loop(0, key):
            weight, asked = (x.load("f32", 1, both + i * 4, 4) for x in (keys, q))
            at = cell.at(i)
            for n, (change, total) in enumerate(zip(changes, sums, strict=True)):
                new = fma(change, weight, cell.load(at, n))
                cell.store(at, n, new)
                total.set(fma(new, asked, total.now))
        for n, total in enumerate(sums):
            cell.store(out.at(target), n, total.now)


def wkv(k: Kernel, *, heads: int, key: int, value: int, bonus: bool) -> None:
    """bonus: what is new counts by weights of its own before it goes into the state."""
    out, r, keys, v, decay, *first = operands(k, 5 if bonus else 4)
    for cell in cells(k, heads, key, value):
        both, target, sums = cell.place * (key * 4), cell.target, cell.sums()
        values = [cell.load(v.at(target), n) for n in range(cell.vectors)]
        for i in k.loop(0, key):
            asked, weight, by = (x.load("f32", 1, both + i * 4, 4) for x in (r, keys, decay))
            factor, at = exp(by), cell.at(i)
            for n, total in enumerate(sums):
                old, put = cell.load(at, n), values[n] * weight
                new = fma(old, factor, put)
                seen = new
                if bonus:
                    seen = fma(put, first[0].load("f32", 1, (cell.head * key + i) * 4, 4), old)
                cell.store(at, n, new)
                total.set(fma(seen, asked, total.now))
        for n, total in enumerate(sums):
            cell.store(out.at(target), n, total.now)


def wkv7(k: Kernel, *, heads: int, key: int, value: int) -> None:
    out, r, keys, v, decay, a, b = operands(k, 6)
    for cell in cells(k, heads, key, value):
        both, target, known, sums = cell.place * (key * 4), cell.target, cell.sums(), cell.sums()
        values = [cell.load(v.at(target), n) for n in range(cell.vectors)]
        for i in k.loop(0, key):
            weight, at = a.load("f32", 1, both + i * 4, 4), cell.at(i)
            for n, total in enumerate(known):
                total.set(fma(cell.load(at, n), weight, total.now))
        found = [total.now for total in known]
        for i in k.loop(0, key):
            asked, weight, by, back = (x.load("f32", 1, both + i * 4, 4) for x in (r, keys, decay, b))
            factor, at = exp(by), cell.at(i)
            for n, total in enumerate(sums):
                new = fma(found[n], back, fma(values[n], weight, cell.load(at, n) * factor))
                cell.store(at, n, new)
                total.set(fma(new, asked, total.now))
        for n, total in enumerate(sums):
            cell.store(out.at(target), n, total.now)


def ngrams(
    k: Kernel, *, end: int, factors: tuple[int, ...], sizes: tuple[int, ...], starts: tuple[int, ...]
) -> None:
    """One unit a sequence. What is kept are ids plus one, the latest last; 0 is where a text begins."""
    back, each = len(factors) - 1, len(sizes) // (len(factors) - 1)
    out, ids = operands(k, 1)
    for _, found in units(k, 1, back):
        for rows in found:
            known = [k.var(rows.source.load("i32", 1, n * 4, 4)) for n in range(back)]
            for row in k.loop(rows.first, rows.first + rows.count):
                token = ids.load("i32", 1, row * 4, 4)
                mixed, cut = token.to("i64") * wrapped(factors[0]), token < -1
                for n, factor in enumerate(factors[1:]):
                    one = known[back - 1 - n].now
                    cut = k.either(cut, k.either(one < 1, one.compare("==", end + 1)))
                    mixed = mixed ^ k.select(cut, k.const("i32", end), one - 1).to("i64") * wrapped(factor)
                    for i in range(n * each, (n + 1) * each):
                        place = (row * len(sizes) + i) * 4
                        out.store((mixed.remainder(sizes[i]) + starts[i]).to("i32"), place, 4)
                for variable, value in zip(known, [*(v.now for v in known[1:]), token + 1], strict=True):
                    variable.set(value)
            for n, variable in enumerate(known):
                rows.target.store(variable.now, n * 4, 4)


def wrapped(number: int) -> int:
    """64 bits, as the number with a sign that has them."""
    return number - (1 << 64) if number >> 63 else number


def previous(k: Kernel, *, channels: int) -> None:
    """The last row of some channels stays in a register."""
    lanes = gcd(channels, LANES)
    out, x = operands(k, 1)
    for part, found in units(k, channels // lanes, channels):
        at = part * (lanes * 4)
        for rows in found:
            known = k.var(rows.source.load("f32", lanes, at, 4))
            for row in k.loop(rows.first, rows.first + rows.count):
                place = row * (channels * 4) + at
                out.store(known.now, place, 4)
                known.set(x.load("f32", lanes, place, 4))
            rows.target.store(known.now, at, 4)


def conv_work(node: Node) -> Work:
    (channels,), taps = sizes(node), sizes(node.inputs[1])[-1]
    how = {"channels": channels, "taps": taps, "apart": cast(int, node.attrs.get("apart", 1))}
    return Work(Spec.of(conv, **how), channels // gcd(channels, LANES))


def scan_work(node: Node) -> Work:
    (heads, size), (groups, state) = sizes(node), sizes(node.inputs[1])
    how = {"heads": heads, "size": size, "groups": groups, "state": state}
    shared, timed = sizes(node.inputs[3])[-1] == 1, len(node.inputs) > 4
    return Work(Spec.of(scan, **how, shared=shared, timed=timed), heads)


def delta_work(node: Node) -> Work:
    (groups, key), (heads, value) = sizes(node.inputs[1]), sizes(node)
    how = {"heads": heads, "groups": groups, "key": key, "value": value}
    shared, tiled = sizes(node.inputs[3])[-1] == 1, bool(node.attrs.get("tiled"))
    return Work(Spec.of(delta, **how, shared=shared, tiled=tiled), heads * column_parts(value)[2])


def wkv_work(node: Node) -> Work:
    (heads, value), key = sizes(node), sizes(node.inputs[1])[1]
    how = {"heads": heads, "key": key, "value": value}
    parts = heads * column_parts(value)[2]
    if node.op == "wkv7":
        return Work(Spec.of(wkv7, **how), parts)
    return Work(Spec.of(wkv, **how, bonus=len(node.inputs) > 4), parts)


def ngrams_work(node: Node) -> Work:
    how = {name: node.attrs[name] for name in ("end", "factors", "sizes", "starts")}
    return Work(Spec.of(ngrams, **how), 1)


def previous_work(node: Node) -> Work:
    (channels,) = sizes(node)
    return Work(Spec.of(previous, channels=channels), channels // gcd(channels, LANES))


RECURRENT: Mapping[str, Callable[[Node], Work]] = {
    "conv": conv_work,
    "delta": delta_work,
    "ngrams": ngrams_work,
    "pool": pool_work,
    "previous": previous_work,
    "scan": scan_work,
    "wkv": wkv_work,
    "wkv7": wkv_work,
}

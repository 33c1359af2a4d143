"""Operations with a state, on every backend against their definitions, however a text is cut into steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from puna import backends, plan
from puna.backends import Backend
from puna.cache import KVCache
from puna.graph import Graph, Node, SpecError, check, make, state_shape
from puna.plan import KVLayout

COUNT = 150
CUTS = ([150], [1] * 20, [64, 64, 22], [7, 100, 1, 42])


class Tables:
    """Stands for an open file: token t brings row t of each table but those that are whole."""

    def __init__(self, seed: int, **shapes: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        self.values = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}

    def data(self, name: str) -> np.ndarray:
        return self.values[name].view(np.uint8)

    def drop(self, name: str, start: int = 0, stop: int = 0) -> None:
        pass

    def whole(self, name: str) -> Node:
        return make("weight", tensor=name, dtype="F32", shape=self.values[name].shape)

    def rows(self, name: str, *shape: int) -> Node:
        return make("reshape", make("embed", self.whole(name), make("tokens")), shape=("T", *shape))

    def double(self, name: str, *shape: int) -> np.ndarray:
        return self.values[name].astype(np.float64).reshape(-1, *shape)


def output(y: Node) -> Graph:
    size = int(np.prod(y.type.shape[1:]))
    return Graph(make("select", make("reshape", y, shape=("T", size))))


def conv(channels: int, taps: int, apart: int = 1) -> tuple[Tables, Graph, np.ndarray]:
    tables = Tables(1, x=(COUNT, channels), w=(channels, taps))
    x, w = tables.double("x", channels), tables.double("w", taps)
    known = np.concatenate([np.zeros((apart * (taps - 1), channels)), x])
    want = np.stack([sum(known[t + apart * j] * w[:, j] for j in range(taps)) for t in range(COUNT)])
    how = {"state": "s", "apart": apart} if apart > 1 else {"state": "s"}
    return tables, output(make("conv", tables.rows("x", channels), tables.whole("w"), **how)), want


def ngrams() -> tuple[Tables, Graph, np.ndarray]:
    """Text is the numbers 0, 1, 2 ...; 64 cuts it."""
    factors, sizes, starts, end = (2**63 + 5, 77, 12345678901), (17, 31, 5, 1), (3, 20, 51, 56), 64
    tables = Tables(6, table=(57, 8))
    ids = make("ngrams", make("tokens"), state="s", end=end, factors=factors, sizes=sizes, starts=starts)
    want = []
    for t in range(COUNT):
        back = [t, t - 1 if t > 0 else end, t - 2 if t > 1 else end]
        back = [t, end, end] if back[1] == end else back
        two = (back[0] * factors[0]) % 2**64 ^ (back[1] * factors[1])
        mixed = [two, two, *2 * [two ^ (back[2] * factors[2] % 2**64)]]
        want.append([m % size + start for m, size, start in zip(mixed, sizes, starts, strict=True)])
    y = make("reshape", make("embed", tables.whole("table"), ids), shape=("T", 32))
    return tables, output(y), tables.double("table", 8)[np.array(want)].reshape(COUNT, -1)


def scan(
    heads: int, size: int, groups: int, state: int, decays: int, timed: bool = True, fixed: bool = False
) -> tuple[Tables, Graph, np.ndarray]:
    shapes = {"x": (COUNT, heads * size), "dt": (COUNT, heads), "a": (heads, decays)}
    tables = Tables(2, **shapes, b=(COUNT, groups * state), c=(COUNT, groups * state))
    tables.values["a"] = -np.abs(tables.values["a"])
    tables.values["dt"] = np.abs(tables.values["dt"]) if timed else np.ones((COUNT, heads), np.float32)
    x, b, c = (
        tables.double("x", heads, size),
        tables.double("b", groups, state),
        tables.double("c", groups, state),
    )
    dt, a, s, want = (
        tables.double("dt", heads),
        tables.double("a", decays),
        np.zeros((heads, size, state)),
        [],
    )
    for t in range(COUNT):
        for h in range(heads):
            g = h // (heads // groups)
            s[h] = s[h] * np.exp(dt[t, h] * a[h]) + dt[t, h] * np.outer(x[t, h], b[t, g])
        want.append([s[h] @ c[t, h // (heads // groups)] for h in range(heads)])
    parts = tables.rows("x", heads, size), tables.rows("b", groups, state), tables.rows("c", groups, state)
    numbers = tuple(tables.values["a"].reshape(-1).tolist())
    by = make("constant", values=numbers, shape=(heads, decays)) if fixed else tables.whole("a")
    more = (by, tables.rows("dt", heads)) if timed else (by,)
    return tables, output(make("scan", *parts, *more, state="s")), np.array(want).reshape(COUNT, -1)


def delta(
    heads: int, groups: int, key: int, value: int, decays: int, tiled: bool
) -> tuple[Tables, Graph, np.ndarray]:
    shapes = {"q": (COUNT, groups * key), "k": (COUNT, groups * key), "v": (COUNT, heads * value)}
    tables = Tables(3, **shapes, decay=(COUNT, heads * decays), beta=(COUNT, heads))
    tables.values["decay"] = -np.abs(tables.values["decay"])
    tables.values["beta"] = 1 / (1 + np.exp(-tables.values["beta"]))
    tables.values["k"] /= np.float32(np.sqrt(key))
    q, k, v = (
        tables.double(n, *s) for n, s in (("q", (groups, key)), ("k", (groups, key)), ("v", (heads, value)))
    )
    decay, beta = tables.double("decay", heads, decays), tables.double("beta", heads)
    s, want = np.zeros((heads, key, value)), np.empty((COUNT, heads, value))
    for t in range(COUNT):
        for h in range(heads):
            g = h % groups if tiled else h // (heads // groups)
            s[h] *= np.exp(decay[t, h])[:, None]
            s[h] += np.outer(k[t, g], beta[t, h] * (v[t, h] - k[t, g] @ s[h]))
            want[t, h] = q[t, g] @ s[h]
    parts = tables.rows("q", groups, key), tables.rows("k", groups, key), tables.rows("v", heads, value)
    more = tables.rows("decay", heads, decays), tables.rows("beta", heads, 1)
    return tables, output(make("delta", *parts, *more, state="s", tiled=tiled)), want.reshape(COUNT, -1)


def pool(channels: int, every: int, overlap: bool) -> tuple[Tables, Graph, np.ndarray]:
    tables = Tables(7, x=(COUNT, channels), scores=(COUNT, channels), offsets=(every, channels))
    x, scores, offsets = (tables.double(name, channels) for name in ("x", "scores", "offsets"))
    size = channels // 2 if overlap else channels
    scores, want = scores + offsets[np.arange(COUNT) % every], np.zeros((COUNT, size))
    for t in range(every - 1, COUNT, every):
        known = [(x[p, channels - size :], scores[p, channels - size :]) for p in range(t + 1 - every, t + 1)]
        if overlap and t >= every:
            known += [(x[p, :size], scores[p, :size]) for p in range(t + 1 - 2 * every, t + 1 - every)]
        values, weights = (np.array(part) for part in zip(*known, strict=True))
        want[t] = (np.exp(weights) * values).sum(axis=0) / np.exp(weights).sum(axis=0)
    rows, how = (
        [tables.rows(name, channels) for name in ("x", "scores")],
        {"every": every, "overlap": overlap},
    )
    y = make("pool", *rows, tables.whole("offsets"), make("positions"), state="s", **how)
    return tables, output(y), want


def previous(channels: int) -> tuple[Tables, Graph, np.ndarray]:
    tables = Tables(4, x=(COUNT, channels))
    want = np.concatenate([np.zeros((1, channels)), tables.double("x", channels)[:-1]])
    return tables, output(make("previous", tables.rows("x", channels), state="s")), want


def wkv(heads: int, key: int, value: int, kind: str) -> tuple[Tables, Graph, np.ndarray]:
    names = [*"rk", "decay", *("ab" if kind == "7" else "")]
    tables = Tables(
        5, **dict.fromkeys(names, (COUNT, heads * key)), v=(COUNT, heads * value), first=(heads, key)
    )
    tables.values["decay"] = -np.abs(tables.values["decay"])
    if kind == "7":
        tables.values["a"] /= np.float32(2 * key)
    x = {name: tables.double(name, heads, key) for name in names}
    v, first = tables.double("v", heads, value), tables.double("first", key)
    s, want = np.zeros((heads, key, value)), np.empty((COUNT, heads, value))
    for t in range(COUNT):
        for h in range(heads):
            new, r = np.outer(x["k"][t, h], v[t, h]), x["r"][t, h]
            before, factor = s[h].copy(), np.exp(x["decay"][t, h])[:, None]
            s[h] = before * factor + new
            if kind == "7":
                s[h] += np.outer(x["b"][t, h], x["a"][t, h] @ before)
            want[t, h] = r @ (before + first[h][:, None] * new if kind == "6" else s[h])
    r, k, decay, *ab = (tables.rows(name, heads, key) for name in names)
    more = {"6": [tables.whole("first")], "7": ab, "": []}[kind]
    y = make("wkv7" if kind == "7" else "wkv", r, k, tables.rows("v", heads, value), decay, *more, state="s")
    return tables, output(y), want.reshape(COUNT, -1)


CASES = {
    **{f"conv {n}x{taps}": conv(n, taps) for n, taps in ((1, 2), (20, 4), (48, 3), (33, 9))},
    "conv, taps apart": conv(20, 4, apart=3),
    "ngrams": ngrams(),
    "scan of one value a head": scan(24, 1, 1, 16, 16),
    "scan of heads": scan(6, 8, 2, 32, 1),
    "scan of odd sizes": scan(3, 5, 1, 7, 7),
    "scan without time steps": scan(4, 16, 4, 16, 1, timed=False),
    "scan of decays that are no weights": scan(4, 8, 4, 16, 1, timed=False, fixed=True),
    "delta": delta(4, 2, 16, 32, 1, False),
    "delta, tiled": delta(4, 2, 16, 32, 1, True),
    "delta, a decay a value": delta(2, 2, 24, 160, 24, False),
    "delta of odd sizes": delta(3, 1, 5, 7, 1, False),
    "pool": pool(32, 50, False),
    "pool with overlap": pool(64, 4, True),
    "pool of odd sizes": pool(14, 3, True),
    "previous": previous(48),
    "previous of odd sizes": previous(5),
    **{f"wkv{kind} {value}": wkv(2, 16, value, kind) for kind in ("", "6", "7") for value in (7, 32, 160)},
}


class Runs:
    """A graph on a backend, with room for the states of two texts."""

    def __init__(self, backend: Backend[Any, Any], tables: Tables, graph: Graph) -> None:
        self.backend = backend
        kv = KVLayout.of(graph, 256, "F32", "F32", parallel=2)
        steps = plan.make_plan(
            graph, tokens=256, rows=256, kv=kv, scratch=backend.scratch, row_ops=backend.describe().row_ops
        )
        self.program = backend.compile(steps, backend.upload(graph, tables, None))  # type: ignore[arg-type]
        self.cache, self.width = KVCache(kv, 256), int(graph.output.type.shape[1])

    def rows(self, cuts: list[int], beside: bool) -> np.ndarray:
        """A text in steps, beside another one or not."""
        mine, other, out, done = self.cache.open(), self.cache.open(), [], 0
        for count in cuts:
            text = [(mine, list(range(done, done + count)))]
            if beside:
                text.insert(0, (other, list(range(len(other), len(other) + 3))))
            first = 3 if beside else 0
            batch = self.cache.append(*text, outputs=range(first, first + count))
            made = np.empty((count, self.width), np.float32)
            self.backend.run(self.program, batch, made)
            out.append(made)
            done += count
        self.cache.close(mine)
        self.cache.close(other)
        return np.concatenate(out)


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_the_definition(name: str, case: str) -> None:
    """The definition's numbers; on the CPU the same bits for any cuts, beside another text and on two threads."""
    tables, graph, want = CASES[case]
    check(graph)
    runs = Runs(backends.create(name, 1), tables, graph)
    whole = runs.rows([COUNT], beside=False)
    np.testing.assert_allclose(whole, want, atol=2e-5 * np.abs(want).max())
    for cuts in CUTS:
        for beside in (False, True):
            got = runs.rows(cuts, beside)
            np.testing.assert_allclose(got, want[: len(got)], atol=2e-5 * np.abs(want).max())
            assert name != "cpu" or (got == whole[: len(got)]).all()
    if name == "cpu":
        assert (Runs(backends.create(name, 2), tables, graph).rows([COUNT], True) == whole).all()


def test_states_are_planned() -> None:
    """A layout has slots for every state of the graph, counts their bytes, and no state has two users."""
    _, graph, _ = CASES["scan of heads"]
    kv = KVLayout.of(graph, 256, "F32", "F32", parallel=2)
    assert kv.states == {"s": (6, 8, 32)}
    assert kv.slots == 7
    assert kv.nbytes == 7 * 6 * 8 * 32 * 4
    assert [state_shape(n) for n in graph.nodes if n.op == "scan"] == [(6, 8, 32)]
    both = graph.output.inputs[0].inputs[0]
    again = Node(both.op, both.inputs, both.type, dict(both.attrs))
    twice = make("reshape", make("add", both, again), shape=("T", 48))
    with pytest.raises(SpecError, match="state s is used twice"):
        check(Graph(make("select", twice)))

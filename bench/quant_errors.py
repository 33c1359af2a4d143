"""How far quantised weights are from what they were: Puna's quantisers, and others on the same values.

    python bench/quant_errors.py [--llama-python PYTHON] [--write docs/quants.md]

The values are drawn from a normal distribution of deviation 1. The weights of the columns, which an importance matrix
gives otherwise, spread over about two orders of magnitude. Without an interpreter that has llama_cpp, the gguf package
stands in for it where it has a quantiser.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare import publish
from numpy.typing import NDArray

from puna import __version__
from puna.quants import QuantType, by_name, dequantize, quantize
from puna.quants.quantizers import QUANTIZERS

__all__ = ["Row", "error", "main", "render", "rows", "sample"]

Floats = NDArray[np.float32]
Blocks = dict[tuple[str, bool], NDArray[np.uint8]]  # by type, and whether with weights
MARK = "quant errors"
SEED, COLUMNS = 1, 2048
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """Root mean square errors of a type, without and with weights; None where there is no quantiser."""

    quant: QuantType
    own: tuple[float, float]
    other: tuple[float | None, float | None]


def sample(values: int) -> tuple[Floats, Floats]:
    """Values [rows, COLUMNS] and weights [COLUMNS]."""
    random = np.random.default_rng(SEED)
    x = random.standard_normal((max(1, values // COLUMNS), COLUMNS), np.float32)
    return x, np.exp(random.standard_normal(COLUMNS)).astype(np.float32)


def error(quant: QuantType, raw: NDArray[np.uint8], x: Floats, weights: Floats | None) -> float:
    squares = (dequantize(quant, raw).astype(np.float64) - x) ** 2
    return float(np.sqrt(np.average(squares.mean(axis=0), weights=weights)))


def names() -> list[str]:
    """Types of blocks that have a quantiser."""
    return [name for name in QUANTIZERS if by_name(name).block > 1]


def by_llama(python: str, x: Floats, weights: Floats) -> tuple[str, Blocks]:
    """llama.cpp's version and blocks."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "values.npy"), x)
        np.save(Path(folder, "weights.npy"), weights)
        words = [f"{name}={by_name(name).id}" for name in names()]
        done = subprocess.run(
            [python, str(HERE / "quants_llama.py"), folder, *words],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        blocks = {
            (name, weighted): np.load(Path(folder, f"{name}{'-weighted' * weighted}.npy"))
            for name in names()
            for weighted in (False, True)
        }
    return done.stdout.splitlines()[-1], blocks


def by_gguf(x: Floats) -> tuple[str, Blocks]:
    """The gguf package's version and blocks, which know no weights."""
    from importlib.metadata import version

    import gguf

    blocks: Blocks = {}
    for name in names():
        with suppress(NotImplementedError):
            blocks[name, False] = gguf.quantize(x, gguf.GGMLQuantizationType[name])
    return f"gguf {version('gguf')}", blocks


def rows(x: Floats, weights: Floats, others: Blocks) -> Iterator[Row]:
    for name in names():
        quant = by_name(name)
        own, other = [], []
        for given in (None, weights):
            own.append(error(quant, quantize(quant, x, given), x, given))
            raw = others.get((name, given is not None))
            other.append(None if raw is None else error(quant, raw, x, given))
        yield Row(quant, (own[0], own[1]), (other[0], other[1]))


def render(found: Sequence[Row], other: str, about: str) -> str:
    """The table in Markdown, from the fewest bits a weight to the most."""
    columns = [
        heading for kind in ("", ", weighted") for heading in (f"Puna{kind}", f"{other}{kind}", "ratio")
    ]
    lines = [f"| type | bits a weight | {' | '.join(columns)} |", f"| --- |{' ---: |' * (len(columns) + 1)}"]
    for row in sorted(found, key=lambda row: (row.quant.bits_per_weight, row.quant.id)):
        cells = [row.quant.name, f"{row.quant.bits_per_weight:.4g}"]
        for mine, theirs in zip(row.own, row.other, strict=True):
            cells += [f"{mine:.5f}"]
            cells += ["-", "-"] if theirs is None else [f"{theirs:.5f}", f"{mine / theirs:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", about])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="errors of quantised weights")
    parser.add_argument("--llama-python", metavar="PYTHON", help="an interpreter that has llama_cpp")
    parser.add_argument("--values", type=int, default=1 << 19, metavar="N", help="values that are quantised")
    parser.add_argument("--write", metavar="PAGE", help="put the table into this page")
    args = parser.parse_args(argv)
    x, weights = sample(args.values)
    version, others = by_llama(args.llama_python, x, weights) if args.llama_python else by_gguf(x)
    about = f"Puna {__version__}, {version}; {x.size} values. A ratio below 1 says that Puna errs less."
    table = render(list(rows(x, weights, others)), version.split()[0], about)
    publish(table, args.write, MARK)
    return 0


if __name__ == "__main__":
    sys.exit(main())

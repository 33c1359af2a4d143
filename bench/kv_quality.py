"""What types of the KV cache cost a model: how far its predictions are from those with F16 keys and values.

    python bench/kv_quality.py MODEL -f TEXT [--llama-python PYTHON] [--pairs all] [--write docs/memory.md]

The text's first tokens are fed in steps of 512; the predictions after the last of them, which see all that is held,
are compared. llama.cpp is compared with itself, with the same ids.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np
from compare import publish
from numpy.typing import NDArray

import puna
from puna.measure import processor
from puna.measure.divergence import kld, same_top
from puna.measure.windows import log_totals
from puna.quants import by_name

__all__ = ["TYPES", "main"]

TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
HERE = Path(__file__).resolve().parent
BATCH, THREADS = 512, 2


@dataclass(frozen=True)
class Cost:
    """kld: mean divergence in nats.  same: share of positions with the same likeliest token."""

    kld: float
    same: float


def run(path: Path, ids: Sequence[int], last: int, keys: str, values: str) -> NDArray[np.float32]:
    """Logits after the last ids, float32 [last, vocabulary]."""
    model = puna.load(path, n_ctx=len(ids), parallel=1, cache_type_k=keys, cache_type_v=values)
    out, sequence, at = np.empty((last, model.n_vocab), np.float32), model.cache.open(), 0
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        rows = [i for i in range(len(part)) if start + i >= len(ids) - last]
        model.run(sequence, part, rows, out[at : at + len(rows)])
        at += len(rows)
    return out


def costs(
    path: Path, ids: Sequence[int], last: int, pairs: Sequence[tuple[str, str]]
) -> Iterator[Cost | None]:
    """Of each pair of types."""
    base = run(path, ids, last, "f16", "f16")
    base -= log_totals(base)[:, None].astype(np.float32)
    for keys, values in pairs:
        logits = run(path, ids, last, keys, values)
        yield Cost(float(kld(base, logits).mean()), float(same_top(base, logits).mean()))


def costs_of_llama(
    python: str, path: Path, ids: Sequence[int], last: int, pairs: Sequence[tuple[str, str]]
) -> Iterator[Cost | None]:
    """The same by llama.cpp; None for a pair that it does not have."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ids.npy"
        np.save(file, np.array(ids, np.int64))
        words = [str(path), str(file), str(last), str(THREADS), *("/".join(pair) for pair in pairs)]
        command = [python, str(HERE / "kv_llama.py"), *words]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                found = json.loads(line)
                yield found and Cost(**found)
        if process.returncode:
            raise SystemExit(f"error: {' '.join(command)}: status {process.returncode}")


Found = dict[tuple[str, str], tuple[Cost | None, ...]]


def equal_rows(found: Found) -> Iterator[str]:
    """A table of the pairs whose types are equal."""
    yield "| keys and values | bits | divergence | same likeliest | llama.cpp's divergence | same likeliest |"
    yield "| --- |" + " ---: |" * 5
    for kind in TYPES:
        quant = by_name(kind.upper())
        cells = [cell for cost in found[kind, kind] for cell in numbers(cost)]
        cells += ["-"] * (4 - len(cells))
        yield f"| {kind} | {8 * quant.bytes / quant.block:.2f} | {' | '.join(cells)} |"


def numbers(cost: Cost | None) -> tuple[str, str]:
    return (f"{cost.kld:.5f}", f"{100 * cost.same:.1f}%") if cost else ("-", "-")


def all_rows(found: Found) -> Iterator[str]:
    """A table of all pairs: Puna's divergence, then llama.cpp's."""
    yield f"| keys, by values in | {' | '.join(TYPES)} |"
    yield "| --- |" + " ---: |" * len(TYPES)
    for keys in TYPES:
        cells = [
            " / ".join(f"{cost.kld:.4f}" if cost else "-" for cost in found[keys, values]) for values in TYPES
        ]
        yield f"| {keys} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="what types of the KV cache cost a model")
    parser.add_argument("model", type=Path, metavar="MODEL", help="a GGUF file")
    parser.add_argument("-f", "--file", type=Path, required=True, metavar="TEXT", help="a file of text")
    parser.add_argument("--tokens", type=int, default=2000, metavar="N", help="of the text (default 2000)")
    parser.add_argument("--last", type=int, default=256, metavar="N", help="that are compared (default 256)")
    parser.add_argument("--pairs", choices=("equal", "all"), default="equal", help="of types (default equal)")
    parser.add_argument("--llama-python", metavar="PYTHON", help="an interpreter that has llama_cpp")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    args = parser.parse_args(argv)
    ids = puna.load_tokenizer(args.model).tokenize(args.file.read_text(encoding="utf-8"))[: args.tokens]
    pairs = list(product(TYPES, TYPES)) if args.pairs == "all" else [(kind, kind) for kind in TYPES]
    engines = [costs(args.model, ids, args.last, pairs)]
    if args.llama_python:
        engines.append(costs_of_llama(args.llama_python, args.model, ids, args.last, pairs))
    columns = []
    for engine in engines:
        columns.append([])
        for pair, cost in zip(pairs, engine, strict=True):
            columns[-1].append(cost)
            sys.stderr.write(f"{'/'.join(pair)}: {cost}\n")
    found: Found = dict(zip(pairs, zip(*columns, strict=True), strict=True))
    about = f"{args.model.stem}: the last {args.last} of {len(ids)} tokens of {args.file.name}, in nats, each engine"
    about += f" beside its own F16 cache; {processor()}; Puna {puna.__version__}, {date.today()}."
    lines = all_rows(found) if args.pairs == "all" else equal_rows(found)
    publish("\n".join([*lines, "", about]), args.write, f"kv quality {args.pairs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

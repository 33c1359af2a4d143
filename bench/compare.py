"""Puna and llama.cpp side by side, in one run: A B A B for each measure, medians, ratios.

    pip install llama-cpp-python                                   # in an environment of its own, or in this one
    python bench/compare.py MODEL.gguf --llama-python PYTHON [--write docs/performance.md]

Each engine is a process that stays alive with its model loaded; one computes at a time. See `engines.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from engines import Engine, LlamaBench, bench_names, llama_worker, puna_worker
from make_model import MIXES, SHAPES, make_model

from puna.cli.parser import whole
from puna.errors import PunaError
from puna.gguf import GGUFFile
from puna.measure import busy_note, measure_peaks, processor
from puna.measure.report import Subject

__all__ = ["Measure", "Row", "main", "measures", "parsed", "publish", "render", "rewrite"]

OWN = ("Puna", "llama.cpp")  # names of the engines that are no llama-bench
HELD = 64  # tokens that each of the sequences decoded together holds


@dataclass(frozen=True)
class Measure:
    """take: one sample of an engine, None where it cannot.  more: whether more is better."""

    name: str
    take: Callable[[Engine], float | None]
    more: bool = True


@dataclass
class Row:
    """samples: by engine."""

    model: str
    measure: Measure
    samples: dict[str, list[float]] = field(default_factory=dict)

    def median(self, engine: str) -> float | None:
        return statistics.median(self.samples[engine]) if self.samples.get(engine) else None

    def ratio(self, engine: str, other: str) -> float | None:
        """How many times better `engine` is than `other`."""
        a, b = self.median(engine), self.median(other)
        if not a or not b:
            return None
        return a / b if self.measure.more else b / a


def depth_of(model: str, args: argparse.Namespace) -> int:
    """Tokens that a model is also tried with, 0 for none."""
    return int(args.depth) if args.deep in Path(model).stem else 0


def measures(model: str, args: argparse.Namespace) -> Iterator[Measure]:
    """What is measured, in this order: memory before the sequences that are decoded together need more."""

    def rate(do: str, tokens: int, depth: int = 0, **more: int) -> Callable[[Engine], float | None]:
        def take(engine: Engine) -> float | None:
            seconds = engine.ask(do, tokens=tokens, depth=depth, **more)
            return tokens * more.get("sequences", 1) / seconds if seconds else None

        return take

    def memory(engine: Engine) -> float | None:
        found = engine.ask("memory")
        return found / 2**20 if found else None

    yield Measure(f"prefill {args.prefill}, tokens/s", rate("prefill", args.prefill))
    yield Measure(f"decode {args.decode}, tokens/s", rate("decode", args.decode))
    if depth_of(model, args):
        tokens = min(args.decode, 32)
        yield Measure(f"prefill {args.depth}, tokens/s", rate("prefill", args.depth))
        yield Measure(f"decode {tokens} at depth {args.depth}, tokens/s", rate("decode", tokens, args.depth))
    yield Measure("peak memory, MiB", memory, more=False)
    if args.sequences:
        together = rate("together", max(1, args.decode // 4), HELD, sequences=args.sequences)
        yield Measure(f"decode of {args.sequences} sequences together, tokens/s", together)
    if args.first:
        yield Measure("command start to first token, s", lambda engine: engine.first(), more=False)


def compare(model: str, engines: Sequence[Engine], args: argparse.Namespace) -> Iterator[Row]:
    """Samples of every measure, the engines taking turns. The first turn of each is not counted."""
    for measure in measures(model, args):
        row = Row(Path(model).stem, measure)
        once = measure.name.startswith("peak memory")
        for turn in range(1 if once else args.repeats + 1):
            for engine in engines:
                sample = measure.take(engine)
                if sample is not None and (turn or once):
                    row.samples.setdefault(engine.name, []).append(sample)
        report(row, engines)
        yield row


def report(row: Row, engines: Sequence[Engine]) -> None:
    found = ", ".join(f"{e.name} {number(row.median(e.name))}" for e in engines)
    sys.stderr.write(f"{row.model}: {row.measure.name}: {found}\n")


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def render(rows: Sequence[Row], names: Sequence[str], about: Sequence[str]) -> str:
    """The table in Markdown. The first name is the one that the ratios are of."""
    own, *others = names
    heading = ["model", "measure", own, *(cell for other in others for cell in (other, "ratio"))]
    lines = [f"| {' | '.join(heading)} |", f"|{' --- |' * 2}{' ---: |' * (len(heading) - 2)}"]
    for row in rows:
        cells = [row.model, row.measure.name, number(row.median(own))]
        for other in others:
            ratio = row.ratio(own, other)
            cells += [number(row.median(other)), f"{ratio:.2f}" if ratio else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *about])


def machine(engines: Sequence[Engine], args: argparse.Namespace) -> list[str]:
    """What the numbers were taken on, a paragraph."""
    import platform

    import llvmlite
    import psutil

    peaks = measure_peaks()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    best = f"{peaks.read / 1e9:.0f} GB/s read from memory and {peaks.int8 / 1e9:.0f} GOP/s of int8 dots"
    versions = ", ".join(engine.version for engine in engines)
    python = f"Python {platform.python_version()}, llvmlite {llvmlite.__version__}"
    when, where = date.today().isoformat(), f"{processor()}, {cores} cores, {args.threads} threads"
    models = "; ".join(map(described, args.models))
    return [
        f"{when}: {where}; measured at best {best}.",
        f"{versions}, {python}; medians of {args.repeats}. A ratio above 1 says how many times better Puna is.",
        *([f"Models, and the types of their bytes: {models}."] if args.models else []),
    ]


def described(model: str) -> str:
    """A file's architecture, size and mix, and what its tensors are made of."""
    with GGUFFile.open(model) as file:
        sizes = Counter[str]()
        for tensor in file.tensors.values():
            sizes[tensor.quant.name] += tensor.nbytes
        kind = Subject.of(file).kind
    shares = [(name, round(100 * count / sizes.total())) for name, count in sizes.most_common()]
    return (
        f"{Path(model).stem} is {kind} ({', '.join(f'{name} {share}%' for name, share in shares if share)})"
    )


def as_json(rows: Sequence[Row], about: Sequence[str]) -> dict[str, Any]:
    return {
        "about": list(about),
        "rows": [
            {"model": r.model, "measure": r.measure.name, "more": r.measure.more, "samples": r.samples}
            for r in rows
        ],
    }


def rewrite(page: str, table: str, mark: str = "compare") -> str:
    """The page with the table between its marks. Raises ValueError where it has none."""
    block = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- {mark} end -->)", re.DOTALL)
    if not block.search(page):
        raise ValueError(f"there is no <!-- {mark} --> block")
    return block.sub(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", page)


def publish(table: str, page: str | Path | None, mark: str) -> None:
    """Show a table, and put it between its marks in a page, where one is named."""
    sys.stdout.write(table + "\n")
    if page:
        text = Path(page).read_text(encoding="utf-8")
        Path(page).write_text(rewrite(text, table, mark), encoding="utf-8")


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, all of them checked: what follows takes minutes."""
    from puna.backends.cpu.threads import default_threads

    parser = argparse.ArgumentParser(description="Puna and other engines side by side")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="GGUF files")
    parser.add_argument(
        "--types",
        type=kinds,
        default=[],
        metavar="TYPES",
        help="also models made here: all, or q4_0,q6_k,...",
    )
    parser.add_argument("--shape", choices=SHAPES, default="qwen2-0.6b", help="of the models made here")
    parser.add_argument(
        "--llama-python", type=program, metavar="PYTHON", help="an interpreter that has llama_cpp"
    )
    parser.add_argument(
        "--llama-bench",
        type=program,
        action="append",
        default=[],
        metavar="PROGRAM",
        help="a llama-bench; may be repeated",
    )
    parser.add_argument("-t", "--threads", type=whole(1), default=default_threads(), metavar="N")
    parser.add_argument("-r", "--repeats", type=whole(1), default=5, metavar="N")
    parser.add_argument("--prefill", type=whole(1), default=512, metavar="N")
    parser.add_argument("--decode", type=whole(1), default=128, metavar="N")
    parser.add_argument(
        "--depth",
        type=whole(0),
        default=0,
        metavar="N",
        help="also a prompt of N tokens, and decode after them",
    )
    parser.add_argument("--deep", default="", metavar="TEXT", help="--depth for files whose name has TEXT")
    parser.add_argument(
        "--sequences", type=whole(0), default=8, metavar="N", help="decoded together; 0 for none"
    )
    parser.add_argument("--no-first", dest="first", action="store_false", help="leave the start-up time out")
    parser.add_argument("--json", metavar="FILE", help="write all samples there")
    parser.add_argument("--write", metavar="PAGE", help="put the table into this page")
    args = parser.parse_args(argv)
    try:
        check(args)
    except (OSError, PunaError, ValueError) as error:
        parser.error(" ".join(str(error).split()))
    return args


def kinds(text: str) -> list[str]:
    """An argparse type: names of make_model.py's types, by commas."""
    found = list(MIXES) if text == "all" else text.lower().split(",")
    if unknown := [kind for kind in found if kind not in MIXES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of all, {', '.join(MIXES)}")
    return found


def program(text: str) -> str:
    """An argparse type: where a program is that can be run."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no program that can be run")
    return found


def check(args: argparse.Namespace) -> None:
    """Raises OSError, PunaError or ValueError for files that cannot be read or written, and what has no effect."""
    if not args.models and not args.types:
        raise ValueError("there is nothing to measure: name a MODEL, or --types")
    for model in args.models:
        GGUFFile.open(model).close()
    benches = [Path(program).resolve() for program in args.llama_bench]
    if len({*benches}) < len(benches):
        raise ValueError("the same --llama-bench is given twice")
    if args.deep and not any(depth_of(model, args) for model in args.models):
        raise ValueError(f"--deep {args.deep} is in no file's name, or --depth is missing")
    if args.write:
        page = Path(args.write)
        rewrite(page.read_text(encoding="utf-8"), "")
        page.open("a", encoding="utf-8").close()
    if args.json:
        Path(args.json).open("a", encoding="utf-8").close()


def engines_for(model: str, args: argparse.Namespace) -> Iterator[Engine]:
    together = args.sequences * (HELD + max(1, args.decode // 4))
    n_ctx = max(args.prefill, depth_of(model, args) + args.decode, together)
    n_ctx = -(-n_ctx // 64) * 64 + 64 * args.sequences  # a page holds positions of one sequence
    yield puna_worker(model, args.threads, n_ctx)
    if args.llama_python:
        yield llama_worker(args.llama_python, model, args.threads, n_ctx)
    for name, program in zip(bench_names(args.llama_bench, OWN), args.llama_bench, strict=True):
        yield LlamaBench(name, program, model, args.threads)


def main() -> int:
    args = parsed()
    if note := busy_note():
        sys.stderr.write(f"note: {note}\n")
    found = Findings()
    try:
        for model in args.models:
            take(model, args, found)
        with tempfile.TemporaryDirectory() as folder:
            for kind in args.types:
                made = make_model(Path(folder) / f"{args.shape}-{kind}.gguf", args.shape, kind)
                take(str(made), args, found)
                made.unlink()
    finally:  # what was measured is not lost when a later engine fails
        found.show(args.json)
    if args.write:
        page = Path(args.write)
        page.write_text(rewrite(page.read_text(encoding="utf-8"), found.table), encoding="utf-8")
    return 0


@dataclass
class Findings:
    """names: of the engines.  about: what stands below the table."""

    rows: list[Row] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    about: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        return render(self.rows, self.names, self.about)

    def show(self, file: str | None) -> None:
        """Print the table, and write all samples to a file."""
        if not self.rows:
            return
        sys.stdout.write(self.table + "\n")
        if file:
            text = json.dumps(as_json(self.rows, self.about), indent=2)
            Path(file).write_text(text + "\n", encoding="utf-8")


def take(model: str, args: argparse.Namespace, found: Findings) -> None:
    """Measure a model with all engines."""
    with ExitStack() as running:
        engines: list[Engine] = []
        try:
            for engine in engines_for(model, args):
                running.callback(engine.close)
                engines.append(engine)
        except SystemExit as error:
            if not engines or not args.types:
                raise
            sys.stderr.write(f"note: {error}\n")  # llama.cpp does not have every type
        found.names = max(found.names, [engine.name for engine in engines], key=len)
        try:
            for row in compare(model, engines, args):
                found.rows.append(row)
        except SystemExit as error:
            if not args.types:
                raise
            sys.stderr.write(f"note: {error}\n")
    found.about = found.about or machine(engines, args)


if __name__ == "__main__":
    sys.exit(main())

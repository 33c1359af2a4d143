"""What ways of loading cost and save, and how near to its plan a process stays.

    python bench/memory.py modes MODEL [--write docs/memory.md]
    python bench/memory.py resident MODEL ... [--write docs/memory.md]

Every sample is a process of its own. `modes` takes the ways of loading in turns and gives medians; `resident` runs a
prompt that fills the context, and compares what the system says is resident with the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from compare import publish
from engines import peak_memory, token_ids

import puna
from puna.backends.cpu.needs import unpacked
from puna.engine import Model
from puna.gguf import GGUFFile
from puna.measure import busy_note, processor
from puna.measure.resident import mapped, resident
from puna.planning import prepare
from puna.vocabulary import build_tokenizer

__all__ = ["main", "modes", "residents"]

MODES: Mapping[str, Mapping[str, Any]] = {
    "as it is (mapped, packed)": {},
    "--no-mmap": {"mmap": False},
    "--no-repack": {"repack": False},
    "--no-mmap --no-repack": {"mmap": False, "repack": False},
    "--mlock": {"mlock": True},
    "--no-huge-pages": {"huge_pages": False},
    "--mem-align 2097152": {"mem_align": 1 << 21},
}
WAYS: Sequence[Mapping[str, Any]] = (
    {},
    {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    {"mmap": False},
    {"repack": False},
)
NAMES = {"cache_type_k": "-ctk", "cache_type_v": "-ctv"}
TEXT = "The river had been rising since the early morning." * 1000
BATCH, DECODED, MIB = 512, 32, 1 << 20


def sample(do: str, model: Path, options: Mapping[str, Any], cold: bool = False) -> dict[str, float]:
    """What a process of its own finds."""
    command = [sys.executable, __file__, "--one", do, str(model), json.dumps(options)]
    if cold:
        forget(model)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}: status {done.returncode}\n{done.stderr[-1500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def forget(path: Path) -> None:
    """Let the system drop a file from its cache."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def speed(path: Path, options: Mapping[str, Any]) -> dict[str, float]:
    """Load, and run a prompt and a few tokens."""
    begin = time.perf_counter()
    model = puna.load(path, backend="cpu", n_ctx=BATCH + 2 * DECODED, n_batch=BATCH, **options)
    loaded = {
        "load": time.perf_counter() - begin,
        "peak": float(peak_memory() or 0),
        "after": float(resident()),
    }
    row = np.empty((1, model.n_vocab), np.float32)
    ids, times = token_ids(BATCH, model.n_vocab), []
    for _ in range(3):
        sequence = model.cache.open()
        begin = time.perf_counter()
        model.run(sequence, ids, [BATCH - 1], row)
        middle = time.perf_counter()
        for token in ids[:DECODED]:
            model.run(sequence, [token], [0], row)
        times.append((middle - begin, time.perf_counter() - middle))
        model.cache.close(sequence)
    prefill, decode = (min(column) for column in zip(*times[1:], strict=True))
    run = {"prefill": BATCH / prefill, "decode": DECODED / decode, "run": float(resident())}
    return {**loaded, **run, "plan": float(sum(model.memory.values()))}


def filled(path: Path, options: Mapping[str, Any]) -> dict[str, float]:
    """Load, and fill the context."""
    model = puna.load(path, backend="cpu", **options)
    fill(model)
    found = {"resident": resident(), "mapped": mapped(path), "plan": sum(model.memory.values())}
    return {name: float(value) for name, value in found.items()}


def fill(model: Model) -> None:
    """A prompt that fills the context but for one position, and a token."""
    model.tokenize(TEXT)
    ids = token_ids(model.n_ctx - 1, model.n_vocab)
    row, sequence = np.empty((1, model.n_vocab), np.float32), model.cache.open()
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        model.run(sequence, part, [len(part) - 1], row)
    model.run(sequence, ids[:1], [0], row)


def empty(path: Path, options: Mapping[str, Any]) -> dict[str, float]:
    """All that `filled` does, but for what the plan counts: its memory is there and never touched."""
    with GGUFFile.open(path) as file:
        building = build_tokenizer(file.metadata)
        prepared = prepare(file, backend="cpu", **options)
        program: Any = prepared.backend.compile(prepared.steps, unpacked(prepared.graph, file))
        model = Model(file, building, prepared, program)
    model.tokenize(TEXT)
    for tokens, mode in ((min(BATCH, prepared.n_ctx), "prefill"), (1, "decode"), (1, "split")):
        program.prepare(tokens, 1, mode)
    return {"resident": float(resident() - mapped(path))}


def modes(model: Path, repeats: int) -> Iterator[str]:
    """The table of ways to load."""
    yield (
        "| options | load, cold, s | load, s | peak of that, MiB | resident after it | and after a run | plan |"
        " prefill 512, tokens/s | decode, tokens/s |"
    )
    yield "| --- |" + " ---: |" * 8
    taken: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in MODES}
    for _ in range(repeats):
        for name, options in MODES.items():
            sys.stderr.write(f"{name}\n")
            cold = sample("speed", model, options, cold=True)["load"]
            taken[name].append((cold, sample("speed", model, options)))
    for name, samples in taken.items():
        found = {key: statistics.median(warm[key] for _, warm in samples) for key in samples[0][1]}
        cold = statistics.median(cold for cold, _ in samples)
        sizes = " | ".join(f"{found[key] / MIB:.0f}" for key in ("peak", "after", "run", "plan"))
        speeds = f"{found['prefill']:.0f} | {found['decode']:.1f}"
        yield f"| {name} | {cold:.2f} | {found['load']:.2f} | {sizes} | {speeds} |"


def residents(models: Sequence[Path], n_ctx: int) -> Iterator[str]:
    """The table of plans and what was resident."""
    yield "| model | options | plan, MiB | base | mapped file | resident | beyond them | of plan and file |"
    yield "| --- | --- |" + " ---: |" * 6
    for model in models:
        for way in WAYS:
            options = {"n_ctx": n_ctx, "parallel": 1, **way}
            # Twice: whoever comes first compiles kernels, and LLVM keeps memory for that.
            whole = {key: value for key, value in options.items() if key != "mmap"}
            base = min(sample("empty", model, whole)["resident"] for _ in range(2))
            found = min((sample("filled", model, options) for _ in range(2)), key=lambda f: f["resident"])
            beyond = found["resident"] - found["mapped"] - base - found["plan"]
            sizes = (found["plan"], base, found["mapped"], found["resident"])
            cells = " | ".join(f"{size / MIB:.1f}" for size in sizes)
            share = f"{beyond / MIB:+.1f} | {100 * beyond / (found['plan'] + found['mapped']):+.1f}%"
            yield f"| {model.stem} | {words(way)} | {cells} | {share} |"


def words(way: Mapping[str, Any]) -> str:
    flags = [
        f"--no-{name}" if value is False else f"{NAMES.get(name, name)} {value}"
        for name, value in way.items()
    ]
    return " ".join(flags) or "none"


def shown(lines: Iterator[str]) -> list[str]:
    """All lines, each said as it is found."""
    found = []
    for line in lines:
        sys.stderr.write(line + "\n")
        found.append(line)
    return found


DO = {"speed": speed, "filled": filled, "empty": empty}


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["--one"]:
        _, do, path, options = given
        print(json.dumps(DO[do](Path(path), json.loads(options))))  # noqa: T201 - to the process that asked
        return 0
    parser = argparse.ArgumentParser(description="ways of loading, and how near to its plan a process stays")
    parser.add_argument("table", choices=("modes", "resident"))
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="GGUF files")
    parser.add_argument(
        "-r", "--repeats", type=int, default=3, metavar="N", help="samples of each (default 3)"
    )
    parser.add_argument("-c", "--ctx-size", type=int, default=2048, metavar="N", help="for `resident`")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    args = parser.parse_args(given)
    if note := busy_note():
        sys.stderr.write(f"note: {note}\n")
    if args.table == "modes":
        made = shown(modes(args.models[0], args.repeats))
        about = f"{args.models[0].stem}, medians of {args.repeats}"
    else:
        made = shown(residents(args.models, args.ctx_size))
        about = f"A context of {args.ctx_size} that is full"
    about += f"; {processor()}; Puna {puna.__version__}, {date.today()}."
    publish("\n".join([*made, "", about]), args.write, f"memory {args.table}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measurements as text: llama-bench's table and its other formats, and the table of a profile."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from puna import __version__
from puna.gguf import GGUFFile
from puna.measure.machine import processor
from puna.measure.peaks import Peaks
from puna.measure.profile import Profile, Row
from puna.measure.speed import Result

__all__ = ["FORMATS", "Outcome", "Subject", "peaks_line", "profile_lines"]

CLOCK = 2e-7  # seconds; a call that seems shorter was not measured
# general.file_type -> llama.cpp's name of it.
FILE_TYPES: Mapping[int, str] = {
    0: "all F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K - Medium",
    11: "Q3_K - Small",
    12: "Q3_K - Medium",
    13: "Q3_K - Large",
    14: "Q4_K - Small",
    15: "Q4_K - Medium",
    16: "Q5_K - Small",
    17: "Q5_K - Medium",
    18: "Q6_K",
    32: "BF16",
}


@dataclass(frozen=True)
class Subject:
    """The model of a measurement. size: bytes of all tensors.  params: their elements."""

    filename: str
    kind: str
    size: int
    params: int

    @classmethod
    def of(cls, file: GGUFFile) -> Subject:
        tensors = file.tensors.values()
        size, params = sum(t.nbytes for t in tensors), sum(prod(t.shape) for t in tensors)
        largest = max(tensors, key=lambda t: t.nbytes).quant.name
        name = FILE_TYPES.get(file.metadata.get("general.file_type", -1), largest)
        count = f"{params / 1e9:.1f}B" if params >= 1e9 else f"{params / 1e6:.0f}M"
        return cls(str(file.path), f"{file.metadata['general.architecture']} {count} {name}", size, params)


@dataclass(frozen=True)
class Outcome:
    """A measurement with all that it was taken under. peaks: None where the machine's are not known."""

    subject: Subject
    backend: str
    threads: int
    n_batch: int
    n_ubatch: int
    type_k: str
    type_v: str
    time: str
    result: Result
    peaks: Peaks | None

    @property
    def bandwidth_share(self) -> float | None:
        return self.result.bytes_rate / self.peaks.read if self.peaks else None

    @property
    def int8_share(self) -> float | None:
        """None where no product is of bytes: floats have another peak."""
        return self.result.dots_rate / self.peaks.int8 if self.peaks and self.result.cost.dots else None

    def fields(self) -> dict[str, Any]:
        """Under llama-bench's names where it has the same; bytes and operations are of one repetition."""
        r = self.result
        return {
            "puna_version": __version__,
            "cpu_info": processor(),
            "backends": self.backend,
            "model_filename": self.subject.filename,
            "model_type": self.subject.kind,
            "model_size": self.subject.size,
            "model_n_params": self.subject.params,
            "n_batch": self.n_batch,
            "n_ubatch": self.n_ubatch,
            "n_threads": self.threads,
            "type_k": self.type_k,
            "type_v": self.type_v,
            "n_prompt": r.case.prompt,
            "n_gen": r.case.generate,
            "n_depth": r.case.depth,
            "test_time": self.time,
            "avg_ns": round(r.seconds * 1e9),
            "stddev_ns": round(r.seconds_deviation * 1e9),
            "avg_ts": r.rate,
            "stddev_ts": r.rate_deviation,
            "bytes": r.cost.read,
            "ops": r.cost.ops,
            "dots": r.cost.dots,
            "peak_threads": self.peaks.threads if self.peaks else None,
            "peak_bytes_s": round(self.peaks.read) if self.peaks else None,
            "peak_ops_s": round(self.peaks.int8) if self.peaks else None,
        }


def size_text(outcome: Outcome) -> str:
    size = outcome.subject.size
    return f"{size / 2**20:.2f} MiB" if size < 2**30 else f"{size / 2**30:.2f} GiB"


def params_text(outcome: Outcome) -> str:
    params = outcome.subject.params
    return f"{params / 1e6:.2f} M" if params < 1e9 else f"{params / 1e9:.2f} B"


def share_text(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}%"


Text = Callable[[Outcome], str]
# Heading, width (negative: to the left), text. The widths are llama-bench's.
COLUMNS: Mapping[str, tuple[str, int, Text]] = {
    "model": ("model", -30, lambda o: o.subject.kind),
    "size": ("size", 10, size_text),
    "params": ("params", 10, params_text),
    "backend": ("backend", -10, lambda o: o.backend),
    "threads": ("threads", 7, lambda o: str(o.threads)),
    "n_batch": ("n_batch", 7, lambda o: str(o.n_batch)),
    "n_ubatch": ("n_ubatch", 8, lambda o: str(o.n_ubatch)),
    "type_k": ("type_k", 6, lambda o: o.type_k),
    "type_v": ("type_v", 6, lambda o: o.type_v),
    "test": ("test", 15, lambda o: o.result.case.name),
    "t/s": ("t/s", 20, lambda o: f"{o.result.rate:.2f} ± {o.result.rate_deviation:.2f}"),
    "GB/s": ("GB/s", 7, lambda o: f"{o.result.bytes_rate / 1e9:.1f}"),
    "read": ("of peak", 7, lambda o: share_text(o.bandwidth_share)),
    "GOP/s": ("GOP/s", 7, lambda o: f"{o.result.ops_rate / 1e9:.1f}"),
    "int8": ("of peak", 7, lambda o: share_text(o.int8_share)),
}


class Markdown:
    """llama-bench's table. more: columns beyond those that are always there."""

    def __init__(self, more: Sequence[str], peaks: Peaks | None) -> None:
        shown = {"model", "size", "params", "backend", "threads", "test", "t/s", *more}
        if peaks:
            shown |= {"GB/s", "read", "GOP/s", "int8"}
        self.columns = [column for name, column in COLUMNS.items() if name in shown]
        self.peaks = peaks

    def begin(self) -> list[str]:
        rules = [
            "-" * (abs(width) - 1) + (":" if width > 0 else "-")
            for width in (max(w, len(h)) if w > 0 else w for h, w, _ in self.columns)
        ]
        return [self.line([heading for heading, _, _ in self.columns]), f"| {' | '.join(rules)} |"]

    def row(self, outcome: Outcome) -> list[str]:
        return [self.line([text(outcome) for _, _, text in self.columns])]

    def line(self, cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(-width) if width < 0 else cell.rjust(width)
            for cell, (_, width, _) in zip(cells, self.columns, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    def end(self) -> list[str]:
        peaks = [peaks_line(self.peaks)] if self.peaks else []
        return ["", f"puna {__version__} on {processor()}", *peaks]


class JSONLines:
    """An object a line."""

    def __init__(self, more: Sequence[str], peaks: Peaks | None) -> None:
        self.count = 0

    def begin(self) -> list[str]:
        return []

    def row(self, outcome: Outcome) -> list[str]:
        return [json.dumps(self.object(outcome))]

    def object(self, outcome: Outcome) -> dict[str, Any]:
        r = outcome.result
        return {**outcome.fields(), "samples_ns": list(r.samples), "samples_ts": r.rates}

    def end(self) -> list[str]:
        return []


class JSON(JSONLines):
    """One array, written as it grows."""

    def begin(self) -> list[str]:
        return ["["]

    def row(self, outcome: Outcome) -> list[str]:
        text = json.dumps(self.object(outcome), indent=2).replace("\n", "\n  ")
        comma, self.count = ", " if self.count else "  ", self.count + 1
        return [comma + text]

    def end(self) -> list[str]:
        return ["]"]


class CSV:
    """A heading, then a row a measurement, every value quoted, as llama-bench does."""

    def __init__(self, more: Sequence[str], peaks: Peaks | None) -> None:
        self.headed = False

    def begin(self) -> list[str]:
        return []

    def row(self, outcome: Outcome) -> list[str]:
        fields = {name: "" if value is None else value for name, value in outcome.fields().items()}
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="").writerow(fields.values())
        heading = [] if self.headed else [",".join(fields)]
        self.headed = True
        return [*heading, text.getvalue()]

    def end(self) -> list[str]:
        return []


FORMATS: Mapping[str, type[Markdown] | type[JSONLines] | type[CSV]] = {
    "md": Markdown,
    "json": JSON,
    "jsonl": JSONLines,
    "csv": CSV,
}


def peaks_line(peaks: Peaks) -> str:
    """What the machine can do."""
    rates = f"{peaks.read / 1e9:.1f} GB/s read from memory, {peaks.int8 / 1e9:.0f} GOP/s of int8 dots"
    return f"peak: {rates} ({peaks.threads} thread{'s' if peaks.threads > 1 else ''})"


def profile_lines(profile: Profile, peaks: Peaks) -> list[str]:
    """A table of a step, then where the rest of its time goes."""
    kind = "decode" if profile.tokens == 1 else "prefill"
    tokens = f"{profile.tokens} token{'s' if profile.tokens > 1 else ''}"
    rate = f"{profile.tokens / profile.step:.1f} tokens/s"
    title = f"{kind} step of {tokens} at depth {profile.depth}: {1e3 * profile.step:.2f} ms, {rate}"
    heading = ("operation", "weights", "calls", "ms", "time", "MB", "GB/s", "of peak", "GOP/s", "of peak")
    rows = [profile_row(row, profile, peaks) for row in profile.rows]
    for name, seconds in rest_of(profile).items():
        rows.append((name, "", "", f"{1e3 * seconds:.3f}", share_text(seconds / profile.step), *[""] * 5))
    rows.append(("whole step", "", "", f"{1e3 * profile.step:.3f}", "100%", *[""] * 5))
    sides, widths = "<<>>>>>>>>", [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    table = [
        "  ".join(f"{c:{side}{width}}" for c, side, width in zip(line, sides, widths, strict=True)).rstrip()
        for line in (heading, *rows)
    ]
    return [title, "", *table]


def rest_of(profile: Profile) -> Mapping[str, float]:
    """Seconds of a step that are in none of its calls."""
    waits = (
        "(barriers, imbalance)" if profile.threads > 1 else "(between calls)"
    )  # one thread waits for no other
    return {waits: profile.waits, "(Python)": profile.python, "(without a core)": profile.away}


def profile_row(row: Row, profile: Profile, peaks: Peaks) -> tuple[str, ...]:
    timed = row.seconds > CLOCK * row.calls
    read, ops = (row.nbytes / row.seconds, row.ops / row.seconds) if timed else (0.0, 0.0)
    from_memory = timed and row.cost.read > row.cost.values  # the rest may stay in the caches
    return (
        row.kernel,
        f"{row.kind} {row.shape}".strip(),
        str(row.calls),
        f"{1e3 * row.seconds:.3f}",
        share_text(row.seconds / profile.step),
        f"{row.nbytes / 1e6:.2f}",
        f"{read / 1e9:.1f}" if timed else "",
        share_text(read / peaks.read) if from_memory else "",
        f"{ops / 1e9:.1f}" if ops else "",
        share_text(row.cost.dots / row.seconds / peaks.int8) if ops and row.cost.dots else "",
    )

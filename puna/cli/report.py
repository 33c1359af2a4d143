"""What goes to standard error: the opening line, notes, progress bars, and what a run cost."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puna.cli.text import printable
from puna.units import human

if TYPE_CHECKING:
    from puna.engine import Model
    from puna.generation import Generation, Timings
    from puna.vocabulary import Vocabulary

__all__ = ["Bars", "Totals", "counted", "ended", "opening", "say", "summary", "token_lines", "tokens"]


def say(line: str = "") -> None:
    """A line for people, apart from the text."""
    print(line, file=sys.stderr, flush=True)


def opening(name: str, model: Model) -> None:
    """What runs, and on what; then the notes."""
    about = model.about
    say(f"{name} ({printable(model.config.architecture)}) on {about.name}: {about.device}")
    for note in model.notes:
        say(f"note: {printable(note)}")


@dataclass
class Totals:
    """The timings of one or more generations. first: seconds to the first token of the last one."""

    runs: int = 0
    prompt_tokens: int = 0
    cached: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    first: float = 0.0

    def add(self, timings: Timings) -> None:
        self.runs += 1
        self.prompt_tokens += timings.prompt_tokens
        self.cached += timings.cached
        self.prompt_seconds += timings.prompt_seconds
        self.tokens += timings.tokens
        self.seconds += timings.seconds
        self.first = timings.prompt_seconds

    def lines(self) -> list[str]:
        """Tokens, tokens a second, and the time to the first token."""
        cached = f" ({self.cached} of them from the cache)" if self.cached else ""
        prompt = rate(self.prompt_tokens - self.cached, self.prompt_seconds)
        # The first token of each run came with its prompt.
        generated = rate(self.tokens - self.runs, self.seconds)
        first = f", first token after {self.first:.2f} s" if self.tokens else ""
        return [
            f"prompt     {counted(self.prompt_tokens)}{cached}{prompt}{first}",
            f"generated  {counted(self.tokens)}{generated}",
        ]


def counted(count: int, noun: str = "token") -> str:
    """1 token, 2 tokens."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rate(count: int, seconds: float) -> str:
    return f", {count / seconds:.1f} tokens/s" if count > 0 and seconds > 0 else ""


def summary(name: str, model: Model, totals: Totals) -> None:
    """What it cost: the last lines of a run."""
    from puna.plan import REGIONS

    regions = [f"{REGIONS.get(region, region)} {human(count)}" for region, count in model.memory.items()]
    say()
    for line in totals.lines():
        say(line)
    say(f"memory     {', '.join(regions)}, total {human(sum(model.memory.values()))}")
    say(f"model      {name} on {model.about.name}: {model.about.device}")


def ended(generation: Generation) -> None:
    """Says so when tokens were dropped, and when a limit, not the model, ended the text."""
    if times := generation.timings.shifts:
        gone, often = counted(generation.timings.dropped), counted(times, "time")
        say(f"the context of {generation.writer.cache.n_ctx} was full {often}: {gone} of the text dropped")
    if generation.finish_reason != "length":
        return
    if 0 <= generation.writer.n_predict <= len(generation.ids):
        say(f"stopped at the limit of {counted(generation.writer.n_predict)} (-n)")
    else:
        say(f"stopped: the context of {counted(generation.writer.cache.n_ctx)} is full (-c)")


def token_lines(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    """Ids and pieces, a line a token."""
    pieces = [vocabulary.tokenizer.piece(token).decode("utf-8", "backslashreplace") for token in ids]
    return [f"{token:>8}  '{printable(piece)}'" for token, piece in zip(ids, pieces, strict=True)]


def tokens(vocabulary: Vocabulary, ids: list[int]) -> None:
    """For --verbose-prompt."""
    say(f"prompt of {counted(len(ids))}:")
    for line in token_lines(vocabulary, ids):
        say(line)


class Bars:
    """Progress bars for loading and fetching, where standard error is a terminal; gone when done."""

    def __enter__(self) -> Bars:
        self.bars: Any = None
        self.task: Any = None
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def start(self, label: str, total: int) -> None:
        if not sys.stderr.isatty():
            return
        self.done()
        from rich import progress
        from rich.console import Console

        self.bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.bars.start()
        self.task = self.bars.add_task(printable(label).replace("[", "\\["), total=total or None)

    def advance(self, count: int) -> None:
        if self.bars:
            self.bars.advance(self.task, count)

    def done(self) -> None:
        bars, self.bars = self.bars, None
        if bars:
            bars.stop()

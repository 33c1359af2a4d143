"""From a file's header to what will run and the bytes that it takes, before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from puna import backends, plan
from puna.backends import Backend, Description
from puna.backends.lock import lock
from puna.errors import BackendError
from puna.gguf import GGUFFile
from puna.graph import Graph
from puna.models import ModelConfig
from puna.models.outside import outside
from puna.models.registry import build
from puna.models.rows import row_notes
from puna.quants import by_name
from puna.settings import Settings
from puna.units import human

__all__ = ["Prepared", "prepare", "reserve"]

MOST_RESERVED = 1 << 30
GUESSES = 4


@dataclass(frozen=True)
class Prepared:
    """A model that could be loaded.

    graph: lowered for the backend.  steps: the kernel calls of a step.  n_ctx: positions of the KV cache.
    memory: bytes of the regions "weights", "compute", "kv" and "scratch".  about: the backend's description.
    at: the same with another context.  as_it_lies: the same with weights read from the mapped file, where they are not.
    mapped: bytes of the file that steps read where it is mapped.  mlock: whether all is to stay in memory.
    """

    config: ModelConfig
    graph: Graph
    backend: Backend[Any, Any]
    about: Description
    steps: plan.Plan
    memory: Mapping[str, int]
    n_ctx: int
    at: Callable[[int], Prepared]
    mapped: int = 0
    mlock: bool = False
    as_it_lies: Callable[[], Prepared] | None = None

    @property
    def total(self) -> int:
        return sum(self.memory.values())

    @property
    def needed(self) -> int:
        """Bytes that must be free: mapped parts of the file need no room, unless they are to stay in memory."""
        return self.total + self.mapped * self.mlock

    @property
    def fits(self) -> bool:
        return self.needed <= self.about.free

    def longest(self, most: int) -> int:
        """`most`, if that fits, or the longest context, in whole pages, that leaves a reserve; 0 where none does."""
        room, whole, page = self.about.free - reserve(self.about.free), self.at(most), self.at(plan.PAGE)
        if whole.fits or page.needed > room:
            return most if whole.fits else 0
        low, high = (1, page.needed), (-(-most // plan.PAGE), whole.needed)  # pages, and what they need
        guesses = GUESSES  # nearly all of it grows evenly
        while high[0] - low[0] > 1:
            share = (room - low[1]) / max(1, high[1] - low[1]) if guesses > 0 else 0.5
            middle = low[0] + min(max(1, int((high[0] - low[0]) * share)), high[0] - low[0] - 1)
            found, guesses = (middle, self.at(middle * plan.PAGE).needed), guesses - 1
            low, high = (found, high) if found[1] <= room else (low, found)
        return low[0] * plan.PAGE

    def longest_as_it_lies(self, most: int) -> int:
        """As `longest`, with weights read from the mapped file; 0 too where they are already, or cannot be."""
        try:
            return self.as_it_lies().longest(most) if self.as_it_lies else 0
        except BackendError:  # one that has no such form
            return 0

    def refuse_too_large(self, model: str) -> None:
        """Raise BackendError, with what would fit, where the regions together exceed the free memory."""
        if self.fits:
            return
        free = self.about.free
        if fitting := self.longest(self.n_ctx):
            what = f"needs {self.parts}, {human(free)} are free"
            fix = f"lower the context (-c) to {fitting} at most"
            raise BackendError(what, where=model, fix=fix)
        least = self.at(min(plan.PAGE, self.n_ctx))
        room = f"{human(free)} are free" + f", of which {human(reserve(free))} stay so" * least.fits
        fix = "take a smaller model"
        if lying := self.longest_as_it_lies(self.n_ctx):
            context = f" and a context (-c) of {lying} at most" * (lying < self.n_ctx)
            fix += f", or --no-repack{context}: slower, as weights are read from the mapped file"
        raise BackendError(
            f"no context fits: {least.n_ctx} positions need {least.parts}, {room}", where=model, fix=fix
        )

    @property
    def parts(self) -> str:
        """What is needed and its parts, for people."""
        parts = {plan.REGIONS[name]: count for name, count in self.memory.items()}
        if self.mapped and self.mlock:
            parts["mapped file"] = self.mapped
        return (
            f"{human(self.needed)} of memory ({', '.join(f'{name} {human(n)}' for name, n in parts.items())})"
        )

    def noted(self, note: str) -> Prepared:
        """The same, with one more line that a user must see."""
        about = dataclasses.replace(self.about, notes=(*self.about.notes, note))
        return dataclasses.replace(self, about=about)

    def locked(self, weights: object, program: object) -> Prepared:
        """Lock what was loaded in memory, if it is to stay there; a note says where that is not possible."""
        note = lock(self.backend.kept(weights, program)) if self.mlock else ""
        return self.noted(note) if note else self


def prepare(
    file: GGUFFile,
    *,
    backend: str = "auto",
    n_ctx: int | None = None,
    threads: int | None = None,
    n_batch: int = 512,
    parallel: int = 4,
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
    mmap: bool = True,
    mlock: bool = False,
    repack: bool = True,
    huge_pages: bool = True,
    mem_align: int | None = None,
    fit: bool = False,
    pooling: str | None = None,
) -> Prepared:
    """Plan a model; the options are those of `puna.load`. Reads the header alone.

    Where not all fits and n_ctx is 0, or `fit`, the context is the longest that does, and a note says so. It leaves a
    sixteenth of what is free, or 1 GiB where that is less, to what loading and other programs take meanwhile.
    Raises a PunaError for what Puna cannot run and for options that do not exist; not for what does not fit.
    """
    settings = Settings.from_environment()
    threads = plan.thread_count(settings.threads if threads is None else threads)
    name = settings.backend or backend if backend == "auto" else backend
    storage = backends.Storage(plan.alignment(mem_align), huge_pages)
    most, parallel = plan.positive(n_batch, "n_batch (-b)"), plan.positive(parallel, "parallel (-np)")

    def planned(asked: int | None, free: int | None = None, repack: bool = repack) -> Prepared:
        """With a graph for the context that is asked for: some models are others for a longer one.

        free: bytes that are; None reads it anew.
        """
        graph, config = build(file, lambda trained: plan.context_length(asked, trained), pooling)
        engine, about, lowered = backends.choose(name, threads, repack, graph, storage)
        notes = *outside().notes(config.architecture), *row_notes(file.metadata, graph, config), *about.notes
        about = dataclasses.replace(about, notes=notes, free=about.free if free is None else free)
        types = about.kv_type(cache_type_k), about.kv_type(cache_type_v)
        if not by_name(types[0]).is_float:
            lowered = plan.rotate_keys(lowered)
        weights = engine.resident(lowered, mmap)
        mapped = engine.resident(lowered, False) - weights
        how: Any = {"scratch": engine.scratch, "row_ops": about.row_ops}
        as_it_lies = partial(planned, asked, about.free, False) if repack and mmap else None

        def at(n_ctx: int) -> Prepared:
            batch, share = min(most, n_ctx), about.shares_values
            kv = plan.KVLayout.of(lowered, n_ctx, *types, batch=batch, parallel=parallel, share=share)
            steps = plan.make_plan(lowered, tokens=batch, rows=batch, kv=kv, **how)
            memory = plan.regions(steps, weights, engine.tables(steps))
            return Prepared(
                config, lowered, engine, about, steps, memory, n_ctx, at, mapped, mlock, as_it_lies
            )

        found = at(plan.context_length(asked, config.n_ctx_train))
        return found if cache_type_v is None else typed(found, *types)

    return fitted(planned, n_ctx, fit)


def typed(found: Prepared, k_type: str, v_type: str) -> Prepared:
    """With a note where the type of values that was asked for has no effect on some."""
    if k_type == v_type or not found.steps.kv.shared:
        return found
    return found.noted(
        f"values that are parts of keys are in {k_type.lower()} as these are: -ctv is for others"
    )


def fitted(planned: Callable[..., Prepared], n_ctx: int | None, fit: bool) -> Prepared:
    """What is asked for, or where that may be less, the longest context that fits."""
    wanted = planned(n_ctx)
    fitting = wanted.longest(wanted.n_ctx) if (fit or n_ctx == 0) and not wanted.fits else 0
    if not fitting:
        return wanted
    free = wanted.about.free
    room = f"{human(free)}, of which {human(reserve(free))} stay free"
    note = f"the context is {fitting}, not {wanted.n_ctx}: the longest that fits into {room}"
    return planned(fitting, free).noted(note)  # read anew, it could be less by now


def reserve(free: int) -> int:
    """Of so many free bytes, those that a context which is made to fit leaves alone."""
    return min(free // 16, MOST_RESERVED)

"""From a file's header to what will run and the bytes that it takes, before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from puna import backends, plan
from puna.backends import Backend, Description
from puna.errors import BackendError
from puna.gguf import GGUFFile
from puna.graph import Graph
from puna.models import ModelConfig
from puna.models.registry import build
from puna.quants import by_name
from puna.settings import Settings
from puna.units import human

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A model that could be loaded.

    graph: lowered for the backend.  steps: the kernel calls of a step.  n_ctx: positions of the KV cache.
    memory: bytes of the regions "weights", "compute", "kv" and "scratch".  about: the backend's description.
    at: the same with another context.
    """

    config: ModelConfig
    graph: Graph
    backend: Backend[Any, Any]
    about: Description
    steps: plan.Plan
    memory: Mapping[str, int]
    n_ctx: int
    at: Callable[[int], Prepared]

    @property
    def total(self) -> int:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.about.free

    def longest(self, most: int) -> int:
        """The longest context up to `most` that fits, in whole pages where it is less; 0 where none does."""
        if self.at(most).fits:
            return most
        low, high = 0, -(-most // plan.PAGE)  # pages that fit, pages that do not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle * plan.PAGE).fits else (low, middle)
        return low * plan.PAGE

    def refuse_too_large(self, model: str) -> None:
        """Raise BackendError, with what would fit, where the regions together exceed the free memory."""
        if self.fits:
            return
        parts = ", ".join(f"{name} {human(count)}" for name, count in self.memory.items())
        fitting = self.longest(self.n_ctx)
        raise BackendError(
            f"needs {human(self.total)} of memory ({parts}), {human(self.about.free)} are free",
            where=model,
            fix=f"lower the context (-c) to {fitting} at most" if fitting else "take a smaller model",
        )

    def noted(self, note: str) -> Prepared:
        """The same, with one more line that a user must see."""
        about = dataclasses.replace(self.about, notes=(*self.about.notes, note))
        return dataclasses.replace(self, about=about)


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
    repack: bool = True,
    fit: bool = False,
    pooling: str | None = None,
) -> Prepared:
    """Plan a model; the options are those of `puna.load`. Reads the header alone.

    Where not all fits and n_ctx is 0, or `fit`, the context is the longest that does, and a note says so.
    Raises a PunaError for what Puna cannot run and for options that do not exist; not for what does not fit.
    """
    settings = Settings.from_environment()
    threads = plan.thread_count(settings.threads if threads is None else threads)
    name = settings.backend or backend if backend == "auto" else backend
    most, parallel = plan.positive(n_batch, "n_batch (-b)"), plan.positive(parallel, "parallel (-np)")

    def planned(asked: int | None) -> Prepared:
        """With a graph for the context that is asked for: some models are others for a longer one."""
        graph, config = build(file, lambda trained: plan.context_length(asked, trained), pooling)
        engine, about, lowered = backends.choose(name, threads, repack, graph)
        types = about.kv_type(cache_type_k), about.kv_type(cache_type_v)
        if not by_name(types[0]).is_float:
            lowered = plan.rotate_keys(lowered)
        weights = engine.resident(lowered, mmap)

        def at(n_ctx: int) -> Prepared:
            batch, share = min(most, n_ctx), about.shares_values
            kv = plan.KVLayout.of(lowered, n_ctx, *types, batch=batch, parallel=parallel, share=share)
            sizes = {"tokens": batch, "rows": batch}
            steps = plan.make_plan(lowered, **sizes, kv=kv, scratch=engine.scratch, row_ops=about.row_ops)
            memory = plan.regions(steps, weights)
            return Prepared(config, lowered, engine, about, steps, memory, n_ctx, at)

        return at(plan.context_length(asked, config.n_ctx_train))

    wanted = planned(n_ctx)
    fitting = wanted.longest(wanted.n_ctx) if (fit or n_ctx == 0) and not wanted.fits else 0
    if not fitting:
        return wanted
    free = human(wanted.about.free)
    note = f"the context is {fitting}, not {wanted.n_ctx}: the longest that fits into {free}"
    return planned(fitting).noted(note)

"""The contract of a backend: what turns a plan into numbers on some device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from puna.errors import BackendError
from puna.gguf import GGUFFile
from puna.graph import Graph, Node
from puna.plan import Batch, KVLayout, Plan
from puna.progress import Progress
from puna.scans import Scans

__all__ = ["USUAL", "Backend", "Description", "Memory", "Storage", "copy_pages"]

Weights = TypeVar("Weights")
Program = TypeVar("Program")


@dataclass(frozen=True)
class Description:
    """What a backend is and has.

    device: for people, such as "2 threads, OpenBLAS 0.3.29".  free: bytes of memory that can be used.
    ops: the operations it has kernels for, fused ones among them.
    row_ops: those of them that it can join into one call, row by row.
    kv_types: types it can hold keys and values in, the default first.
    shares_values: values that are the beginnings of their keys take no memory of their own.
    notes: lines that a user must see, such as a fallback.
    """

    name: str
    device: str
    free: int
    ops: frozenset[str]
    kv_types: tuple[str, ...]
    row_ops: frozenset[str] = frozenset()
    shares_values: bool = False
    notes: tuple[str, ...] = ()

    def kv_type(self, asked: str | None) -> str:
        """The name of a KV type; None takes the default.

        Raises BackendError for one that this backend does not have.
        """
        if asked is None:
            return self.kv_types[0]
        if asked.upper() not in self.kv_types:
            known = [kind.lower() for kind in self.kv_types]
            near = get_close_matches(asked.lower(), known)
            what = f"the {self.name} backend has no KV cache of type {asked!r}"
            names = f"the nearest are {', '.join(near)}" if near else f"use one of {', '.join(known)}"
            raise BackendError(what, fix=names)
        return asked.upper()


@dataclass(frozen=True)
class Storage:
    """How a backend takes memory.

    align: weights, the compute buffer and each layer's cache begin at a multiple of so many bytes, a power of two of 64
    or more.
    huge_pages: the system may join the pages of weights into huge ones.
    """

    align: int = 64
    huge_pages: bool = True


USUAL = Storage()


@dataclass(frozen=True)
class Memory:
    """What a program keeps from step to step, in the form that its kernels want.

    pages: layer -> its keys and its values, arrays whose bytes are pages, one after another.
    states: state -> an array whose bytes are slots.
    """

    pages: Mapping[int, tuple[NDArray[Any], ...]]
    states: Mapping[str, NDArray[Any]]


class Backend(ABC, Generic[Weights, Program]):
    """A backend is a folder beside this file with `create(threads, repack, storage) -> Backend`.

    `describe`, `resident` and `scratch` are asked before anything is allocated; then `upload`, `compile`, `run`.
    """

    @abstractmethod
    def describe(self) -> Description:
        """What this backend is, and what it has now."""

    @abstractmethod
    def resident(self, graph: Graph, mapped: bool) -> int:
        """Bytes that the graph's weights will take here, known before any is read.

        mapped: the file is; what is read from it as it is takes memory of its own where it is not.
        """

    @abstractmethod
    def scratch(self, nodes: tuple[Node, ...], tokens: int, rows: int, kv: KVLayout) -> int:
        """Bytes that the kernel of a record wants for itself in a step of `tokens` rows, `rows` with logits."""

    def tables(self, plan: Plan) -> int:
        """Bytes of what a step is given beside its buffers: ids, angles, records of calls."""
        return 0

    @abstractmethod
    def upload(self, graph: Graph, source: GGUFFile, progress: Progress | None) -> Weights:
        """Bring the graph's tensors to the device in the form its kernels want."""

    @abstractmethod
    def compile(self, plan: Plan, weights: Weights) -> Program:
        """Allocate the plan's regions and make it ready to run."""

    @abstractmethod
    def run(self, program: Program, batch: Batch, logits: NDArray[np.float32]) -> None:
        """Run one step, writing float32 [R, vocabulary] into `logits`."""

    @abstractmethod
    def memory(self, program: Program) -> Memory:
        """The KV cache and the states, for saving sequences and bringing them back; no step runs meanwhile."""

    @abstractmethod
    def kept(self, weights: Weights, program: Program) -> Iterable[NDArray[Any]]:
        """All memory that steps read and write again and again, what is mapped of the file included."""

    def scans(self) -> Scans:
        """What samplers pass over a vocabulary's logits with; they lie in main memory."""
        return Scans()


def copy_pages(
    layout: KVLayout,
    cache: Mapping[int, tuple[NDArray[np.uint8], ...]],
    copies: Iterable[tuple[int, int, int]],
) -> None:
    """Do the copies that a batch asks for. cache: layer -> arrays whose bytes are pages, one after another."""
    for group, source, target in copies:
        for layer in layout.groups[group].layers:
            for array in (array for array in cache[layer] if array.size):
                pages = array.reshape(layout.pages(layer), -1)
                pages[target] = pages[source]

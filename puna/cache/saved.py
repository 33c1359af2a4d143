"""A sequence in a file: what the cache holds of it, to go on from there another time.

    "PUNAKEEP" | u32 version | u32 bytes of the header | header
    tokens   int32
    pages    of each group of layers: of each layer the keys, then the values, page after page
    states   each of them: at the border of pages that is kept, where one is, and now
    digest   32 bytes: BLAKE2b of all before

The header is JSON: `facts`, which must be those of the model that takes the sequence up; `tokens`, how many there are;
`first`, for each group the first page that is held, up to the last; `border`, the page border whose state is there, or
0; `text`, how many of the tokens an encoder read. Numbers are little-endian; pages and states are as they lie in the
backend's memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from operator import gt
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from puna.backends.base import Memory
from puna.cache.kv import GONE, KVCache, Sequence
from puna.cache.pages import page_keys
from puna.cache.states import EMPTY
from puna.errors import FormatError, RequestError
from puna.gguf.output import clear_left, free_target, replacing
from puna.gguf.source import open_file, unreadable
from puna.plan import KVLayout

__all__ = ["Facts", "check", "nbytes", "read", "restore", "save", "write"]

Facts = Mapping[str, str]
Tables = list[list[int]]

MAGIC, VERSION = b"PUNAKEEP", 1
FRONT = Struct("<8sII")
MAX_HEADER = 1 << 20
DIGEST = 32
AGAIN = "delete it, and compute the text anew"


class Pipe:
    """A file that is written or read from its beginning, and the digest of what went through."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.file, self.where, self.sum = file, where, hashlib.blake2b(digest_size=DIGEST)

    def write(self, data: Any) -> None:
        self.file.write(data)
        self.sum.update(data)

    def fill(self, target: NDArray[Any]) -> None:
        if self.file.readinto(target.data) != target.nbytes:  # type: ignore[attr-defined]
            raise FormatError("the file became shorter while it was read", where=self.where, fix=AGAIN)
        self.sum.update(target.data)

    def read(self, count: int) -> bytes:
        data = np.empty(count, np.uint8)
        self.fill(data)
        return data.tobytes()


@dataclass(frozen=True)
class Header:
    """What a file says before its data, checked against the cache that it is for."""

    facts: Facts
    tokens: int
    first: list[int]
    border: int
    text: int = 0

    @property
    def slots(self) -> int:
        """States that are kept of each."""
        return (self.border > 0) + (self.tokens > 0)

    def data_bytes(self, layout: KVLayout) -> int:
        """Bytes of tokens, pages and states."""
        pages = sum(
            (self.pages(layout) - first) * layout.page_bytes(layer)
            for first, group in zip(self.first, layout.groups, strict=True)
            for layer in group.layers
        )
        return 4 * self.tokens + pages + self.slots * 4 * sum(map(prod, layout.states.values()))

    def pages(self, layout: KVLayout) -> int:
        return -(-self.tokens // layout.page)

    def encoded(self) -> bytes:
        return json.dumps(vars(self)).encode()

    def fault(self, layout: KVLayout) -> str | None:
        """What cannot be, as far as `layout` tells."""
        is_list = isinstance(self.first, list)
        numbers = [self.tokens, self.border, self.text, *self.first] if is_list else [None]
        if not all(type(n) is int and n >= 0 for n in numbers):
            return "its header has something else where numbers belong"
        needed = [group.first(self.tokens) // layout.page for group in layout.groups]
        if len(self.first) != len(needed) or any(map(gt, self.first, needed)):
            return "pages that are looked back to are not there"
        if not layout.encoded * bool(self.tokens) <= self.text <= layout.encoded * self.tokens:
            return f"{self.text} of its {self.tokens} tokens cannot be an encoded text"
        if self.border and not (layout.states and self.border * layout.page < self.tokens):
            return f"there is no state at the border of {self.border} pages"
        return None


def save(path: Path, facts: Facts, cache: KVCache, sequence: Sequence, memory: Memory) -> None:
    """Write a sequence whose steps are all computed; `path` never has half a file.

    What a process that was killed left of such a file goes.
    Raises RequestError for a sequence that is closed, and where the file cannot be written.
    """
    clear_left(free_target(path))
    with replacing(path, nbytes(cache, sequence)) as file:
        write(file, str(path), facts, cache, sequence, memory)


def write(
    file: BinaryIO, where: str, facts: Facts, cache: KVCache, sequence: Sequence, memory: Memory
) -> None:
    """Write a sequence to an open file. Raises RequestError for one that is closed, and OSError."""
    with cache.lock:
        header, slots = header_of(facts, cache, sequence)
        tokens, tables = list(sequence.tokens), [list(pages) for pages in sequence.pages]
    pipe, encoded = Pipe(file, where), header.encoded()
    pipe.write(FRONT.pack(MAGIC, VERSION, len(encoded)) + encoded + np.array(tokens, "<i4").tobytes())
    held = [pages[count:] for pages, count in zip(tables, header.first, strict=True)]
    for piece in pieces(cache.layout, memory, held, slots):
        pipe.write(np.ascontiguousarray(piece).data)
    file.write(pipe.sum.digest())


def header_of(facts: Facts, cache: KVCache, sequence: Sequence) -> tuple[Header, list[int]]:
    """What a file would say of a sequence, and the slots whose states it would have."""
    cache.refuse_closed(sequence)
    cache.learn(sequence)
    border, slots = states_of(cache, sequence)
    text = sequence.border if len(sequence) else 0
    return Header(facts, len(sequence), [pages.count(GONE) for pages in sequence.pages], border, text), slots


def nbytes(cache: KVCache, sequence: Sequence) -> int:
    """Bytes of the tokens, pages and states that a file would have of a sequence."""
    with cache.lock:
        return header_of({}, cache, sequence)[0].data_bytes(cache.layout)


def states_of(cache: KVCache, sequence: Sequence) -> tuple[int, list[int]]:
    """The last border of pages before a sequence's end whose state is known, or 0; and the slots to keep."""
    if not cache.states.used or not len(sequence):
        return 0, []
    now = sequence.states.now
    for count in range((len(sequence) - 1) // cache.layout.page, 0, -1):
        if (slot := cache.states.find(sequence.keys, count)) is not None:
            return count, [slot, now]
    return 0, [now]


def pieces(layout: KVLayout, memory: Memory, tables: Tables, slots: list[int]) -> Iterator[NDArray[np.uint8]]:
    """The bytes of pages and slots in the order of a file, as views; for those that are GONE, as memory to spare."""
    for group, pages in zip(layout.groups, tables, strict=True):
        for layer in group.layers:
            for array in memory.pages[layer]:
                yield from rows(array, group.pages, pages)
    for name in layout.states:
        yield from rows(memory.states[name], layout.slots, slots)


def rows(array: NDArray[Any], count: int, wanted: list[int]) -> Iterator[NDArray[np.uint8]]:
    if not array.size:
        return
    blocks = array.reshape(count, -1).view(np.uint8)
    spare = np.empty(blocks.shape[1], np.uint8)
    for n in wanted:
        yield spare if n == GONE else blocks[n]


def restore(path: Path, facts: Facts, cache: KVCache, memory: Memory, n_vocab: int) -> Sequence:
    """A new sequence that holds what a file kept. Beginnings that the cache knows already are shared with it.

    Raises FormatError for a damaged file, and RequestError for one of another model or cache, and without room.
    """
    with opened(str(path)) as (file, size):
        return read(file, size, str(path), facts, cache, memory, n_vocab)


def read(
    file: BinaryIO, size: int, where: str, facts: Facts, cache: KVCache, memory: Memory, n_vocab: int
) -> Sequence:
    """As `restore`, from an open file of `size` bytes. Raises OSError, too."""
    pipe = Pipe(file, where)
    header = read_header(pipe, size, facts, cache.layout)
    if header.tokens > cache.n_ctx:
        what = f"its {header.tokens} tokens do not fit the context of {cache.n_ctx}"
        raise RequestError(what, where=where, fix="raise n_ctx (-c)")
    tokens = np.empty(header.tokens, "<i4")
    pipe.fill(tokens)
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < n_vocab:
        raise FormatError("it has ids that no token has", where=where, fix=AGAIN)
    sequence = cache.open()
    try:
        Arrival(cache, sequence, header, tokens.tolist()).fill(pipe, memory)
    except BaseException:
        cache.close(sequence)
        raise
    return sequence


@contextmanager
def opened(where: str) -> Iterator[tuple[BinaryIO, int]]:
    """A file and its size. Raises FormatError where it cannot be read."""
    if Path(where).is_dir():
        raise FormatError("this is a folder", where=where, fix="name a file")
    file, size = open_file(Path(where))
    with file:
        try:
            yield file, size
        except OSError as error:
            raise unreadable(error, where) from None


def check(path: Path) -> None:
    """Raise FormatError for a file that is plainly no saved sequence, before there is a model to take it up."""
    with opened(str(path)) as (file, size):
        header_bytes(Pipe(file, str(path)), size)


def header_bytes(pipe: Pipe, size: int) -> int:
    """Bytes of the header, from what stands before it."""
    front = pipe.read(min(size, FRONT.size))
    if front[:8] != MAGIC:
        raise FormatError("this is no saved sequence", where=pipe.where, fix="name another file")
    if len(front) < FRONT.size:
        raise refused(pipe, f"the file ends after {size} bytes")
    _, version, length = FRONT.unpack(front)
    if version != VERSION:
        raise refused(pipe, f"it has the form {version}, and this Puna reads {VERSION}")
    if length > min(MAX_HEADER, size - FRONT.size):
        raise refused(pipe, f"a header of {length} bytes does not fit the file of {size}")
    return int(length)


def refused(pipe: Pipe, what: str) -> FormatError:
    return FormatError(what, where=pipe.where, fix=AGAIN)


def read_header(pipe: Pipe, size: int, facts: Facts, layout: KVLayout) -> Header:
    """The header, when all that it says fits the model and the file's size."""
    length = header_bytes(pipe, size)
    try:
        found = json.loads(pipe.read(length).decode())
        header = Header(**found)
        saved = dict(header.facts)
    except (ValueError, TypeError, RecursionError):
        raise refused(pipe, "its header cannot be read") from None
    refuse_other(saved, facts, pipe.where)
    if fault := header.fault(layout):
        raise refused(pipe, fault)
    whole = FRONT.size + length + header.data_bytes(layout) + DIGEST
    if size != whole:
        raise refused(pipe, f"the file has {size} bytes, and {whole} belong to {header.tokens} tokens")
    return header


def refuse_other(saved: Facts, facts: Facts, where: str) -> None:
    """Raise RequestError where a sequence was saved under other circumstances; says which."""
    for name, own in facts.items():
        there = saved.get(name)
        if there != own:
            told = (
                f"it was saved with another model, or other options: {name} {shown(there)}, not {shown(own)}"
            )
            raise RequestError(told, where=where, fix="run the model as it was then, or name another file")


def shown(value: object) -> str:
    text = value if isinstance(value, str) else "something else"
    return text if len(text) <= 60 else text[:57] + "..."


class Arrival:
    """A sequence on its way into a cache: what is known there already is shared, the rest gets memory of its own."""

    def __init__(self, cache: KVCache, sequence: Sequence, header: Header, tokens: list[int]) -> None:
        self.cache, self.sequence, self.header, self.tokens = cache, sequence, header, tokens
        page = cache.layout.page
        self.keys = page_keys(tokens, len(tokens) // page, page, border=header.text)
        self.border: int | None = None  # its slot

    def fill(self, pipe: Pipe, memory: Memory) -> None:
        """Read pages and states, and hold them if the digest is right."""
        with self.cache.lock:
            tables, slots = self.take_pages(pipe.where), self.take_slots(pipe.where)
        try:
            for piece in pieces(self.cache.layout, memory, tables, slots):
                pipe.fill(piece)
            if pipe.file.read(DIGEST) != pipe.sum.digest():
                raise FormatError("the file is damaged: its digest is another", where=pipe.where, fix=AGAIN)
            with self.cache.lock:
                self.settle()
        finally:
            if self.border is not None:
                with self.cache.lock:
                    self.cache.states.pool.release(self.border)

    def take_pages(self, where: str) -> Tables:
        """For each group the pages to be filled, GONE where one is there already."""
        layout, tables = self.cache.layout, []
        for pool, pages, first in zip(self.cache.pools, self.sequence.pages, self.header.first, strict=True):
            pages.extend([GONE] * self.header.pages(layout))
            for place, key in enumerate(self.keys[first:], first):
                if (page := pool.find(key)) is not None:
                    pool.share(page)
                    pages[place] = page
            missing = {place for place in range(first, len(pages)) if pages[place] == GONE}
            if len(missing) > pool.room:
                what = f"its {len(self.tokens)} tokens do not fit beside what the cache's sequences hold"
                raise RequestError(what, where=where, fix="raise n_ctx (-c), or close a sequence")
            for place in missing:
                pages[place] = pool.take()
            tables.append([pages[n] if n in missing else GONE for n in range(first, len(pages))])
        return tables

    def take_slots(self, where: str) -> list[int]:
        """Slots for the states of the file; that of the border can be spared."""
        states = self.cache.states
        if not states.used or not self.tokens:
            return []
        if not states.pool.room:
            what = f"there are slots for {states.pool.count - 1} states, and sequences hold them all"
            raise RequestError(what, where=where, fix="raise parallel (-np), or close a sequence")
        states.pool.release(EMPTY)
        now = self.sequence.states.now = states.pool.take()
        if self.header.border and states.pool.room:
            self.border = states.pool.take()
        return [GONE if self.border is None else self.border] * (self.header.border > 0) + [now]

    def settle(self) -> None:
        """All is there: the sequence holds its tokens, and full pages are known."""
        sequence, cache = self.sequence, self.cache
        sequence.tokens, sequence.keys, sequence.border = self.tokens, self.keys, self.header.text
        for pool, pages in zip(cache.pools, sequence.pages, strict=True):
            for page, key in zip(pages, self.keys, strict=False):
                if page != GONE:
                    pool.learn(page, key)
        if self.border is not None:
            cache.states.pool.learn(self.border, self.keys[self.header.border - 1])
        cache.states.settle(sequence.states, len(sequence), sequence.keys)

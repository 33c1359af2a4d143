"""What is fixed about attention, and the memory that its kernels want."""

from __future__ import annotations

from dataclasses import dataclass

from puna.backends.cpu.kernels.kv import page_bytes
from puna.graph import FAR
from puna.plan.kv import PAGE, KVLayout

__all__ = [
    "BIASES",
    "BLOCK",
    "ITEM_BYTES",
    "MOST_GROUP",
    "Shape",
    "attend_scratch",
    "partial_bytes",
    "parts_bytes",
    "parts_of",
    "split_units",
    "tile_of",
]

# 0 first row, 8 rows, 16 position of the first row, 24 the sequence's pages, i32, 32 its length, 40 its border
ITEM_BYTES = 48
# Biases of a head: those of the farthest distances often enough for a vector that begins at any distance.
BIASES = 2 * FAR + 32
BLOCK = 8  # pages of a block
MOST_GROUP = 16  # queries of a unit and a row, up to which memory for `attend_split` is planned
GOOD_GROUP = 8  # queries of a unit and a row, up to which there is no need for more units


@dataclass(frozen=True)
class Shape:
    """What is fixed about a layer's attention.

    group: query heads that share a key/value head.  parts: units of work that a group is cut into.
    by_rows: keys lie in the cache as values do.  shared: the beginnings of keys are the values.
    biases: scores have biases by distance.  part: of an encoder-decoder, as in `kv_store`.
    """

    heads_kv: int
    group: int
    key: int
    value: int
    k_kind: str
    v_kind: str
    scale: float
    window: int
    softcap: float
    alibi: bool = False
    sinks: bool = False
    chunked: bool = False
    causal: bool = True
    parts: int = 1
    by_rows: bool = False
    shared: bool = False
    biases: bool = False
    part: str = ""

    @property
    def units(self) -> int:
        """Units of work of an item."""
        return self.heads_kv * self.parts

    @property
    def each(self) -> int:
        """Queries of a unit and a row."""
        return self.group // self.parts

    @property
    def k_page(self) -> int:
        """Bytes of one head's keys in a page."""
        return page_bytes(self.k_kind, self.key)

    @property
    def v_page(self) -> int:
        return page_bytes(self.v_kind, self.value)


def parts_of(group: int) -> int:
    """Units that a group of query heads is best cut into: whole tiles of queries, and work for several threads."""
    cuts = [n for n in range(1, group + 1) if group % n == 0 and group // n <= GOOD_GROUP]
    return cuts[0] if group // cuts[0] * 2 >= GOOD_GROUP else 1


def tile_of(queries: int, most: int) -> int:
    """Queries of a tile, up to `most`, when there are so many: as many tiles as must be, of about the same size."""
    return -(-queries // -(-queries // most))


def attend_scratch(value: int, tile: int) -> int:
    """Bytes of scratch: for each query weights of a page, sums of values of a block and of all; rows of a page."""
    return tile * 4 * (PAGE + 2 * value) + PAGE * (4 + 8)


def partial_bytes(value: int) -> int:
    """Bytes of one query's part of a block: largest score, sum of weights, sums of values, in whole vectors."""
    return -(-(2 + value) * 4 // 64) * 64


def split_units(threads: int) -> int:
    """Most units whose blocks it is worth its while to share out: more keep all threads busy by themselves."""
    return 2 * threads


def parts_bytes(kv: KVLayout, threads: int) -> int:
    """Bytes of all that units whose blocks are shared out have to keep: parts of sums, or scores of all positions.

    None where no layer attends.
    """
    if not kv.widths:
        return 0
    blocks = -(-kv.positions // (PAGE * BLOCK))
    largest = max(value for _, _, value in kv.widths.values())
    return split_units(threads) * max(blocks * MOST_GROUP * partial_bytes(largest), kv.positions * 4)

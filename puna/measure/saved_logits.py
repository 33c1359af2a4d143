"""Logits of a base model on disk, in llama-perplexity's format, to compare other models with.

    8 bytes  "_logits_"
    int32    n_ctx, ids in a window
    int32    n_vocab
    int32    windows
    int32    ids [windows, n_ctx]
    then for each judged position (the second half of each window but its last), 16 bits a value:
    float32  scale
    float32  least, the logarithm of a probability
    uint16   codes [n_vocab], and one more where n_vocab is odd: ln p = least + scale * code

All little-endian. Probabilities below e^-16 of the likeliest token's are raised to that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from puna.errors import FormatError, RequestError
from puna.gguf.output import check_room, replacing
from puna.gguf.source import open_file
from puna.measure.windows import LEAST, Windows

__all__ = ["SavedLogits", "Writer", "file_bytes", "saving"]

MAGIC = b"_logits_"
HEADER = Struct("<8siii")
RANGE, LEVELS = 16, 65535
HEAD = 4  # 16-bit values before a row's codes: two float32
AGAIN = "write it again with --save-all-logits"


def row_values(n_vocab: int) -> int:
    """16-bit values of a row."""
    return HEAD + n_vocab + n_vocab % 2


def judged(n_ctx: int) -> int:
    """Rows of a window."""
    return n_ctx - 1 - n_ctx // 2


def file_bytes(n_ctx: int, n_vocab: int, windows: int) -> int:
    """Bytes of a whole file."""
    return HEADER.size + windows * (4 * n_ctx + 2 * judged(n_ctx) * row_values(n_vocab))


class Writer:
    """Takes the logits of all judged positions, in order."""

    def __init__(self, file: BinaryIO, rows: int) -> None:
        self.file, self.left = file, rows

    def add(self, logits: NDArray[np.float32]) -> None:
        """logits: float32 [rows, vocabulary]."""
        for row in logits:
            self.file.write(encoded(row).data)
        self.left -= len(logits)


@contextmanager
def saving(path: str | Path, windows: Windows, n_vocab: int) -> Iterator[Writer]:
    """A file that is there when all logits of the windows are in it, and not before.

    Raises RequestError where there is no room, or the file cannot be written.
    """
    path, count = Path(path), len(windows.starts)
    check_room(path, file_bytes(windows.length, n_vocab, count), "lower --chunks, or free some space")
    with replacing(path) as file:
        file.write(HEADER.pack(MAGIC, windows.length, n_vocab, count))
        file.write(windows.ids[: count * windows.length].astype("<i4").data)
        writer = Writer(file, count * judged(windows.length))
        yield writer
        if writer.left:
            raise RequestError(f"{writer.left} rows of logits are missing", where=str(path))


def encoded(logits: NDArray[np.float32]) -> NDArray[np.uint16]:
    """A row as it is saved: uint16 [row values]."""
    most = logits.max()
    least = np.maximum(logits.min(), most - np.float32(RANGE))
    total = np.float32(np.log(np.exp(logits - most).sum(dtype=np.float64)))
    scale = (most - least) / np.float32(LEVELS)
    row = np.zeros(row_values(len(logits)), "<u2")
    row[:HEAD] = np.array([scale, least - most - total], "<f4").view("<u2")
    if scale:
        codes = np.rint((np.maximum(logits, least) - least) * (np.float32(1) / scale))
        row[HEAD : HEAD + len(logits)] = codes
    return row


class SavedLogits:
    """A base's file, open for reading. n_ctx, n_vocab; windows: how many.  ids: int32 [windows * n_ctx]."""

    def __init__(self, path: str | Path) -> None:
        """Raises FormatError where the file is none of these, or is cut short."""
        self.where = str(path)
        self.file, size = open_file(Path(path))
        try:
            self.read_header(self.file, size)
        except BaseException:
            self.file.close()
            raise

    def read_header(self, file: BufferedReader, size: int) -> None:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            raise self.error("this is no file of saved logits")
        _, self.n_ctx, self.n_vocab, self.windows = HEADER.unpack(head)
        if self.n_ctx < LEAST or self.n_vocab < 1 or self.windows < 1:
            what = f"{self.windows} windows of {self.n_ctx} tokens, a vocabulary of {self.n_vocab}"
            raise self.error(f"the header is damaged: {what}")
        whole = file_bytes(self.n_ctx, self.n_vocab, self.windows)
        if size != whole:
            raise self.error(f"it has {size} bytes, and its header speaks of {whole}")
        raw = self.read(4 * self.n_ctx * self.windows)
        self.ids: NDArray[np.int32] = np.frombuffer(raw, "<i4").astype(np.int32)
        if self.ids.min() < 0 or self.ids.max() >= self.n_vocab:
            raise self.error(f"it has token ids outside of its vocabulary of {self.n_vocab}")

    def error(self, what: str) -> FormatError:
        return FormatError(what, where=self.where, fix=AGAIN)

    def read(self, nbytes: int) -> bytes:
        raw = self.file.read(nbytes)
        if len(raw) != nbytes:
            raise self.error("the file became shorter while it was open")
        return raw

    def rows(self, count: int) -> NDArray[np.float32]:
        """The next rows: logarithms of probabilities, float32 [count, n_vocab]. Raises FormatError."""
        width = row_values(self.n_vocab)
        raw = np.frombuffer(self.read(2 * count * width), "<u2").reshape(count, width)
        heads = raw[:, :HEAD].copy().view("<f4")  # [count, 2]
        scale, least = heads[:, :1], heads[:, 1:]
        with np.errstate(all="ignore"):  # what is no number fits no range
            fits = (scale >= 0) & (scale * LEVELS < RANGE + 0.1) & (least + scale * LEVELS < 0.01)
        if not (fits & np.isfinite(least)).all():
            raise self.error("it holds logarithms that are those of no probability")
        rows: NDArray[np.float32] = raw[:, HEAD : HEAD + self.n_vocab].astype(np.float32)
        rows *= scale
        rows += least
        return rows

    def rewind(self) -> None:
        """Have `rows` begin with the first again."""
        self.file.seek(HEADER.size + self.ids.nbytes, os.SEEK_SET)

    def __enter__(self) -> SavedLogits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.file.close()

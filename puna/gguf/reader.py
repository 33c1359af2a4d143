"""An open GGUF model, in one file or in several."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError, RequestError
from puna.gguf.cursor import quoted
from puna.gguf.header import ByteOrder, Header, read_header
from puna.gguf.metadata import Metadata
from puna.gguf.source import Mapped, Plain, Source, open_file, unreadable
from puna.gguf.split import check_parts, part_paths
from puna.gguf.tensors import TensorInfo
from puna.quants import byteswapped

__all__ = ["GGUFFile"]


@dataclass(frozen=True)
class Part:
    """One file of a model."""

    path: Path
    header: Header
    source: Source

    @classmethod
    def open(cls, path: Path, mapped: bool) -> Part:
        file, size = open_file(path)
        try:
            header = read_header(file, size, str(path))
            return cls(path, header, (Mapped if mapped else Plain)(file, str(path)))
        except OSError as error:
            file.close()
            raise unreadable(error, str(path)) from None
        except BaseException:
            file.close()
            raise


def open_parts(path: Path, mapped: bool) -> tuple[Part, ...]:
    """All files of the model that has the file `path`, in order."""
    with ExitStack() as opened:

        def enter(part_path: Path) -> Part:
            part = Part.open(part_path, mapped)
            opened.callback(part.source.close)
            return part

        given = enter(path)
        paths, place = part_paths(path, given.header.metadata)
        parts = tuple(given if number == place else enter(other) for number, other in enumerate(paths))
        if len(parts) > 1:
            check_parts([part.header for part in parts])
        opened.pop_all()
    return parts


class GGUFFile:
    """A GGUF model open for reading: `metadata`, `tensors`, and the bytes of each tensor by `data`.

    Opening reads and checks the headers, not the tensors. Of a model in several files, `metadata`, `version`,
    `byteorder` and `alignment` are the first file's, and `size` is the bytes of all. The files must not
    change while they are open: a mapped file that is cut short ends the process.
    """

    def __init__(self, path: Path, parts: tuple[Part, ...]) -> None:
        first = parts[0].header
        self.path = path
        self.paths = tuple(part.path for part in parts)
        self.version = first.version
        self.byteorder: ByteOrder = first.byteorder
        self.alignment = first.alignment
        self.metadata: Metadata = first.metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {
                t.name: replace(t, part=number)
                for number, part in enumerate(parts)
                for t in part.header.tensors
            }
        )
        self.size = sum(part.header.size for part in parts)
        self._sources: tuple[Source, ...] | None = tuple(part.source for part in parts)

    @classmethod
    def open(cls, path: str | Path, *, mmap: bool = True) -> GGUFFile:
        """Open a model by the path of its file, or of any of its files.

        mmap: map the files into memory, so that `data` copies nothing; False reads tensors when asked to.
        Raises FormatError where a file is missing, cannot be read, or is not sound GGUF of version 2 or 3.
        """
        return cls(Path(path), open_parts(Path(path), mmap))

    def data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes: uint8 [shape but for its last axis..., bytes of a row], read-only, little-endian.

        A view of the mapping where the file is mapped and little-endian, else a copy. A view stays good after
        `close`. Raises ModelError where there is no such tensor.
        """
        tensor = self._tensor(name)
        return self._read(tensor, 0, tensor.nbytes, None).reshape(*tensor.shape[:-1], -1)

    def rows(
        self, name: str, first: int, last: int, room: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """As `data`, some rows of a tensor, counted over all axes but the last: uint8 [last - first, bytes of a row].

        room: memory that begins at a page, to read into where the file is not mapped and the rows fit with 8 KiB to
        spare.
        """
        tensor = self._tensor(name)
        width = tensor.quant.row_bytes(tensor.shape[-1])
        return self._read(tensor, first * width, (last - first) * width, room).reshape(-1, width)

    def _tensor(self, name: str) -> TensorInfo:
        if self._sources is None:
            raise RequestError("the file is closed", where=str(self.path), fix="open it again")
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(f"missing tensor {quoted(name)}", where=str(self.path))
        return tensor

    def _read(
        self, tensor: TensorInfo, start: int, nbytes: int, room: NDArray[np.uint8] | None
    ) -> NDArray[np.uint8]:
        assert self._sources is not None
        raw = self._sources[tensor.part].read(tensor.offset + start, nbytes, room)
        if self.byteorder == "big":
            raw = byteswapped(tensor.quant, raw)
            raw.setflags(write=False)
        return raw

    def drop(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Bytes `start` to `stop` of a tensor will not be read again soon: mapped pages of theirs are given back."""
        tensor = self.tensors[name]
        stop = tensor.nbytes if stop is None else stop
        if self._sources is not None:
            self._sources[tensor.part].drop(tensor.offset + start, stop - start)

    def close(self) -> None:
        """Let go of the files. Views that are alive keep their mapping until the last one goes."""
        sources, self._sources = self._sources or (), None
        for source in sources:
            source.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

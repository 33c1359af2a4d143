"""Sequences of a loaded model that are written to files, and taken up again."""

from __future__ import annotations

import hashlib
import sys
from functools import cached_property
from pathlib import Path

from puna.cache import Sequence, saved
from puna.errors import RequestError
from puna.gguf import GGUFFile
from puna.graph import dump
from puna.steps import Steps

__all__ = ["Saving"]

SAMPLE = 256  # bytes of each tensor that tell models of one make apart


class Saving(Steps):
    """Steps whose sequences can be kept in files."""

    file: GGUFFile

    def save(self, sequence: Sequence, path: str | Path) -> None:
        """Write what the cache holds of a sequence to a file; `restore` takes it up again.

        Raises RequestError for a sequence that is closed, and where the file cannot be written.
        """
        with self.lock:
            saved.save(Path(path), self.facts, self.cache, sequence, self.backend.memory(self.program))

    def restore(self, path: str | Path) -> Sequence:
        """An open sequence that holds what was saved: pages, states and so the logits that follow are the same.

        Raises FormatError for a damaged file; RequestError for one that was saved by another model, on another
        backend or with other options that change what is computed, and where the cache has no room.
        """
        with self.lock:
            memory = self.backend.memory(self.program)
            return saved.restore(Path(path), self.facts, self.cache, memory, self.n_vocab)

    @cached_property
    def facts(self) -> saved.Facts:
        """All that decides what lies in a page, and how, in words."""
        kv = self.plan.kv
        groups = [f"{list(group.layers)} of window {group.window}" for group in kv.groups]
        return {
            "architecture": self.config.architecture,
            "model": fingerprint(self.file),
            "backend": self.about.name,
            "keys": kv.k_type,
            "values": kv.v_type,
            "graph": hashlib.blake2b(dump(self.plan.graph).encode(), digest_size=16).hexdigest(),
            "layers": ", ".join(groups),
            "page": str(kv.page),
            "states": ", ".join(f"{name} {list(shape)}" for name, shape in kv.states.items()),
            "byteorder": sys.byteorder,
            **({"values in keys": str(sorted(kv.shared))} if kv.shared else {}),
        }


def fingerprint(file: GGUFFile) -> str:
    """A hash of a model's headers, and of a little of each tensor. Raises RequestError where its files are gone."""
    found = hashlib.blake2b(digest_size=16)
    try:
        for number, path in enumerate(file.paths):
            tensors = [tensor for tensor in file.tensors.values() if tensor.part == number]
            with path.open("rb") as part:
                found.update(part.read(min((t.offset for t in tensors), default=-1)))
                for tensor in tensors:
                    part.seek(tensor.offset + max(0, tensor.nbytes - SAMPLE) // 2)
                    found.update(part.read(min(SAMPLE, tensor.nbytes)))
    except OSError as error:
        what = f"the model's file cannot be read any more: {error.strerror or error}"
        raise RequestError(what, where=str(file.path)) from None
    return found.hexdigest()

"""Text <-> ids of a model file, without the model."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

from puna import store, tokenizer
from puna.gguf import GGUFFile, Metadata
from puna.sampling.penalties import Breakers, find_breakers
from puna.settings import Settings
from puna.tokenizer import Tokenizer

__all__ = ["Vocabulary", "load_tokenizer"]


class Vocabulary:
    """A model file and its tokenizer. metadata: the file's, a read-only mapping."""

    def __init__(self, file: GGUFFile, building: Future[Tokenizer] | None = None) -> None:
        """building: a tokenizer that `build_tokenizer` has begun; None begins one."""
        self.file, self.metadata = file, file.metadata
        self.building = building or build_tokenizer(self.metadata)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd about the vocabulary, a line each."""
        return () if self.building.exception() else self.tokenizer.notes

    def breakers(self, texts: Sequence[str]) -> Breakers:
        """The tokens that begin or end one of the texts: where DRY sampling forgets a repetition."""
        pieces = [self.tokenizer.piece(token) for token in range(self.tokenizer.vocab_size)]
        return find_breakers(texts, pieces, lambda text: self.tokenize(text, False, False))

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError when the file's vocabulary cannot be used; ids run without one."""
        return self.building.result()

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text.

        add_special: with the beginning and end marks that the model wants.
        parse_special: control tokens that the text spells out become their ids; without, they are plain text.
        """
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of ids, without the beginning and end marks that `tokenize` adds.

        Raises RequestError for an id that is not in the vocabulary.
        """
        t, given = self.tokenizer, [int(i) for i in ids]
        start = 1 if t.add_bos and given[:1] == [t.bos] else 0
        ends = [[t.eos]] * t.add_eos + [[t.closing]]
        stop = len(given) - (1 if given[start:][-1:] in ends else 0)
        return t.decode(given[start:stop])


def build_tokenizer(metadata: Metadata) -> Future[Tokenizer]:
    """A tokenizer, built on a thread of its own while the weights are brought in.

    The interpreter waits for the thread before it ends: native code that is unwound at exit aborts the process.
    """
    future: Future[Tokenizer] = Future()

    def build() -> None:
        try:
            future.set_result(tokenizer.load(metadata))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=build, name="puna-tokenizer").start()
    return future


def load_tokenizer(model: str | Path) -> Vocabulary:
    """The vocabulary of a GGUF file, or of a model by name; its weights are not read."""
    with GGUFFile.open(store.resolve(str(model), Settings.from_environment())) as file:
        vocabulary = Vocabulary(file)
    _ = vocabulary.tokenizer  # an unusable vocabulary is an error here
    return vocabulary

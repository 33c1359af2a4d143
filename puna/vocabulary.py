"""Text <-> ids of a model file, without the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from puna import store, tokenizer
from puna.gguf import GGUFFile
from puna.settings import Settings
from puna.tokenizer import Tokenizer

__all__ = ["Vocabulary", "load_tokenizer"]


class Vocabulary:
    """An open model file and its tokenizer. metadata: the file's, a read-only mapping."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, self.metadata = file, file.metadata
        self._tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """Built when it is first asked for: ids run without one.

        Raises TokenizerError when the file's vocabulary cannot be used.
        """
        if self._tokenizer is None:
            self._tokenizer = tokenizer.load(self.metadata)
        return self._tokenizer

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text.

        add_special: with the beginning and end marks that the model wants.
        parse_special: control tokens that the text spells out become their ids; without, they are plain text.
        """
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of ids. Raises RequestError for an id that is not in the vocabulary."""
        return self.tokenizer.decode(list(ids))


def load_tokenizer(model: str | Path) -> Vocabulary:
    """The vocabulary of a GGUF file, or of a model by name; its weights are not read."""
    vocabulary = Vocabulary(GGUFFile.open(store.resolve(str(model), Settings.from_environment())))
    _ = vocabulary.tokenizer  # an unusable vocabulary is an error here
    return vocabulary

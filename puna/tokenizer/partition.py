"""Special tokens in a text: found before the text between them is tokenized."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from puna.gguf import Metadata
from puna.tokenizer.tokens import Kind, TokenTable

__all__ = ["Partition", "stripping"]

SPACE = b" \t\n\v\f\r"  # C's isspace
TAKEN = b"\xff"  # in no UTF-8 text
HEAD = 4  # bytes of a token that say quickly that a text does not hold it
MANY = 64  # tokens with one head, from which it is quicker to look at each place of the head
SPECIAL_KINDS = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
PHI3_STRIPS_NOT = ("<unk>", "<s>", "<|endoftext|>")


class Special(NamedTuple):
    """rank: by falling length, the order of search. strip_left, strip_right: the space beside it goes too."""

    rank: int
    token: int
    text: bytes
    strip_left: bool
    strip_right: bool


class Group:
    """The special tokens that begin with the same bytes."""

    def __init__(self, head: bytes, members: list[Special]) -> None:
        self.head, self.members = head, members
        self.by_text = {special.text: special for special in members}
        self.lengths = sorted({len(special.text) for special in members})

    def present(self, data: bytes) -> Iterable[Special]:
        """Those that the text holds."""
        if self.head not in data:
            return ()
        if len(self.members) < MANY:
            return (special for special in self.members if special.text in data)
        return {
            special
            for place in places(self.head, data)
            for length in self.lengths
            if (special := self.by_text.get(data[place : place + length]))
        }


class Partition:
    """Cuts a text into special tokens and the text between.

    Longer tokens are found before shorter ones, each from left to right, as llama.cpp does.
    """

    def __init__(self, vocabulary: TokenTable, strip_left: Iterable[int], strip_right: Iterable[int]) -> None:
        kinds, texts = vocabulary.kinds, vocabulary.texts
        left, right = frozenset(strip_left), frozenset(strip_right)
        ids = vocabulary.of_kind(*SPECIAL_KINDS)
        coded = {token: texts[token].encode("utf-8", "surrogateescape") for token in ids}
        ids.sort(key=lambda token: -len(coded[token]))
        specials = [
            Special(rank, token, coded[token], token in left, token in right)
            for rank, token in enumerate(ids)
        ]
        self._all = grouped(specials)
        self._always = grouped([one for one in specials if kinds[one.token] == Kind.USER_DEFINED])

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """Ids of special tokens, and the text between them, in order. `text` has no lone surrogates.

        Without `parse_special` only user-defined tokens are found: the rest are plain text.
        """
        data = text.encode("utf-8")
        groups = self._all if parse_special else self._always
        present = sorted(special for group in groups for special in group.present(data))
        cuts = find(data, present)
        if not cuts:
            return [text] if text else []
        parts: list[str | int] = []
        done = 0
        for start, end, token in cuts:
            if start > done:
                parts.append(data[done:start].decode("utf-8"))
            parts.append(token)
            done = end
        if done < len(data):
            parts.append(data[done:].decode("utf-8"))
        return parts


def stripping(vocabulary: TokenTable, metadata: Metadata) -> tuple[frozenset[int], frozenset[int]]:
    """The tokens that take the space on their left, and on their right. No key says so: llama.cpp goes by names."""
    ids = vocabulary.ids
    name = metadata.string("general.name", default="").lower()
    pre = metadata.string("tokenizer.ggml.pre", default="")
    if any(jina in pre for jina in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return frozenset(ids[text] for text in ("<mask>",) if text in ids), frozenset()
    if "phi-3" in name or "phi3" in name:
        strip = {*vocabulary.of_kind(*SPECIAL_KINDS), *(ids[text] for text in ("</s>",) if text in ids)}
        return frozenset(), frozenset(strip - {ids.get(text) for text in PHI3_STRIPS_NOT})
    if "modern-bert" in name:
        return frozenset(ids[text] for text in ("[MASK]",) if text in ids), frozenset()
    return frozenset(), frozenset()


def grouped(specials: list[Special]) -> list[Group]:
    groups: dict[bytes, list[Special]] = defaultdict(list)
    for special in specials:
        groups[special.text[:HEAD]].append(special)
    return [Group(head, members) for head, members in groups.items()]


def places(sought: bytes, data: bytes) -> Iterator[int]:
    place = data.find(sought)
    while place >= 0:
        yield place
        place = data.find(sought, place + 1)


def find(data: bytes, present: list[Special]) -> list[tuple[int, int, int]]:
    """Where each special token stands: its start and end with the space it strips, and its token; in order."""
    left = bytearray(data)
    cuts: list[tuple[int, int, int]] = []
    for _, token, text, strip_left, strip_right in present:
        start = left.find(text)
        while start >= 0:
            end = start + len(text)
            while strip_right and end < len(left) and left[end] in SPACE:
                end += 1
            while strip_left and start > 0 and left[start - 1] in SPACE:
                start -= 1
            left[start:end] = TAKEN * (end - start)
            cuts.append((start, end, token))
            start = left.find(text, end)
    cuts.sort()
    return cuts

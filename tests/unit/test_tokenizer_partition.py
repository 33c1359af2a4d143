"""Special tokens in a text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import CONTROL, HELLO, USER, byte_pair, letters, sentence_piece, texts

from puna.tokenizer import load
from puna.tokenizer.partition import Partition, stripping
from puna.tokenizer.tokens import TokenTable


def split(text: str, special: dict[str, int], parse_special: bool = True) -> list[str]:
    table = TokenTable.read(byte_pair(HELLO, special), {})
    parts = Partition(table, (), ()).split(text, parse_special)
    return [f"[{table.texts[part]}]" if isinstance(part, int) else part for part in parts]


def naive_split(text: str, tokens: list[str]) -> list[str]:
    """Longest token first, each from left to right, in what the ones before left of the text."""
    parts = [text] if text else []
    for token in sorted(tokens, key=lambda token: -len(token.encode())):
        pieces: list[str] = []
        for part in parts:
            if part.startswith("["):
                pieces.append(part)
                continue
            rest = part
            while (place := rest.find(token)) >= 0:
                pieces += [rest[:place], f"[{token}]"]
                rest = rest[place + len(token) :]
            pieces.append(rest)
        parts = [piece for piece in pieces if piece]
    return parts


def test_longer_tokens_are_found_first() -> None:
    """Of tokens that overlap, the longest one stands, wherever it begins."""
    special = {"ab|": CONTROL, "b|cd": CONTROL}
    assert split("ab|cd ab|", special) == ["a", "[b|cd]", " ", "[ab|]"]


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.integers(1, 5), st.text("<é>", min_size=5, max_size=5), max_size=5),
    st.text("<é> ", max_size=40),
)
def test_partition_follows_the_definition(drawn: dict[int, str], text: str) -> None:
    """Any text is parted as taking token by token does (tokens of different lengths, since equals have no order)."""
    tokens: dict[int, str] = {}
    for length, token in drawn.items():
        tokens.setdefault(len(token[:length].encode()), token[:length])
    chosen = [token for token in tokens.values() if token not in {"<", ">"}]
    assert split(text, dict.fromkeys(chosen, USER)) == naive_split(text, chosen)


def test_plain_parsing_finds_user_defined_tokens_only() -> None:
    """Without parse_special, control tokens are text."""
    special = {"<c>": CONTROL, "<u>": USER}
    assert split("x<c><u>", special, parse_special=False) == ["x<c>", "[<u>]"]


def test_phi3_takes_the_space_after_its_tokens() -> None:
    """Phi-3's special tokens swallow white space on their right, BOS and the like excepted."""
    special = {"<|end|>": CONTROL, "<|user|>": CONTROL}
    tokenizer = load(
        sentence_piece(letters(), special, **{"general.name": "Phi-3 mini", "add_space_prefix": False})
    )
    ids = tokenizer.encode("a <|end|> \n<|user|>\tb")
    assert texts(tokenizer, ids) == [
        "<s>",
        "a",
        "▁",
        "<|end|>",
        "<|user|>",
        "b",
    ]
    assert texts(tokenizer, tokenizer.encode("<s> a")) == ["<s>", "<s>", "▁", "a"]
    assert tokenizer.encode("a</s> b") == tokenizer.encode("a</s>b")


@pytest.mark.parametrize(
    ("pre", "name", "token"), [("jina-v2-de", "", "<mask>"), ("gpt-2", "Modern-BERT", "[MASK]")]
)
def test_masks_take_the_space_before_them(pre: str, name: str, token: str) -> None:
    """The mask token of these encoders swallows white space on its left."""
    tokenizer = load(byte_pair(HELLO, {token: CONTROL}, pre=pre, **{"general.name": name}))
    assert texts(tokenizer, tokenizer.encode(f"a \n{token} b")) == ["a", token, "Ġ", "b"]


def test_no_other_token_takes_space() -> None:
    """Without such a name, white space beside special tokens stays."""
    file = byte_pair(HELLO)
    assert stripping(TokenTable.read(file, {}), file) == (frozenset(), frozenset())


def test_thousands_of_special_tokens_are_quick() -> None:
    """A text is not searched for each of thousands of special tokens that begin alike."""
    special = {f"<unused{i}>": CONTROL for i in range(6000)}
    table = TokenTable.read(byte_pair(HELLO, special), {})
    partition = Partition(table, (), ())
    started = time.process_time()
    parts = partition.split("<unused5> and <unused59> <unused" * 20_000, True)
    assert time.process_time() - started < 5
    assert parts.count(table.ids["<unused59>"]) == 20_000
    assert parts.count(table.ids["<unused5>"]) == 20_000

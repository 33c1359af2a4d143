"""Text to ids and back, over small vocabularies built here."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    BYTE,
    CONTROL,
    HELLO,
    NORMAL,
    UNKNOWN,
    USER,
    byte_pair,
    letters,
    metadata,
    sentence_piece,
    texts,
)

from puna.errors import RequestError, TokenizerError
from puna.gguf import Metadata
from puna.tokenizer import load


def test_merges_apply_in_their_order() -> None:
    """The first merge of the list is made first, and only within a word."""
    tokenizer = load(byte_pair(HELLO))
    assert texts(tokenizer, tokenizer.encode("hello world")) == ["hello", "Ġwo", "r", "l", "d"]
    tokenizer = load(byte_pair("e+l h+e"))
    assert texts(tokenizer, tokenizer.encode("hel")) == ["h", "el"]


def test_merges_outside_the_vocabulary_are_skipped_and_noted() -> None:
    """A merge whose product is no token is skipped, with a note; the first of a doubled merge counts."""
    file = byte_pair("a+b b+c")
    merges = ["a b", "x yz", "b c", "nospace", "a b"]
    tokenizer = load(Metadata.of({**file, "tokenizer.ggml.merges": merges}))
    assert texts(tokenizer, tokenizer.encode("abc")) == ["ab", "c"]
    assert any("2 merges of" in note for note in tokenizer.notes)
    tokenizer = load(Metadata.of({**file, "tokenizer.ggml.merges": ["x yz"]}))
    assert any("1 merge of" in note for note in tokenizer.notes)


def test_missing_pre_tokenizer_is_noted() -> None:
    """Without `tokenizer.ggml.pre` the default one is used, and a note says so."""
    tokenizer = load(byte_pair(HELLO, pre=None))
    assert any("tokenizer.ggml.pre" in note for note in tokenizer.notes)
    assert not load(byte_pair(HELLO)).notes


def test_unknown_pre_tokenizer_names_the_nearest() -> None:
    """An unknown pre-tokenizer is an error that names near ones, never a guess."""
    with pytest.raises(TokenizerError, match=r"model.gguf.*'qwen-2'.*qwen2"):
        load(byte_pair(HELLO, pre="qwen-2"))


def test_whole_words_win_where_merges_are_ignored() -> None:
    """Llama 3's words that are tokens are taken as they are; GPT-2's are not."""
    keys: dict[str, Any] = {"merges": ["x y"], "bos_token_id": 0}
    file = byte_pair("a+b ab+c", **keys)
    assert texts(load(file), load(file).encode("abc")) == ["a", "b", "c"]
    llama = load(byte_pair("a+b ab+c", pre="llama-bpe", **keys))
    assert texts(llama, llama.encode("abc")) == [llama.token_text(0), "abc"]


@pytest.mark.parametrize(("pre", "adds"), [("gpt-2", False), ("llama-bpe", True), ("tekken", True)])
def test_bos_default_follows_the_pre_tokenizer(pre: str, adds: bool) -> None:
    """Whether BOS is added is the pre-tokenizer's default, unless the file says."""
    assert load(byte_pair(HELLO, pre=pre)).add_bos is adds
    assert load(byte_pair(HELLO, pre=pre, add_bos_token=not adds)).add_bos is not adds


def test_pieces_merge_by_score() -> None:
    """The pair whose piece has the highest score is merged first, the left one of equals."""
    tokenizer = load(sentence_piece(letters(ab=-2.0, bc=-1.0), add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode("abc", add_special=False)) == ["a", "bc"]
    tokenizer = load(sentence_piece(letters(ab=-1.0, bc=-1.0), add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode("abc", add_special=False)) == ["ab", "c"]


def naive_pieces(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE, by its definition."""
    symbols = list(text)
    while True:
        pairs = [
            (scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores
        ]
        if not pairs:
            return symbols
        place = -max(pairs)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=2, max_size=5), st.integers(-9, -1).map(float), max_size=12),
    st.text("abc", max_size=30),
)
def test_pieces_follow_the_definition(extra: dict[str, float], text: str) -> None:
    """Any vocabulary tokenizes as merging the best pair again and again does."""
    scores = {**dict.fromkeys("abc", -100.0), **extra}
    tokenizer = load(sentence_piece(scores, add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode(text, add_special=False)) == naive_pieces(text, scores)


def test_characters_without_a_piece_become_bytes() -> None:
    """A character that no piece covers is its UTF-8 bytes, NUL included, and comes back whole."""
    tokenizer = load(sentence_piece(letters(), add_space_prefix=False))
    ids = tokenizer.encode("a\0🦙", add_special=False)
    assert texts(tokenizer, ids) == ["a", "<0x00>", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]
    assert tokenizer.decode(ids) == "a\0🦙"


def test_space_is_put_first_and_taken_off() -> None:
    """A space goes before the text and after a special token, and decode takes the first one off."""
    tokenizer = load(sentence_piece(letters(), {"<|x|>": CONTROL}))
    ids = tokenizer.encode("ab<|x|>c")
    assert texts(tokenizer, ids) == ["<s>", "▁", "a", "b", "<|x|>", "▁", "c"]
    assert tokenizer.decode(ids, skip_special=True) == "ab c"
    assert tokenizer.decode(ids[1:4], continues=True) == " ab"
    assert tokenizer.decode(ids) == "<s> ab<|x|> c"


def test_vocabulary_without_bytes_or_unknown_still_works() -> None:
    """A SentencePiece vocabulary of letters alone can be used; its unknown token stands for the rest."""
    tokens = ["a", "b", "ab", "?"]
    scores = np.array([-9, -9, -1, -9], np.float32)
    file = metadata("llama", tokens, [NORMAL] * 4, scores=scores, add_bos_token=False, add_space_prefix=False)
    assert load(file).encode("aba") == [2, 0]
    file = metadata("llama", ["<unk>", "a"], [UNKNOWN, NORMAL], scores=scores[:2], add_bos_token=False)
    assert load(file).encode("a") == [0, 1]  # the space has no piece


def test_special_tokens_are_parsed_on_request() -> None:
    """Control tokens become ids only with parse_special; user-defined ones always do."""
    tokenizer = load(byte_pair(HELLO))
    end, tool = tokenizer.token_id("<|end|>"), tokenizer.token_id("<tool>")
    assert tokenizer.encode("a<|end|><tool>", parse_special=True)[1:] == [end, tool]
    plain = tokenizer.encode("a<|end|><tool>", parse_special=False)
    assert end not in plain
    assert plain[-1] == tool
    assert tokenizer.decode(plain) == "a<|end|><tool>"


def test_bos_and_eos_are_added_on_request() -> None:
    """add_special adds BOS and EOS where the model has them on."""
    tokenizer = load(sentence_piece(letters(), add_eos_token=True))
    assert tokenizer.encode("") == [1, 2]
    assert tokenizer.encode("", add_special=False) == []


def test_special_tokens_are_left_out_on_request() -> None:
    """skip_special leaves out control tokens and keeps user-defined ones."""
    tokenizer = load(byte_pair(HELLO))
    ids = tokenizer.encode("he<|end|><tool>llo")
    assert tokenizer.decode(ids, skip_special=True) == "he<tool>llo"
    assert [tokenizer.is_special(token) for token in ids] == [False, True, False, False, False]


def test_ids_out_of_range_are_named() -> None:
    """An id outside the vocabulary is an error with the id and the vocabulary's size."""
    tokenizer = load(byte_pair(HELLO))
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(RequestError, match=rf"{token} .*{tokenizer.vocab_size} tokens"):
            tokenizer.decode([token])


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), max_size=40), st.booleans())
def test_any_text_round_trips(text: str, byte_level: bool) -> None:
    """Every text comes back from its ids; lone surrogates as U+FFFD, and from pieces U+2581 as the space it is."""
    file = byte_pair(HELLO) if byte_level else sentence_piece(letters())
    tokenizer = load(file)
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    expected = expected if byte_level else expected.replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special=True) == expected


@pytest.mark.parametrize("text", [" ", "a", "\n", "🦙", "<|end|>", "a<tool>"])
def test_long_texts_take_linear_time(text: str) -> None:
    """A megabyte of one thing over and over takes about ten times a tenth of it."""

    def seconds(length: int) -> float:
        started = time.process_time()
        tokenizer.encode(text * (length // len(text)))
        return time.process_time() - started

    tokenizer = load(byte_pair(HELLO))
    seconds(1000)
    assert seconds(200_000) < 50 * max(seconds(20_000), 0.002)


def test_meanings_and_ends() -> None:
    """Ids come from the keys, or from known texts; what ends a generation is the union."""
    special = {
        "<|im_end|>": CONTROL,
        "<|endoftext|>": CONTROL,
        "<|fim_pad|>": CONTROL,
        "</s>": USER,
        "x|": CONTROL,
    }
    file = byte_pair(HELLO, special, eos_token_id=3, padding_token_id=4)
    tokenizer = load(file)
    ends = ["<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "</s>"]
    assert tokenizer.end_ids == {3, *(tokenizer.token_id(text) for text in ends)}
    assert (tokenizer.eos, tokenizer.eot, tokenizer.pad) == (3, tokenizer.token_id("<|im_end|>"), 4)
    assert tokenizer.unk is None
    assert tokenizer.is_special(tokenizer.token_id("</s>") or 0)


def test_end_of_a_part_is_no_end_for_gpt_oss() -> None:
    """<|end|> ends a message, not the reply, beside <|return|> and <|call|>."""
    special = dict.fromkeys(["<|end|>", "<|return|>", "<|call|>", "<|channel|>"], CONTROL)
    tokenizer = load(byte_pair(HELLO, special, eos_token_id=tokenizer_id(special, "<|return|>")))
    assert tokenizer.end_ids == {tokenizer.token_id("<|return|>"), tokenizer.token_id("<|call|>")}
    assert not tokenizer.is_special(tokenizer.token_id("<|channel|>") or 0)


def tokenizer_id(special: dict[str, int], text: str) -> int:
    return load(byte_pair(HELLO, special)).token_id(text) or 0


def test_templates_are_found_by_name() -> None:
    """The default chat template and the named ones are all there."""
    keys = {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    tokenizer = load(byte_pair(HELLO, **keys))
    assert tokenizer.chat_template == "A"
    assert tokenizer.chat_templates == {"default": "A", "tool_use": "B"}
    assert load(byte_pair(HELLO)).chat_template is None


def test_gemma4_merges_text_with_its_spaces() -> None:
    """Gemma 4's words are lines of UTF-8 with U+2581 for spaces, and bytes for the rest; BOS always goes first."""
    tokens = ["<bos>", "▁", "a", "b", "▁a", "▁ab", "\n", "\n\n", *(f"<0x{b:02X}>" for b in range(256))]
    kinds = [CONTROL] + [NORMAL] * 7 + [BYTE] * 256
    file = metadata("gemma4", tokens, kinds, merges=["▁ a", "▁a b"], bos_token_id=0, add_bos_token=False)
    tokenizer = load(file)
    ids = tokenizer.encode("a ab\n\né")
    assert texts(tokenizer, ids) == ["<bos>", "a", "▁ab", "\n\n", "<0xC3>", "<0xA9>"]
    assert any("add_bos_token" in note for note in tokenizer.notes)
    assert tokenizer.decode(ids, skip_special=True) == "a ab\n\né"


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"tokens": None}, r"tokenizer\.ggml\.tokens"),
    "no scores": ({"scores": None}, r"tokenizer\.ggml\.scores"),
    "few scores": ({"scores": np.zeros(3, np.float32)}, r"scores' has 3 entries for \d+ tokens"),
    "a score that is no number": ({"scores": np.full(259, np.nan, np.float32)}, r"scores' is nan"),
    "few kinds": ({"token_type": np.ones(3, np.int32)}, r"token_type' has 3 entries"),
    "bos out of range": ({"bos_token_id": 259}, r"bos_token_id' is 259"),
    "eos out of range": ({"eos_token_id": 10**6}, r"eos_token_id' is 1000000"),
    "a token twice": ({"tokens": ["a"] * 259}, r"'a' twice"),
    "an unsupported kind": ({"model": "plamo2"}, r"'plamo2'.*not supported yet.*gpt2, llama"),
    "no kind": ({"model": None}, r"no tokenizer .*tokenizer\.ggml\.model"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_vocabularies_are_named(case: str) -> None:
    """What is broken in a vocabulary is an error that names the file and the key."""
    change, message = BROKEN[case]
    full = {**sentence_piece({}), **{f"tokenizer.ggml.{key}": value for key, value in change.items()}}
    file = Metadata.of({key: value for key, value in full.items() if value is not None}, "model.gguf")
    with pytest.raises(TokenizerError, match=r"^model\.gguf: .*" + message):
        load(file)


def test_broken_byte_pairs_are_named() -> None:
    """Merges that are missing, and a BOS to add that is not there, are errors."""
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.merges"):
        load(byte_pair(HELLO, merges=None))
    with pytest.raises(TokenizerError, match=r"bos_token_id.*add_bos_token"):
        load(byte_pair(HELLO, pre="glm4", add_bos_token=True))


def test_ids_of_lesser_meaning_out_of_range_are_noted() -> None:
    """A padding id outside the vocabulary is ignored with a note."""
    tokenizer = load(byte_pair(HELLO, padding_token_id=10**6))
    assert tokenizer.pad is None
    assert any("padding_token_id" in note for note in tokenizer.notes)


def test_tokens_that_are_not_utf8_keep_their_bytes() -> None:
    """A token of raw bytes can be loaded and decoded, though no text holds it."""
    for file in (
        byte_pair(HELLO, {"\udcff\udcfe": USER}),
        sentence_piece({**letters(), "\udcff\udcfe": -1.0}),
    ):
        tokenizer = load(file)
        assert tokenizer.piece(tokenizer.token_id("\udcff\udcfe") or 0) == b"\xff\xfe"
        assert tokenizer.decode(tokenizer.encode("h"), skip_special=True) == "h"


def test_panics_of_the_library_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic of the tokenizers library, which is no Exception, becomes a RequestError; an interrupt stays one."""

    class Failing:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def encode(self, text: str, **options: Any) -> None:
            raise self.error

    panic = type("PanicException", (BaseException,), {})
    tokenizer = load(byte_pair(HELLO))
    for raised, expected in ((panic("retry-limit"), RequestError), (KeyboardInterrupt(), KeyboardInterrupt)):
        monkeypatch.setattr(tokenizer._model, "_model", Failing(raised))
        with pytest.raises(expected):
            tokenizer.encode("a")


def test_import_is_light() -> None:
    """The package loads without the libraries that it uses."""
    code = "import sys, puna.tokenizer; print(sorted({'tokenizers', 'sentencepiece', 'jinja2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

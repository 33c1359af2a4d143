"""Pre-tokenizers: the words that each kind cuts a text into."""

from __future__ import annotations

import time

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from puna.tokenizer.byte_pair import pre_tokenizer
from puna.tokenizer.pre import O200K, PRE, Pre

WORDS: dict[str, tuple[str, list[str]]] = {
    "default": ("a=12345", ["a", "=", "123", "45"]),
    "gpt-2": ("I'll  go 123\n\nx", ["I", "'ll", " ", " go", " 123", "\n", "\n", "x"]),
    "starcoder": (" 123", [" ", "1", "2", "3"]),
    "falcon": ("a<=b 1234", ["a", "<=", "b", " ", "123", "4"]),
    "llama-bpe": ("I'LL 12345!\n\n x", ["I", "'LL", " ", "123", "45", "!\n\n", " x"]),
    "qwen2": ("(don't) 123", ["(don", "'t", ")", " ", "1", "2", "3"]),
    "qwen35": ("नमस्ते", ["नमस्ते"]),
    "ufakzeka": ("Ankara'da 12", ["Ankara", "'da", " ", "1", "2"]),
    "seed-coder": ("!\n1", ["!", "\n", "1"]),
    "bailingmoe": ("a \n\nb'D", ["a", " \n\n", "b", "'D"]),
    "exaone-moe": ("an open door", ["an open door"]),
    "deepseek-llm": ("a 中文12\nb", ["a", " ", "中文", "12", "\n", "b"]),
    "deepseek-coder": ("a; 中12", ["a", ";", " ", "中", "1", "2"]),
    "deepseek-v3": ("1234中文#include", ["123", "4", "中文", "#include"]),
    "spark2_5": ("12!\n", ["1", "2", "!", "\n"]),
    "afmoe": ("1234567 中文", ["1", "234", "567", " ", "中文"]),
    "bloom": ("a, b!", ["a", ",", " b", "!"]),
    "viking": ("a1 2", ["a", "1", " ", "2"]),
    "chameleon": ("a  b, IMGIMGABZ", ["a", "  ", "b", ",", " ", "IMGIMGABZ"]),
    "tekken": ("CamelCase 12", ["Camel", "Case", " ", "1", "2"]),
    "gpt-4o": ("HTTPServer's नमस्ते 1234", ["HTTPServer's", " नमस्ते", " ", "123", "4"]),
    "tiny_aya": ("1234567 1234x", ["1", "234", "567", " ", "123", "4", "x"]),
    "superbpe": ("by the way 1234567", ["by the way ", "1", "234", "567"]),
    "youtu": ("가나、中 A1", ["가나", "、", "中", " A", "1"]),
    "kimi-k2": ("abc中文Def'll", ["abc", "中文", "Def'll"]),
    "jais-2": ("a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
    "minicpm5": ("12345", ["123", "45"]),
    "laguna": ("a\n\n b", ["a", "\n\n", " b"]),
    "gemma4": ("a b\n\nc", ["a b", "\n\n", "c"]),
}


def cut(pre: Pre) -> PreTokenizer:
    return Steps([Split(Regex(split), "isolated") for split in pre.splits])


def words(pre: Pre, text: str) -> list[str]:
    return [word for word, _ in cut(pre).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    """Each family of pre-tokenizers cuts its telling text as its models' own tokenizers do."""
    text, expected = WORDS[name]
    assert words(PRE[name], text) == expected


def test_every_name_builds() -> None:
    """Every expression compiles, and none loses or repeats text."""
    text = "Hello  wörld 中文 12345\r\n\n\tI'LL ½ नमस्ते 🦙 "
    for name, pre in PRE.items():
        pre_tokenizer(pre)
        assert "".join(words(pre, text)) == text, name


def test_digit_groups_equal_the_published_expressions() -> None:
    """The linear-time expressions for digits in threes cut as the models' own, which look ahead again and again."""
    own = {
        "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", O200K),
        "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    }
    texts = [
        f"{before}{'1234567890'[:n]}{after}" for n in range(11) for before in " x_," for after in " x_,.5"
    ]
    for name, splits in own.items():
        for text in texts:
            assert words(PRE[name], text) == words(Pre(splits), text)


@pytest.mark.parametrize(
    "text", ["a", "A", " ", "\n", "1", "½", "!", "中", "\u0301", "aA", "A a ", " \u2028", " \t\n"]
)
def test_no_expression_is_quadratic(text: str) -> None:
    """No pre-tokenizer takes much longer than its share on one thing repeated, with something else after it."""
    for name in {pre: name for name, pre in PRE.items()}.values():
        started = time.process_time()
        for end in "x1_.中":
            cut(PRE[name]).pre_tokenize_str(text * (5_000 // len(text)) + end)
        assert time.process_time() - started < 1, name

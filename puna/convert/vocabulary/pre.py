"""Which pre-tokenizer a tokenizer.json has: the one of Puna's table that cuts texts into the same words.

A name in GGUF stands for expressions that a file cannot carry. Expressions of the same meaning are written in many
ways, so what is compared is what they do, on a fixed text of every class of character that any of them tells apart.
"""

from __future__ import annotations

import difflib
import functools
import json
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from puna.errors import RequestError, TokenizerError
from puna.tokenizer.byte_pair import pre_tokenizer
from puna.tokenizer.pre import PRE, Pre

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

__all__ = ["checked_name", "differs", "fitting", "probe", "recognised"]

# The usual name of a pre-tokenizer that goes by several.
USUAL = (
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "starcoder",
    "gpt-4o",
    "deepseek-v3",
    "deepseek-llm",
    "falcon",
)
# Bits of text by which the expressions of the table differ.
BITS = (
    *"aZéÉßΩжЖ\u01c5ʰªאبकあアー漢字一龥가ㄱㄅถ\u0e81ក\u1000\ua9e0\uaa60Ａｚ𝕏𐐀",  # letters of each case, scripts
    *"\u0301\u093e\u0300\u20dd",  # marks
    *"0123456789",
    *"٣५Ⅷ²½〇",
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    *"¡«»–—‘’“”…、。，！：；？【】〈〉・′§¶†€£¬±×÷→∑°©®™😀🚀",
    *" \t\n\r\u00a0\u2003\u3000\u200b\u200d\ufeff\u0000\u001f",
    *(
        "'s",
        "'S",
        "'t",
        "'re",
        "'RE",
        "'vE",
        "'m",
        "'ll",
        "'lL",
        "'d",
        "'D",
        "’s",
        "\r\n",
        "\n\n",
        " \n",
        "  ",
        "    ",
    ),
    *(
        "the",
        "The",
        "THE",
        "wOrd",
        "camelCase",
        "été",
        "ÉTÉ",
        "12",
        "123",
        "1234",
        "12345",
        "123456",
        "1234567",
    ),
    *(
        "1,234.5",
        "a1b2",
        "x_y",
        "<sentinel:7>",
        "IMGIMGABZ",
        "...",
        "!!!",
        "--",
        "==",
        "//",
        "我想在",
        "你好",
        "안녕",
        "สวัสดี",
    ),
    *(
        " a",
        " A",
        " 1",
        " .",
        " 'll",
        "\n a",
        "a\n",
        ". ",
        ".\n",
        "/\n",
        "}\n",
        "e\u0301",
        " e\u0301",
        "\ta",
        " \t",
        "   a",
    ),
)
TEXTS, MOST_BITS, SEED = 3000, 9, 20240229
FEW = 1000


def recognised(
    tokenizer: Mapping[str, Any],
    where: str,
    *,
    preferred: tuple[str, ...],
    ignore_merges: bool,
    same_without: Callable[[], bool],
) -> str:
    """The name of a tokenizer's pre-tokenizer. Raises TokenizerError where none of the table's does the same.

    preferred: names to take first among equal ones. ignore_merges: whether a word that is a token is that token.
    same_without: whether that makes no difference for this vocabulary.
    """
    theirs = own(tokenizer, where)
    names = fitting(theirs)
    fit = [name for name in names if PRE[name].ignore_merges == ignore_merges]
    if not fit and names and same_without():
        fit = names
    if not fit:
        state = (
            f"{names[0]!r}, but 'ignore_merges' is {'' if ignore_merges else 'not '}set"
            if names
            else "unknown"
        )
        near = nearest(theirs, preferred)
        fix = f"if the words of {near!r} will do, give --pre {near}" if near else "give its name with --pre"
        raise TokenizerError(f"the pre-tokenizer is {state}", where=where, fix=fix)
    return next((name for name in (*preferred, *USUAL) if name in fit), fit[0])


def checked_name(name: str) -> str:
    """A name that the user gives. Raises RequestError where the table has no such."""
    if name not in PRE:
        near = difflib.get_close_matches(name, PRE, n=3, cutoff=0.3)
        fix = f"the nearest are {', '.join(near or sorted(PRE))}"
        raise RequestError(f"there is no pre-tokenizer {name!r}", where="--pre", fix=fix)
    return name


def differs(tokenizer: Mapping[str, Any], where: str, name: str) -> str | None:
    """A text that a tokenizer cuts otherwise than the pre-tokenizer of a name; None where there is none."""
    theirs, ours = own(tokenizer, where), pre_tokenizer(PRE[name])
    if theirs is None:
        return probe()[0]
    return next((text for text in probe() if words(theirs, text) != words(ours, text)), None)


def fitting(theirs: PreTokenizer | None) -> list[str]:
    """Names whose words are the same on every text of the probe, in the order of the table."""
    if theirs is None:
        return []
    wanted = [words(theirs, text) for text in probe()]
    verdicts: dict[Pre, bool] = {}
    for pre in PRE.values():
        if pre.byte_level and pre not in verdicts:
            ours = pre_tokenizer(pre)
            pairs = zip(probe(), wanted, strict=True)
            verdicts[pre] = all(words(ours, text) == expected for text, expected in pairs)
    return [name for name, pre in PRE.items() if verdicts.get(pre)]


def nearest(theirs: PreTokenizer | None, preferred: tuple[str, ...]) -> str | None:
    """The name with most texts of the probe in common, among the preferred ones where there are any."""
    if theirs is None:
        return None
    texts = probe()[:FEW]
    wanted = [words(theirs, text) for text in texts]

    def common(name: str) -> int:
        ours = pre_tokenizer(PRE[name])
        return sum(words(ours, text) == expected for text, expected in zip(texts, wanted, strict=True))

    return max(preferred or USUAL, key=common)


def own(tokenizer: Mapping[str, Any], where: str) -> PreTokenizer | None:
    """The pre-tokenizer of a tokenizer.json, alone. Raises TokenizerError where the library refuses it."""
    from tokenizers import Tokenizer

    bare: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": tokenizer.get("pre_tokenizer"),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    try:
        found: PreTokenizer | None = Tokenizer.from_str(json.dumps(bare)).pre_tokenizer
    except BaseException as error:  # the library has no class of its own, and a panic is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerError(f"'pre_tokenizer' is not sound: {error}", where=where) from None
    return found


def words(pre: PreTokenizer, text: str) -> list[str]:
    return [word for word, _ in pre.pre_tokenize_str(text)]


@functools.cache
def probe() -> tuple[str, ...]:
    """Texts of up to nine bits each, the same every time, and each bit alone."""
    choice = random.Random(SEED)
    mixed = ("".join(choice.choices(BITS, k=choice.randint(2, MOST_BITS))) for _ in range(TEXTS))
    return (*BITS, *mixed)

"""Pre-tokenizers: how a byte-level BPE model cuts text into words before it merges bytes.

Each is a fact of the models that use it, from their own tokenizer files, under the name that GGUF files carry in
`tokenizer.ggml.pre`. The expressions are Oniguruma's; each cuts the words that the one before it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PRE", "Pre"]


@dataclass(frozen=True)
class Pre:
    """A pre-tokenizer and the defaults that come with its name.

    splits: expressions; every match, and every stretch between two, is a word.
    add_bos: a text starts with BOS unless the file says otherwise.
    add_sep: the same for the separator (encoder models).
    default_bos: without an id in the file, the kind's default BOS holds.
    ignore_merges: a word that is a token is that token, whatever the merges say.
    byte_level: words are written in GPT-2's byte alphabet; else in UTF-8, with spaces as U+2581.
    gemma4: a run of newlines that is a token is that token; and BOS is always added, since files say wrongly not to.
    """

    splits: tuple[str, ...]
    add_bos: bool = False
    add_sep: bool = False
    default_bos: bool = True
    ignore_merges: bool = False
    byte_level: bool = True
    gemma4: bool = False


CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s+(?!\S)|\s+"
MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
NEWLINES = r"\s*[\r\n]+"
ASCII_MARK = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
CJK = "[一-龥\u0800-一가-\ud7ff]+"
HAN_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + SPACES
DIGIT_GPT2 = (r"\p{N}", GPT2)
# Digits grouped in threes from the right, in time linear in their number: cut off what does not fill a group.
LEAD = r"\A\d{1,2}(?=(?:\d{3})++\z)"


def words(number: str, contraction: str = CONTRACTION + "|", letters: str = r"\p{L}+") -> str:
    """The expression of Llama 3 and its kin, which differ in the digits that a word may hold."""
    return rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?{letters}|{number}|{MARKS}|{NEWLINES}|{SPACES}"


def cased(number: str, suffix: str = CONTRACTION + "?", marks: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*") -> str:
    """The expression of o200k and its kin: a word ends where lower case turns to upper case."""
    start = r"[^\r\n\p{L}\p{N}]?"
    lower, upper = f"{start}{UPPER}*{LOWER}+{suffix}", f"{start}{UPPER}+{LOWER}*{suffix}"
    return f"{lower}|{upper}|{number}|{marks}|{NEWLINES}|{SPACES}"


def marked(tail: str) -> str:
    """The expression of DeepSeek V3 and its kin: marks join the ASCII word after them."""
    letters = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    return rf"{ASCII_MARK}[A-Za-z]+|{letters}| ?[\p{{P}}\p{{S}}]+{tail}|{SPACES}"


LLAMA3, QWEN2 = words(r"\p{N}{1,3}"), words(r"\p{N}")
O200K = cased(r"\p{N}{1,3}")
DEEPSEEK3 = (r"\p{N}{1,3}", HAN_KANA, marked(r"[\r\n]*|\s*[\r\n]+"))
LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
ASIAN = "[一-鿿㐀-䶿\uf900-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-๿຀-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
NO_MARK = r" ?[^(\s|.,!?…。，、।۔،)]+"
LINES = r"[^\n]+|\n+"
HAN_OUT = r"&&[^\p{Han}]]"
LONG_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
EXAONE_MOE = (
    CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    r"|\s*[\r\n]|" + SPACES
)

LLAMA3_PRE = Pre((LLAMA3,), add_bos=True, ignore_merges=True)
PUNCTUATED = (r"[\p{P}$+<=>^~|`]+", GPT2)
ROWS: tuple[tuple[str, Pre], ...] = (
    ("default", Pre((r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", LLAMA3_PRE),
    ("dbrx smaug-bpe", Pre((LLAMA3,))),
    ("glm4 chatglm-bpe", Pre((LLAMA3,), default_bos=False)),
    (
        "jais-2",
        Pre((LLAMA3.removesuffix(SPACES) + LONG_SPACES + r"|\s{1,2}(?!\S)|\s",)),
    ),
    ("minicpm5", Pre((r"\p{N}{1,3}", words(r"\p{N}+")), ignore_merges=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", Pre((QWEN2,))),
    (
        "qwen35",
        Pre((words(r"\p{N}", letters=r"[\p{L}\p{M}]+").replace(MARKS, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
    ),
    ("ufakzeka", Pre((words(r"\p{N}", contraction=""),))),
    ("laguna", Pre((LINES, QWEN2))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        Pre(
            (
                QWEN2.replace(CONTRACTION, "'(?:[sSdDmMtT]|[lL]{2}|[vV][eE]|[rR][eE])").replace(
                    NEWLINES, r"\s*[\r\n]"
                ),
            )
        ),
    ),
    ("seed-coder", Pre((QWEN2.replace(MARKS, r" ?[^\s\p{L}\p{N}\r\n]+"),))),
    ("exaone-moe", Pre((EXAONE_MOE,))),
    (
        "deepseek-llm",
        Pre(
            ("[\r\n]", rf"\s?[{LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"(?<!\s)\s+$", CJK, r"\p{N}+")
        ),
    ),
    ("deepseek-coder", Pre(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Pre(DEEPSEEK3)),
    ("spark2_5", Pre((*DEEPSEEK3[:2], marked(r"|[\r\n]"), r"\p{N}"))),
    ("afmoe", Pre((r"\p{N}+", LEAD.replace(r"\d", r"\p{N}"), r"\p{N}{3}", ASIAN, DEEPSEEK3[2]))),
    ("falcon", Pre((*PUNCTUATED, "[0-9][0-9][0-9]"))),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", Pre(DIGIT_GPT2)),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4",
        Pre((GPT2,)),
    ),
    ("mpt olmo jais trillion granite-docling", Pre((GPT2,))),
    ("jina-v1-en jina-v2-code roberta-bpe", Pre((GPT2,), add_sep=True)),
    ("poro-chat bloom gpt3-finnish", Pre((NO_MARK,))),
    ("viking", Pre((NO_MARK, r"\p{N}"))),
    (
        "chameleon",
        Pre(
            (
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                "[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("tekken", Pre((cased(r"\p{N}", suffix=""),), add_bos=True, ignore_merges=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Pre((O200K,))),
    ("granite-embed-multi-97m", Pre((O200K,), ignore_merges=True)),
    ("tiny_aya cohere2moe", Pre((r"(?<!\d)\d++\b", LEAD, O200K))),
    ("superbpe", Pre((r"\p{N}+", r"(?<!\d)\d{1,2}(?=(?:\d{3})++(?!\d))", r"\d{3}"))),
    (
        "youtu",
        Pre(
            ("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + HAN_KANA, cased(r"\p{N}")),
            ignore_merges=True,
        ),
    ),
    (
        "kimi-k2",
        Pre(
            (
                r"\p{Han}+|"
                + cased(r"\p{N}{1,3}", marks=MARKS)
                .replace(UPPER, UPPER[:-1] + HAN_OUT)
                .replace(LOWER, LOWER[:-1] + HAN_OUT),
            )
        ),
    ),
    ("sarvam-moe", Pre((LINES,), byte_level=False)),
    ("gemma4 granite-embed-multi-311m", Pre((LINES,), byte_level=False, add_bos=True, gemma4=True)),
)
PRE: Mapping[str, Pre] = {name: pre for names, pre in ROWS for name in names.split()}

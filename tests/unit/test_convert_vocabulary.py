"""Byte-level BPE vocabularies of a folder as metadata: ids, kinds, pre-tokenizers, special tokens, templates."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hf_folders import QWEN2, SPECIAL, byte_level, count, folder, write_json
from tokenizers import Tokenizer as Library

from puna.convert import prepare
from puna.convert.vocabulary import pre as recognition
from puna.errors import PunaError
from puna.gguf import Metadata
from puna.tokenizer import load
from puna.tokenizer.byte_pair import pre_tokenizer
from puna.tokenizer.pre import PRE

LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]}
TEXTS = (
    "Hello,  world!\n\n It's 12345.67 in THE morning\t\r\n",
    "I'LL naïve café 我想在apple工作 ½ x² 🚀🚀 e\u0301 \u3000x",
    "the inn <tool> sing <|end|> a\n \n",
    "",
)


def metadata(path: Path, **options: Any) -> Metadata:
    return prepare(path, path / "x.gguf", vocab_only=True, **options).metadata


def with_pre(step: Any, **model: Any) -> dict[str, Any]:
    return {**byte_level(**model), "pre_tokenizer": step}


TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "qwen2": (byte_level(), "qwen2"),
    "llama 3": (byte_level(LLAMA3, ignore_merges=True), "llama-bpe"),
    "gpt-2": (with_pre(BYTES), "gpt-2"),
    "digits, then gpt-2": (with_pre(DIGITS), "smollm"),
}


@pytest.mark.parametrize("what", TOKENIZERS)
def test_ids_are_the_tokenizers_own(tmp_path: Path, what: str) -> None:
    """The pre-tokenizer is recognised, and every text has the ids that the tokenizers library gives."""
    tokenizer, name = TOKENIZERS[what]
    keys = metadata(folder(tmp_path / "x", tokenizer=tokenizer))
    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]) == ("gpt2", name)
    theirs, ours = Library.from_file(str(tmp_path / "x" / "tokenizer.json")), load(keys)
    choice = random.Random(0)
    mixed = ["".join(choice.choices(recognition.BITS, k=12)) for _ in range(200)]
    for text in (*TEXTS, *mixed):
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)


def test_the_probe_tells_pre_tokenizers_apart() -> None:
    """Every two rows of the table cut some text of the probe differently, but for two that mean the same."""
    held = {pre.splits: name for name, pre in PRE.items() if pre.byte_level}
    cutters = {name: pre_tokenizer(PRE[name]) for name in held.values()}
    same = [
        {one, other}
        for one, other in combinations(cutters, 2)
        if all(
            recognition.words(cutters[one], text) == recognition.words(cutters[other], text)
            for text in recognition.probe()
        )
    ]
    assert same == [{held[PRE["qwen2"].splits], held[PRE["bailingmoe"].splits]}]


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(PunaError) as caught:
        metadata(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_pre_tokenizer_is_refused_or_named(tmp_path: Path) -> None:
    """No row of the table fits: an error with the nearest, unless the user names one, and then a note."""
    path = folder(tmp_path / "x", tokenizer=byte_level(QWEN2 + r"|q"))
    assert metadata(path)["tokenizer.ggml.pre"] == "qwen2"  # what never matches changes nothing
    path = folder(tmp_path / "x", tokenizer=byte_level(QWEN2.replace(r"\p{N}", r"\p{N}{1,2}")))
    assert "the pre-tokenizer is unknown; if the words of" in refusal(path)
    found = prepare(path, path / "x.gguf", vocab_only=True, pre="qwen2")
    assert found.metadata["tokenizer.ggml.pre"] == "qwen2"
    assert any("cuts" in note and "otherwise than this tokenizer" in note for note in found.notes)
    assert not prepare(folder(tmp_path / "y"), path / "x.gguf", vocab_only=True, pre="qwen2").notes


def test_whole_words_count(tmp_path: Path) -> None:
    """Llama 3's words with merges applied is another name; qwen2's with whole words is refused where it matters."""
    assert metadata(folder(tmp_path / "x", tokenizer=byte_level(LLAMA3)))["tokenizer.ggml.pre"] == "dbrx"
    tokenizer = byte_level(ignore_merges=True)
    assert metadata(folder(tmp_path / "x", tokenizer=tokenizer))["tokenizer.ggml.pre"] == "qwen2"
    tokenizer["model"]["merges"].pop(0)
    path = folder(tmp_path / "x", tokenizer=tokenizer)
    assert "the pre-tokenizer is 'qwen2', but 'ignore_merges' is set" in refusal(path)


def test_kinds_and_gaps(tmp_path: Path) -> None:
    """Special tokens are control tokens, other added ones user-defined; ids without a token are unused."""
    tokenizer = byte_level()
    size = count(tokenizer)
    keys = prepare(
        folder(tmp_path / "x", config={"vocab_size": size + 2}, tokenizer=tokenizer),
        tmp_path,
        vocab_only=True,
    ).metadata
    assert keys["tokenizer.ggml.tokens"][-5:] == (*SPECIAL, f"[PAD{size}]", f"[PAD{size + 1}]")
    assert list(keys["tokenizer.ggml.token_type"][-6:]) == [1, 3, 3, 4, 5, 5]
    tokenizer["added_tokens"][2]["content"] = "<|tool|>"  # looks special, although it does not say so
    assert metadata(folder(tmp_path / "x", tokenizer=tokenizer))["tokenizer.ggml.token_type"][-1] == 3


def test_tokens_beyond_the_model_are_left_out(tmp_path: Path) -> None:
    """A note says how many tokens have no rows."""
    path = folder(tmp_path / "x")
    size = json.loads((path / "config.json").read_text())["vocab_size"]
    found = prepare(folder(path, config={"vocab_size": size - 1}), path, vocab_only=True)
    assert len(found.metadata["tokenizer.ggml.tokens"]) == size - 1
    assert any("1 tokens from id" in note and "left out" in note for note in found.notes)


def template(*items: str) -> dict[str, Any]:
    """A post-processor: `$` is the text."""
    single = [{"Sequence": {"id": "A"}} if item == "$" else {"SpecialToken": {"id": item}} for item in items]
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}


ADDED: dict[str, tuple[Any, dict[str, Any], tuple[bool, bool]]] = {
    "nothing": (None, {}, (False, False)),
    "before": (template("<|begin|>", "$"), {}, (True, False)),
    "around": (template("<|begin|>", "$", "<|end|>"), {}, (True, True)),
    "in a sequence": (
        {"type": "Sequence", "processors": [BYTES, template("<|begin|>", "$")]},
        {},
        (True, False),
    ),
    "the settings say otherwise": (template("<|begin|>", "$"), {"add_bos_token": False}, (False, False)),
    "the settings alone": (None, {"add_eos_token": True}, (False, True)),
    "two": (template("<|begin|>", "<|end|>", "$"), {}, (False, False)),
    "a classifier's": (
        {"type": "RobertaProcessing", "cls": ["<|begin|>", 0], "sep": ["<|end|>", 1]},
        {},
        (True, True),
    ),
}


@pytest.mark.parametrize("what", ADDED)
def test_what_is_added_to_texts(tmp_path: Path, what: str) -> None:
    """BOS and EOS are added where the post-processor or tokenizer_config.json says so."""
    processor, settings, wanted = ADDED[what]
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>", **settings}
    path = folder(tmp_path / "x", tokenizer={**byte_level(), "post_processor": processor}, settings=settings)
    found = prepare(path, path / "x.gguf", vocab_only=True)
    keys = found.metadata
    assert (keys["tokenizer.ggml.add_bos_token"], keys["tokenizer.ggml.add_eos_token"]) == wanted
    assert any("puts <|begin|> <|end|> before a text" in note for note in found.notes) is (what == "two")


def test_ids_with_a_meaning(tmp_path: Path) -> None:
    """They come from tokenizer_config.json, then special_tokens_map.json, then config.json; more ends are noted."""
    path = folder(
        tmp_path / "x", config={"pad_token_id": 5, "eos_token_id": [1, 2]}, settings={"eos_token": "<|end|>"}
    )
    write_json(path / "special_tokens_map.json", {"bos_token": {"content": "<|begin|>"}, "eos_token": "!"})
    write_json(
        path / "generation_config.json", {"eos_token_id": [7, 9, 10**9], "temperature": 0.5, "top_k": 20}
    )
    keys, first = metadata(path), count(byte_level()) - 3
    names = ("bos", "eos", "padding", "eot", "eom")
    assert [keys[f"tokenizer.ggml.{name}_token_id"] for name in names] == [first, first + 1, 5, 7, 9]
    assert "tokenizer.ggml.unknown_token_id" not in keys
    assert (keys["general.sampling.temp"], keys["general.sampling.top_k"]) == (0.5, 20)


def test_chat_templates(tmp_path: Path) -> None:
    """A file goes before tokenizer_config.json; several templates keep their names."""
    path = folder(tmp_path / "x", settings={"chat_template": "in settings"})
    assert metadata(path)["tokenizer.chat_template"] == "in settings"
    named = [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}]
    write_json(path / "tokenizer_config.json", {"chat_template": named})
    keys = metadata(path)
    assert (keys["tokenizer.chat_template"], keys["tokenizer.chat_template.tool_use"]) == ("d", "t")
    assert keys["tokenizer.chat_templates"] == ("tool_use",)
    (path / "chat_template.jinja").write_text("in a file")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "rag.jinja").write_text("r")
    keys = metadata(path)
    assert (keys["tokenizer.chat_template"], keys["tokenizer.chat_template.rag"]) == ("in a file", "r")
    write_json(path / "tokenizer_config.json", {"chat_template": [3]})
    (path / "chat_template.jinja").unlink()
    assert "neither a text nor a list of named ones" in refusal(path)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a normaliser": ({"normalizer": {"type": "Lowercase"}}, "the normalizer (Lowercase)"),
    "a WordPiece model": ({"model": {"type": "WordPiece"}, "decoder": None}, "of type 'WordPiece'"),
    "no vocabulary": ({"model": {"type": "BPE", "merges": []}}, "'model.vocab') is missing"),
    "an id twice": ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "has an id twice"),
    "an id that is none": ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "no whole number"),
    "merges that are none": ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}, "is no pair"),
    "a suffix": (
        {"model": {"vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}},
        "end_of_word_suffix",
    ),
    "an added id of a kind": (
        {"added_tokens": [{"id": "x", "content": "y"}]},
        "an added token has the id 'x'",
    ),
    "a step that is none": ({"pre_tokenizer": {"type": "Magic"}}, "'pre_tokenizer' is not sound"),
    "a regex that is none": ({"pre_tokenizer": {**BYTES, "type": "Split"}}, "'pre_tokenizer' is not sound"),
    "half a character": ({"added_tokens": [{"id": 1, "content": "\ud800"}]}, "cannot be written"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_tokenizers_that_cannot_be_expressed_are_refused(tmp_path: Path, what: str) -> None:
    """Each is an error in one line."""
    changes, message = REFUSED[what]
    assert message in refusal(folder(tmp_path / "x", tokenizer={**byte_level(), **changes}))


def test_hostile_sizes_are_refused(tmp_path: Path) -> None:
    """A vocabulary of billions, and steps nested by the hundred, are errors before anything is built."""
    path = folder(tmp_path / "x", config={"vocab_size": 2**31 - 1})
    assert "2147483647 tokens are over the limit" in refusal(path)
    plain = json.dumps({**byte_level(), "normalizer": None})
    for depth in (100, 300, 400, 450, 480, 5000):
        nested = '{"type": "Sequence", "normalizers": [' * depth + '{"type": "Lowercase"}' + "]}" * depth
        path = folder(tmp_path / "x")
        (path / "tokenizer.json").write_text(plain.replace('"normalizer": null', f'"normalizer": {nested}'))
        assert "tokenizer.json: " in refusal(path)


def test_notes_on_what_a_file_cannot_say(tmp_path: Path) -> None:
    """Composing Unicode, and tokens that take spaces, are told."""
    tokenizer = {**byte_level(), "normalizer": {"type": "NFC"}}
    tokenizer["added_tokens"][2]["lstrip"] = True
    notes = prepare(folder(tmp_path / "x", tokenizer=tokenizer), tmp_path, vocab_only=True).notes
    assert any("form NFC" in note for note in notes)
    assert any("take the spaces beside them" in note for note in notes)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    """What is missing is said, and what is there instead."""
    path = folder(tmp_path / "x")
    (path / "tokenizer.json").unlink()
    assert "neither tokenizer.json nor tokenizer.model is there; finish the download" in refusal(path)
    (path / "tekken.json").write_text("{}")
    assert "only tekken.json; save it with transformers" in refusal(path)

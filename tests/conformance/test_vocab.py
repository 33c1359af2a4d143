"""Vocabularies of ../shared/vocab: the ids that llama.cpp gives for its own test texts."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from puna.gguf import GGUFFile
from puna.tokenizer import Tokenizer, load

VOCAB = Path(__file__).resolve().parents[3] / "shared" / "vocab"
PARTING = "\n__ggml_vocab_test__\n"
NAMES = ["deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder"]


def path_of(name: str) -> Path:
    path = VOCAB / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip("reference data ../shared/vocab is not here")
    return path


@functools.cache
def tokenizer_of(name: str) -> Tokenizer:
    with GGUFFile.open(path_of(name)) as file:
        return load(file.metadata)


def cases(name: str) -> list[tuple[str, list[int]]]:
    """The texts and their ids, no special tokens added or parsed."""
    path = path_of(name)
    texts = path.with_suffix(".gguf.inp").read_bytes().decode("utf-8").split(PARTING)[:-1]
    lines = path.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()
    ids = [[int(word) for word in line.split()] for line in lines]
    assert len(texts) == len(ids) == 46
    return list(zip(texts, ids, strict=True))


@pytest.mark.parametrize("name", [*NAMES, "bert-bge"])
def test_ids_are_llama_cpps(name: str) -> None:
    """Every text has llama.cpp's ids."""
    tokenizer = tokenizer_of(name)
    for text, ids in cases(name):
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_texts_come_back(name: str) -> None:
    """Every text comes back from its ids, at once and one id at a time, with special tokens added or not."""
    tokenizer = tokenizer_of(name)
    for text, ids in cases(name):
        assert tokenizer.decode(ids) == text
        decoder = tokenizer.decoder()
        assert "".join([decoder.push(token) for token in ids]) + decoder.finish() == text
        assert tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special=True) == text


def test_texts_come_back_as_bert_reads_them() -> None:
    """Of a text without accents, its words come back in lower case, between the marks that are added."""
    tokenizer = tokenizer_of("bert-bge")
    ids = tokenizer.encode("Hello, embedding World!")
    assert (ids[0], ids[-1]) == (101, 102)
    assert tokenizer.decode(ids, skip_special=True) == "hello , embedding world !"

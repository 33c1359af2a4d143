"""`puna embed`: its formats, its poolings, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runs import puna
from random_encoders import WIDTH, write_encoder

import puna as library
from puna.cli.embed import paired

TEXT = "the cat\na mat"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "x.gguf", pooling=1)


def test_for_people(model: Path) -> None:
    """Vectors of several texts, the first values of each, and their similarities; of one text all values."""
    result = puna("embed", model, "-p", TEXT)
    lines = result.out.splitlines()
    assert result.status == 0
    assert [len(line.split()) for line in lines[:2]] == [2 + 16, 2 + 16]
    assert lines[3] == "cosine similarity matrix:"
    assert lines[-2].split()[0] == "1.00"
    assert lines[-1].endswith(" a mat")
    assert "2 texts, 8 tokens" in result.err
    alone = puna("embed", model, "-p", "the cat")
    assert len(alone.out.split()) == 2 + WIDTH


def test_formats_hold_the_same(model: Path) -> None:
    """Every format holds the library's numbers, in llama-embedding's form."""
    want = library.load(model, backend="reference").embed(["the cat", "a mat"])
    outputs = {
        form: puna("embed", model, "-p", TEXT, "--embd-output-format", form).out
        for form in ("array", "json", "json+", "raw")
    }
    found = {
        "array": json.loads(outputs["array"]),
        "raw": [[float(word) for word in line.split()] for line in outputs["raw"].splitlines()],
        **{form: [e["embedding"] for e in json.loads(outputs[form])["data"]] for form in ("json", "json+")},
    }
    for values in found.values():
        np.testing.assert_allclose(values, want, atol=1e-6)
    similar = json.loads(outputs["json+"])["cosineSimilarity"]
    np.testing.assert_allclose(similar, want @ want.T, atol=0.006)


def test_normalisation_and_separator(model: Path) -> None:
    """Whole numbers for the range of int16; another separator parts the texts."""
    words = ("--embd-normalize", 0, "--embd-separator", "|", "--embd-output-format", "array")
    values = json.loads(puna("embed", model, "-p", "a|b|c", *words).out)
    assert len(values) == 3
    assert [max(map(abs, row)) for row in values] == [32760] * 3


def test_poolings(model: Path) -> None:
    """Without pooling both ends of each token's vector; standard input is taken where no text is given."""
    result = puna("embed", model, "--pooling", "none", stdin=b"the cat\n")
    lines = result.out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("embedding 0: ")
    assert " ... " in lines[0]


def test_scores(tmp_path: Path) -> None:
    """A classifier's scores, a line each, with the file's labels; a query and a document stand in one text."""
    extra = {"cls.weight": (WIDTH, WIDTH), "cls.bias": (WIDTH,), "cls.output.weight": (2, WIDTH)}
    labels = {"bert.classifier.output_labels": ["yes", "no"]}
    path = write_encoder(tmp_path / "x.gguf", pooling=4, extra=extra, keys=labels)
    result = puna("embed", path, "-p", r"query\tdocument", "--verbose-prompt")
    assert [line.split()[:3] for line in result.out.splitlines()] == [["rerank", "score", "0:"]] * 2
    assert [line.split()[-1] for line in result.out.splitlines()] == ["[yes]", "[no]"]
    assert result.err.count("'[SEP]'") == 2
    raw = puna("embed", path, "-p", r"query\tdocument", "--embd-output-format", "raw").out.split()
    assert [f"{float(word):.3f}" for word in raw] == [line.split()[3] for line in result.out.splitlines()]


def test_a_template_for_pairs(tmp_path: Path) -> None:
    """A file's template for reranking takes the query and the document."""
    template = {"tokenizer.chat_template.rerank": "q {query} d {document}"}
    vocabulary = library.load_tokenizer(write_encoder(tmp_path / "x.gguf", keys=template))
    assert paired(vocabulary.tokenizer, ["a", "b"]) == "q a d b"
    assert paired(vocabulary.tokenizer, ["a"]) == "a"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pooling", "max"), "--pooling: 'max' is not one of auto, none, mean"),
        (("--embd-output-format", "xml"), "'xml' is not one of array, json"),
        (("--embd-separator", ""), "a separator is empty"),
        (("--embd-normalize", "-2"), "-2 is not between -1"),
        (("-b", "2"), "4 tokens that all see each other take one step"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], message: str, model: Path) -> None:
    """Options that do not exist, and texts that do not fit, are one line."""
    result = puna("embed", model, "-p", "the cat", *words)
    assert result.status == 2
    assert message in result.error

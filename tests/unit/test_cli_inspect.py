"""`puna inspect` and `puna tokenize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import alphabet, puna
from tiny_model import CHAT_TEMPLATE, write_tiny

from puna.gguf import Value, ValueType, write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return alphabet(tmp_path)


def test_inspect_shows_all_of_a_file(tmp_path: Path) -> None:
    """Every key and tensor has its line; the totals are right."""
    lines = puna("inspect", write_tiny(tmp_path / "a.gguf", quant="Q8_0")).out.splitlines()
    assert lines[0].endswith("GGUF version 3, little-endian, 122.3 KiB, alignment 32")
    assert "metadata: 19 keys" in lines
    assert "  llama.block_count = 2 (uint32)" in lines
    assert "  tokenizer.ggml.add_bos_token = false (bool)" in lines
    assert "  tokenizer.ggml.token_type = [1, 1, 1, 1, 1, 1, 1, 1, ...] (287 of int32)" in lines
    assert "tensors: 21" in lines
    assert "  blk.0.attn_k.weight       32x64   Q8_0   2.1 KiB" in lines
    start = lines.index("by type:")
    assert " ".join(lines[start + 1].split()) == "Q8_0 16 tensors 110464 elements 114.6 KiB 98.9%"
    assert " ".join(lines[start + 2].split()) == "F32 5 tensors 320 elements 1.2 KiB 1.1%"
    assert lines[-1] == "total: 110784 elements, 115.9 KiB, 8.57 bits per weight"


def test_inspect_names_the_file_type(tmp_path: Path) -> None:
    """What llama-quantize calls the file stands beside the architecture; numbers that are no type are left out."""
    for number, name in ((15, "Q4_K_M"), (19, "IQ2_XXS"), (999, None)):
        keys = {"general.file_type": Value(ValueType.UINT32, number)}
        path = write_tiny(tmp_path / "a.gguf", metadata=keys)
        assert f"model: llama, {name}" == puna("inspect", path).out.splitlines()[1] or name is None
        found = json.loads(puna("inspect", path, "--json").out)
        assert (found["architecture"], found["file_type"]) == ("llama", name)
    write(path, {"general.file_type": "x", "general.architecture": 3}, [])
    assert "model: " not in puna("inspect", path).out


def test_inspect_as_json(model: Path) -> None:
    """--json holds the same, long arrays as count and beginning."""
    found = json.loads(puna("inspect", model, "--json").out)
    assert found["metadata"]["tokenizer.ggml.tokens"] == {"count": 287, "first": list("!\"#$%&'(")}
    assert found["metadata"]["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert found["elements"] == sum(kind["elements"] for kind in found["types"].values())
    assert found["tensor_bytes"] == sum(tensor["bytes"] for tensor in found["tensors"])
    assert found["bits_per_weight"] == 32
    assert found["tensors"][0] == {
        "name": "token_embd.weight",
        "shape": [287, 64],
        "type": "F32",
        "offset": found["tensors"][0]["offset"],
        "bytes": 287 * 64 * 4,
        "file": 0,
    }


def test_inspect_one_key(model: Path) -> None:
    """--metadata prints one value whole: text as it is, the rest as JSON; a wrong key brings near ones."""
    assert puna("inspect", model, "--metadata", "tokenizer.chat_template").out == CHAT_TEMPLATE + "\n"
    assert len(json.loads(puna("inspect", model, "--metadata", "tokenizer.ggml.tokens").out)) == 287
    assert puna("inspect", model, "--metadata", "llama.block_count").out == "2\n"
    assert puna("inspect", model, "--metadata", "general.architecture", "--json").out == '"llama"\n'
    result = puna("inspect", model, "--metadata", "llama.blokcount")
    assert result.status == 2
    assert "there is no metadata key 'llama.blokcount'; the nearest are llama.block_count" in result.error


def test_hostile_texts_are_escaped(tmp_path: Path) -> None:
    """No key, value or tensor name can steer the terminal, and numbers that are none do not break JSON."""
    path, bell = tmp_path / "a.gguf", "\x1b]0;owned\x07"
    values: dict[str, Any] = {bell: bell, "list": [bell] * 20, "long": bell * 100, "bytes": "\udcff"}
    values |= {"nan": Value(ValueType.FLOAT32, float("nan")), "nested": Value(ValueType.ARRAY, [])}
    write(path, values, [])
    result = puna("inspect", path)
    assert result.status == 0
    assert "\x1b" not in result.out
    assert "\x07" not in result.out
    assert "(1000 characters)" in result.out
    assert "\x1b" not in puna("inspect", path, "--metadata", bell).out
    assert json.loads(puna("inspect", path, "--json").out)["metadata"]["nan"] == "nan"


def test_tokenize_shows_ids_and_pieces(model: Path) -> None:
    """A line a token, the piece escaped, then their number."""
    result = puna("tokenize", model, "a the\n<|im_end|>é", "--no-escape")
    ids = ["64", "258", "198", "286", "127", "102"]
    pieces = ["'a'", "' the'", r"'\n'", "'<|im_end|>'", r"'\xc3'", r"'\xa9'"]
    rows = [f"{token:>8}  {piece}" for token, piece in zip(ids, pieces, strict=True)]
    assert result.out.splitlines() == [*rows, "6 tokens"]


def test_tokenize_forms(model: Path, tmp_path: Path) -> None:
    """--ids and --json; a text by place, -p, -f, -m and standard input, which is taken whole."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"ab\n")
    assert puna("tokenize", model, "ab", "--ids").out == "[64, 65]\n"
    assert puna("tokenize", "-m", model, "ab", "--ids").out == "[64, 65]\n"
    assert puna("tokenize", model, "-p", "ab", "--ids").out == "[64, 65]\n"
    assert puna("tokenize", model, "-f", file, "--ids").out == "[64, 65, 198]\n"
    assert puna("tokenize", model, "--ids", stdin=b"ab\n").out == "[64, 65, 198]\n"
    assert puna("tokenize", model, r"a\n", "--ids").out == "[64, 198]\n"
    assert json.loads(puna("tokenize", model, "é", "--json").out) == [
        {"id": 127, "piece": [0xC3]},
        {"id": 102, "piece": [0xA9]},
    ]
    assert puna("tokenize", model, "", "--ids").out == "[]\n"
    assert "the text is given twice" in puna("tokenize", model, "a", "-p", "b").error


def test_tokenize_special_tokens(tmp_path: Path) -> None:
    """--no-bos leaves BOS out, --no-parse-special takes a special token's text for text."""
    model = write_tiny(tmp_path / "a.gguf", vocab="spm")
    assert json.loads(puna("tokenize", model, "a", "--ids").out)[0] == 1
    assert 1 not in json.loads(puna("tokenize", model, "a", "--ids", "--no-bos").out)
    assert len(json.loads(puna("tokenize", model, "</s>", "--ids", "--no-bos", "--no-parse-special").out)) > 2


def test_tokenize_decodes(model: Path) -> None:
    """--decode takes ids in any usual form, and refuses what is none or is outside the vocabulary."""
    for form in ("64,258", "[64, 258]", "64 258"):
        assert puna("tokenize", model, "--decode", form).out == "a the\n"
    assert puna("tokenize", model, "--decode", "-", stdin=b"64\n258\n").out == "a the\n"
    assert puna("tokenize", model, "--decode", "64", "--json").out == '"a"\n'
    assert puna("tokenize", model, "--decode", "").out == "\n"
    assert "'x' is no token id" in puna("tokenize", model, "--decode", "64,x").error
    assert "287" in puna("tokenize", model, "--decode", "287").error

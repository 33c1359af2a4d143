"""`puna quantize` on small models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli_runs import puna
from tiny_model import write_tiny

from puna.gguf import GGUFFile, write
from puna.gguf.imatrix import Imatrix, Importance, write_imatrix
from puna.quants import by_name


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "in.gguf")


def types(path: Path) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name: tensor.quant.name for name, tensor in file.tensors.items()}


def test_a_model_in_another_type(model: Path, tmp_path: Path) -> None:
    """The new model has the type, runs, and its size is told; standard output stays empty."""
    result = puna("quantize", model, tmp_path / "out.gguf", "q8_0")
    assert (result.status, result.out) == (0, "")
    total = "Q8_0: 432.8 KiB (32.00 bits per weight) -> 115.9 KiB (8.57 bits per weight)"
    assert result.err.splitlines() == [total]
    assert types(tmp_path / "out.gguf")["blk.0.attn_q.weight"] == "Q8_0"
    assert puna("run", tmp_path / "out.gguf", "-p", "a", "-n", "2").status == 0
    assert "model: llama, Q8_0" in puna("inspect", tmp_path / "out.gguf").out


def test_fallbacks_are_told(model: Path, tmp_path: Path) -> None:
    """Where rows are no whole blocks, what tensors get instead is said, alike ones in a line."""
    result = puna("quantize", model, tmp_path / "out.gguf", "Q4_K_S", "--leave-output-tensor")
    notes = [line for line in result.err.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: 11 tensors, such as token_embd.weight, get Q5_0, not Q4_K: rows of 64 values are no multiple of 256",
        "note: 2 tensors, such as blk.0.attn_v.weight, get Q5_1, not Q5_K: rows of 64 values are no multiple of 256",
        "note: 2 tensors, such as blk.0.ffn_down.weight, get Q5_0, not Q4_K: rows of 128 values are no multiple of 256",
    ]


def test_dry_run(model: Path, tmp_path: Path) -> None:
    """--dry-run shows a line a tensor and the totals, writes nothing, and tells what would stop it."""
    result = puna(
        "quantize", model, tmp_path / "out.gguf", "Q4_0", "--dry-run", "--output-tensor-type", "f16"
    )
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert result.status == 0
    assert "blk.0.attn_k.weight 32x64 F32 -> Q4_0 8.0 KiB 1.1 KiB" in lines
    assert "output.weight 287x64 F32 -> F16 71.8 KiB 35.9 KiB" in lines
    assert "output_norm.weight 64 F32 256 B" in lines
    assert lines[-1].startswith("Q4_0: 432.8 KiB (32.00 bits per weight) -> ")
    assert not (tmp_path / "out.gguf").exists()
    quantized = write_tiny(tmp_path / "q.gguf", quant="Q8_0")
    result = puna("quantize", quantized, tmp_path / "out.gguf", "Q4_0", "--dry-run")
    assert result.status == 0
    assert "note: without --dry-run this is an error: " in result.err


def test_options(model: Path, tmp_path: Path) -> None:
    """Types by name, in any case; a pattern may hold an equals sign; the first match counts."""
    words = [
        "--tensor-type",
        "ffn_(?=up)=Q8_0",
        "--tensor-type",
        "FFN=q5_1",
        "--token-embedding-type",
        "BF16",
    ]
    assert puna("quantize", model, tmp_path / "out.gguf", "Q4_0", *words, "--pure", "-t", "3").status == 0
    found = types(tmp_path / "out.gguf")
    assert found["blk.1.ffn_up.weight"] == "Q8_0"
    assert found["blk.1.ffn_down.weight"] == "Q5_1"
    assert found["token_embd.weight"] == "BF16"
    assert found["output.weight"] == found["blk.0.attn_q.weight"] == "Q4_0"


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (
            ["attn_norm=Q8_0"],
            "attn_norm: 2 tensors, such as blk.0.attn_norm.weight, cannot be quantised, and stay as",
        ),
        (["output_norm=Q8_0"], "output_norm: output_norm.weight cannot be quantised, and stays as it is"),
        (
            ["ffn=F16", "--tensor-type", "up=F16"],
            "up: other options decide about all tensors with such a name",
        ),
        (["^out=F16", "--output-tensor-type", "F16"], "^out: other options decide about all"),
    ],
)
def test_patterns_without_an_effect(model: Path, tmp_path: Path, words: list[str], note: str) -> None:
    """A pattern that decides nothing is told, with the reason."""
    result = puna("quantize", model, tmp_path / "out.gguf", "Q8_0", "--tensor-type", *words)
    assert next(line for line in result.err.splitlines() if "note: --" in line).startswith(
        f"note: --tensor-type {note}"
    )
    assert (
        puna("quantize", model, tmp_path / "out.gguf", "Q8_0", "--tensor-type", "attn=F16").err.count("note")
        == 0
    )


def tied(folder: Path) -> Path:
    """A model whose embedding is its output, with rows of 256."""
    values = np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    names = ("token_embd.weight", "blk.0.ffn_up.weight")
    rows = [(name, by_name("F32"), values.shape, values.view(np.uint8)) for name in names]
    write(folder / "tied.gguf", keys, rows)
    return folder / "tied.gguf"


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--output-tensor-type", "F16"], ""),
        (
            ["--output-tensor-type", "F16", "--pure"],
            "--output-tensor-type changes nothing: this model has no output",
        ),
        (["--leave-output-tensor"], "--leave-output-tensor changes nothing: this model has no output.weight"),
        (["--tensor-type", "up=Q8_K"], "blk.0.ffn_up.weight gets Q8_K: llama.cpp crashes on such a file"),
    ],
)
def test_tied_models_and_types_for_puna_alone(tmp_path: Path, words: list[str], note: str) -> None:
    """What does nothing, or what another program cannot run, is told; the output's type is the embedding's."""
    result = puna("quantize", tied(tmp_path), tmp_path / "out.gguf", "Q4_0", *words)
    assert result.err.startswith(f"note: {note}" if note else "Q4_0: ")
    expected = {"F16": "F16", "--pure": "Q4_0"}.get(words[-1], "Q6_K")
    assert types(tmp_path / "out.gguf")["token_embd.weight"] == expected


def test_threads_stand_where_llama_quantize_has_them(model: Path, tmp_path: Path) -> None:
    """The fourth word is how many."""
    assert puna("quantize", model, tmp_path / "out.gguf", "Q8_0", "2").status == 0


def test_a_file_may_be_read_without_mapping(model: Path, tmp_path: Path) -> None:
    """--no-mmap makes the same file."""
    for name, more in (("a", ()), ("b", ("--no-mmap",))):
        assert puna("quantize", model, tmp_path / name, "Q4_0", *more).status == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_no_room(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is told before the work, and in a dry run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    result = puna("quantize", model, "out.gguf", "Q8_0")
    assert result.error.startswith("out.gguf: 122.4 KiB are needed and 1000 B are free")
    assert (
        "this is an error: o: 115.9 KiB are needed" in puna("quantize", model, "o", "Q8_0", "--dry-run").err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_an_importance_matrix_is_not_written_over(model: Path, tmp_path: Path) -> None:
    """It is read, too."""
    entry = Importance(np.ones(64, np.float32), np.ones(1, np.float32))
    write_imatrix(tmp_path / "i.gguf", Imatrix({"blk.0.attn_q.weight": entry}))
    result = puna("quantize", model, tmp_path / "i.gguf", "Q4_0", "--imatrix", tmp_path / "i.gguf")
    assert "i.gguf: this is the file to read" in result.error


def test_importance_matrix(model: Path, tmp_path: Path) -> None:
    """--imatrix makes another file, which names it."""
    entry = Importance(np.arange(1, 65, dtype=np.float32), np.ones(1, np.float32))
    write_imatrix(tmp_path / "i.gguf", Imatrix({"blk.0.attn_q.weight": entry}, ["t.txt"], 3, 512))
    assert puna("quantize", model, tmp_path / "a.gguf", "Q4_0").status == 0
    assert puna("quantize", model, tmp_path / "b.gguf", "Q4_0", "--imatrix", tmp_path / "i.gguf").status == 0
    with GGUFFile.open(tmp_path / "a.gguf") as a, GGUFFile.open(tmp_path / "b.gguf") as b:
        assert b.metadata["quantize.imatrix.file"] == str(tmp_path / "i.gguf")
        different = [name for name in a.tensors if not np.array_equal(a.data(name), b.data(name))]
    assert different[0] == "blk.0.attn_q.weight"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["in.gguf"], "the following arguments are required: OUT, TYPE"),
        (["in.gguf", "out.gguf", "Q4_KX"], "TYPE: there is no type 'Q4_KX'; use one of Q4_K_S"),
        (["in.gguf", "out.gguf", "IQ2_XXS"], "Puna runs files of type IQ2_XXS, but does not make them"),
        (["none.gguf", "out.gguf", "Q8_0"], "none.gguf: there is no such file"),
        (["in.gguf", "in.gguf", "Q8_0"], "in.gguf: this is the file to read"),
        (["in.gguf", "none/out.gguf", "Q8_0"], "there is no such folder"),
        (["in.gguf", "out.gguf", "Q8_0", "--tensor-type", "x"], "--tensor-type: 'x' is not REGEX=TYPE"),
        (["in.gguf", "out.gguf", "Q8_0", "--tensor-type", "=F16"], "--tensor-type: '=F16' is not REGEX=TYPE"),
        (["in.gguf", "out.gguf", "Q8_0", "--tensor-type", "(=F16"], "'(' is no regular expression: "),
        (
            ["in.gguf", "out.gguf", "Q8_0", "--tensor-type", "x=F15"],
            "--tensor-type: quantisation type 'F15' is",
        ),
        (
            ["in.gguf", "out.gguf", "Q8_0", "--tensor-type", "x=IQ1_S"],
            "Puna reads IQ1_S but cannot quantise to it",
        ),
        (
            ["in.gguf", "out.gguf", "Q8_0", "--output-tensor-type", "Q"],
            "--output-tensor-type: quantisation type 'Q'",
        ),
        (["in.gguf", "out.gguf", "Q8_0", "--imatrix", "none"], "none: cannot read the file"),
        (["in.gguf", "out.gguf", "Q8_0", "--imatrix", "in.gguf"], "in.gguf: this is no importance matrix"),
        (["in.gguf", "", "Q8_0"], "OUT: an empty path names no file"),
        (["in.gguf", "-", "Q8_0"], "OUT: nothing is written to standard output; name a file, or ./-"),
        (["in.gguf", "out.gguf", "Q8_0", "x"], "THREADS: 'x' is not a whole number"),
        (["in.gguf", "out.gguf", "Q8_0", "4", "-t", "3"], "-t: threads are given twice"),
        (
            ["in.gguf", "out.gguf", "Q8_0", "--leave-output-tensor", "--output-tensor-type", "F16"],
            "--leave-output-tensor: output.weight stays as it is, or gets a type",
        ),
        (["in.gguf", "out.gguf", "Q8_0", "-t", "0"], "-t/--threads: 0 is not between 1 and 1024"),
    ],
)
def test_bad_input(model: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    """What cannot be done is one line, and writes nothing."""
    monkeypatch.chdir(model.parent)
    result = puna("quantize", *words)
    assert result.status == 2
    assert message in result.error
    assert [path.name for path in model.parent.iterdir()] == ["in.gguf"]


def test_no_model(tmp_path: Path) -> None:
    """A file that is no model, such as an importance matrix, is refused by what it lacks."""
    entry = Importance(np.ones(4, np.float32), np.ones(1, np.float32))
    write_imatrix(tmp_path / "i.gguf", Imatrix({"a": entry}))
    result = puna("quantize", tmp_path / "i.gguf", tmp_path / "out.gguf", "Q8_0")
    assert "missing metadata key 'general.architecture'" in result.error

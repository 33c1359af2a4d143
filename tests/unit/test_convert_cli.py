"""`puna convert`: what it prints, where it writes, and that what it wrote runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runs import puna
from hf_folders import CONFIG, byte_level, count, folder, llama_tensors

from puna.convert import convert, prepare
from puna.gguf import GGUFFile


def test_a_folder_becomes_a_file_that_runs(tmp_path: Path) -> None:
    """It says what the file holds, prints its path, and `puna run` and `puna tokenize` take it."""
    path, out = folder(tmp_path / "small-model"), tmp_path / "x.gguf"
    done = puna("convert", path, out, "--outtype", "q8_0")
    assert (done.status, done.out) == (0, f"{out}\n")
    assert done.err.splitlines() == [
        "llama: 21 tensors (16 Q8_0, 5 F32), 37.3 KiB",
        "vocabulary: gpt2, pre-tokenizer qwen2, 265 tokens",
    ]
    assert puna("run", out, "-p", "the inn", "-n", "3").status == 0
    assert puna("tokenize", out, "the").out.strip()


def test_the_file_is_named_after_the_folder(tmp_path: Path) -> None:
    """A folder as the target gets a file with the model's name and type."""
    path = folder(tmp_path / "small-model")
    done = puna("convert", path, tmp_path)
    assert done.out == f"{tmp_path / 'small-model-F16.gguf'}\n"
    done = puna("convert", path, tmp_path, "--vocab-only", "--name", "My Model")
    assert done.out == f"{tmp_path / 'small-model-vocab.gguf'}\n"
    with GGUFFile.open(tmp_path / "small-model-vocab.gguf") as file:
        assert file.metadata["general.name"] == "My Model"
        assert not file.tensors


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """It checks all the same, and says where the file would go."""
    path = folder(tmp_path / "x")
    done = puna("convert", path, tmp_path / "x.gguf", "--dry-run")
    assert (done.status, done.out) == (0, "")
    assert done.err.splitlines()[-1] == f"nothing is written (--dry-run): {tmp_path / 'x.gguf'}"
    assert list(tmp_path.iterdir()) == [path]
    (path / "model.safetensors").write_bytes(b"")
    assert "said to take 0 bytes" in puna("convert", path, tmp_path / "x.gguf", "--dry-run").error


def test_notes_are_shown(tmp_path: Path) -> None:
    """What the file cannot say comes before the path."""
    tokenizer = {**byte_level(), "normalizer": {"type": "NFC"}}
    done = puna("convert", folder(tmp_path / "x", tokenizer=tokenizer), tmp_path / "x.gguf")
    assert any(line.startswith("note: text is brought into") for line in done.err.splitlines())


def test_errors_are_one_line(tmp_path: Path) -> None:
    """A missing folder, a wrong type and a target that cannot be written are errors of status 2."""
    path = folder(tmp_path / "x")
    for words in (
        (tmp_path / "y", "o"),
        (path, "o", "--outtype", "q4"),
        (path, tmp_path / "a" / "b.gguf"),
        (path,),
    ):
        done = puna("convert", *words)
        assert done.status == 2
        assert done.error


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    """No file of the folder but a GGUF one is a target, by a link neither; a dry run says so as well."""
    path = folder(tmp_path / "x")
    (tmp_path / "link").symlink_to(path / "config.json")
    before = {file: file.read_bytes() for file in path.iterdir()}
    for target in (path / "model.safetensors", tmp_path / "link"):
        for more in ((), ("--dry-run",)):
            assert f"{target}: this is the file to read" in puna("convert", path, target, *more).error
    assert before == {file: file.read_bytes() for file in path.iterdir()}
    for _ in range(2):
        assert puna("convert", path, path / "x.gguf").status == 0


def test_the_target_is_checked_first(tmp_path: Path) -> None:
    """Before anything is read."""
    path = folder(tmp_path / "x")
    (path / "tokenizer.json").write_bytes(b"")
    assert "there is no such folder" in puna("convert", path, tmp_path / "a" / "b", "--dry-run").error
    assert "an empty path names no file" in puna("convert", path, "").error
    assert "an empty path names no folder" in puna("convert", "", "x.gguf").error
    assert (
        "tokenizer.json: the file is empty; save or download" in puna("convert", path, tmp_path / "b").error
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 99999999999, "is 99999999999, where a whole number from 1 to 2048 is needed"),
        ("hidden_size", 48, "the architecture asks for [any, 48]; take config.json and tensors of one model"),
    ],
)
def test_wrong_sizes_name_the_file(tmp_path: Path, key: str, value: int, message: str) -> None:
    """A number that cannot be, or that the tensors contradict, is config.json's."""
    error = puna("convert", folder(tmp_path / "x", config={**CONFIG, key: value}), tmp_path / "o").error
    assert error.startswith(str(tmp_path / "x" / "config.json"))
    assert message in error


def test_values_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    """The tensors are named, in GGUF's words."""
    tensors = llama_tensors(count(byte_level()))
    tensors["model.norm.weight"][3] = np.nan
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = np.inf
    for kind in ("f32", "bf16"):
        done = puna("convert", folder(tmp_path / kind, tensors), tmp_path / "o", "--outtype", kind)
        notes = [line for line in done.err.splitlines() if line.startswith("note: tensor")]
        assert [line.split()[2] for line in notes] == ["blk.0.ffn_up.weight", "output_norm.weight"]


def test_general_metadata(tmp_path: Path) -> None:
    """Name, size, license and languages come from the folder and its model card."""
    path = folder(tmp_path / "small-model-2B")
    card = "---\nlicense: mit\nlanguage:\n- en\n- 'no'\ntags: [chat]\npipeline_tag: text-generation\n---\n# A model\n"
    (path / "README.md").write_text(card)
    keys = prepare(path, tmp_path).metadata
    assert keys["general.name"] == "Small Model 2B"
    assert keys["general.size_label"] == "36K"
    assert (keys["general.license"], keys["general.languages"]) == ("mit", ("en", "no"))
    assert keys["general.tags"] == ("chat", "text-generation")
    assert (keys["general.type"], keys["general.quantization_version"]) == ("model", 2)
    for damaged in (
        "---\n[\n---\n",
        "---\n- 1\n---\n",
        "---\nlicense: x",
        "",
        "---\n" + "[" * 5000 + "\n---\n",
    ):
        (path / "README.md").write_text(damaged)
        assert "general.license" not in prepare(path, tmp_path).metadata


def test_a_snapshot_of_the_hubs_cache_has_its_repositorys_name(tmp_path: Path) -> None:
    """The folder is named after a commit there."""
    snapshots = tmp_path / "models--someone--small-model" / "snapshots"
    snapshots.mkdir(parents=True)
    found = prepare(folder(snapshots / "0123abcd"), tmp_path)
    assert found.metadata["general.name"] == "Small Model"
    assert found.path == tmp_path / "small-model-F16.gguf"


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    """One stage, told of all bytes of the tensors that come from the folder."""
    told: list[object] = []

    class Told:
        def start(self, label: str, total: int) -> None:
            told.append(total)

        def advance(self, count: int) -> None:
            told.append(count)

        def done(self) -> None:
            told.append("done")

    path = folder(tmp_path / "x", llama_tensors(count(byte_level())))
    found = convert(path, tmp_path / "x.gguf", progress=Told())
    total, *counts, end = told
    assert (total, end) == (found.nbytes, "done")
    assert sum(n for n in counts if isinstance(n, int)) == total


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    """The target has the whole new file or stays as it was."""
    path, out = folder(tmp_path / "x"), tmp_path / "x.gguf"
    out.write_bytes(b"old")

    class Stop:
        def start(self, label: str, total: int) -> None: ...

        def advance(self, count: int) -> None:
            raise KeyboardInterrupt

        def done(self) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        convert(path, out, progress=Stop())
    assert out.read_bytes() == b"old"
    assert {p.name for p in tmp_path.iterdir()} == {"x", "x.gguf"}

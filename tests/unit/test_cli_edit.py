"""`puna split`, `puna merge`, `puna diff` and `puna set`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runs import alphabet, puna
from tiny_model import write_tiny

from puna.gguf import Value, ValueType, write


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return alphabet(tmp_path)


def test_split_and_merge(model: Path, tmp_path: Path) -> None:
    """Files are listed with their sizes, any of them runs as the model, and merging gives the model back."""
    result = puna("split", model, "part", "--max-tensors", 12)
    assert [" ".join(line.split()) for line in result.out.splitlines()] == [
        "part-00001-of-00002.gguf 12 tensors 222.8 KiB",
        "part-00002-of-00002.gguf 9 tensors 216.6 KiB",
    ]
    parts = [f"part-0000{i}-of-00002.gguf" for i in (1, 2)]
    assert (
        puna("run", parts[1], "-p", "wx", "--temp", "0", "-n", "1", "--no-display-prompt").out.strip() == "y"
    )
    result = puna("merge", parts[0], "out.gguf")
    assert result.err.startswith("out.gguf: 2 files, 21 tensors, ")
    assert (tmp_path / "out.gguf").read_bytes() == model.read_bytes()
    assert puna("diff", parts[0], model).out == "no difference: 21 tensors\n"


def test_split_dry_run(model: Path, tmp_path: Path) -> None:
    """--dry-run lists the files and writes none."""
    result = puna("split", model, "part", "--max-size", "100K", "--dry-run")
    assert len(result.out.splitlines()) > 4
    assert [path.name for path in tmp_path.iterdir()] == [model.name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["split", "alphabet.gguf", "p"], "puna split: say how large a file may be; add --max-size 2G"),
        (
            ["split", "alphabet.gguf", "p", "--max-size", "1G", "--max-tensors", "2"],
            "puna split: give one limit",
        ),
        (["split", "alphabet.gguf", "p", "--max-size", "1X"], "'1X' is no size; give one such as 2G"),
        (["split", "alphabet.gguf", "p", "--max-tensors", "0"], "0 is not between 1 and"),
        (["split", "alphabet.gguf", "p", "--max-size", "10"], "takes"),
        (["split", "alphabet.gguf", "none/p", "--max-tensors", "9"], "none: there is no such folder"),
        (["split", "alphabet.gguf", ".", "--max-tensors", "9"], ".: this is a folder; name the files in it"),
        (["split", "alphabet.gguf", "new/", "--max-tensors", "9"], "such as new/model"),
        (["merge", "alphabet.gguf", "out.gguf"], "alphabet.gguf: this model is in one file already"),
        (["merge", "alphabet.gguf"], "the following arguments are required: OUT"),
        (["diff", "alphabet.gguf", "none.gguf"], "none.gguf: there is no such file"),
        (["diff", "alphabet.gguf"], "the following arguments are required: B"),
        (["set", "general.name", "x", "alphabet.gguf", "alphabet.gguf"], "this is the file to read"),
        (
            ["set", "general.alignment", "64", "alphabet.gguf", "out.gguf"],
            "this key says how the file is laid out",
        ),
        (
            ["set", "general.nam", "x", "alphabet.gguf", "out.gguf"],
            "the nearest that are there: general.name",
        ),
        (["set", "llama.block_count", "two", "alphabet.gguf", "out.gguf"], "'two' is no uint32"),
    ],
)
def test_bad_input(model: Path, words: list[str], message: str) -> None:
    """What cannot be done is one line, and writes nothing."""
    before = model.read_bytes()
    result = puna(*words)
    assert (result.status, result.out) == (2, "")
    assert message in result.error
    assert [path.name for path in model.parent.iterdir()] == [model.name]
    assert model.read_bytes() == before


def test_split_sizes_are_shown_as_given(model: Path) -> None:
    """In powers of 1000, or of 1024 where the limit is; a number at the end of the prefix goes, with a note."""
    result = puna("split", model, "p-00001-of-00003.gguf", "--max-size", "250KB", "--dry-run")
    assert result.err == "note: the number at the end of PREFIX is left out: p\n"
    assert result.out.splitlines()[0].split() == ["p-00001-of-00002.gguf", "13", "tensors", "244.5", "kB"]
    assert "254.9 KiB" in puna("split", model, "p", "--max-size", "0.25MiB", "--dry-run").out


def test_no_room_for_parts(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts together are what is asked for."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=300_000))
    result = puna("split", model, "p", "--max-tensors", "12")
    assert "p-00001-of-00002.gguf: 439.4 KiB are needed and 293.0 KiB are free" in result.error
    assert [path.name for path in tmp_path.iterdir()] == [model.name]


def test_a_type_that_changes_is_told(model: Path) -> None:
    """--type gives a key that is there another type, with a note."""
    result = puna("set", "llama.block_count", "2", model, "out.gguf", "--type", "string")
    assert result.err.startswith("note: the type of llama.block_count changes (--type)")


def test_interrupted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is answered with what became of the file."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("puna.edit.keys.write", stop)
    result = puna("set", "general.name", "x", model, "out.gguf")
    assert (result.status, result.err) == (130, "interrupted; nothing was written\n")
    Path("out.gguf").write_bytes(b"old")
    assert puna("set", "general.name", "x", model, "out.gguf").err == "interrupted; out.gguf is as it was\n"


def test_what_broken_off_runs_left(model: Path, tmp_path: Path) -> None:
    """It is deleted before the same file is written again, and said."""
    (tmp_path / ".out.gguf.0123abcd.part").write_bytes(b"half")
    result = puna("set", "general.name", "x", model, "out.gguf")
    assert (
        result.err == "note: deleted 1 part of out.gguf that broken-off runs left: .out.gguf.0123abcd.part\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {model.name, "out.gguf"}


def test_diff(model: Path, tmp_path: Path) -> None:
    """Differences are listed with their sizes, and the exit status is 1."""
    assert puna("quantize", model, "q.gguf", "Q8_0").status == 0
    result = puna("diff", model, "q.gguf")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert (result.status, result.err) == (1, "")
    assert lines[:2] == ["metadata: 2 keys differ", "+ general.quantization_version = 2 (uint32)"]
    assert "tensors: 16 differ, 5 are the same" in lines
    assert any(line.startswith("! blk.0.attn_q.weight 64x64 F32 -> Q8_0 RMSE 0.0") for line in lines)
    assert lines[-1].startswith("together: RMSE 0.0")
    short = puna("diff", model, "q.gguf", "--no-values")
    assert "RMSE" not in short.out
    assert short.status == 1


def test_diff_of_keys_and_shapes(tmp_path: Path) -> None:
    """What one side lacks has a sign; texts out of files cannot steer the terminal."""
    a, b = write_tiny(tmp_path / "a.gguf"), tmp_path / "b.gguf"
    write(b, {"general.architecture": "x\x1b[0m", "list": Value(ValueType.UINT8, [1])}, [])
    result = puna("diff", a, b)
    assert r"  ! general.architecture: 'llama' -> 'x\x1b[0m'" in result.out
    assert "  + list = [1] (1 of uint8)" in result.out
    assert "  - general.name = 'tiny llama'" in result.out
    assert "  -  output.weight" in result.out
    assert "\x1b" not in result.out


def test_diff_as_json(model: Path, tmp_path: Path) -> None:
    """--json holds the same."""
    assert puna("set", "llama.block_count", "3", model, "out.gguf").status == 0
    found = json.loads(puna("diff", model, "out.gguf", "--json").out)
    before, after = ({"type": "uint32", "value": value} for value in (2, 3))
    assert found["metadata"] == [{"key": "llama.block_count", "before": before, "after": after}]
    assert (found["tensors"], found["same"]) == ([], 21)
    other = write_tiny(tmp_path / "other.gguf", seed=5)
    (tensor,) = json.loads(puna("diff", model, other, "--json").out)["tensors"][:1]
    assert tensor["name"] == "token_embd.weight"
    assert tensor["before"] == tensor["after"] == {"type": "F32", "shape": [287, 64]}
    assert tensor["rmse"] > 0
    assert tensor["not_finite"] == 0


def test_set(model: Path, tmp_path: Path) -> None:
    """The copy has the value in the key's type, and what changed is shown; - reads standard input."""
    result = puna("set", "llama.context_length", "512", model, "out.gguf")
    assert result.out == "llama.context_length: 256 (uint32) -> 512 (uint32)\n"
    assert puna("inspect", "out.gguf", "--metadata", "llama.context_length").out == "512\n"
    result = puna("set", "tokenizer.chat_template", "-", model, "out.gguf", stdin=b"{{ messages }}\n")
    assert result.status == 0
    assert puna("inspect", "out.gguf", "--metadata", "tokenizer.chat_template").out == "{{ messages }}\n"
    result = puna("set", "new.key", "-5", model, "out.gguf", "--type", "int8")
    assert result.out == "new.key: nothing -> -5 (int8)\n"


def test_set_of_a_split_model(model: Path, tmp_path: Path) -> None:
    """That the copy is one file is said."""
    assert puna("split", model, "p", "--max-tensors", "9").status == 0
    result = puna("set", "general.name", "x", "p-00001-of-00003.gguf", "out.gguf")
    assert result.err == "note: the copy is one file, where this model has 3\n"

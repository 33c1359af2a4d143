"""`puna kernels`: the code cache, what a model needs, and a look into kernels."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from cli_runs import Result, puna
from tiny_model import write_tiny

from puna.backends.cpu.codecache import CodeCache
from puna.backends.cpu.features import family_of
from puna.cli.kernels import age, cut, loops

SAMPLE = """\
start:
  br label %loop.1

loop.1:                    ; preds = %loop.1, %start
  %a = add i64 %b, 1
  br i1 %c, label %loop.1, label %loop.1.end

loop.1.end:
  br label %start.2
"""
ASSEMBLY = (
    "f:\n\tnop\n.LBB0_1:\n\taddq\t$1, %rax\n\tjl\t.LBB0_1\n\tjmp\t.LBB0_10\n.LBB0_10:\n\tjmp\t.LBB0_1\n"
)
ARM = ".LBB0_2:\n\tadd\tx0, x0, #1\n\tcbnz\tx0, .LBB0_2\n\tb.lt\t.LBB0_3\n.LBB0_3:\n\tret\n"
TWICE = ".LBB0_1:\n\tjl\t.LBB0_1\n\tnop\n\tjne\t.LBB0_1\n\tjmp\t.LBB0_12\n\tret\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The code cache, empty at first."""
    monkeypatch.setattr("puna.backends.cpu.codecache.default_folder", lambda: tmp_path / "code")
    return tmp_path / "code"


def kernels(*words: object) -> Result:
    result = puna("kernels", *words)
    assert result.status == 0, result.err
    return result


def test_the_cache_is_listed_and_cleared(folder: Path) -> None:
    """Name, processor, size and age of each kernel; --clear deletes them, and says how many."""
    cache = CodeCache(folder)
    cache.store("0123456789", b"x" * 2048, name="linear.few panel=Q4_0 tokens=1", cpu="znver4")
    cache.store("9876543210", b"x", name="rows.rows ops=" + "add+" * 50, cpu="haswell")
    first, *rows = kernels().out.splitlines()
    assert first == f"2 kernels, 2.0 KiB of machine code, in {folder}"
    assert len(rows) == 2
    (few,) = [row for row in rows if "linear.few" in row]
    assert re.fullmatch(r"  01234567  linear\.few panel=Q4_0 tokens=1 +znver4 +2\.0 KiB +\d s", few)
    assert all(len(row) < 120 for row in rows)
    assert kernels("--clear").out == f"deleted 2 files in {folder}\n"
    assert kernels().out == f"0 kernels, 0 B of machine code, in {folder}\n"


def test_a_models_kernels(folder: Path, tmp_path: Path) -> None:
    """Those that a model needs are compiled and listed with the time that took; the next time they are there."""
    model = write_tiny(tmp_path / "m.gguf", quant="Q8_0")
    *rows, total = kernels(model).out.splitlines()
    names = [row.split()[0] for row in rows]
    assert {"pack.pack", "linear.few", "linear.many", "attention.attend", "rows.rows", "runner.run"} <= set(
        names
    )
    assert all(re.search(r"\d+ ms$", row) for row in rows)
    assert total.startswith(f"{len(rows)} kernels, {len(rows)} of them compiled now in ")
    *again, total = kernels(model).out.splitlines()
    assert all(row.endswith("from the cache") for row in again)
    assert total == f"{len(rows)} kernels, 0 of them compiled now in 0.0 s"
    assert {cut(entry.name) for entry in CodeCache(folder).entries()} == {
        re.split(r"  +", row.strip())[0] for row in rows
    }
    shown = kernels(model, "--asm", "ops=embed").out
    assert re.match(r"# rows\.rows ops=embed\S* for \S+ \(.+\) by LLVM \d", shown)
    assert len(re.findall("^# rows.rows", shown, re.MULTILINE)) == 1


def test_code_is_shown(folder: Path) -> None:
    """--ir and --asm print all kernels whose name has the text, without a model of all types; nothing is kept."""
    code = kernels("--ir", "few panel=Q4_").out
    assert re.findall(r"^; linear\.few panel=(\w+) tokens=1 for ", code, re.MULTILINE) == [
        "Q4_0",
        "Q4_1",
        "Q4_K",
    ]
    assert code.count("define void @puna_") == 3
    assembly = kernels("--asm", "few panel=Q4_0").out
    assert assembly.startswith("# linear.few panel=Q4_0 tokens=1 for ")
    assert "puna_" in assembly
    assert not folder.exists()


def test_only_loops() -> None:
    """--loops leaves the blocks that jump back to their own beginning, each up to its last such jump."""
    whole, inner = (kernels("--asm", "few panel=Q4_0", *more).out for more in ((), ("--loops",)))
    assert 5 < len(inner.splitlines()) < len(whole.splitlines())
    assert loops(SAMPLE).splitlines()[0].startswith("loop.1:")
    assert len(loops(SAMPLE).splitlines()) == 3
    assert loops(SAMPLE).splitlines()[-1] == "  br i1 %c, label %loop.1, label %loop.1.end"
    assert loops(ASSEMBLY) == ".LBB0_1:\n\taddq\t$1, %rax\n\tjl\t.LBB0_1"
    assert loops(ARM) == ".LBB0_2:\n\tadd\tx0, x0, #1\n\tcbnz\tx0, .LBB0_2"
    assert loops(TWICE) == ".LBB0_1:\n\tjl\t.LBB0_1\n\tnop\n\tjne\t.LBB0_1"
    assert loops("f:\n\tret\n") == "no loops"


def test_nothing_follows_the_jump_back() -> None:
    """Whatever the code after a loop is, --loops does not show it: each block ends with its jump."""
    code = kernels("--asm", "many panel=Q4_0", "--loops").out
    blocks = code.strip().split("\n\n")
    for block in blocks:
        label, *_, last = block.splitlines()[1 if block.startswith("#") else 0 :]
        assert last.endswith(label.removesuffix(":"))


def test_another_processor() -> None:
    """--cpu shows what another processor of the family gets, and PUNA_CPU what it stands for."""
    family = family_of(llvm.get_process_triple())
    cpu, word = {"x86_64": ("haswell", "vpmaddubsw"), "aarch64": ("cortex-a76", "sdot")}[family]
    code = kernels("--asm", "few panel=Q4_0", "--cpu", cpu).out
    assert f" for {cpu} (" in code
    assert word in code


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--asm", "nothing"], "--asm: no kernel has 'nothing' in its name; name a model that needs it"),
        (["--loops"], "--loops: nothing is shown; add --asm NAME"),
        (["--cpu", "haswell"], "--cpu: nothing is shown; add --asm NAME"),
        (["--asm", "few", "--cpu", "pentium-12"], "--cpu: no .* processor is called 'pentium-12'; .*"),
        (["--asm", "few", "--ir", "few"], "both --ir and --asm are given; give one of them"),
        (["m.gguf", "--clear"], "--clear: it deletes all kernels, .*; give it alone"),
        (["--clear", "--asm", "few"], "--clear: it deletes all kernels, .*; give it alone"),
        (["--asm", ""], "--asm: it is empty"),
        (["--ir", ""], "--ir: it is empty"),
        (["--asm", "few", "--cpu", ""], "--cpu: it is empty"),
        ([""], "no model is named; .*"),
        (["-m", ""], "no model is named; .*"),
        (["", "--asm", "few"], "no model is named; .*"),
        (["no-such-model.gguf"], ".*no-such-model.gguf.*"),
    ],
)
def test_mistakes(folder: Path, words: list[str], error: str) -> None:
    """One line says what is wrong and what to change; nothing is shown, and the cache stays as it is."""
    CodeCache(folder).store("0123456789", b"x", name="linear.few", cpu="znver4")
    result = puna("kernels", *words)
    assert result.status == 2
    assert re.fullmatch(error, result.error)
    assert not result.out
    assert len(list(folder.iterdir())) == 1


def test_ages() -> None:
    """Ages are whole numbers of the largest unit that fits."""
    seconds = [-5, 0, 59, 60, 3599, 3600, 86399, 86400, 10 * 86400]
    assert [age(timedelta(seconds=n)) for n in seconds] == [
        "0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "23 h", "1 d", "10 d"
    ]  # fmt: skip

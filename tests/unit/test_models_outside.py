"""Architectures that are no part of Puna: the one that docs/add-a-model.md makes, and what may be wrong with one."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_runs import Result
from cli_runs import puna as command

import puna
from puna.errors import ModelError, RequestError
from puna.models import Decoder
from puna.models.llama import Llama
from puna.models.outside import outside
from puna.models.registry import find

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "add-a-model.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
# What the page has in its first column -> what it takes the place of.
MISTAKES = {
    "l.attn_nrom": "l.attn_norm",
    'act = "relu3"': 'act = "relu2"',
    "reads = ()": 'reads = ("unrotated_each",)',
    'names = ("llama",)': 'names = ("puffin",)',
}


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    """Each test with no architecture from outside."""
    outside.cache_clear()
    yield
    outside.cache_clear()


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, and the model that its script makes."""
    folder = tmp_path_factory.mktemp("puffin")
    for name, source in FILES.items():
        (folder / name).write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_puffin.py", str(folder / "puffin.gguf")])
        runpy.run_path(str(folder / "make_puffin.py"))
    return folder


@pytest.fixture
def here(page_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(page_folder)
    return page_folder


def plan(source: str, folder: Path) -> Result:
    """`puna plan` of the page's model with another class."""
    path = folder / "other.py"
    path.write_text(source, encoding="utf-8")
    return command("plan", "puffin.gguf", "--arch-file", path.name)


def test_the_page_counts_its_lines() -> None:
    """The page has four files, and says how many lines each has."""
    said = {name: int(count) for name, count in re.findall(r"`(\w+\.py)`, (\d+) lines", PAGE)}
    assert said == {name: len(source.splitlines()) for name, source in FILES.items()}
    assert len(said) == 4


def test_the_architecture_of_the_page_is_what_numpy_computes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's comparison, as it stands there, gives the error that the page names; in chunks it is the same."""
    monkeypatch.setenv("PUNA_BACKEND", "reference")
    monkeypatch.syspath_prepend(str(here))
    found = runpy.run_path("compare.py")
    assert float(capsys.readouterr().out.removeprefix("error: ")) < 1e-12
    model, ids = found["model"], found["ids"]
    np.testing.assert_allclose(model.logits(ids, batch=3), model.logits(ids), rtol=1e-4, atol=1e-5)
    assert model.notes == (f"architecture 'puffin' is Puffin of {here / 'puffin.py'}",)


def test_a_file_on_the_command_line(here: Path) -> None:
    """--arch-file makes each command that loads or plans a model know it, and says whose class it is."""
    option = ("--arch-file", "puffin.py")
    note = "note: architecture 'puffin' is Puffin of puffin.py"
    for words in (
        ("run", "puffin.gguf", "-p", "x", "-n", 2, "--temp", 0),
        ("plan", "puffin.gguf"),
        ("embed", "puffin.gguf", "-p", "x"),
        ("perplexity", "puffin.gguf", "-f", "puffin.py", "-c", 16, "--chunks", 1),
    ):
        done = command(*words, *option)
        assert done.status == 0, done.err
        assert note in (done.out + done.err).splitlines()
        outside.cache_clear()
        assert "architecture 'puffin' is not supported" in command(*words).error
    assert command("run", "puffin.gguf", "--dump-graph", *option).out.count("rope(") == 3 * 2


@pytest.mark.parametrize("name", ["chat", "bench", "verify", "imatrix", "kernels"])
def test_other_commands_run_it_too(name: str, here: Path) -> None:
    """They run the file before anything else."""
    (here / "stops.py").write_text("1 / 0", encoding="utf-8")
    done = command(name, "puffin.gguf", "--arch-file", "stops.py")
    assert done.error == "stops.py:1: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_as_the_page_says(mistake: str, here: Path) -> None:
    """The page quotes the very line for each mistake in its table."""
    done = plan(FILES["puffin.py"].replace(MISTAKES[mistake], mistake), here)
    assert done.status == 2
    assert f"| `{mistake}` | `{done.error.replace('other.py', 'puffin.py')}` |\n" in PAGE


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (\n", r"other\.py:1: SyntaxError: .+"),
        ("\0", r"other\.py: .*null bytes"),
        ("import sys\nsys.exit(0)", r"other\.py:2: SystemExit: 0"),
        ("def f():\n    nothing\n\nf()", r"other\.py:2: NameError: name 'nothing' is not defined"),
        ("from puna.models import Decoder", r"other\.py: it defines no architecture; derive a class from .*"),
        ("import puna\npuna.register_architecture(3)", r"other\.py:2: 3 is no subclass of Decoder; .*"),
        ("NAMES = ()", r"other\.py: Puffin: has no names; .*"),
        ("causal = 'no'", r"other\.py: Puffin\.causal is 'no'; take True or False"),
        ("NAMES = 'puffin'", r"other\.py: Puffin\.names is no tuple of texts: 'puffin'; write .*'puffin',\)"),
        ("NAMES = ('a b',)", r"other\.py: Puffin: 'a b' is no architecture's name; .*"),
        ("NAMES = ('puffins',)", r".*'puffin' is not supported \(nearest: puffins; registered: puffins\).*"),
        (
            "return super()",
            r"puffin\.gguf: .* 4 tensors missing: 'blk\.0\.ffn_gate\.weight' \(in 4 layers\);.*",
        ),
        (
            "norm(x, l.attn_q)",
            r"puffin\.gguf: tensor 'blk\.0\.attn_q\.weight' has shape .*; look at other\.py:24",
        ),
        ("qk_nrm=True", r"other\.py:18: Puffin cannot build the model: TypeError: .*'qk_nrm'"),
    ],
)
def test_what_is_wrong_with_a_file(source: str, message: str, here: Path) -> None:
    """One line with the file, the line where there is one, and what to change."""
    changed = {
        "NAMES = ": ('names = ("puffin",)', source.replace("NAMES", "names")),
        "causal = ": ('names = ("puffin",)', f'names = ("puffin",)\n    {source}'),
        "return super()": ("return mlp(", "return super().feed_forward(x, l) or mlp("),
        "norm(x, l.attn_q)": ("norm(x, l.attn_norm)", source),
        "qk_nrm": ("qk_norm=True", source),
    }
    swap = next((pair for start, pair in changed.items() if source.startswith(start)), None)
    done = plan(FILES["puffin.py"].replace(*swap) if swap else source, here)
    assert done.status == 2
    assert re.fullmatch(message, done.error), done.error


def test_files_that_cannot_be_read(here: Path) -> None:
    """They are named; so is --arch-file without a model."""
    done = command("plan", "puffin.gguf", "--arch-file", "none.py")
    assert re.fullmatch(r"none\.py: cannot be read: .+; check --arch-file", done.error)
    assert command("kernels", "--arch-file", "puffin.py").error == "--arch-file: no model is named; name one"


def test_a_file_may_have_several_and_register_some_itself(here: Path) -> None:
    """Classes without names of their own, and imported ones, are no architectures; two of one name are refused."""
    more = "\n\nclass Auk(Puffin):\n    names = ('auk',)\n\n\nclass Base(Puffin):\n    pass\n"
    own = "import puna\nfrom puna.models.llama import Llama\n" + FILES["puffin.py"]
    own = own.replace("\nclass", "\n@puna.register_architecture\nclass", 1)
    assert plan(own + more, here).status == 0
    assert list(outside().classes) == ["puffin", "auk"]
    outside.cache_clear()
    done = plan(FILES["puffin.py"] + more.replace("'auk'", "'puffin'"), here)
    assert "there is an architecture 'puffin' already, Puffin of other.py" in done.error


def test_the_same_file_twice(here: Path) -> None:
    """It is run once; another file with the same name is told how to replace it."""
    assert (
        command("plan", "puffin.gguf", *["--arch-file", "puffin.py"] * 2, "--arch-file", "./puffin.py").status
        == 0
    )
    outside.cache_clear()
    (here / "other.py").write_text(FILES["puffin.py"], encoding="utf-8")
    error = command("plan", "puffin.gguf", "--arch-file", "puffin.py", "--arch-file", "other.py").error
    assert error.startswith(
        "other.py: there is an architecture 'puffin' already, Puffin of puffin.py; take another"
    )
    assert error.endswith("or write @puna.register_architecture(replace=True) over the class")


def test_names_that_exist() -> None:
    """A name of Puna's, or of another class, is refused unless it is to be replaced; the same class may come again."""

    class Mine(Llama):
        names = ("llama",)

    class Other(Decoder):
        names = ("other", "llama")

    with pytest.raises(
        RequestError, match=r"'llama' already, Llama of puna\.models\.llama; take another name, or"
    ):
        puna.register_architecture(Mine)
    assert find("llama", "file") is Llama
    assert puna.register_architecture(replace=True)(Mine) is Mine
    assert puna.register_architecture(Mine, replace=True) is Mine
    assert find("llama", "file") is Mine
    with pytest.raises(RequestError, match=r"'llama' already"):
        puna.register_architecture(Other)
    with pytest.raises(ModelError, match=r"'other' is not supported"):
        find("other", "file")

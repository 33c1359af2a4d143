"""House rules on the shape of the tree: import order, sizes, names, and who may read the environment."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "puna").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 400, 60
# Files whose data tables, not logic, take the room.
TABLES: frozenset[str] = frozenset()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layout_order() -> list[str]:
    """The entries of docs/layout.md under puna/, in the order they stand there."""
    lines = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == "puna/")
    entries = []
    for line in lines[start + 1 :]:
        if not line.startswith("      "):
            break
        entries.append(line.split()[0].removesuffix("/").removesuffix(".py"))
    return entries


def test_layout_page_lists_every_package() -> None:
    """docs/layout.md names every file and folder under puna/ and nothing else."""
    found = {p.stem for p in (ROOT / "puna").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert set(layout_order()) == found - {"__init__", "__main__"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_imports_point_upwards(path: Path) -> None:
    """A package imports only packages above its own on the layout page."""
    order = layout_order()
    own = path.relative_to(ROOT / "puna").parts[0].removesuffix(".py")
    if own in {"__init__", "__main__"}:
        pytest.skip("the package's own front door imports the engine")
    for target in imports(path):
        if target.startswith("puna.") and (package := target.split(".")[1]) in order:
            assert order.index(package) <= order.index(own), f"{name(path)} imports {target}"


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=name)
def test_sizes(path: Path) -> None:
    """Files stay under 400 lines and functions under 60."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES or name(path) in TABLES, f"{name(path)} has {lines} lines"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{name(path)}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_environment_is_read_in_settings_only(path: Path) -> None:
    """os.environ and os.getenv appear in puna/settings.py alone."""
    if name(path) == "puna/settings.py":
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"environ", "getenv", "putenv"}, f"{name(path)}:{node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_modules_declare_what_they_export(path: Path) -> None:
    """A module with public names has a sorted __all__, a docstring, and annotations from the future."""
    module = tree(path)
    if not module.body:
        return
    assert ast.get_docstring(module), f"{name(path)} has no docstring"
    exported = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    assert len(exported) == 1, f"{name(path)} has no __all__"
    names = ast.literal_eval(exported[0])
    assert names == sorted(names, key=sort_key), f"{name(path)}: __all__ is not sorted"


def sort_key(word: str) -> tuple[int, list[str | int]]:
    """ruff's order: CONSTANTS, Classes, then functions; numbers in them by size."""
    parts = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", word)]
    return (0 if word.isupper() else 1 if word[:1].isupper() else 2, parts)


WRITERS = {"append", "add", "update", "setdefault", "pop", "clear", "extend", "insert"}
MUTABLE = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_mutable_module_state(path: Path) -> None:
    """No `global`, and a table at module level is never written to outside its definition."""
    module = tree(path)
    tables = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, MUTABLE)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        assert not isinstance(node, ast.Global), f"{name(path)}:{node.lineno}: global"
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            assert not (isinstance(node.value, ast.Name) and node.value.id in tables), (
                f"{name(path)}:{node.lineno}"
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            writes = node.func.attr in {
                "append",
                "add",
                "update",
                "setdefault",
                "pop",
                "clear",
                "extend",
                "insert",
            }
            held = isinstance(node.func.value, ast.Name) and node.func.value.id in tables
            assert not (writes and held), f"{name(path)}:{node.lineno}: writes to a module table"

"""`puna list`: models that are here, and models that can be fetched."""

from __future__ import annotations

import json
from collections.abc import Sequence

from puna import store
from puna.cli.parser import Parser
from puna.cli.text import columns, printable
from puna.settings import Settings
from puna.units import human

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "List the models that are here, and those that puna pull can fetch by name.")
    parser.usage = prog
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    settings = Settings.from_environment()
    here = store.installed(settings)
    names = {entry.name for entry in here}
    there = [model for model in store.catalogue() if model.name not in names]
    broken = store.damaged(settings)
    if arguments.json:
        lists = {"here": as_rows(here), "damaged": as_damage(broken), "there": to_fetch(there)}
        print(json.dumps({"folder": str(settings.models), **lists}))
        return 0
    print(f"in {printable(str(settings.models))}:" if here else f"none in {printable(str(settings.models))}")
    print_columns([(e.name, human(e.bytes), e.source, e.title, str(e.path)) for e in here], "<><<<")
    if broken:
        print("\ndamaged; puna pull NAME fetches it anew:")
        print_columns([(d.model.name, wrong_size(d), str(d.path)) for d in broken], "<><")
    if there:
        print("\nto fetch with puna pull NAME:")
        print_columns([(m.name, human(m.size), m.quant, m.title, m.licence) for m in there], "<><<<")
    print("\nalso: hf:owner/repo, hf:owner/repo:QUANT, hf:owner/repo/file.gguf, or the path of a .gguf file")
    return 0


def print_columns(rows: Sequence[tuple[str, ...]], sides: str) -> None:
    for line in columns([tuple(map(printable, row)) for row in rows], sides):
        print(line)


def wrong_size(damaged: store.Damaged) -> str:
    return f"{damaged.bytes} of {damaged.model.size} bytes"


def as_damage(found: Sequence[store.Damaged]) -> list[dict[str, str | int]]:
    return [
        {"name": d.model.name, "path": str(d.path), "bytes": d.bytes, "expected": d.model.size} for d in found
    ]


def as_rows(entries: Sequence[store.Entry]) -> list[dict[str, str | int]]:
    return [
        {
            "name": entry.name,
            "path": str(entry.path),
            "bytes": entry.bytes,
            "source": entry.source,
            "modified": entry.modified.isoformat(),
        }
        for entry in entries
    ]


def to_fetch(models: Sequence[store.CatalogueModel]) -> list[dict[str, str | int]]:
    return [
        {"name": m.name, "bytes": m.size, "quant": m.quant, "title": m.title, "licence": m.licence}
        for m in models
    ]

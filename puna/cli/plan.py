"""`puna plan`: the memory that a model would take, from its file's header alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from puna.cli import options
from puna.cli.parser import Parser
from puna.cli.report import counted
from puna.cli.status import NO
from puna.cli.text import columns, printable
from puna.units import human

if TYPE_CHECKING:
    from puna.planning import Prepared

__all__ = ["as_json", "build", "lines", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "Show the memory that a model would take, and the longest context that fits.")
    options.add_name(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options.add_model(parser)
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command; the status says whether the model fits. Raises PunaError."""
    arguments = build(prog).parse(argv)
    from puna.planning import prepare

    with options.open_file(arguments) as file:
        prepared = prepare(file, **options.loading(arguments))
        name = printable(str(file.path))
    longest = prepared.longest(prepared.config.n_ctx_train)
    if arguments.json:
        print(json.dumps(as_json(prepared, longest), indent=2))
    else:
        print(
            "\n".join(
                [f"{name} on {prepared.about.name}: {prepared.about.device}", *lines(prepared, longest)]
            )
        )
    return 0 if prepared.fits else NO


def lines(prepared: Prepared, longest: int) -> list[str]:
    """The regions to the byte, what the KV cache is made of, and what there is."""
    kv, trained = prepared.steps.kv, prepared.config.n_ctx_train
    sizes = [(name, f"{count:,}", human(count)) for name, count in shown(prepared)]
    layers = [
        f"{counted(len(group.layers), 'layer')} of {counted(group.pages, 'page')}"
        + (f" for a window of {group.window}" if group.window else "")
        for group in kv.groups
    ]
    found = [f"note: {printable(note)}" for note in prepared.about.notes]
    found += columns([("region", "bytes", ""), *sizes], "<>>")
    types = f"keys in {kv.k_type.lower()}, values in {kv.v_type.lower()}"
    each = f"{human(kv.position_bytes)} a position in {counted(len(kv.widths), 'layer')}"
    found += [
        f"  KV cache: {prepared.n_ctx} positions, {types}, {each}",
        f"  its pages of {kv.page} positions: {', '.join(layers) or 'none'}",
        f"  free memory: {human(prepared.about.free)}",
    ]
    if longest >= trained:
        return [*found, f"  all of the {trained} positions that it was trained on would fit"]
    return [*found, f"  the longest context that fits: {longest} of the {trained} that it was trained on"]


def shown(prepared: Prepared) -> list[tuple[str, int]]:
    """Names for people and bytes of the four regions, and their sum."""
    memory = prepared.memory
    names = {"weights": "weights", "compute": "compute buffer", "kv": "KV cache", "scratch": "scratch"}
    return [*((names[region], memory[region]) for region in names), ("total", prepared.total)]


def as_json(prepared: Prepared, longest: int) -> dict[str, Any]:
    """The same for programs."""
    kv = prepared.steps.kv
    groups = [
        {"window": group.window, "layers": list(group.layers), "pages": group.pages} for group in kv.groups
    ]
    return {
        "backend": prepared.about.name,
        "device": prepared.about.device,
        "notes": list(prepared.about.notes),
        "memory": dict(prepared.memory),
        "total": prepared.total,
        "free": prepared.about.free,
        "fits": prepared.fits,
        "n_ctx": prepared.n_ctx,
        "n_ctx_train": prepared.config.n_ctx_train,
        "longest_context": longest,
        "kv": {
            "type_k": kv.k_type,
            "type_v": kv.v_type,
            "page": kv.page,
            "position_bytes": kv.position_bytes,
            "layer_bytes": {str(layer): kv.layer_bytes(layer) for layer in kv.widths},
            "groups": groups,
        },
    }

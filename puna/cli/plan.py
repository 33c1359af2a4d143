"""`puna plan`: the memory that a model would take, from its file's header alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from puna.cli import options
from puna.cli.parser import Parser
from puna.cli.report import counted
from puna.cli.status import NO
from puna.cli.text import columns, printable
from puna.units import human

if TYPE_CHECKING:
    from puna.plan import KVLayout
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
    options.check_model(arguments)
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
    found = [f"note: {printable(note)}" for note in prepared.about.notes]
    found += columns([("region", "bytes", ""), *sizes], "<>>")
    found += [*cache_lines(kv, prepared.n_ctx), f"  free memory: {human(prepared.about.free)}"]
    if prepared.mapped:
        stay = "kept in memory" if prepared.mlock else "in memory as long as nothing else needs it"
        found.append(f"  mapped file: {human(prepared.mapped)} of it are read where they lie, {stay}")
    found += too_much(prepared)
    if longest >= trained:
        return [*found, f"  all of the {trained} positions that it was trained on would fit"]
    if longest:
        return [*found, f"  the longest context that fits: {longest} of the {trained} that it was trained on"]
    found.append("  no context fits")
    if fitting := prepared.longest_as_it_lies(trained):
        what = f"{fitting} of the {trained} positions would fit"
        found.append(f"  with --no-repack, slower, as weights are read from the mapped file, {what}")
    return found


def cache_lines(kv: KVLayout, n_ctx: int) -> Iterator[str]:
    """What the KV cache is made of: keys and values of positions, and states of sequences."""
    if kv.widths:
        values = f"values in {kv.v_type.lower()}"
        if kv.shared:
            values += f", but of {counted(len(kv.shared), 'layer')} in the keys"
        types = f"keys in {kv.k_type.lower()}, {values}"
        each = f"{human(kv.position_bytes)} a position in {counted(len(kv.widths), 'layer')}"
        layers = [
            f"{counted(len(group.layers), 'layer')} of {counted(group.pages, 'page')}"
            + (f" for a window of {group.window}" if group.window else "")
            for group in kv.groups
        ]
        yield f"  KV cache: {counted(n_ctx, 'position')}, {types}, {each}"
        yield f"  its pages of {kv.page} positions: {', '.join(layers)}"
    else:
        yield f"  KV cache: {counted(n_ctx, 'position')}, which take nothing: no layer attends to others"
    if kv.states:
        all_ = human(kv.slots * kv.slot_bytes)
        yield f"  its states, {len(kv.states)} of {human(kv.slot_bytes)} together, in {kv.slots} slots: {all_}"
        yield f"  of the slots {kv.slots - 1} are for the sequences that there may be (-np), one is of zeros"


def too_much(prepared: Prepared) -> Iterator[str]:
    """What of the context or the whole is more than there is."""
    if prepared.n_ctx > (trained := prepared.config.n_ctx_train):
        yield f"  the context of {prepared.n_ctx} exceeds the {trained} that it was trained on"
    if not prepared.fits:
        yield f"  does not fit: {human(prepared.needed)} are needed, {human(prepared.about.free)} are free"


def shown(prepared: Prepared) -> list[tuple[str, int]]:
    """Names for people and bytes of the four regions, and their sum."""
    from puna.plan import REGIONS

    memory = prepared.memory
    return [*((name, memory[region]) for region, name in REGIONS.items()), ("total", prepared.total)]


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
        "mapped": prepared.mapped,
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
            "slots": kv.slots,
            "slot_bytes": kv.slot_bytes,
            "states": {name: list(shape) for name, shape in kv.states.items()},
        },
    }

"""`puna diff`: how two models differ."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from puna.cli import options
from puna.cli.copies import add_no_mmap
from puna.cli.inspect import cut_json, plain, value_text
from puna.cli.parser import Parser
from puna.cli.report import Bars, counted
from puna.cli.status import NO
from puna.cli.text import columns, printable

if TYPE_CHECKING:
    from puna.edit.compare import Difference, Distance, KeyChange, TensorChange
    from puna.gguf import TensorInfo, Value

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    about = "Compare two models: metadata, tensors, and how far their values are apart. RMSE is the root mean"
    more = "square of the differences, with its share of that of A's values. The exit status is 1 where they"
    parser = Parser(prog, f"{about} {more} differ. How a model is cut into files does not count.")
    parser.usage = f"{prog} A B [options]"
    parser.add_argument("first", metavar="A", help="a GGUF file, or a name such as smollm2:135m")
    parser.add_argument("second", metavar="B", help="another")
    parser.add_argument(
        "--no-values", action="store_true", help="compare types and shapes alone, which is quick"
    )
    add_no_mmap(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    from puna.edit.compare import compare

    arguments = build(prog).parse(argv)
    given = {"model": None, "no_mmap": arguments.no_mmap}
    names = (argparse.Namespace(name=name, **given) for name in (arguments.first, arguments.second))
    with options.open_file(next(names)) as first, options.open_file(next(names)) as second:
        with Bars() as progress:
            found = compare(first, second, values=not arguments.no_values, progress=progress)
        if arguments.json:
            print(json.dumps(as_json(found), indent=2, allow_nan=False))
        else:
            print("\n".join(lines(found)))
    return NO if found else 0


def lines(found: Difference) -> Iterator[str]:
    """What is only in A has a minus, what is only in B a plus."""
    if not found:
        yield f"no difference: {counted(found.same, 'tensor')}"
        return
    if found.keys:
        yield f"metadata: {counted(len(found.keys), 'key')} {'differs' if len(found.keys) == 1 else 'differ'}"
        yield from map(key_line, found.keys)
    if found.tensors:
        yield f"tensors: {len(found.tensors)} differ, {found.same} are the same"
        yield from columns([tensor_row(change) for change in found.tensors], "<<<<>>>")
        yield from total(found)


def key_line(change: KeyChange) -> str:
    key, before, after = printable(change.key), change.before, change.after
    if before is None or after is None:
        value = before or after
        assert value is not None
        return f"  {'+' if before is None else '-'} {key} = {value_text(value)}"
    return f"  ! {key}: {value_text(before)} -> {value_text(after)}"


def tensor_row(change: TensorChange) -> tuple[str, ...]:
    before, after = change.before, change.after
    mark = "+" if before is None else "-" if after is None else "!"
    shape = arrow("x".join(map(str, info.shape)) for info in (before, after) if info)
    kind = arrow(info.quant.name for info in (before, after) if info)
    return mark, printable(change.name), shape, kind, *distance_words(change.distance)


def arrow(words: Iterator[str]) -> str:
    return " -> ".join(dict.fromkeys(words))


def distance_words(distance: Distance | None) -> tuple[str, str, str]:
    if distance is None:
        return "", "", ""
    odd = f", {distance.odd} not finite" if distance.odd else ""
    share = "" if math.isinf(distance.relative) else f" ({100 * distance.relative:.3g}%)"
    return f"RMSE {distance.rmse:.3g}{share}", f"max {distance.most:.3g}", odd.removeprefix(", ")


def total(found: Difference) -> Iterator[str]:
    """Over all tensors whose values were compared."""
    from puna.edit.compare import overall

    sum_of_all = overall(found)
    if sum_of_all.count:
        words = ", ".join(word for word in distance_words(sum_of_all) if word)
        yield f"together: {words} over {counted(sum_of_all.count, 'value')}"


def as_json(found: Difference) -> Mapping[str, Any]:
    from puna.edit.compare import overall

    return {
        "metadata": [
            {"key": change.key, "before": json_value(change.before), "after": json_value(change.after)}
            for change in found.keys
        ],
        "tensors": [
            {
                "name": change.name,
                "before": json_tensor(change.before),
                "after": json_tensor(change.after),
                **json_distance(change.distance),
            }
            for change in found.tensors
        ],
        "same": found.same,
        "together": json_distance(overall(found)),
    }


def json_value(value: Value | None) -> Any:
    if value is None:
        return None
    kind = f"{value.type.label}[]" if value.is_array else value.type.label
    return {"type": kind, "value": cut_json(plain(value.plain()))}


def json_tensor(info: TensorInfo | None) -> Any:
    return None if info is None else {"type": info.quant.name, "shape": list(info.shape)}


def json_distance(distance: Distance | None) -> Mapping[str, Any]:
    if distance is None:
        return {}
    numbers = {"rmse": distance.rmse, "relative": distance.relative, "max": distance.most}
    return {**{name: plain(number) for name, number in numbers.items()}, "not_finite": distance.odd}

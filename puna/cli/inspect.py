"""`puna inspect`: what a GGUF file holds."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from puna.cli import options
from puna.cli.parser import Parser
from puna.cli.report import counted
from puna.cli.text import columns, printable
from puna.errors import RequestError
from puna.units import human

if TYPE_CHECKING:
    from puna.gguf import GGUFFile, TensorInfo, Value

__all__ = ["build", "cut_json", "plain", "run", "value_text"]

SHOWN = 8  # elements of an array, before it is cut
WIDTH = 100  # characters of a text, before it is cut


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "Show a GGUF file's metadata, tensors and sizes.")
    options.add_name(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--metadata", metavar="KEY", help="print the whole value of one metadata key")
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    with options.open_file(arguments) as file:
        if arguments.metadata is not None:
            print(one_value(file, arguments.metadata, arguments.json))
        elif arguments.json:
            print(json.dumps(as_json(file), indent=2, allow_nan=False))
        else:
            print("\n".join([*file_lines(file), "", *metadata_lines(file), "", *tensor_lines(file)]))
    return 0


def one_value(file: GGUFFile, key: str, as_text: bool) -> str:
    """A metadata value, nothing cut."""
    if key not in file.metadata:
        import difflib

        near = difflib.get_close_matches(key, file.metadata, n=3, cutoff=0.4)
        fix = f"the nearest are {', '.join(near)}" if near else "puna inspect lists the keys"
        raise RequestError(f"there is no metadata key {key!r}", where=str(file.path), fix=fix)
    value = plain(file.metadata[key])
    if as_text or not isinstance(value, str):
        return json.dumps(value, allow_nan=False, ensure_ascii=as_text)
    return printable(value, keep="\n\t")


def file_lines(file: GGUFFile) -> list[str]:
    parts = f" in {len(file.paths)} files" if len(file.paths) > 1 else ""
    name, form = printable(str(file.path)), f"GGUF version {file.version}, {file.byteorder}-endian"
    return [f"{name}: {form}, {human(file.size)}{parts}, alignment {file.alignment}", *model_lines(file)]


def model_lines(file: GGUFFile) -> list[str]:
    """What a model's metadata call it, if they do."""
    named = [word for word in (architecture(file), file_type(file)) if word]
    return [f"model: {', '.join(map(printable, named))}"] if named else []


def architecture(file: GGUFFile) -> str | None:
    value = file.metadata.get("general.architecture")
    return value if isinstance(value, str) else None


def file_type(file: GGUFFile) -> str | None:
    """llama-quantize's name of what most tensors are."""
    from puna.edit.mixes import FILE_TYPES

    value = file.metadata.get("general.file_type")
    return FILE_TYPES.get(value) if isinstance(value, int) else None


def metadata_lines(file: GGUFFile) -> list[str]:
    """A line a key; long texts and arrays are cut, with their length."""
    lines = [f"metadata: {counted(len(file.metadata), 'key')}"]
    return [
        *lines,
        *(f"  {printable(key)} = {value_text(file.metadata.typed(key))}" for key in file.metadata),
    ]


def value_text(typed: Value) -> str:
    """A metadata value with its type; long texts and arrays are cut, with their length."""
    kind, value = typed.type.label, typed.plain()
    if isinstance(value, str):
        return cut_text(value)
    if isinstance(value, bool | int | float):
        return f"{json.dumps(value)} ({kind})"
    first = ", ".join(cut_text(item) if isinstance(item, str) else str(item) for item in value[:SHOWN])
    more = ", ..." if len(value) > SHOWN else ""
    return f"[{first}{more}] ({len(value)} of {kind})"


def cut_text(text: str) -> str:
    line = printable(text[:WIDTH])
    return f"'{line}'" if len(text) <= WIDTH else f"'{line}...' ({len(text)} characters)"


def tensor_lines(file: GGUFFile) -> list[str]:
    """A line a tensor, then the totals by type."""
    tensors = list(file.tensors.values())
    rows = [(printable(t.name), "x".join(map(str, t.shape)), t.quant.name, human(t.nbytes)) for t in tensors]
    lines = [f"tensors: {len(tensors)}", *columns(rows, "<<<>")]
    if not tensors:
        return lines
    elements, nbytes = totals(tensors)
    kinds = [
        (name, counted(count, "tensor"), counted(part, "element"), human(held), f"{100 * held / nbytes:.1f}%")
        for name, count, part, held in by_type(tensors)
    ]
    bits = f"{8 * nbytes / elements:.2f} bits per weight"
    total = f"total: {counted(elements, 'element')}, {human(nbytes)}, {bits}"
    return [*lines, "", "by type:", *columns(kinds, "<>>>>"), total]


def totals(tensors: Sequence[TensorInfo]) -> tuple[int, int]:
    """Elements and bytes."""
    return sum(map(size, tensors)), sum(tensor.nbytes for tensor in tensors)


def by_type(tensors: Sequence[TensorInfo]) -> list[tuple[str, int, int, int]]:
    """Type, tensors, elements, bytes; the type with most bytes first."""
    counts, elements, nbytes = Counter[str](), Counter[str](), Counter[str]()
    for tensor in tensors:
        counts[tensor.quant.name] += 1
        elements[tensor.quant.name] += size(tensor)
        nbytes[tensor.quant.name] += tensor.nbytes
    return [(name, counts[name], elements[name], held) for name, held in nbytes.most_common()]


def size(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape)


def as_json(file: GGUFFile) -> Mapping[str, Any]:
    """Everything that the text shows. A long array comes as its first elements and its count."""
    tensors = list(file.tensors.values())
    elements, nbytes = totals(tensors)
    return {
        "files": [str(path) for path in file.paths],
        "version": file.version,
        "byteorder": file.byteorder,
        "alignment": file.alignment,
        "bytes": file.size,
        "architecture": architecture(file),
        "file_type": file_type(file),
        "metadata": {key: cut_json(plain(value)) for key, value in file.metadata.items()},
        "tensors": [
            {
                "name": t.name,
                "shape": list(t.shape),
                "type": t.quant.name,
                "offset": t.offset,
                "bytes": t.nbytes,
                "file": t.part,
            }
            for t in tensors
        ],
        "types": {
            name: {"tensors": count, "elements": part, "bytes": held}
            for name, count, part, held in by_type(tensors)
        },
        "elements": elements,
        "tensor_bytes": nbytes,
        "bits_per_weight": 8 * nbytes / elements if elements else None,
    }


def cut_json(value: Any) -> Any:
    if isinstance(value, list) and len(value) > SHOWN:
        return {"count": len(value), "first": value[:SHOWN]}
    return value


def plain(value: Any) -> Any:
    """A metadata value as JSON can hold it; numbers that are none, as text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

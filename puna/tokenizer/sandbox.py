"""Jinja for templates out of files: as transformers sets it up, and metered, so that no template can run away.

jinja2's immutable sandbox keeps a template from Python's insides. On top of it every loop, call and value is charged
to a Meter. Imported only when a template is rendered, since it imports jinja2.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from types import CodeType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["Meter", "Sandbox"]

MAX_SIZE = 1 << 24  # characters of a text, and items of a collection written out
MAX_STEPS = 1 << 22
MAX_SECONDS = 10.0
MAX_NUMBER = 10_000  # a width, count or precision that a filter or method takes
MAX_BITS = 1 << 14
# What takes such numbers, as a filter or as a method.
SIZED = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "to_bytes", "tojson"}
    | {"truncate", "wordwrap", "zfill"}
)
REFUSED = frozenset({"maketrans", "translate"})
LONG_FORMAT = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.]*(?:\*|\d{5,})|\{[^{}]*:[^{}]*(?:\{|\d{5,})")


class Meter:
    """What one rendering may still cost."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._deadline = time.monotonic() + MAX_SECONDS
        self._sizes: dict[
            int, tuple[object, int]
        ] = {}  # by identity; the object is held, so that it stays unique

    def step(self, count: int = 1) -> None:
        self._steps -= count
        if self._steps < 0:
            raise TemplateError(f"the template takes more than {MAX_STEPS} steps")
        if time.monotonic() > self._deadline:
            raise TemplateError(f"the template takes more than {MAX_SECONDS:.0f} seconds")

    def size(self, value: object) -> int:
        """How much a value is when it is written out, the parts it holds twice counted twice."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, Namespace):
            raise TemplateError("the template uses a namespace as a value")
        if not isinstance(value, list | tuple | set | frozenset | Mapping):
            return 1
        held = self._sizes.get(id(value))
        if held is None:
            self.step(len(value))
            size = 1 + sum(map(self.size, value))
            if isinstance(value, Mapping):
                size += sum(map(self.size, value.values()))
            held = self._sizes[id(value)] = (value, size)
        return held[1]

    def fits(self, size: int) -> None:
        if size > MAX_SIZE:
            raise TemplateError(f"the template makes a value of over {MAX_SIZE} characters")


class Sandbox(ImmutableSandboxedEnvironment):
    """One rendering's environment."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, meter: Meter) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=self.checked,
        )
        self.meter = meter
        self.filters["tojson"] = tojson
        self.filters = {name: self.metered_filter(name, filter_) for name, filter_ in self.filters.items()}
        del self.filters["urlize"], self.globals["lipsum"]

    def compile_metered(self, source: str) -> CodeType:
        """The code of a template in which loops and new values are charged."""
        tree = Metering().visit(self.parse(source))
        return self.compile(tree, name="chat template")

    def checked(self, value: Any) -> Any:
        """The value, unless it is too large."""
        self.meter.fits(self.meter.size(value))
        return value

    def metered(self, iterable: Any) -> Any:
        """What a loop runs over, charged before it starts or as it goes."""
        if not isinstance(iterable, Sized):
            return self._stepping(iterable)
        self.meter.step(len(iterable))
        return iterable

    def _stepping(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for item in iterable:
            self.meter.step()
            yield self.checked(item)

    def joined(self, values: Iterable[Any]) -> str:
        """The operator `~`."""
        values = list(values)
        self.meter.fits(sum(map(self.meter.size, values)))
        return "".join(map(str, values))

    def concat(self, pieces: Iterable[str]) -> str:
        """What a block, a macro or a captured section put out."""
        held, size = [], 0
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            self.meter.fits(size)
        return "".join(held)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call that the template writes; underscores, since keywords are the template's."""
        __self.meter.step()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int):
            __self.guard(method.__name__, owner, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        return result if isinstance(result, Namespace) else __self.checked(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.step()
        if operator == "%" and isinstance(left, str):
            self.guard("format", left, (right,), {})
        elif operator == "*":
            self.guard_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            guard_bits(left.bit_length() * abs(right))
        return self.checked(super().call_binop(context, operator, left, right))

    def guard_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            guard_bits(left.bit_length() + right.bit_length())
        for many, count in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(many, Sized):
                self.meter.fits(self.meter.size(many) * max(count, 0))

    def guard(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse what could make much out of little, before it does."""
        given = [*args, *kwargs.values()]
        for one in given:
            self.meter.size(one)
            large = (isinstance(one, int) and abs(one) > MAX_NUMBER) or (
                isinstance(one, str) and len(one) > MAX_NUMBER
            )
            if name in SIZED and large:
                raise TemplateError(f"the template gives {name} more than {MAX_NUMBER}")
        if name in REFUSED:
            raise TemplateError(f"the template may not use {name}")
        if name == "replace" and len(given) >= 2 and isinstance(value, str | bytes):
            count = value.count(given[0]) if given[0] else len(value) + 1
            self.meter.fits(len(value) + count * self.meter.size(given[1]))
        elif name == "join" and given and isinstance(given[0], Sized):
            self.meter.fits(len(given[0]) * self.meter.size(value) + self.meter.size(given[0]))
        elif name in {"format", "format_map"} and isinstance(value, str) and LONG_FORMAT.search(value):
            raise TemplateError("the template formats to a large width")

    def metered_filter(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(filter_)
        def metered(*args: Any, **kwargs: Any) -> Any:
            first = 1 if hasattr(filter_, "jinja_pass_arg") else 0
            self.meter.step()
            if name == "join":
                args = (*args[:first], list(self.metered(args[first])), *args[first + 1 :])
                separator = kwargs.get("d", args[first + 1] if len(args) > first + 1 else "")
                self.guard("join", str(separator), (args[first],), {})
            else:
                value = self.checked(args[first]) if len(args) > first else ""
                text = str(value) if name in {"format", "replace"} else value
                self.guard(name, text, args[first + 1 :], kwargs)
            return self.checked(filter_(*args, **kwargs))

        return metered


class GenerationTag(Extension):
    """`{% generation %}` marks what the model wrote, for training: here only its content counts."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Metering(NodeTransformer):
    """Puts calls of Sandbox's methods around what loops over or builds values."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = charged("metered", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return charged("joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return charged("checked", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return charged("checked", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return charged("checked", node) if node.ctx == "load" else node


def charged(method: str, argument: nodes.Node) -> nodes.Expr:
    """A call of one of Sandbox's methods."""
    line = argument.lineno
    return nodes.Call(
        nodes.EnvironmentAttribute(method, lineno=line), [argument], [], None, None, lineno=line
    )


def guard_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateError(f"the template makes a number of over {MAX_BITS} bits")


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja's own."""
    if isinstance(indent, str) or sum(map(len, separators or ())) > 8:
        raise TemplateError("tojson takes a number as indent, and separators of a few characters")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )

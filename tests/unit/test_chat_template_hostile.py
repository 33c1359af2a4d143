"""Chat templates that mean harm: each ends soon, in an error."""

from __future__ import annotations

import time

import pytest

from puna.errors import RequestError
from puna.tokenizer import render

CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
GROW = "{{% set ns = namespace(x='a', y=['a']) %}}{{% for i in range({n}) %}}{body}{{% endfor %}}"


def grow(body: str, after: str = "", n: int = 60) -> str:
    """A loop whose body doubles a value."""
    return GROW.format(n=n, body=body) + after


LONG = grow("{% set ns.x = ns.x + ns.x %}", n=22)
HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that put out": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "a large range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "a recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "a recursive macro": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling by +": grow("{% set ns.x = ns.x + ns.x %}"),
    "doubling by ~": grow("{% set ns.x = ns.x ~ ns.x %}"),
    "doubling by a block": grow("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "doubling by a macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + grow("{% set ns.x = f(ns.x) %}"),
    "doubling by a format": grow("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    "doubling by a method": grow("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    "doubling by a filter": grow("{% set ns.x = [ns.x, ns.x] | join %}"),
    "lists in lists": grow("{% set ns.y = [ns.y, ns.y] %}", "{{ ns.y }}"),
    "tuples in tuples": grow("{% set ns.y = (ns.y, ns.y) %}", "{{ {ns.y: 1} }}"),
    "mappings in mappings": grow("{% set ns.y = {'a': ns.y, 'b': ns.y} %}", "{{ ns.y | tojson }}"),
    "dict in dict": grow("{% set ns.y = dict(a=ns.y, b=ns.y) %}", "{{ ns.y }}"),
    "lists by addition": grow("{% set ns.y = ns.y + ns.y %}"),
    "lists by a filter": grow(
        "{% for y in [ns.y] | batch(2, ns.y) %}{% set ns.y = y %}{% endfor %}", "{{ ns.y }}"
    ),
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "a product": "{{ 'x' * 10 ** 9 }}",
    "a product of lists": "{{ [1] * 10 ** 9 }}",
    "a power": "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "powers by products": "{% set ns = namespace(x=9) %}" + "{% set ns.x = ns.x * ns.x %}" * 60,
    "a wide method": "{{ 'x'.center(10 ** 10) }}",
    "a wide filter": "{{ 'x' | center(10000000000) }}",
    "a wide filter by map": "{{ ['x'] | map('center', 10000000000) | list }}",
    "a wide indent": "{{ 'x\ny' | indent(10000000000) }}",
    "a wide %": "{{ '%1000000000d' % 1 }}",
    "a wide % by star": "{{ '%*d' % (1000000000, 1) }}",
    "a wide format": "{{ '{:1000000000}'.format(1) }}",
    "a wide format by a field": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "a wide format filter": "{{ '%1000000000d' | format(1) }}",
    "wide JSON": "{{ [[1]] | tojson(indent=1000000000) }}",
    "a large precision": "{{ 1 | round(1000000000) }}",
    "many bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "a product by replace": LONG + "{{ ns.x.replace('a', ns.x) }}",
    "a product by the replace filter": LONG + "{{ ns.x | replace('a', ns.x) }}",
    "a product by join": LONG + "{{ ns.x.join(ns.x) }}",
    "a product by the join filter": LONG + "{{ ns.x | join(ns.x) }}",
    "a product by translate": LONG + "{{ ns.x.translate({97: ns.x}) }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a long sum": "{{ 1" + " + 1" * 20_000 + " }}",
    "a long number": "{{ " + "9" * 10_000 + " }}",
    "deep loops": "{% for a in messages %}" * 50 + "{% endfor %}" * 50,
    "a long template": " " * (1 << 21),
    "the way out by a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "the way out by a format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "the way out by a function": "{{ raise_exception.__globals__['re'] }}",
    "changing the messages": "{{ messages.clear() }}",
    "filler text": "{{ lipsum(n=100000) }}",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_templates_end(case: str) -> None:
    """A template that would run away or break out is refused within seconds, and changes nothing."""
    messages = [dict(message) for message in CHAT]
    started = time.process_time()
    with pytest.raises(RequestError, match=r"^chat template: "):
        render(HOSTILE[case], messages, bos=None, eos=None)
    assert time.process_time() - started < 5
    assert messages == CHAT


def test_long_conversations_are_not_hostile() -> None:
    """Thousands of messages, and a long one, stay within what a template may cost."""
    messages = [{"role": "user", "content": "x" * 100}] * 5000 + [
        {"role": "user", "content": "y" * 4_000_000}
    ]
    template = "{% for m in messages %}{{ '<' + m.role + '>' + m['content'] | trim }}{% endfor %}"
    text = render(template, messages, bos=None, eos=None)
    assert len(text) == 5000 * 106 + 4_000_006

"""Conversations in the form of a template."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from vocabularies import CONTROL, HELLO, byte_pair

from puna.errors import RequestError
from puna.tokenizer import ChatTemplate, builtin_template, find_template, load, render, render_for
from puna.tokenizer.chat import CHATML

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 < 3?"},
    {"role": "assistant", "content": "Yes."},
]
CHATML_CHAT = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in CHAT)


def rendered(template: str, messages: Any = CHAT, **options: Any) -> str:
    return render(template, messages, **{"bos": "<s>", "eos": "</s>", **options})


RENDERED = {
    "{{ bos_token }}{{ messages[1].content }}{{ eos_token }}": "<s>2 < 3?</s>",
    "{% for m in messages %}\n  {% if loop.index0 == 1 %}\nx\n  {% endif %}\n{% endfor %}": "x\n",
    "{% for m in messages %}{{ m.role }}{{ ',' if not loop.last }}{% endfor %}": "system,user,assistant",
    "{% for m in messages[::-1] %}{{ m['role'] ~ loop.length }} {% endfor %}": "assistant3 user3 system3 ",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}": "01345678",
    "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}": "01",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 2 %}{% endfor %}{{ ns.n }}": "6",
    "{% macro f(x, y=1) %}[{{ x }}{{ y }}]{% endmacro %}{{ f('a') }}{{ f('b', y=2) }}": "[a1][b2]",
    "{% set text %}{{ messages[0].role }}!{% endset %}{{ text | upper }}": "SYSTEM!",
    "{% generation %}{{ messages[2].content }}{% endgeneration %}": "Yes.",
    "{{ {'b': '<é>', 'a': [1, None, true]} | tojson }}": '{"b": "<é>", "a": [1, null, true]}',
    "{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=True) }}": '{\n  "a": 2,\n  "b": 1\n}',
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(';') }}": "2 < 3?",
    "{{ 'a, b'.split(', ') | join('-') }} {{ '%s-%03d' % ('x', 7) }} {{ '{:>3}'.format('y') }}": "a-b x-007   y",
    "{{ strftime_now('%d %b %Y') }}": "26 Jul 2024",
    "{{ tools is none }} {{ add_generation_prompt }} {{ enable_thinking }}": "True True no",
    "{{ undefined_name }}{{ undefined_name is defined }}{{ none }}": "FalseNone",
}


@pytest.mark.parametrize("template", RENDERED)
def test_templates_render(template: str) -> None:
    """What templates of models use renders as it does in transformers."""
    options = {"now": datetime(2024, 7, 26), "enable_thinking": "no"}
    assert rendered(template, **options) == RENDERED[template]


def test_template_renders_again() -> None:
    """A compiled template keeps nothing of one rendering for the next."""
    template = ChatTemplate("{{ messages | length }}{{ add_generation_prompt }}")
    assert template.render(CHAT, bos=None, eos=None, add_generation_prompt=False) == "3False"
    assert template.render(CHAT[:1], bos=None, eos=None) == "1True"


def test_refusals_carry_the_templates_message() -> None:
    """What a template refuses is a RequestError with its own words."""
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    )
    with pytest.raises(RequestError, match="chat template: System role not supported"):
        rendered(template)


BROKEN = {
    "{% if x %}": "line 1: .*end of template",
    "a\n{{ 1 + }}": "line 2",
    "{{ 1 / 0 }}": "division by zero",
    "{{ messages[0].a.b }}": "has no attribute 'a'",
    "{{ nothing | tojson }}": "not JSON serializable",
    "{% include 'x' %}": "no loader",
    "{{ x | nofilter }}": "nofilter",
}


@pytest.mark.parametrize("template", BROKEN)
def test_broken_templates_say_why(template: str) -> None:
    """A template that cannot be read, or fails, is a RequestError that says why."""
    with pytest.raises(RequestError, match=BROKEN[template]):
        rendered(template)


WRONG: dict[str, tuple[Any, str]] = {
    "text": ("Hello", "messages: the messages are not a list"),
    "a mapping": ({"role": "user"}, "messages: the messages are not a list"),
    "texts": (["Hello"], r"messages\[0\]: not a mapping"),
    "no role": ([CHAT[0], {"content": "x"}], r"messages\[1\]: role is None"),
    "no content": ([{"role": "user"}], r"messages\[0\]: content is neither"),
    "a number as content": ([{"role": "user", "content": 1}], r"messages\[0\]: content is neither"),
    "texts as parts": ([{"role": "user", "content": ["x"]}], r"messages\[0\]: content is neither"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_messages_are_named(case: str) -> None:
    """Messages of another form are refused, with the place of the first wrong one."""
    messages, message = WRONG[case]
    with pytest.raises(RequestError, match=message):
        rendered("{{ messages }}", messages)


def test_parts_and_tool_calls_are_messages() -> None:
    """Content may be parts, or absent beside tool calls."""
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    template = "{{ messages[0].content[0].text }}{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    assert rendered(template, messages) == 'Hi{"x": 1}'


@pytest.mark.parametrize(
    "template",
    [CHATML, "{{ messages[0].content }}", "{% for m in messages %}{{ m.content.strip() }}{% endfor %}"],
)
def test_parts_are_joined_for_a_template_that_takes_text(template: str) -> None:
    """A template that cannot take parts gets their text in one; a part that is none is refused by its place."""
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    texts = [{"role": "user", "content": "Hi there"}]
    assert rendered(template, [{"role": "user", "content": parts}]) == rendered(template, texts)
    picture = [{"role": "user", "content": [*parts, {"type": "image_url"}]}]
    with pytest.raises(RequestError, match=r"messages\[0\]: a part of type 'image_url' is no text"):
        rendered(template, picture)


def test_builtin_template_is_chatml() -> None:
    """A model without a template gets ChatML where it has its tokens, and an error where not."""
    tokenizer = load(byte_pair(HELLO))
    assert render_for(tokenizer, CHAT) == CHATML_CHAT + "<|im_start|>assistant\n"
    assert render_for(tokenizer, CHAT, add_generation_prompt=False) == CHATML_CHAT
    assert builtin_template(tokenizer) == find_template(tokenizer)
    with pytest.raises(RequestError, match=r"no chat template.*give a chat template"):
        render_for(load(byte_pair(HELLO, {})), CHAT)


def test_a_models_own_template_comes_first() -> None:
    """The file's template is used with its BOS, the one for tools where tools are given; a given one goes first."""
    keys = {
        "tokenizer.chat_template": "{{ bos_token }}own",
        "tokenizer.chat_template.tool_use": "{{ tools[0].name }}",
    }
    tokenizer = load(byte_pair(HELLO, {"<s>": CONTROL}, **keys))
    bos = tokenizer.token_text(tokenizer.bos or 0)
    assert render_for(tokenizer, CHAT) == f"{bos}own"
    assert render_for(tokenizer, CHAT, tools=[{"name": "f"}]) == "f"
    assert render_for(tokenizer, CHAT, template="given") == "given"

"""Chat templates: a conversation as the text that a model was trained on.

A template is Jinja, and gets the variables and functions that transformers gives it:
https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.tokenizer.tokenizer import Tokenizer

__all__ = ["CHATML", "ChatTemplate", "builtin_template", "find_template", "render", "render_for"]

Message = Mapping[str, Any]

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
WHERE = "chat template"
SHAPE = 'give a list like [{"role": "user", "content": "Hello"}]'
MAX_TEMPLATE = 1 << 20  # characters; the longest of a model has 30 thousand


class ChatTemplate:
    """A template, compiled once and rendered many times."""

    def __init__(self, source: str) -> None:
        """Raises RequestError where the source is no template."""
        from puna.tokenizer.sandbox import Meter, Sandbox

        if len(source) > MAX_TEMPLATE:
            raise RequestError(
                f"{len(source)} characters, over the {MAX_TEMPLATE} of a template", where=WHERE
            )
        try:
            self._code = Sandbox(Meter()).compile_metered(source)
        except Exception as error:
            refuse(error)

    def render(
        self,
        messages: Sequence[Message],
        *,
        bos: str | None,
        eos: str | None,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        **extra: Any,
    ) -> str:
        """See `render`."""
        check_messages(messages)
        variables = {
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos or "",
            "eos_token": eos or "",
            "raise_exception": raise_exception,
            "strftime_now": (now or datetime.now()).strftime,
            **extra,
        }
        parts = [content for message in messages if is_parts(content := message.get("content"))]
        try:
            text = self._fill(messages, variables)
        except Exception as error:
            if not parts:
                refuse(error)
        else:
            if not any(str(content) in text for content in parts):
                return text
        plain = [in_text(message, i) for i, message in enumerate(messages)]
        try:
            return self._fill(plain, variables)
        except Exception as error:
            refuse(error)

    def _fill(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        from jinja2 import Template

        from puna.tokenizer.sandbox import Meter, Sandbox

        environment = Sandbox(Meter())
        template = Template.from_code(environment, self._code, environment.make_globals(None))
        return environment.concat(template.generate({**variables, "messages": messages}))


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str | None,
    eos: str | None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    now: datetime | None = None,
    **extra: Any,
) -> str:
    """A conversation in the form of a template.

    messages: mappings with a role, and a content: text, or parts as OpenAI's API has them, or None beside tool calls.
    Parts of text are joined for a template that takes none: one that fails on them, or writes them out as Python.
    bos, eos: the texts of these tokens.  add_generation_prompt: end where the reply begins.
    tools: JSON schemas of functions.  now: the time that the template sees.  extra: more variables for it.
    Raises RequestError with the template's own message where it refuses the messages, and where it fails or does
    not end.
    """
    return ChatTemplate(template).render(
        messages, bos=bos, eos=eos, add_generation_prompt=add_generation_prompt, tools=tools, now=now, **extra
    )


def render_for(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> str:
    """`render` with a model's tokens, and its template unless another is given."""
    if template is None:
        template = find_template(tokenizer, with_tools=bool(tools))
    bos, eos = (
        None if token is None else tokenizer.token_text(token) for token in (tokenizer.bos, tokenizer.eos)
    )
    return render(template, messages, bos=bos, eos=eos, tools=tools, **options)


def find_template(tokenizer: Tokenizer, with_tools: bool = False) -> str:
    """The model's own template, the one for tools where it has one and they are given; else the built-in one."""
    if with_tools and "tool_use" in tokenizer.chat_templates:
        return tokenizer.chat_templates["tool_use"]
    return builtin_template(tokenizer) if tokenizer.chat_template is None else tokenizer.chat_template


def builtin_template(tokenizer: Tokenizer) -> str:
    """ChatML, for a model that has its tokens. Raises RequestError for any other."""
    if tokenizer.token_id("<|im_start|>") is None:
        raise RequestError(
            "the model has no chat template, and no tokens of ChatML", fix="give a chat template"
        )
    return CHATML


def check_messages(messages: object) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError("the messages are not a list", where="messages", fix=SHAPE)
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise RequestError("not a mapping", where=where, fix=SHAPE)
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise RequestError(f"role is {role!r}, where a name is needed", where=where, fix=SHAPE)
        parts = is_parts(content) and all(isinstance(part, Mapping) for part in content)
        absent = content is None and ("content" in message or message.get("tool_calls"))
        if not (isinstance(content, str) or parts or absent):
            raise RequestError("content is neither text nor a list of parts", where=where, fix=SHAPE)


def is_parts(content: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(content, Sequence) and not isinstance(content, str)


def in_text(message: Message, place: int) -> Message:
    """A message with its parts joined to one text. Raises RequestError for a part that is no text."""
    content = message.get("content")
    if not is_parts(content):
        return message
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            what = f"a part of type {part.get('type')!r} is no text, and the chat template takes text only"
            raise RequestError(what, where=f"messages[{place}]", fix='use {"type": "text", "text": "Hello"}')
    return {**message, "content": "".join(part["text"] for part in content)}


def raise_exception(message: object) -> NoReturn:
    """What a template calls to refuse messages."""
    from jinja2.exceptions import TemplateError

    raise TemplateError(str(message))


def refuse(error: Exception) -> NoReturn:
    """As the template's own message, or as the failure of the template."""
    from jinja2.exceptions import TemplateSyntaxError

    if isinstance(error, TemplateSyntaxError):
        what = f"line {error.lineno}: {error.message}"
    else:
        what = str(error) or type(error).__name__
    raise RequestError(what, where=WHERE, fix="change the messages or give another chat template") from error

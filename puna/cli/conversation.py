"""A conversation: its messages, and the one sequence of the cache that holds them."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puna.cli.report import Totals, counted
from puna.cli.text import from_file, reason
from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.engine import Model
    from puna.generation import Generation

__all__ = ["Conversation"]


class Conversation:
    """Asks and remembers. What the cache holds of earlier turns is not computed again.

    template: a chat template in place of the model's own.  sampling: fields of SamplingParams.
    shift: `context_shift` and `keep` of `Model.stream`; to keep -1 is to keep what comes before the first message.
    last: the latest generation.  totals: what all of them cost.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        template: str | None = None,
        predict: int = -1,
        stop: Sequence[str] = (),
        sampling: Mapping[str, Any] | None = None,
        shift: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.template, self.predict, self.stop = model, template, predict, stop
        self.sampling, self.shift = dict(sampling or {}), dict(shift or {})
        self.messages: list[dict[str, str]] = []
        self.sequence = model.cache.open()
        self.now = datetime.now()  # the same in all turns: a template that shows it must not change the text
        self.last: Generation | None = None
        self.totals = Totals()
        self.set_system(system)

    def ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation through the template. Raises PunaError."""
        return self.model.chat_ids(messages, template=self.template, now=self.now)

    def ask(self, text: str) -> Generator[str, None, None]:
        """The reply to a message, piece by piece. Stopped early, what came so far is the reply.

        Raises RequestError, and changes nothing, where the conversation does not fit the context.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        ids = self.ids(asked)
        if len(ids) > self.model.n_ctx and not self.shift.get("context_shift"):
            what = f"the conversation has {counted(len(ids))}, the context {self.model.n_ctx}"
            raise RequestError(what, fix="start over with /clear, or raise -c")
        how = {**self.next_sampling(), **self.next_shift()}
        generation = self.model.stream(ids, self.predict, stop=self.stop, sequence=self.sequence, **how)
        self.last = generation
        reply: list[str] = []
        try:
            for piece in generation:
                reply.append(piece)
                yield piece
        finally:
            self.totals.add(generation.timings)
            if reply or generation.finish_reason:
                self.messages = [*asked, {"role": "assistant", "content": "".join(reply)}]

    def next_sampling(self) -> dict[str, Any]:
        """A fixed seed counts up with each reply, so that asking again can give another one."""
        seed = self.sampling.get("seed", -1)
        return self.sampling if seed < 0 else {**self.sampling, "seed": (seed + self.totals.runs) % 2**64}

    def next_shift(self) -> dict[str, Any]:
        """What is dropped from a long conversation, so far as it is now."""
        if self.shift.get("keep") != -1:
            return self.shift
        system = [message for message in self.messages if message["role"] == "system"]
        one, other = (self.ids([*system, {"role": "user", "content": text}]) for text in "?!")
        same = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
        return {**self.shift, "keep": max(0, same - (one[:1] == [self.model.tokenizer.bos]))}

    def ask_again(self) -> Generator[str, None, None]:
        """Another reply to the last message. Raises RequestError where there is none yet."""
        before = self.messages
        if not before or before[-1]["role"] != "assistant":
            raise RequestError("there is no reply yet")
        self.messages = before[:-2]
        try:
            yield from self.ask(before[-2]["content"])
        finally:
            if len(self.messages) < len(before):
                self.messages = before

    def set_system(self, text: str | None) -> None:
        """Put a system prompt in front of the conversation; None or nothing takes it away."""
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return next((m["content"] for m in self.messages if m["role"] == "system"), None)

    def clear(self) -> None:
        """Forget all but the system prompt, in the cache too."""
        self.model.cache.truncate(self.sequence, 0)
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def save(self, path: str) -> None:
        """Write the messages as JSON. Raises RequestError."""
        text = json.dumps(self.messages, indent=2, ensure_ascii=False)
        try:
            Path(path).write_text(text + "\n", encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:
            raise RequestError(f"cannot write the file: {reason(error)}", where=path) from None

    def load(self, path: str) -> None:
        """Read messages that `save` wrote, in place of the ones held. Raises RequestError."""
        try:
            found = json.loads(from_file(path))
        except ValueError as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"this is no JSON: {error}", where=path) from None
        except RecursionError:
            raise RequestError("this is no conversation", where=path) from None
        self.messages = checked(found, path)


def checked(found: object, path: str) -> list[dict[str, str]]:
    """Messages out of a file: an optional system prompt, then user and assistant in turns."""
    messages: list[dict[str, str]] = found if isinstance(found, list) else []
    if not isinstance(found, list) or not all(map(is_message, found)):
        fix = 'write a list of {"role": "user", "content": "text"}'
        raise RequestError("this is no list of messages", where=path, fix=fix)
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if turns != ["user", "assistant"] * (len(turns) // 2):
        fix = "write user and assistant in turns, after at most one system message"
        raise RequestError("the roles are out of order", where=path, fix=fix)
    return messages


def is_message(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"role", "content"}:
        return False
    return all(isinstance(value, str) for value in entry.values())

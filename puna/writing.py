"""A loaded model that writes: what a prompt and its options come to, and several texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from numbers import Integral
from pathlib import Path
from typing import Any

from puna.errors import RequestError
from puna.generation import Writer, sampling_params
from puna.gguf import GGUFFile
from puna.planning import Prepared
from puna.sampling import Sampler
from puna.saving import Saving
from puna.scheduler import Scheduler
from puna.shift import shift_for
from puna.steps import check_gives, check_ids, check_whole, more_room
from puna.tokenizer import Tokenizer
from puna.vocabulary import Vocabulary

__all__ = ["Writing"]


class Writing(Vocabulary, Saving):
    """Steps, and the vocabulary of their tokens."""

    def __init__(
        self, file: GGUFFile, building: Future[Tokenizer], prepared: Prepared, program: object
    ) -> None:
        Vocabulary.__init__(self, file, building)
        Saving.__init__(self, prepared, program)

    def writer(
        self,
        prompt: str | Sequence[int],
        n_predict: int,
        room: int,
        *,
        stop: str | Sequence[str] = (),
        context_shift: bool = False,
        keep: int = 0,
        **sampling: Any,
    ) -> Writer:
        """What drives a text, for whoever runs its steps; the options are those of `stream`.

        room: tokens that its sequence can hold. Raises RequestError for a prompt that does not fit, and for options
        that do not exist.
        """
        check_gives(self.config, "text")
        if context_shift:
            check_gives(self.config, "shifts")
        most, known = len(prompt) if context_shift else self.n_ctx, self.positions
        tokens = min(self.n_vocab, self.tokenizer.vocab_size)  # rows beyond have no token
        ids = self.tokenize(prompt) if isinstance(prompt, str) else check_ids(prompt, tokens, most, known)
        if not ids:
            raise RequestError("the prompt is empty and the model adds no token to it", fix="give a prompt")
        border = 0
        if self.config.start is not None:
            check_whole(border := len(ids), self.plan.tokens, self.n_ctx)
            ids = [*ids, self.config.start]
        shift = shift_for(context_shift, keep, ids, self.tokenizer.bos)
        if len(ids) > room and not (shift and shift.half(room)):
            left = "" if room == self.n_ctx else f"has room for {room} of "
            what = f"the prompt has {len(ids)} tokens, the context {left}{self.n_ctx}"
            fix = more_room(len(ids), known) + ", or keep less (--keep)" * (shift is not None)
            raise RequestError(what, fix=fix)
        how, ends, scans = sampling_params(sampling), self.tokenizer.end_ids, self.backend.scans()
        sampler = Sampler(how, tokens, end_ids=ends, breakers=self.breakers, scans=scans)
        return Writer(self.cache, self.tokenizer, ids, sampler, n_predict, stop, shift, room, border)

    def scheduler(self, *, swap: str = "auto", folder: str | Path | None = None) -> Scheduler:
        """Several texts at once, to be used with `with`: `stream` of it is as the model's own.

        swap: whether a text that is paused for want of memory waits in a file ("always"), is computed again ("never"),
        or what takes less time ("auto").  folder: for such files; None takes the system's.
        """
        return Scheduler(self, self.writer, swap=swap, folder=folder)

    def generate_all(
        self, prompts: Sequence[str | Sequence[int]], n_predict: int = 32, **options: Any
    ) -> list[str]:
        """The texts that `generate` gives for each of several prompts, written together.

        Raises RequestError for a prompt that is not among others, or does not fit.
        """
        prompts = prompts if isinstance(prompts, str) else tuple(prompts)
        if isinstance(prompts, str) or any(isinstance(prompt, Integral) for prompt in prompts):
            raise RequestError(
                "this is one prompt", where="prompts", fix="give a list of them, or use generate"
            )
        with self.scheduler() as scheduler:
            streams = [scheduler.stream(prompt, n_predict, **options) for prompt in prompts]
            return ["".join(stream) for stream in streams]

"""START HERE. The whole path: load -> tokenize -> build graph -> plan -> execute -> sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import embedding, plan, store
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.generation import Generation, Writer, sampling_params
from puna.gguf import GGUFFile
from puna.planning import Prepared, prepare
from puna.progress import Progress
from puna.sampling import Sampler
from puna.saving import Saving
from puna.settings import Settings
from puna.shift import shift_for
from puna.steps import check_gives, check_ids, check_whole
from puna.tokenizer import Tokenizer, chat
from puna.vocabulary import Vocabulary, build_tokenizer, load_tokenizer

__all__ = ["Model", "load", "load_tokenizer"]


def load(
    model: str | Path,
    *,
    backend: str = "auto",
    n_ctx: int | None = None,
    threads: int | None = None,
    n_batch: int = 512,
    parallel: int = 4,
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
    mmap: bool = True,
    repack: bool = True,
    fit: bool = False,
    pooling: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a GGUF file, or a model by name, ready to run.

    n_ctx: positions of the KV cache; None takes the model's own length up to 4096, 0 all of it, or what fits.
    threads: compute threads.  n_batch: most tokens computed in one step; it sizes the compute buffer.
    parallel: sequences for which layers with a sliding window, or a state, have room; others share n_ctx positions.
    cache_type_k, cache_type_v: types of the KV cache; None takes the backend's own.
    mmap: map the file instead of reading it.  repack: bring weights into the backend's own form; without, it
    reads them from the mapped file, for models larger than memory.  fit: where n_ctx does not fit, take what does.
    pooling: what `embed` makes of a text's tokens, "none", "mean", "cls", "last" or "rank", or "auto" for the model's
    own; None loads a model to write, but for one that gives embeddings alone.
    Raises a PunaError that says what to change.
    """
    path = store.resolve(str(model), Settings.from_environment(), progress=progress)
    with GGUFFile.open(path, mmap=mmap) as file:  # load
        building = build_tokenizer(file.metadata)  # tokenize
        prepared = prepare(  # build graph, plan
            file,
            backend=backend,
            n_ctx=n_ctx,
            threads=threads,
            n_batch=n_batch,
            parallel=parallel,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            mmap=mmap,
            repack=repack,
            fit=fit,
            pooling=pooling,
        )
        prepared.refuse_too_large(str(model))
        engine, steps = prepared.backend, prepared.steps
        program = engine.compile(steps, engine.upload(prepared.graph, file, progress))  # execute
        return Model(file, building, prepared, program)  # sample


class Model(Vocabulary, Saving):
    """A loaded model. Threads that share it take turns, a step at a time."""

    def __init__(
        self, file: GGUFFile, building: Future[Tokenizer], prepared: Prepared, program: object
    ) -> None:
        Vocabulary.__init__(self, file, building)
        Saving.__init__(self, prepared, program)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that a user should see."""
        trained = self.config.n_ctx_train
        beyond = f"a context of {self.n_ctx} exceeds the {trained} that the model was trained on"
        unread = f"metadata keys without effect here: {', '.join(self.config.unread)}"
        own = [unread] * bool(self.config.unread) + [beyond] * (self.n_ctx > trained)
        return (*self.about.notes, *super().notes, *own)

    def logits(self, ids: Sequence[int], batch: int = 512) -> NDArray[np.float32]:
        """Logits after each id, in a context of its own: float32 [len(ids), vocabulary].

        The ids are fed in chunks of `batch` rows, or of n_batch where that is less.
        Raises RequestError for an id out of range or more ids than the context holds, or, where they see each other
        both ways, than a chunk.
        """
        check_gives(self.config, "logits")
        ids = check_ids(ids, self.n_vocab, self.n_ctx)
        chunk = min(plan.positive(batch, "batch"), self.plan.tokens)
        if not self.config.causal:
            check_whole(len(ids), chunk)
        out = np.empty((len(ids), self.n_vocab), np.float32)
        sequence = self.cache.open()
        try:
            for start in range(0, len(ids), chunk):
                part = ids[start : start + chunk]
                self.run(sequence, part, range(len(part)), out[start : start + len(part)])
        finally:
            self.cache.close(sequence)
        return out

    def embed(self, texts: embedding.Texts, normalize: int = embedding.EUCLIDEAN) -> NDArray[np.float32]:
        """A vector for each text, or with pooling "none" for each token, text after text: float32 [n, width].

        texts: a text, its ids, or several of either.  normalize: -1 for vectors as they are, 0 for the range of int16,
        else for 1 by that p-norm. A classifier (pooling "rank") gives scores, as they are.
        Raises RequestError for a text that does not fit, or a model that is loaded to write.
        """
        check_gives(self.config, "embeddings")
        ids = [check_ids(t, self.n_vocab, self.n_ctx) for t in embedding.texts_of(texts, self.tokenize)]
        if not self.config.causal:
            check_whole(max(map(len, ids)), self.plan.tokens)
        how = {"tokens": self.plan.tokens, "width": self.width, "normalize": normalize}
        return embedding.embed(ids, self.compute, self.cache, self.config, **how)

    def stream(
        self,
        prompt: str | Sequence[int],
        n_predict: int = 32,
        *,
        stop: str | Sequence[str] = (),
        sequence: CacheSequence | None = None,
        context_shift: bool = False,
        keep: int = 0,
        **sampling: Any,
    ) -> Generation:
        """Generate after a prompt: an iterator of pieces of text, with `finish_reason` and `timings`.

        n_predict: most tokens; -1 for no limit, -2 for as many as fit.  stop: a text, or texts, that end it.
        sequence: from `cache.open()`; what it holds of the prompt is not computed again, and it stays open.
        context_shift: where the context is full, drop tokens and compute the rest anew: those after the first `keep`
        (-1 for the whole prompt) and a beginning mark, the older half. Without, the text ends there.
        sampling: the fields of SamplingParams (temp, top_k, seed, ...).
        """
        check_gives(self.config, "text")
        most = len(prompt) if context_shift else self.n_ctx
        ids = self.tokenize(prompt) if isinstance(prompt, str) else check_ids(prompt, self.n_vocab, most)
        if not ids:
            raise RequestError("the prompt is empty and the model adds no token to it", fix="give a prompt")
        room, shift = self.cache.room(sequence), shift_for(context_shift, keep, ids, self.tokenizer.bos)
        if len(ids) > room and not (shift and shift.half(room)):
            left = "" if room == self.n_ctx else f"has room for {room} of "
            what = f"the prompt has {len(ids)} tokens, the context {left}{self.n_ctx}"
            raise RequestError(what, fix="raise n_ctx (-c)" + ", or keep less (--keep)" * (shift is not None))
        ends, breakers, scans = self.tokenizer.end_ids, self.breakers, self.backend.scans()
        how = sampling_params(sampling)
        sampler = Sampler(how, self.n_vocab, end_ids=ends, breakers=breakers, scans=scans)
        writer = Writer(self.step, self.cache, self.tokenizer, ids, sampler, n_predict, stop, sequence, shift)
        return Generation(writer)

    def generate(self, prompt: str | Sequence[int], n_predict: int = 32, **options: Any) -> str:
        """The whole text that `stream` yields."""
        return "".join(self.stream(prompt, n_predict, **options))

    def chat(self, messages: Sequence[Mapping[str, Any]], n_predict: int = -1, **options: Any) -> str:
        """The reply to a conversation, through the model's own chat template."""
        return self.generate(self.chat_ids(messages), n_predict, **options)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """A conversation as the model's chat template writes it, up to where the reply begins."""
        text = chat.render_for(self.tokenizer, messages, **variables)
        return self.tokenize(text, add_special=False)

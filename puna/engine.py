"""START HERE. The whole path: load -> tokenize -> build graph -> plan -> execute -> sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import embedding, plan, store
from puna.cache import Sequence as CacheSequence
from puna.generation import Generation
from puna.gguf import GGUFFile
from puna.planning import prepare
from puna.progress import Progress
from puna.settings import Settings
from puna.steps import check_gives, check_ids, check_whole
from puna.tokenizer import chat
from puna.vocabulary import build_tokenizer, load_tokenizer
from puna.writing import Writing

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
    mlock: bool = False,
    repack: bool = True,
    huge_pages: bool = True,
    mem_align: int | None = None,
    fit: bool = False,
    pooling: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a GGUF file, or a model by name, ready to run.

    n_ctx: positions of the KV cache; None takes the model's own length up to 4096, 0 all of it, or what fits.
    threads: compute threads.  n_batch: most tokens computed in one step; it sizes the compute buffer.
    parallel: sequences for which layers with a sliding window, or a state, have room; others share n_ctx positions.
    cache_type_k, cache_type_v: types of the KV cache; None takes the backend's own.
    mmap: map the file instead of reading it.  mlock: keep weights and cache from being swapped out.
    repack: bring weights into the backend's own form; without, it reads them from the mapped file, for models larger
    than memory.  huge_pages: let the system join the pages of weights into huge ones.
    mem_align: weights, buffers and each cache begin at multiples of so many bytes, a power of 2; None takes 64.
    fit: where n_ctx does not fit, take what does.
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
            mlock=mlock,
            repack=repack,
            huge_pages=huge_pages,
            mem_align=mem_align,
            fit=fit,
            pooling=pooling,
        )
        prepared.refuse_too_large(str(model))
        engine, steps = prepared.backend, prepared.steps
        weights = engine.upload(prepared.graph, file, progress)
        program = engine.compile(steps, weights)  # execute
        return Model(file, building, prepared.locked(weights, program), program)  # sample


class Model(Writing):
    """A loaded model. Threads that share it take turns, a step at a time."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that a user should see."""
        trained = self.config.n_ctx_train
        beyond = f"a context of {self.n_ctx} exceeds the {trained} that the model was trained on"
        keys = self.config.unread
        more = f" and {len(keys) - 3} more (Model.config.unread)" if len(keys) > 3 else ""
        unread = f"metadata keys without effect here: {', '.join(keys[:3])}{more}"
        own = [unread] * bool(keys) + [beyond] * (self.n_ctx > trained)
        return (*self.about.notes, *super().notes, *own)

    def logits(self, ids: Sequence[int], batch: int = 512) -> NDArray[np.float32]:
        """Logits after each id, in a context of its own: float32 [len(ids), vocabulary].

        The ids are fed in chunks of `batch` rows, or of n_batch where that is less.
        Raises RequestError for an id out of range or more ids than the context holds, or, where they see each other
        both ways, than a chunk.
        """
        check_gives(self.config, "logits")
        ids = check_ids(ids, self.n_vocab, self.n_ctx, self.positions)
        chunk = min(plan.positive(batch, "batch"), self.plan.tokens)
        if not self.config.causal:
            check_whole(len(ids), chunk, self.n_ctx)
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
        how = self.n_vocab, self.n_ctx, self.positions
        ids = [check_ids(text, *how) for text in embedding.texts_of(texts, self.tokenize)]
        if not self.config.causal:
            check_whole(max(map(len, ids)), self.plan.tokens, self.n_ctx)
        options = {"tokens": self.plan.tokens, "width": self.width, "normalize": normalize}
        return embedding.embed(ids, self.compute, self.cache, self.config, **options)

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
        room, how = self.cache.room(sequence), {"context_shift": context_shift, "keep": keep, **sampling}
        writer = self.writer(prompt, n_predict, room, stop=stop, **how)
        return Generation(writer, self.feed, sequence)

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

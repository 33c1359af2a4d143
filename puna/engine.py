"""START HERE. The whole path: load -> tokenize -> build graph -> plan -> execute -> sample."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import backends, models, plan, store
from puna.backends import Backend, Description
from puna.cache import KVCache
from puna.cache import Sequence as CacheSequence
from puna.errors import RequestError
from puna.generation import Generation, sampling_params
from puna.gguf import GGUFFile
from puna.models.registry import build
from puna.progress import Progress
from puna.sampling import Sampler
from puna.settings import Settings
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
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
    mmap: bool = True,
    repack: bool = True,
    progress: Progress | None = None,
) -> Model:
    """Load a GGUF file, or a model by name, ready to run.

    n_ctx: positions of the KV cache; None takes the model's own length up to 4096, 0 all of it.
    threads: compute threads.  n_batch: most tokens computed in one step; it sizes the compute buffer.
    cache_type_k, cache_type_v: types of the KV cache; None takes the backend's own.
    mmap: map the file instead of reading it.  repack: bring weights into the backend's own form; without, it
    reads them from the mapped file, for models larger than memory.
    Raises a PunaError that says what to change.
    """
    settings = Settings.from_environment()
    path = store.resolve(str(model), settings, progress=progress)
    with GGUFFile.open(path, mmap=mmap) as file:  # load
        building = build_tokenizer(file.metadata)  # tokenize
        graph, config = build(file)  # build graph
        threads = plan.thread_count(settings.threads if threads is None else threads)
        name = settings.backend or backend if backend == "auto" else backend
        engine, about, lowered = backends.choose(name, threads, repack, graph)  # plan
        n_ctx = plan.context_length(n_ctx, config.n_ctx_train)
        kv = plan.KVLayout.of(lowered, n_ctx, about.kv_type(cache_type_k), about.kv_type(cache_type_v))
        batch = min(plan.positive(n_batch, "n_batch"), n_ctx)
        sizes = {"tokens": batch, "rows": batch}
        steps = plan.make_plan(lowered, **sizes, kv=kv, scratch=engine.scratch, row_ops=about.row_ops)
        memory = plan.regions(steps, engine.resident(lowered, mmap))
        plan.refuse_too_large(memory, about.free, str(model))
        program = engine.compile(steps, engine.upload(lowered, file, progress))  # execute
        cache = KVCache(kv, n_ctx)
        return Model(file, building, config, engine, about, program, steps, cache, memory)  # sample


class Model(Vocabulary):
    """A loaded model. Threads that share it take turns, a step at a time.

    config: hyper-parameters.  memory: bytes of the regions "weights", "compute", "kv" and "scratch".
    about: the backend's description.  plan: the kernel calls of a step.
    """

    def __init__(
        self,
        file: GGUFFile,
        building: Future[Tokenizer],
        config: models.ModelConfig,
        backend: Backend[Any, Any],
        about: Description,
        program: object,
        steps: plan.Plan,
        cache: KVCache,
        memory: Mapping[str, int],
    ) -> None:
        super().__init__(file, building)
        self.config, self.backend, self.about, self.memory = config, backend, about, memory
        self.program, self.plan, self.cache, self.lock = program, steps, cache, threading.Lock()
        self.n_ctx, self.n_vocab = cache.n_ctx, int(steps.graph.output.type.shape[1])

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
        Raises RequestError for an id out of range or more ids than the context holds.
        """
        ids = self.check(ids)
        chunk = min(plan.positive(batch, "batch"), self.plan.tokens)
        out = np.empty((len(ids), self.n_vocab), np.float32)
        sequence = self.cache.open()
        try:
            for start in range(0, len(ids), chunk):
                part = ids[start : start + chunk]
                self.run(sequence, part, range(len(part)), out[start : start + len(part)])
        finally:
            self.cache.close(sequence)
        return out

    def stream(
        self,
        prompt: str | Sequence[int],
        n_predict: int = 32,
        *,
        stop: str | Sequence[str] = (),
        sequence: CacheSequence | None = None,
        **sampling: Any,
    ) -> Generation:
        """Generate after a prompt: an iterator of pieces of text, with `finish_reason` and `timings`.

        n_predict: most tokens; -1 for no limit but the context.  stop: a text, or texts, that end it.
        sequence: from `cache.open()`; what it holds of the prompt is not computed again, and it stays open.
        sampling: the fields of SamplingParams (temp, top_k, seed, ...).
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self.check(prompt)
        if not ids:
            raise RequestError("the prompt is empty and the model adds no token to it", fix="give a prompt")
        room = self.cache.room(sequence)
        if len(ids) > room:
            left = "" if room == self.n_ctx else f"has room for {room} of "
            what = f"the prompt has {len(ids)} tokens, the context {left}{self.n_ctx}"
            raise RequestError(what, fix="raise n_ctx (-c)")
        ends, breakers, scans = self.tokenizer.end_ids, self.breakers, self.backend.scans()
        how = sampling_params(sampling)
        sampler = Sampler(how, self.n_vocab, end_ids=ends, breakers=breakers, scans=scans)
        return Generation(self.step, self.cache, self.tokenizer, ids, sampler, n_predict, stop, sequence)

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

    def step(self, sequence: CacheSequence, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append ids to a sequence: the logits after the last, float32 [vocabulary]."""
        row: NDArray[np.float32] = np.empty((1, self.n_vocab), np.float32)
        for start in range(0, len(ids), self.plan.tokens):
            part = ids[start : start + self.plan.tokens]
            last = start + len(part) == len(ids)
            self.run(sequence, part, [len(part) - 1] if last else [], row if last else row[:0])
        return row.reshape(-1)

    def run(
        self, sequence: CacheSequence, ids: Sequence[int], rows: Sequence[int], out: NDArray[np.float32]
    ) -> None:
        """One step of one sequence. When it fails, the sequence holds what it held before."""
        with self.lock:
            before = len(sequence)
            try:
                self.backend.run(self.program, self.cache.append((sequence, ids), outputs=rows), out)
            except BaseException:
                self.cache.truncate(sequence, before)
                raise

    def check(self, ids: Sequence[int]) -> list[int]:
        """Ids as a list. Raises RequestError for one that is not in the vocabulary, or for too many."""
        try:
            checked = [operator.index(i) for i in ids]
        except TypeError:
            raise RequestError("token ids are whole numbers", where="ids", fix="use tokenize") from None
        wrong = next((i for i in checked if not 0 <= i < self.n_vocab), None)
        if wrong is not None:
            raise RequestError(f"token id {wrong} is not in the vocabulary of {self.n_vocab}")
        if len(checked) > self.n_ctx:
            raise RequestError(
                f"{len(checked)} tokens do not fit the context of {self.n_ctx}", fix="raise n_ctx (-c)"
            )
        return checked

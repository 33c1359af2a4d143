"""T5 as a model that answers texts: what is generated, kept, shared, and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_t5 import TOKENS, write_t5

import puna
from puna.errors import ModelError, RequestError
from puna.graph import decodes, encodes
from puna.graph.relative import bucket
from puna.plan import KVLayout

GREEDY: dict[str, Any] = {"temp": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> puna.Model:
    path = write_t5(tmp_path_factory.mktemp("t5") / "x.gguf")
    return puna.load(path, backend="reference", threads=1, n_ctx=256, n_batch=64)


def test_buckets_are_those_of_the_paper() -> None:
    """With 32 buckets, half of them to either side: one for each distance below 8, then wider ones up to 128."""
    ahead = [bucket(distance, 32, True) for distance in (0, 1, 7, 8, 11, 12, 15, 16, 63, 64, 90, 91, 500)]
    assert ahead == [0, 17, 23, 24, 24, 25, 25, 26, 29, 30, 30, 31, 31]
    back = [bucket(-distance, 32, True) for distance in (1, 7, 8, 16, 64, 91, 500)]
    assert back == [1, 7, 8, 10, 14, 15, 15]
    assert [bucket(d, 32, False) for d in (5, 0, -1, -15, -16, -19, -64, -113, -500)] == [
        *(0, 0, 1, 15, 16, 17, 26, 31, 31)
    ]


def test_an_answer_begins_with_the_start_token(model: puna.Model) -> None:
    """What is generated is the likeliest after the start token, a step at a time; the prompt is no part of it."""
    text = model.tokenize("hello world")
    assert text[-1] == model.tokenizer.eos
    sequence, ids = model.cache.open(), list[int]()
    model.encode(sequence, text)
    logits = model.step(sequence, [0])
    for _ in range(6):
        ids.append(int(logits.argmax()))
        logits = model.step(sequence, ids[-1:])
    model.cache.close(sequence)
    generation = model.stream("hello world", 6, **GREEDY)
    assert "".join(generation) == model.generate(text, 6, **GREEDY)
    assert generation.ids == ids
    assert generation.timings.prompt_tokens == len(text) + 1


def test_an_encoded_text_is_kept(model: puna.Model, tmp_path: Path) -> None:
    """The same text is not encoded again, in a sequence or from a file; a longer or a shorter one is, as a whole."""
    sequence = model.cache.open()
    first = model.generate("hello world", 5, sequence=sequence, **GREEDY)
    border = len(model.tokenize("hello world"))
    assert sequence.border == border
    model.save(sequence, tmp_path / "kept")
    again = model.stream("hello world", 5, sequence=sequence, **GREEDY)
    assert ("".join(again), again.timings.cached) == (first, border)
    held = list(sequence.tokens)
    for text in (held, held[: border - 3], held[: border + 1]):
        other = model.stream(text, 5, sequence=sequence, **GREEDY)
        assert ("".join(other), other.timings.cached) == (model.generate(text, 5, **GREEDY), 0)
    model.cache.close(sequence)
    restored = model.restore(tmp_path / "kept")
    later = model.stream("hello world", 5, sequence=restored, **GREEDY)
    assert ("".join(later), later.timings.cached) == (first, border)
    assert model.cache.truncate(restored, border - 1) == 0
    model.cache.close(restored)


@pytest.mark.parametrize("swap", ["always", "never"])
def test_texts_are_answered_together(swap: str, model: puna.Model) -> None:
    """Several texts at once, some of them paused for want of memory, get the answers that each gets alone."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, TOKENS, count).tolist() for count in (60, 5, 33, 64, 20)]
    alone = [model.generate(prompt, 70, **GREEDY) for prompt in prompts]
    with model.scheduler(swap=swap) as scheduler:
        streams = [scheduler.stream(prompt, 70, **GREEDY) for prompt in prompts]
        assert ["".join(stream) for stream in streams] == alone
        assert scheduler.report.pauses > 0


def test_parts_share_a_cache(model: puna.Model) -> None:
    """A position takes the keys and values of as many layers as the deeper part has; each part has its own nodes."""
    layout = model.plan.kv
    assert isinstance(layout, KVLayout)
    assert sorted(layout.widths) == [0, 1, 2]
    assert layout.nbytes == 3 * 256 * 2 * 64 * 4
    graph, first = model.plan.graph, model.plan.encoder
    ours, theirs = encodes(graph), decodes(graph)
    assert not [node for node in ours & theirs if node.inputs]
    assert all(node in ours for record in model.plan.records[:first] for node in record.nodes)
    assert all(node in theirs for record in model.plan.records[first:] for node in record.nodes)


def run(model: puna.Model, border: int, ids: list[int], rows: list[int]) -> None:
    sequence = model.cache.open()
    sequence.border = border
    try:
        model.run(sequence, ids, rows, np.empty((len(rows), TOKENS), np.float32))
    finally:
        model.cache.close(sequence)


REFUSED: dict[str, tuple[Callable[[puna.Model], object], str]] = {
    "logits": (lambda m: m.logits([3, 4]), "it has logits for the answer"),
    "a shift": (lambda m: m.generate("a", 4, context_shift=True), "no part of it can be dropped"),
    "too long for a step": (
        lambda m: m.generate([5] * 65, 4),
        "65 tokens that all see each other take one step",
    ),
    "too long for the context": (lambda m: m.generate([5] * 257, 4), "do not fit the context of 256"),
    "no text": (lambda m: run(m, 0, [0], [0]), "the sequence holds none"),
    "half a text": (lambda m: run(m, 4, [5, 5], []), "encoded as a whole"),
    "rows of the text": (lambda m: run(m, 2, [5, 5, 0], [1]), "an encoded text has no logits"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, model: puna.Model) -> None:
    """What an encoder-decoder cannot do is refused, says why, and leaves the cache as it was."""
    room = model.cache.room()
    call, told = REFUSED[case]
    with pytest.raises(RequestError, match=told):
        call(model)
    assert model.cache.room() == room


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"decoder_start_token_id": TOKENS}, "decoder_start_token_id.*no token has this number"),
        (
            {"attention.relative_buckets_count": 2},
            "attention.relative_buckets_count.*2 is not between 4 and 255",
        ),
        ({"attention.relative_buckets_count": 16}, "asks for \\[16, 4\\]"),
        ({"attention.causal": False}, "attention.causal.*impossible"),
        ({"decoder_block_count": 3}, "missing.*dec.blk.2"),
        ({"decoder_block_count": 1}, "without a place.*dec.blk.1"),
    ],
)
def test_impossible_files(keys: dict[str, int], told: str, tmp_path: Path) -> None:
    """A file whose keys and tensors do not fit together is refused by name."""
    with pytest.raises(ModelError, match=told):
        puna.load(write_t5(tmp_path / "x.gguf", keys=keys), backend="reference")


def test_an_encoder_and_both_are_two_models(tmp_path: Path) -> None:
    """One gives embeddings and answers nothing, the other answers and gives none."""
    encoder = puna.load(write_t5(tmp_path / "y.gguf", "t5encoder"), backend="reference")
    with pytest.raises(RequestError, match="does not encode texts to answer them"):
        encoder.encode(encoder.cache.open(), [5, 1])
    with pytest.raises(ModelError, match="gives no embeddings"):
        puna.load(write_t5(tmp_path / "x.gguf"), backend="reference", pooling="mean")

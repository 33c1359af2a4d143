"""Texts longer than the context: what is dropped, and that the rest is as if it had never been there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import ALPHABET, write_tiny

import puna
from puna.errors import RequestError

ENDLESS = {**ALPHABET, "z": "a"}
IDS = np.random.default_rng(8).integers(0, 250, 90).tolist()


def load(path: Path, n_ctx: int, backend: str = "reference") -> puna.Model:
    return puna.load(path, backend=backend, n_ctx=n_ctx, threads=1)


def half(text: list[int], keep: int) -> list[int]:
    """A full context without the older half of what need not stay."""
    return text[:keep] + text[keep + (len(text) - keep) // 2 :]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("keep", [0, 10, 70, -1])
def test_the_bits_of_a_fresh_run(architecture: str, keep: int, tmp_path: Path) -> None:
    """After some shifts the logits are, to the bit, those of a fresh run on the shortened text."""
    path = write_tiny(tmp_path / "m.gguf", architecture=architecture)
    model, fresh = load(path, 128, "cpu"), load(path, 128, "cpu")
    sequence = model.cache.open()
    how: dict[str, Any] = {"context_shift": True, "keep": keep, "temp": 0, "ignore_eos": True}
    stream = model.stream(IDS, 150, sequence=sequence, **how)
    list(stream)
    assert stream.finish_reason == "length"
    assert len(stream.ids) == 150
    text, gone = list(IDS), 0
    for token in stream.ids[:-1]:
        if len(text) == 128:
            gone += len(text) - len(half(text, keep if keep >= 0 else 90))
            text = half(text, keep if keep >= 0 else 90)
        text.append(token)
    assert sequence.tokens == text
    assert gone == stream.timings.dropped > 0
    want = fresh.step(fresh.cache.open(), [*text, 7])
    assert np.array_equal(model.step(sequence, [7]), want)


def test_off_by_default(tmp_path: Path) -> None:
    """Without it, and with n_predict -2, the text ends where the context does."""
    model = load(write_tiny(tmp_path / "m.gguf", follow=ENDLESS), 64)
    for stream in (
        model.stream("a", 200, temp=0),
        model.stream("a", -1, temp=0),
        model.stream("a", -2, temp=0, context_shift=True),
    ):
        assert len(list(stream)) == 64
        assert (stream.finish_reason, stream.timings.shifts) == ("length", 0)
    stream = model.stream("a", 200, temp=0, context_shift=True)
    assert "".join(stream) == ("bcdefghijklmnopqrstuvwxyza" * 8)[:200]
    assert (stream.timings.shifts, stream.timings.dropped) == (5, 5 * 32)


def test_a_mark_at_the_beginning_stays(tmp_path: Path) -> None:
    """The beginning mark is kept beside `keep` tokens."""
    model = load(write_tiny(tmp_path / "m.gguf", vocab="spm"), 64)
    sequence = model.cache.open()
    prompt = model.tokenize("the end of the")
    list(model.stream(prompt, 100, context_shift=True, keep=2, ignore_eos=True, seed=1, sequence=sequence))
    assert sequence.tokens[:3] == prompt[:3]
    assert prompt[0] == model.tokenizer.bos


def test_nothing_left_to_drop(tmp_path: Path) -> None:
    """Where all must stay, the text ends at the limit of the context."""
    model = load(write_tiny(tmp_path / "m.gguf", follow=ENDLESS), 64)
    stream = model.stream("a" * 63, 10, temp=0, context_shift=True, keep=-1)
    assert len(list(stream)) == 2
    assert (stream.finish_reason, stream.timings.shifts) == ("length", 0)


def test_a_prompt_beyond_the_context(tmp_path: Path) -> None:
    """A prompt that does not fit is shortened as if it had been fed token by token."""
    model = load(write_tiny(tmp_path / "m.gguf", follow=ENDLESS), 64)
    long = [int(i) for i in np.random.default_rng(2).integers(0, 250, 200)]
    stream = model.stream(long, 1, context_shift=True, keep=4)
    text: list[int] = []
    for token in long:
        text = [*(half(text, 4) if len(text) == 64 else text), token]
    assert stream.writer.prompt == text
    assert (stream.timings.prompt_tokens, stream.timings.dropped) == (len(text), 200 - len(text))
    with pytest.raises(RequestError, match=r"200 tokens, the context 64; raise .* or keep less"):
        model.stream(long, 1, context_shift=True, keep=-1)


@pytest.mark.parametrize(("keep", "shift"), [(-2, True), (1.5, True), (3, False)])
def test_impossible_numbers(keep: Any, shift: bool, tmp_path: Path) -> None:
    """A number of tokens to keep that cannot be, or that means nothing, is refused."""
    model = load(write_tiny(tmp_path / "m.gguf"), 64)
    with pytest.raises(RequestError, match=r"keep \(--keep\)"):
        model.stream("a", context_shift=shift, keep=keep)

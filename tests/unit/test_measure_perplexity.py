"""Perplexity as llama-perplexity computes it."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_model import ALPHABET, write_tiny

import puna
from puna.engine import Model
from puna.errors import ModelError, RequestError
from puna.measure.perplexity import Mean, losses, mean, perplexity, perplexity_of
from puna.measure.windows import blocks, cut, text_ids, token_losses

TEXT = "The cat and the dog ran to the end of the garden. " * 4


def loaded(folder: Path, n_batch: int = 16, **options: object) -> Model:
    path = write_tiny(folder / "a.gguf", **options)  # type: ignore[arg-type]
    return puna.load(path, backend="reference", n_ctx=64, n_batch=n_batch)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return loaded(tmp_path)


@pytest.fixture
def marked(tmp_path: Path) -> Model:
    """A model that wants BOS before a text."""
    return loaded(tmp_path, vocab="spm")


def expected(
    model: Model, ids: NDArray[np.int32], start: int, length: int, first: int
) -> NDArray[np.float64]:
    """-ln p of the ids after positions `first` to length - 2 of a window, in float64 from all its logits."""
    window = ids[start : start + length].tolist()
    given = [model.tokenizer.bos, *window[1:]] if model.tokenizer.add_bos else window
    logits = model.logits(given).astype(np.float64)  # type: ignore[arg-type]
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return np.array([-log_p[i, window[i + 1]] for i in range(first, length - 1)])


@pytest.mark.parametrize("name", ["model", "marked"])
def test_the_second_half_of_each_window_is_judged(name: str, request: pytest.FixtureRequest) -> None:
    """Windows stand one after another; BOS takes the place of each window's first id where the model wants one."""
    model: Model = request.getfixturevalue(name)
    ids = text_ids(model, TEXT)
    parts = list(losses(model, cut(model, ids, 40)))
    assert len(parts) == len(ids) // 40 >= 2
    for i, part in enumerate(parts):
        assert part == pytest.approx(expected(model, ids, 40 * i, 40, 20), rel=1e-5)


def test_an_odd_window_is_judged_from_its_middle(model: Model) -> None:
    """Of 41 ids, those after positions 20 to 39 are judged."""
    ids = text_ids(model, TEXT)
    (part,) = losses(model, cut(model, ids, 41, chunks=1))
    assert part == pytest.approx(expected(model, ids, 0, 41, 20), rel=1e-5)


def test_strided_windows(model: Model) -> None:
    """Windows of n_ctx + stride / 2 ids begin a stride apart, and the last `stride` ids of each are judged."""
    ids = text_ids(model, TEXT)[:100]
    windows = cut(model, ids, 30, stride=20)
    assert windows.starts == range(0, 60, 20)
    parts = list(losses(model, windows))
    for start, part in zip(windows.starts, parts, strict=True):
        assert part == pytest.approx(expected(model, ids, start, 40, 19), rel=1e-5)


def test_strided_windows_keep_their_first_id(marked: Model) -> None:
    """As in llama-perplexity, no BOS is put there."""
    assert cut(marked, text_ids(marked, TEXT), 30, stride=10).bos is None


def test_special_tokens_in_the_text_are_plain(model: Model) -> None:
    """A text that spells a control token has no such id."""
    end = model.tokenizer.eos
    assert end in text_ids(model, "a<|im_end|>", parse_special=True)
    assert end not in text_ids(model, "a<|im_end|>")


def test_it_says_what_is_known_of_a_text(tmp_path: Path) -> None:
    """A model that knows the alphabet is not surprised by it, but by the alphabet backwards."""
    model = loaded(tmp_path, follow=ALPHABET)
    forwards = perplexity(model, text_ids(model, string.ascii_lowercase), 26)
    backwards = perplexity(model, text_ids(model, string.ascii_lowercase[::-1]), 26)
    assert 1 <= forwards.value < 1.05
    assert backwards.value > 100


def test_steps_make_no_difference(tmp_path: Path) -> None:
    """Logits are the same to rounding however many tokens a step takes, and come in order."""
    found = []
    for n_batch in (64, 7):
        model = loaded(tmp_path, n_batch)
        windows = cut(model, text_ids(model, TEXT), 40)
        places = [(block.window, at) for block in blocks(model, windows) for at in block.positions]
        assert places == [(i, at) for i in range(len(windows.starts)) for at in windows.counted]
        found.append(np.concatenate(list(losses(model, windows))))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_the_cache_is_left_empty(model: Model) -> None:
    """Also when the windows are not all taken."""
    next(losses(model, cut(model, text_ids(model, TEXT), 40)))
    assert model.cache.room() == 64


def test_a_text_too_short_is_refused_with_both_numbers(model: Model) -> None:
    """One window is enough, less is an error; so are windows and strides that make no sense."""
    ids = text_ids(model, TEXT)[:20]
    assert perplexity(model, ids, 20).value > 1
    with pytest.raises(RequestError, match="text has 20 tokens, and one window takes 21; give a longer text"):
        cut(model, ids, 21)
    with pytest.raises(RequestError, match="windows of 7 tokens are too short; take 8"):
        cut(model, ids, 7)
    with pytest.raises(RequestError, match="stride of 10 does not fit windows of 10"):
        cut(model, ids, 10, stride=10)
    with pytest.raises(RequestError, match="windows of 65 tokens do not fit the context of 64; raise"):
        cut(model, text_ids(model, TEXT), 65)
    with pytest.raises(RequestError, match="not in the vocabulary of 287"):
        cut(model, [1] * 19 + [287], 20)


def test_chunks_are_the_most_windows(model: Model) -> None:
    """Fewer where the text has fewer."""
    ids = text_ids(model, TEXT)
    assert len(cut(model, ids, 20, chunks=2).starts) == 2
    assert len(cut(model, ids, 20, chunks=1000).starts) == len(ids) // 20


def test_means() -> None:
    """The error is the deviation over the root of n - 1, 0 for a single value; exp carries it to first order."""
    estimate = mean(np.array([1.0, 2.0, 3.0]))
    assert estimate.value == 2
    assert estimate.error == pytest.approx(np.sqrt(2 / 3) / np.sqrt(2))
    assert mean(np.array([5.0])) == Mean(5, 0)
    assert perplexity_of(np.array([1.0, 3.0])).error == pytest.approx(np.exp(2) * 1)
    assert Mean(1000, 1).exp().value == np.inf


def test_logits_that_are_none_are_an_error() -> None:
    """One NaN is enough; large logits are not."""
    large = np.array([[1e4, -1e4]], np.float32)
    assert token_losses(large, np.array([1], np.int32)) == pytest.approx([2e4])
    with pytest.raises(ModelError, match="no numbers"):
        token_losses(np.array([[1.0, np.nan]], np.float32), np.array([0], np.int32))

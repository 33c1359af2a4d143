"""Models with a state: saved and restored, and beyond the context, as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arch_files import ARCHS, write_model

import puna
from puna.shift import Shift

pytestmark = pytest.mark.skipif(not ARCHS.exists(), reason="reference data ../shared/archs is not here")

NAMES = ("deepseek4-moe", "falcon-h1-dense", "lfm2-dense", "mamba-dense")


@pytest.mark.parametrize("name", NAMES)
def test_a_state_comes_back(name: str, tmp_path: Path) -> None:
    """The logits after it are the same to the bit; cut back, it goes on from the border of pages that was kept."""
    path, file = write_model(name, tmp_path), tmp_path / "kept"
    model, other = (puna.load(path, n_ctx=512, backend="cpu") for _ in range(2))
    ids = np.random.default_rng(1).integers(0, model.n_vocab, 120).tolist()
    sequence = model.cache.open()
    model.step(sequence, ids[:100])
    model.save(sequence, file)
    fresh = other.restore(file)
    for part in (ids[100:101], ids[101:]):
        assert np.array_equal(other.step(fresh, part), model.step(sequence, part))
    other.cache.close(fresh)
    again = other.restore(file)
    assert other.cache.truncate(again, 99) == 64
    model.cache.truncate(sequence, 0)
    assert np.array_equal(other.step(again, ids[64:100]), model.step(sequence, ids[:100]))


@pytest.mark.parametrize("name", NAMES)
def test_a_shift_starts_the_state_anew(name: str, tmp_path: Path) -> None:
    """What a state had seen of the dropped tokens is gone: the bits of a fresh run on the shortened text."""
    path = write_model(name, tmp_path)
    model, fresh = (puna.load(path, n_ctx=128, backend="cpu") for _ in range(2))
    ids = np.random.default_rng(2).integers(0, model.n_vocab, 128).tolist()
    text = Shift(66).drop([*ids, 7], 31)
    sequence = model.cache.open()
    for part in (ids[:100], ids[100:]):
        model.step(sequence, part)
    held = model.cache.truncate(sequence, sequence.common_prefix(text))
    assert held == 64
    got = model.step(sequence, text[held:])
    assert np.array_equal(got, fresh.step(fresh.cache.open(), text))

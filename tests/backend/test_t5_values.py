"""T5 with random weights: llama.cpp's numbers, and the same however a text is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from random_t5 import TOKENS, WIDTH, write_t5

import puna

TEXT = [3 + 7 * n % 50 for n in range(150)]
ANSWER = [0, *(4 + 11 * n % 50 for n in range(139))]
ROW = 137
FLOATS = {"threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
# The first values of row 137, by llama.cpp (llama-cpp-python 0.3.36): logits after ANSWER, or vectors of TEXT.
VALUES = {
    ("t5", False, True): (-0.83856, 0.77423, -1.53831, -1.07999, -0.19824),
    ("t5", False, False): (-0.66743, -0.26080, -0.33104, -1.67828, 1.18580),
    ("t5", True, False): (0.06422, -1.63002, 0.34005, 0.31138, 0.05216),
    ("t5encoder", False, True): (-0.41398, 1.18031, -1.02881, 1.88899, -0.37601),
    ("t5encoder", True, True): (0.04966, -0.63012, -0.09344, -1.15169, 0.13250),
}


@pytest.fixture(scope="module", autouse=True)
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a folder of these tests."""
    folder = tmp_path_factory.mktemp("code")
    with mock.patch("platformdirs.user_cache_path", return_value=folder):
        yield


def answer(model: puna.Model, text: Sequence[int], ids: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """Logits after each id of an answer to a text, in steps of these sizes."""
    out, sequence, start = np.empty((len(ids), TOKENS), np.float32), model.cache.open(), 0
    model.encode(sequence, text)
    for size in sizes:
        rows = out[start : start + size]
        model.run(sequence, ids[start : start + size], range(size), rows)
        start += size
    model.cache.close(sequence)
    return out


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("name", "gated", "tied"), VALUES)
def test_values_are_llama_cpps(name: str, gated: bool, tied: bool, backend: str, tmp_path: Path) -> None:
    """Both forms give llama.cpp's values; a tied head takes scaled rows, which llama.cpp leaves out."""
    path = write_t5(tmp_path / "x.gguf", name, gated=gated, tied=tied)
    model = puna.load(path, backend=backend, **FLOATS)
    assert model.config.unread == ()
    got = answer(model, TEXT, ANSWER, [140]) if name == "t5" else model.embed(TEXT, -1)
    scale = WIDTH**0.5 if name == "t5" and tied else 1.0
    # llama.cpp takes GELU from a table of half floats.
    np.testing.assert_allclose(got[ROW, :5] * scale, VALUES[name, gated, tied], atol=3e-2 if gated else 3e-5)


def test_no_step_changes_a_bit(tmp_path: Path) -> None:
    """On the cpu an answer has the same bits in any steps, of one thread or two, and beside others."""
    path = write_t5(tmp_path / "x.gguf")
    model = puna.load(path, backend="cpu", n_ctx=1024, n_batch=700, **FLOATS)
    text, ids = [*TEXT, *TEXT, *TEXT, *TEXT], ANSWER[:60]
    whole = answer(model, text, ids, [60])
    np.testing.assert_array_equal(answer(model, text, ids, [13, 1, 1, 40, 5]), whole)
    two = puna.load(path, backend="cpu", n_ctx=1024, n_batch=700, **{**FLOATS, "threads": 2})
    sizes = [57, 1, 1, 1]  # the last share out their past
    np.testing.assert_array_equal(answer(two, text, ids, sizes), whole)
    sequences, lengths = [model.cache.open() for _ in range(3)], (64, 1, 130)
    for sequence, length in zip(sequences, lengths, strict=True):
        sequence.border = length
    parts = [(s, [*text[:n], *ids[: n % 50]]) for s, n in zip(sequences, lengths, strict=True)]
    starts = np.cumsum([0, *(len(part) for _, part in parts)]).tolist()
    ranges = [range(start + n, start + n + n % 50) for start, n in zip(starts, lengths, strict=False)]
    rows = [row for part in ranges for row in part]
    out = np.empty((len(rows), TOKENS), np.float32)
    model.compute(parts, rows, out)
    alone = [answer(model, text[:n], ids[: n % 50], [n % 50]) for n in lengths]
    np.testing.assert_array_equal(out, np.concatenate(alone))


@pytest.mark.parametrize("name", ["t5", "t5encoder"])
def test_quantised(name: str, tmp_path: Path) -> None:
    """With matrices in Q8_0 and a cache of f16 the results stay close, for scores that nothing scales."""

    def results(path: Path, **how: object) -> np.ndarray:
        model = puna.load(path, threads=1, **how)  # type: ignore[arg-type]
        return answer(model, TEXT, ANSWER, [140]) if name == "t5" else model.embed(TEXT, -1)

    want = results(write_t5(tmp_path / "x.gguf", name), backend="reference")
    got = results(write_t5(tmp_path / "y.gguf", name, quant="Q8_0"), backend="cpu")
    assert 0 < np.mean((got - want) ** 2) / np.mean(want**2) <= 2e-2

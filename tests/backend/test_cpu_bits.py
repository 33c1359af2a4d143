"""Same bits always: logits do not depend on the batch, on what stands beside a sequence, or on the threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_cpu_rig import load, write_model

import puna

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
KINDS = ["F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"]
# Every type with one architecture, the others with a type of floats and one of blocks in blocks.
MODELS = [("llama", kind) for kind in KINDS] + [
    (name, kind) for name in ARCHITECTURES[1:] for kind in ("F16", "Q4_K")
]
# Steps of a sequence among others: its rows, those of three others, and how many of the others stand before it.
STEPS = [
    (30, (9, 0, 0), 0),
    (1, (0, 50, 0), 3),
    (1, (1, 0, 0), 1),
    (10, (1, 1, 40), 2),
    (2, (5, 0, 0), 1),
]
IDS = np.random.default_rng(1).integers(0, 280, 100).tolist()


def bits(logits: np.ndarray) -> np.ndarray:
    assert np.isfinite(logits).all()
    return np.ascontiguousarray(logits).view(np.uint32)


def beside_others(model: puna.Model, ids: list[int]) -> np.ndarray:
    """Logits after each id, of a sequence that grows in every way while others come and go beside it."""
    rng = np.random.default_rng(2)
    others = [rng.integers(0, 280, 60).tolist() for _ in range(3)]
    mine, *rest = [model.cache.open() for _ in range(4)]
    out, at = np.empty((len(ids), model.n_vocab), np.float32), [0, 0, 0]
    done = 0
    for count, rows, before in STEPS:
        parts = [(s, o[a : a + n]) for s, o, a, n in zip(rest, others, at, rows, strict=True) if n]
        parts.insert(before, (mine, ids[done : done + count]))
        start = sum(len(part) for _, part in parts[: parts.index((mine, ids[done : done + count]))])
        batch = model.cache.append(*parts, outputs=range(start, start + count))
        model.backend.run(model.program, batch, out[done : done + count])
        at = [a + n for a, n in zip(at, rows, strict=True)]
        done += count
    batch = model.cache.append((mine, ids[done:]), outputs=range(len(ids) - done))
    model.backend.run(model.program, batch, out[done:])
    for sequence in (mine, *rest):
        model.cache.close(sequence)
    return out


@pytest.mark.parametrize(("architecture", "kind"), MODELS)
def test_logits_are_the_same_bits(architecture: str, kind: str, tmp_path: Path) -> None:
    """In one batch, in chunks of 1, 7 and 64, beside other sequences, with 1, 2 and 3 threads, and without panels."""
    path = write_model(tmp_path / "m.gguf", architecture, kind)
    model = load(path, threads=1)
    want = bits(model.logits(IDS))
    for batch in (1, 7, 64):
        np.testing.assert_array_equal(
            bits(model.logits(IDS, batch=batch)), want, err_msg=f"chunks of {batch}"
        )
    np.testing.assert_array_equal(bits(beside_others(model, IDS)), want, err_msg="beside others")
    for threads in (2, 3):
        model = load(path, threads=threads)
        for batch in (512, 7):
            np.testing.assert_array_equal(
                bits(model.logits(IDS, batch=batch)), want, err_msg=f"{threads} threads"
            )
    model = load(path, threads=2, repack=False)
    np.testing.assert_array_equal(bits(model.logits(IDS, batch=64)), want, err_msg="straight from the file")


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_long_past_gives_the_same_bits(architecture: str, tmp_path: Path) -> None:
    """Single tokens over more than a thousand positions, on 1 to 3 threads, give the bits of a whole prefill."""
    path = write_model(tmp_path / "m.gguf", architecture, "Q8_0", n_ctx=1200)
    ids = np.random.default_rng(3).integers(0, 280, 1100).tolist()
    want = bits(load(path, threads=2).logits(ids))
    for threads in (1, 2, 3):
        model = load(path, threads=threads)
        sequence = model.cache.open()
        for place in (511, 512, 513, 1023, 1024, 1099):
            if len(sequence) < place:
                model.step(sequence, ids[len(sequence) : place])
            np.testing.assert_array_equal(bits(model.step(sequence, ids[place : place + 1])), want[place])


def test_three_single_tokens_at_once(tmp_path: Path) -> None:
    """Sequences of different lengths, a token each in one step, get the bits that each gets alone."""
    model = load(write_model(tmp_path / "m.gguf", "llama", "Q4_0", n_ctx=1200), threads=2)
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, 280, n).tolist() for n in (600, 64, 3)]
    want = [bits(model.logits(text)[-1]) for text in texts]
    sequences = [model.cache.open() for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        model.step(sequence, text[:-1])
    out = np.empty((3, model.n_vocab), np.float32)
    parts = [(sequence, text[-1:]) for sequence, text in zip(sequences, texts, strict=True)]
    model.backend.run(model.program, model.cache.append(*parts, outputs=[2, 0, 1]), out)
    np.testing.assert_array_equal(bits(out), [want[2], want[0], want[1]])

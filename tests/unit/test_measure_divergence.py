"""Logits saved in llama-perplexity's format, and the divergence from them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_model import write_tiny

import puna
from puna.engine import Model
from puna.errors import FormatError, PunaError, RequestError
from puna.measure.divergence import divergence, joined, kld, row_divergences
from puna.measure.perplexity import perplexity
from puna.measure.saved_logits import SavedLogits, encoded, file_bytes, saving
from puna.measure.windows import cut, text_ids

TEXT = "The cat and the dog ran to the end of the garden. " * 4


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return loaded(tmp_path / "a.gguf")


def loaded(path: Path, **options: object) -> Model:
    return puna.load(write_tiny(path, **options), backend="reference", n_ctx=64, n_batch=16)  # type: ignore[arg-type]


@pytest.fixture
def base(model: Model, tmp_path: Path) -> Path:
    """The model's own logits of a text."""
    path = tmp_path / "base.kld"
    perplexity(model, text_ids(model, TEXT), 40, chunks=3, save=path)
    return path


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    x = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return found


def saved(log_p: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a file can hold of logarithms of probabilities."""
    return np.maximum(log_p, log_p.max(axis=-1, keepdims=True) - 16)


def test_the_format_is_that_of_llama_perplexity(model: Model, base: Path) -> None:
    """Magic, sizes, all ids, then for each judged position scale, least and 16-bit codes, an odd one padded."""
    raw, ids = base.read_bytes(), text_ids(model, TEXT)
    assert raw[:20] == b"_logits_" + struct.pack("<iii", 40, model.n_vocab, 3)
    assert raw[20 : 20 + 480] == ids[:120].astype("<i4").tobytes()
    width = 4 + model.n_vocab + model.n_vocab % 2
    assert len(raw) == 20 + 480 + 3 * 19 * 2 * width == file_bytes(40, model.n_vocab, 3)
    first = raw[500 : 500 + 2 * width]
    scale, least = struct.unpack("<ff", first[:8])
    codes = np.frombuffer(first, "<u2", model.n_vocab, 8)
    wanted = saved(log_softmax(model.logits(ids[:40].tolist())[20]))
    assert least + scale * codes == pytest.approx(wanted, abs=16 / 65535)
    assert codes.max() == 65535


@pytest.mark.parametrize("count", [300, 301])
def test_rows_are_rounded_to_a_65535th_of_their_range(count: int) -> None:
    """What is e^-16 below the likeliest is raised to that, a suppressed token too; equal logits need no codes."""
    logits = np.random.default_rng(1).normal(0, 4, count).astype(np.float32)
    logits[3], logits[4] = -100, -np.inf
    row = encoded(logits)
    assert row.dtype == np.dtype("<u2")
    assert len(row) == 4 + count + count % 2
    scale, least = row[:4].view("<f4")
    assert least + scale * row[4 : 4 + count] == pytest.approx(saved(log_softmax(logits)), abs=float(scale))
    equal = encoded(np.zeros(count, np.float32))
    assert equal[:4].view("<f4") == pytest.approx([0, -np.log(count)])
    assert not equal[4:].any()


def test_no_half_file_is_left(model: Model, tmp_path: Path) -> None:
    """What fails on the way, or ends before all rows are there, leaves the folder as it was."""
    windows = cut(model, text_ids(model, TEXT), 40, chunks=2)
    path = tmp_path / "base.kld"
    with pytest.raises(KeyboardInterrupt), saving(path, windows, model.n_vocab):
        raise KeyboardInterrupt
    with (
        pytest.raises(RequestError, match="38 rows of logits are missing"),
        saving(path, windows, model.n_vocab),
    ):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gguf"]


def test_a_model_does_not_diverge_from_itself(model: Model, base: Path) -> None:
    """No more than the 16 bits of the file cost; and files are read from the start each time."""
    with SavedLogits(base) as logits:
        found = divergence(model, logits)
        again = divergence(model, logits, chunks=1)
    assert len(found.kld) == 57
    assert len(again.kld) == 19
    assert np.array_equal(found.kld[:19], again.kld)
    assert abs(found.kld).max() < 1e-4
    assert abs(found.p_diff).max() < 1e-4
    assert found.top_agreement.value == 1


def test_divergence_is_the_sum_of_p_ln_p_over_q(tmp_path: Path, base: Path) -> None:
    """Of another model's logits, in float64, over whole distributions; so are the losses and the likeliest ids."""
    other, model = (
        loaded(tmp_path / "b.gguf", quant="Q4_0"),
        puna.load(tmp_path / "a.gguf", backend="reference"),
    )
    ids = text_ids(other, TEXT)[:120]
    with SavedLogits(base) as logits:
        assert np.array_equal(logits.ids, ids)
        found = divergence(other, logits)
    p, q = (
        np.concatenate([log_softmax(m.logits(part.tolist())[20:39]) for part in ids.reshape(3, 40)])
        for m in (model, other)
    )
    targets = ids.reshape(3, 40)[:, 21:].reshape(-1)
    rows = np.arange(57)
    assert found.kld == pytest.approx((np.exp(p) * (p - q)).sum(axis=1), abs=2e-4)
    assert found.losses == pytest.approx(-q[rows, targets], abs=1e-5)
    assert found.base_losses == pytest.approx(-saved(p)[rows, targets], abs=3e-4)
    assert np.array_equal(found.same_top, p.argmax(axis=1) == q.argmax(axis=1))
    assert found.mean_kld.value > 0.01


def test_figures_of_a_divergence() -> None:
    """Each against its own formula, the errors of ratio and difference with the covariance of the two losses."""
    random = np.random.default_rng(2)
    logits = random.normal(0, 2, (200, 50)).astype(np.float32)
    base = log_softmax((logits + random.normal(0, 0.3, logits.shape)).astype(np.float32)).astype(np.float32)
    targets = random.integers(0, 50, 200).astype(np.int32)
    halves = [
        row_divergences(logits[part], base[part], targets[part]) for part in (slice(100), slice(100, 200))
    ]
    d = joined(halves)
    n, a, b = 200, d.losses, d.base_losses
    covariance = (np.mean(a * b) - a.mean() * b.mean()) / (n - 1)
    ea, eb = a.std() / np.sqrt(n - 1), b.std() / np.sqrt(n - 1)
    assert d.correlation == pytest.approx(covariance / (ea * eb))
    assert d.log_ratio.value == pytest.approx(a.mean() - b.mean())
    assert d.log_ratio.error == pytest.approx(np.sqrt(ea**2 + eb**2 - 2 * covariance))
    pa, pb = np.exp(a.mean()), np.exp(b.mean())
    assert d.difference.value == pytest.approx(pa - pb)
    wanted = np.sqrt((pa * ea) ** 2 + (pb * eb) ** 2 - 2 * pa * pb * covariance)
    assert d.difference.error == pytest.approx(wanted)
    assert d.rms_p_diff.value == pytest.approx(np.sqrt(np.mean((np.exp(-a) - np.exp(-b)) ** 2)))
    share = d.same_top.mean()
    assert d.top_agreement.error == pytest.approx(np.sqrt(share * (1 - share) / (n - 1)))


def test_the_unlikeliest_do_not_count() -> None:
    """What the base gives less than e^-16 adds nothing, as in llama-perplexity."""
    base = np.array([[-0.5, -16.5], [-0.5, -15.5]], np.float32)
    logits = np.array([[0, -1000], [0, -1000]], np.float32)
    found = kld(base, logits)
    assert found[0] == pytest.approx(np.exp(-0.5) * -0.5)
    assert found[1] == pytest.approx(np.exp(-0.5) * -0.5 + np.exp(-15.5) * (-15.5 + 1000), rel=1e-5)


def replaced(start: int, content: bytes) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:start] + content + raw[start + len(content) :]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (replaced(0, b"_LOGITS_"), "no file of saved logits"),
        (lambda raw: raw[:19], "no file of saved logits"),
        (lambda raw: b"", "no file of saved logits"),
        (lambda raw: raw[:-1], r"it has \d+ bytes, and its header speaks of \d+"),
        (lambda raw: raw + b"\0", "header speaks of"),
        (replaced(8, struct.pack("<i", 7)), "the header is damaged: 3 windows of 7 tokens"),
        (replaced(12, struct.pack("<i", -5)), "the header is damaged"),
        (replaced(16, struct.pack("<i", 0)), "the header is damaged"),
        (replaced(12, struct.pack("<i", 2**31 - 1)), "header speaks of"),
        (replaced(16, struct.pack("<i", 2**31 - 1)), "header speaks of"),
        (replaced(20, struct.pack("<i", -1)), "token ids outside of its vocabulary"),
        (replaced(24, struct.pack("<i", 10**6)), "token ids outside of its vocabulary"),
        (replaced(500, struct.pack("<f", np.nan)), "those of no probability"),
        (replaced(500, struct.pack("<f", 1.0)), "those of no probability"),
        (replaced(500, struct.pack("<f", -1.0)), "those of no probability"),
        (replaced(504, struct.pack("<f", np.inf)), "those of no probability"),
        (replaced(504, struct.pack("<f", 5.0)), "those of no probability"),
        (replaced(504, struct.pack("<f", -np.inf)), "those of no probability"),
    ],
)
def test_damaged_files_are_refused(
    base: Path, model: Model, change: Callable[[bytes], bytes], fault: str
) -> None:
    """Before anything is allocated by their numbers; the error names the file and what to do."""
    base.write_bytes(change(base.read_bytes()))
    with (
        pytest.raises(FormatError, match=rf"base\.kld: .*{fault}.*; write it again"),
        SavedLogits(base) as logits,
    ):
        divergence(model, logits)


def test_a_base_must_fit_the_model(base: Path, tmp_path: Path) -> None:
    """Another number of tokens is refused with both numbers; a folder and no file by their path."""
    other = loaded(tmp_path / "b.gguf", vocab="spm")
    with (
        SavedLogits(base) as logits,
        pytest.raises(RequestError, match=r"with \d+ tokens, and this one has \d+"),
    ):
        divergence(other, logits)
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(PunaError, match=path.name):
            SavedLogits(path)

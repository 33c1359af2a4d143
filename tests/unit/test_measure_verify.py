"""How near a backend's logits are to the reference's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from puna.errors import BackendError
from puna.gguf import GGUFFile
from puna.measure.verify import agreement, joined, needs


def test_an_agreement_is_measured_by_row() -> None:
    """Squared error over the reference's squares, KL from the reference, and the likeliest ids."""
    reference = np.array([[0, 3, 4], [2, 1, 0]], np.float32)
    logits = np.array([[0, 3, 4], [1, 2, 0]], np.float32)
    found = agreement(logits, reference)
    assert found.nmse == pytest.approx([0, 2 / 5])
    p, q = (np.exp(x) / np.exp(x).sum() for x in (reference[1].astype(float), logits[1].astype(float)))
    assert found.kld == pytest.approx([0, (p * np.log(p / q)).sum()], abs=1e-6)
    assert found.same_top.tolist() == [True, False]


def test_a_constant_is_an_error_though_softmax_hides_it() -> None:
    """Logits all shifted by the same have no KL, but a squared error."""
    reference = np.array([[1, 2, 3]], np.float32)
    found = agreement(reference + 1, reference)
    assert found.kld == pytest.approx([0], abs=1e-6)
    assert found.nmse == pytest.approx([3 / 14])


def test_what_is_no_number_agrees_with_nothing() -> None:
    """One NaN makes the row's error and the mean's one."""
    reference = np.ones((2, 3), np.float32)
    logits = reference.copy()
    logits[1, 2] = np.nan
    found = joined([agreement(logits, reference)])
    assert found.nmse[0] == 0
    assert not found.nmse.mean() <= 1e9


def test_memory_is_known_before(tmp_path: Path) -> None:
    """Float32 of all weights on the reference backend; a backend that is the reference itself is refused."""
    with GGUFFile.open(write_tiny(tmp_path / "a.gguf", quant="Q8_0")) as file:
        sizes = needs(file, "cpu")
        elements = sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values())
        packed = file.tensors["token_embd.weight"]  # of it only single rows are read
        wanted = 4 * elements - 4 * int(np.prod(packed.shape)) + packed.nbytes
        assert sizes["reference"] == wanted
        assert 0 < sizes["cpu"] < wanted
        with pytest.raises(BackendError, match="compare the reference backend with itself; name another"):
            needs(file, "reference")

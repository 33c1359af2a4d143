"""Importance matrices in both of llama.cpp's forms, as weights of columns."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from edit_models import info

from puna.edit.importance import Weights, read_weights
from puna.errors import FormatError, PunaError, RequestError
from puna.gguf.imatrix import Imatrix, Importance, write_imatrix

ONES = np.ones(4, np.float32)


def legacy(*entries: tuple[str, int, list[float]], end: bytes = struct.pack("<ii", 9, 4) + b"text") -> bytes:
    """The first form: entries of name, calls and values, then chunks and the data set."""
    parts = [struct.pack("<i", len(entries))]
    for name, calls, values in entries:
        parts.append(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values)))
        parts.append(np.array(values, "<f4").tobytes())
    return b"".join(parts) + end


def test_gguf(tmp_path: Path) -> None:
    """Weights are means over the counts; an expert that saw nothing has ones."""
    entries = {
        "a.weight": Importance(np.array([2, 4, 6, 0], np.float32), np.array([2], np.float32)),
        "e.weight": Importance(np.array([[3, 6], [0, 0]], np.float32), np.array([3, 0], np.float32)),
    }
    write_imatrix(tmp_path / "i.gguf", Imatrix(entries, ["a.txt", "b.txt"], 5, 512))
    weights = read_weights(tmp_path / "i.gguf")
    assert (weights.dataset, weights.chunks) == ("a.txt", 5)
    assert np.array_equal(weights.of(info("a.weight", (8, 4))), [[1, 2, 3, 0]])  # type: ignore[arg-type]
    assert np.array_equal(weights.of(info("e.weight", (2, 8, 2))), [[1, 2], [1, 1]])  # type: ignore[arg-type]


def test_legacy(tmp_path: Path) -> None:
    """The first form gives sums by calls; what follows the entries may be missing."""
    path = tmp_path / "i.dat"
    path.write_bytes(legacy(("a.weight", 2, [2, 4]), ("b.weight", 0, [5])))
    weights = read_weights(path)
    assert {name: list(values) for name, values in weights.columns.items()} == {
        "a.weight": [1, 2],
        "b.weight": [5],
    }
    assert (weights.dataset, weights.chunks) == ("text", 9)
    path.write_bytes(legacy(("a.weight", 2, [2, 4]), end=b""))
    assert (read_weights(path).dataset, read_weights(path).chunks) == ("", 0)


def test_cut_short(tmp_path: Path) -> None:
    """A file of the first form that ends anywhere but between its parts is refused."""
    whole, path = legacy(("a.weight", 2, [2, 4])), tmp_path / "i.dat"
    good = {len(whole) - 8, len(whole) - 12}  # without the name of the text; without all that follows
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length in good:
            assert read_weights(path).dataset == ""
            continue
        with pytest.raises(FormatError, match=r"i\.dat: this is no importance matrix: "):
            read_weights(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the number of entries would end behind the file"),
        (struct.pack("<i", 0), "the number of entries is 0"),
        (struct.pack("<i", 1 << 30), "the number of entries is 1073741824"),
        (struct.pack("<ii", 1, 1 << 30) + bytes(40), "the length of the name of a tensor is 1073741824"),
        (legacy(("a", 1, [np.nan])), "'a' has sums of squares that are none"),
        (legacy(("a", 1, [-1.0])), "'a' has sums of squares that are none"),
        (legacy(("a", -1, [1.0])), "the calls of 'a' is -1"),
        (b"{}" * 100, "the number of entries is"),
    ],
)
def test_no_importance_matrix(tmp_path: Path, raw: bytes, message: str) -> None:
    """Other files are refused, whatever lengths they seem to have."""
    (tmp_path / "i.dat").write_bytes(raw)
    with pytest.raises(FormatError) as error:
        read_weights(tmp_path / "i.dat")
    assert message in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(PunaError, match="none: cannot read the file"):
        read_weights(tmp_path / "none")


def test_shapes() -> None:
    """Columns of another model are refused; an embedding's, which may be the output's, are left out."""
    weights = Weights(Path("i"), {"a.weight": ONES, "token_embd.weight": ONES}, "", 0)
    assert weights.of(info("b.weight", (2, 4))) is None
    assert weights.of(info("token_embd.weight", (4, 2))) is None
    with pytest.raises(RequestError, match=r"i: 4 columns of tensor 'a\.weight', which has 8"):
        weights.of(info("a.weight", (2, 2, 4)))

"""Texts as vectors: pooling, normalisation, what is taken as a text, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_encoders import WIDTH, write_encoder
from tiny_model import write_tiny

import puna
from puna.embedding import normalized, texts_of
from puna.errors import ModelError, PunaError, RequestError
from puna.graph import Node, make
from puna.models.registry import looks_back

MEAN, CLS, LAST, RANK = 1, 2, 3, 4
TEXTS = [[5, 6, 7, 8], [9], [10, 11, 5, 5, 6, 7]]
CLASSIFIER = {"cls.weight": (WIDTH, WIDTH), "cls.bias": (WIDTH,), "cls.output.weight": (3, WIDTH)}


def loaded(path: Path, **options: Any) -> puna.Model:
    return puna.load(path, backend="reference", threads=1, **options)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> puna.Model:
    """BERT that gives a vector for each token."""
    return loaded(write_encoder(tmp_path_factory.mktemp("model") / "x.gguf"))


def test_a_text_alone_and_with_others(encoder: puna.Model) -> None:
    """Texts side by side in a step give what each gives alone."""
    together = encoder.embed(TEXTS, -1)
    assert together.shape == (sum(map(len, TEXTS)), WIDTH)
    assert together.dtype == np.float32
    close(together, np.concatenate([encoder.embed(text, -1) for text in TEXTS]))


@pytest.mark.parametrize(
    ("number", "pool"), [(MEAN, lambda x: x.mean(0)), (CLS, lambda x: x[0]), (LAST, lambda x: x[-1])]
)
def test_poolings(number: int, pool: Any, encoder: puna.Model, tmp_path: Path) -> None:
    """The file's pooling makes one vector of a text's rows; another may be asked for."""
    rows = [encoder.embed(text, -1) for text in TEXTS]
    path = write_encoder(tmp_path / "x.gguf", pooling=number)
    close(loaded(path).embed(TEXTS, -1), np.stack([pool(part) for part in rows]))
    close(loaded(path, pooling="cls").embed(TEXTS, -1), np.stack([part[0] for part in rows]))


def test_scores_of_a_classifier(encoder: puna.Model, tmp_path: Path) -> None:
    """Rank pooling gives what the classifier makes of the first token, and leaves it as it is."""
    path = write_encoder(tmp_path / "x.gguf", pooling=RANK, extra=CLASSIFIER)
    model = loaded(path)
    w, b, out = (stored(path, name) for name in CLASSIFIER)
    firsts = np.stack([encoder_rows(path, text)[0] for text in TEXTS])
    close(model.embed(TEXTS), np.tanh(firsts @ w.T + b) @ out.T)
    close(loaded(path, pooling="cls").embed(TEXTS, -1), firsts)
    with pytest.raises(ModelError, match="has no classifier; use another pooling"):
        loaded(write_encoder(tmp_path / "y.gguf"), pooling="rank")


def stored(path: Path, name: str) -> np.ndarray:
    from puna.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        return file.data(name).view(np.float32).reshape(file.tensors[name].shape).copy()


def encoder_rows(path: Path, text: list[int]) -> np.ndarray:
    return loaded(path, pooling="none").embed(text, -1)


def test_dense_layers_after_the_pooling(tmp_path: Path) -> None:
    """Dense layers of a file make its vectors, of another width."""
    path = write_encoder(
        tmp_path / "x.gguf", pooling=MEAN, extra={"dense_2.weight": (96, WIDTH), "dense_3.weight": (32, 96)}
    )
    plain = loaded(write_encoder(tmp_path / "y.gguf", pooling=MEAN)).embed(TEXTS, -1)
    close(
        loaded(path).embed(TEXTS, -1),
        plain @ stored(path, "dense_2.weight").T @ stored(path, "dense_3.weight").T,
    )


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (0, lambda x: np.abs(x).max(-1) / 32760.0),
        (1, lambda x: np.abs(x).sum(-1)),
        (2, lambda x: np.linalg.norm(x, axis=-1)),
        (3, lambda x: (np.abs(x) ** 3).sum(-1) ** (1 / 3)),
        (500, lambda x: np.abs(x).max(-1)),
    ],
)
def test_normalised(kind: int, size: Any) -> None:
    """Each row over its size by that norm; zeros stay zeros."""
    x = np.random.default_rng(1).standard_normal((4, 40)).astype(np.float32)
    x[2] = 0.0
    want = x / np.maximum(size(x), 1e-9)[:, None]
    np.testing.assert_allclose(normalized(x, kind), want, rtol=1e-5 if kind < 500 else 1e-2)
    assert normalized(x, -1) is x


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("ab", [[2]]),
        (["a", "abc"], [[1], [3]]),
        ([4, 5], [[4, 5]]),
        ([[4, 5], "ab"], [[4, 5], [2]]),
        (np.array([4, 5]), [[4, 5]]),
    ],
)
def test_what_is_a_text(given: Any, texts: list[list[int]]) -> None:
    """A text, ids, or several of either."""
    found: Sequence[Sequence[int]] = texts_of(given, lambda text: [len(text)])
    assert [list(map(int, text)) for text in found] == texts


@pytest.mark.parametrize(("given", "where"), [([], "texts"), ("", r"texts\[0\]"), ([[1], []], r"texts\[1\]")])
def test_nothing_to_embed(given: Any, where: str) -> None:
    """No text, or one without a token, is refused by its place."""
    with pytest.raises(RequestError, match=f"^{where}: there is nothing to embed"):
        texts_of(given, lambda text: [1] * len(text))


def test_words_of_a_text(encoder: puna.Model) -> None:
    """A text's vectors are those of its ids, marks included."""
    ids = encoder.tokenize("The cats sat.")
    assert [encoder.tokenizer.token_text(i) for i in ids][1:3] == ["\u2581the", "\u2581cat"]
    np.testing.assert_array_equal(encoder.embed("The cats sat."), encoder.embed(ids))
    assert encoder.detokenize(ids) == "the cats sat ."


def test_more_texts_than_fit_a_step(tmp_path: Path) -> None:
    """Many texts are computed in as many steps as they take."""
    model = loaded(write_encoder(tmp_path / "x.gguf", pooling=CLS), n_ctx=128, n_batch=16)
    texts = [[5 + n % 10] * (1 + n % 16) for n in range(40)]
    got = model.embed(texts, -1)
    close(got, np.concatenate([model.embed(text, -1) for text in texts]))
    assert not model.cache.sequences


def test_a_long_text_of_a_causal_model(tmp_path: Path) -> None:
    """A model that writes embeds too, when it is asked to; a text longer than a step takes several."""
    path = write_tiny(tmp_path / "x.gguf")
    ids = [n % 250 for n in range(100)]
    for pooling in ("none", "mean", "last", "cls"):
        whole = loaded(path, pooling=pooling).embed(ids, -1)
        close(loaded(path, pooling=pooling, n_batch=7).embed(ids, -1), whole)
    assert loaded(path, pooling="auto").config.pooling == "none"


def test_what_a_model_does_not_give(encoder: puna.Model, tmp_path: Path) -> None:
    """Logits and text of a model that embeds, and vectors of one that writes, are refused with what to do."""
    for ask in (encoder.logits, encoder.generate):
        with pytest.raises(RequestError, match=r"bert: the model gives embeddings, no \w+; use puna embed"):
            ask([5, 6])
    with pytest.raises(RequestError, match=r'loaded to give logits; load it with pooling="auto"'):
        loaded(write_tiny(tmp_path / "x.gguf")).embed("a")
    with pytest.raises(RequestError, match="no pooling is called 'max'; use auto or one of none, mean"):
        loaded(write_encoder(tmp_path / "y.gguf"), pooling="max")


def test_texts_that_are_too_long(tmp_path: Path) -> None:
    """A text whose tokens all see each other takes one step; none is longer than the context."""
    path = write_encoder(tmp_path / "x.gguf")
    with pytest.raises(RequestError, match=r"^9 tokens that all see each other take one step, .* 8 at most"):
        loaded(path, n_batch=8).embed([5] * 9)
    with pytest.raises(RequestError, match="129 tokens do not fit the context of 128"):
        loaded(path).embed([[5], [5] * 129])
    with pytest.raises(PunaError, match="knows 128 positions, not 129; use a context"):
        loaded(path, n_ctx=129)
    with pytest.raises(RequestError, match="token id 99 is not in the vocabulary"):
        loaded(path).embed([5, 99])


def test_models_that_look_back_alone(tmp_path: Path) -> None:
    """A file may make any attention see ahead, but nothing else: a state goes from one token to the next."""
    keys = {"llama.attention.causal": False}
    model = loaded(write_tiny(tmp_path / "x.gguf", metadata=keys))
    logits = model.logits([5, 6, 7])
    assert not np.allclose(logits[0], model.logits([5, 6, 8])[0])
    state = make("weight", tensor="x", dtype="F32", shape=(4,))
    assert not looks_back(state)
    assert looks_back(Node("scan", (), state.type, {"state": "s"}))


def test_a_pooling_that_does_not_exist(tmp_path: Path) -> None:
    """A file's number of a pooling that there is not is refused by its key."""
    with pytest.raises(ModelError, match=r"'bert\.pooling_type': no pooling has the number 9"):
        loaded(write_encoder(tmp_path / "x.gguf", pooling=9))
    assert loaded(write_encoder(tmp_path / "y.gguf", pooling=2**32 - 1)).config.pooling == "none"

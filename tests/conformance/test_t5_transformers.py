"""T5 against transformers itself: random weights in a folder, converted on the spot, the same vectors and logits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from arch_files import CACHES, error

import puna
from puna.convert import convert

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and transformers

LARGEST_ERROR = 1e-6  # normalised mean squared error; the reference backend's is some 1e-11
TOKENS, LENGTHS, ANSWER = 96, (7, 200), 40
BASE: Mapping[str, Any] = {
    "vocab_size": TOKENS,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
GATED = {"feed_forward_proj": "gated-gelu"}
# Name -> class of the model, and what its configuration says beyond BASE.
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "encoder": ("T5EncoderModel", {}),
    "encoder 1.1": ("T5EncoderModel", {**GATED, "d_kv": 24}),
    "encoder UMT5": ("UMT5EncoderModel", GATED),
    "T5": ("T5ForConditionalGeneration", {}),
    "T5 1.1": (
        "T5ForConditionalGeneration",
        {**GATED, "tie_word_embeddings": False, "num_layers": 2, "num_decoder_layers": 4},
    ),
    "mT5": ("MT5ForConditionalGeneration", GATED),
    "UMT5": ("UMT5ForConditionalGeneration", {**GATED, "num_decoder_layers": 3}),
}


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a folder of these tests, nothing is looked up on the hub, and no bar is drawn."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("code")
    with (
        mock.patch("platformdirs.user_cache_path", return_value=folder),
        mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}),
    ):
        yield


def random_model(name: str) -> Any:
    cls = getattr(transformers, CASES[name][0])
    torch.manual_seed(1)
    model = cls(cls.config_class(**{**BASE, **CASES[name][1]})).eval().float()
    with torch.no_grad():
        for values in model.parameters():
            values.copy_(torch.randn_like(values) * 0.15 + float(values.ndim == 1))
    return model


def converted(model: Any, folder: Path) -> Path:
    """The model's GGUF file, with a vocabulary of words that end with their numbers."""
    model.save_pretrained(folder)
    words = ["<pad>", "</s>", "<unk>", *(f"\u2581{n}" for n in range(3, TOKENS))]
    pieces = [[word, -float(n)] for n, word in enumerate(words)]
    steps = {"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}}
    single = [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]
    steps["post_processor"] = {"type": "TemplateProcessing", "single": single}
    unigram = {"type": "Unigram", "unk_id": 2, "vocab": pieces}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], **steps, "model": unigram}))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return convert(folder, folder / "x.gguf", outtype="f32").path


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_transformers(name: str, tmp_path: Path) -> None:
    """Vectors of texts, or logits of answers to them, are those of transformers, on both backends."""
    theirs, rng = random_model(name), np.random.default_rng(0)
    path = converted(theirs, tmp_path / "x")
    texts = [rng.integers(3, TOKENS, count) for count in LENGTHS]
    ids = np.array([0, *rng.integers(3, TOKENS, ANSWER - 1)])
    for backend in ("reference", "cpu"):
        ours = puna.load(path, backend=backend, threads=1, **CACHES)
        assert ours.tokenize("5 9") == [5, 9, 1]
        for text in texts:
            given, answer = torch.tensor(text)[None], torch.tensor(ids)[None]
            with torch.no_grad():
                if name.startswith("encoder"):
                    got, want = ours.embed(text, -1), theirs(given).last_hidden_state[0].numpy()
                else:
                    want = theirs(input_ids=given, decoder_input_ids=answer).logits[0].numpy()
                    got, sequence = np.empty_like(want), ours.cache.open()
                    ours.encode(sequence, text)
                    ours.run(sequence, ids, range(ANSWER), got)
                    ours.cache.close(sequence)
            assert error(got, want) <= LARGEST_ERROR


@pytest.mark.parametrize("name", ["T5", "mT5"])
def test_answers_are_transformers(name: str, tmp_path: Path) -> None:
    """What is generated, always the likeliest token, is what transformers generates."""
    theirs = random_model(name)
    ours = puna.load(converted(theirs, tmp_path / "x"), backend="reference", threads=1)
    text = np.random.default_rng(1).integers(3, TOKENS, 20).tolist()
    made = ours.stream(text, 20, temp=0.0)
    assert "".join(made)
    whole = theirs.generate(torch.tensor([text]), max_new_tokens=20, do_sample=False)[0].tolist()
    assert made.ids == whole[1:]


def test_an_encoder_out_of_a_whole(tmp_path: Path) -> None:
    """A folder with a decoder gives the encoder alone where config.json names that class; the rest is told."""
    theirs = random_model("T5")
    converted(theirs, tmp_path / "x")
    config = tmp_path / "x" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["T5EncoderModel"]}))
    done = convert(tmp_path / "x", tmp_path / "y.gguf", outtype="f32")
    assert any("decoder.block.0" in note for note in done.notes)
    text = list(range(3, 30))
    got = puna.load(done.path, backend="reference", threads=1).embed(text, -1)
    with torch.no_grad():
        want = theirs.encoder(torch.tensor([text])).last_hidden_state[0].numpy()
    assert error(got, want) <= LARGEST_ERROR

"""Real models against ../shared/refs: the ids of texts, special tokens added and parsed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from puna.gguf import GGUFFile
from puna.settings import Settings
from puna.tokenizer import load

REFS = Path(__file__).resolve().parents[3] / "shared" / "refs"
MODELS = {"smollm2": "smollm2-135m", "gemma3": "gemma3-270m"}


@pytest.mark.parametrize("name", MODELS)
def test_ids_of_texts(name: str) -> None:
    """Every text has llama.cpp's ids, and comes back from them where they hold no control token of its own."""
    path = Settings.from_environment().models / f"{MODELS[name]}.gguf"
    if not REFS.exists():
        pytest.skip("reference data ../shared/refs is not here")
    if not path.exists():
        pytest.skip(f"{path.stem} is not pulled: puna pull {MODELS[name].replace('-', ':')}")
    with GGUFFile.open(path) as file:
        tokenizer = load(file.metadata)
    for text, ids in json.loads((REFS / f"{name}.json").read_text(encoding="utf-8"))["tokens"].items():
        assert tokenizer.encode(text) == ids, repr(text)
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text

"""Vocabularies that do not fit the model's tables, and tokenizers that are still being built when a load fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import VOCABULARIES, write_tiny

import puna
from puna.errors import ModelError, RequestError
from puna.gguf import GGUFFile, Metadata, Value, ValueType
from puna.planning import prepare

ARRAYS = ("tokens", "token_type", "scores")
SLOW = """
import sys, time
from puna import engine, vocabulary

def slow(metadata):
    time.sleep(0.5)
    print("built", flush=True)

vocabulary.tokenizer.load = slow
try:
    engine.load(sys.argv[1], backend="nothing")
except Exception as error:
    print("refused", flush=True)
    sys.exit(3)
"""


def write(path: Path, more: int, **options: Any) -> Path:
    """A model whose vocabulary has so many tokens more than its tables rows, or less."""
    keys, changed = VOCABULARIES["spm"](), dict[str, Any]()
    fill: dict[str, Any] = {
        "tokens": [f"more{n}" for n in range(more)],
        "token_type": [1] * more,
        "scores": [0.0] * more,
    }
    for name in ARRAYS:
        held = keys[f"tokenizer.ggml.{name}"]
        kind = held.type if isinstance(held, Value) else ValueType.STRING
        values = list(held.value if isinstance(held, Value) else held)
        changed[f"tokenizer.ggml.{name}"] = Value(kind, [*values[: more if more < 0 else None], *fill[name]])
    return write_tiny(path, vocab="spm", chat_template=None, metadata=changed, **options)


def test_tokens_without_rows_are_an_error_at_load(tmp_path: Path) -> None:
    """Both numbers and the tensor are named, by `puna plan` too."""
    path, rows = write(tmp_path / "m.gguf", 4), len(VOCABULARIES["spm"]()["tokenizer.ggml.tokens"])
    said = rf"the vocabulary has {rows + 4} tokens, and tensor 'token_embd\.weight' rows for {rows}; convert"
    with pytest.raises(ModelError, match=said):
        puna.load(path, backend="reference")
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match=said):
        prepare(file, backend="reference")


def test_rows_without_tokens_are_never_chosen(tmp_path: Path) -> None:
    """Even where they score highest; a note says so, and no prompt or bias has their ids."""
    path = write(tmp_path / "m.gguf", -3, follow={"a": "<|im_end|>", "b": "c"})
    model = puna.load(path, backend="reference")
    tokens = model.tokenizer.vocab_size
    assert model.n_vocab == tokens + 3
    note = f"tensor 'token_embd.weight' has {tokens + 3} rows, and the vocabulary {tokens} tokens"
    assert sum(line.startswith(note) for line in model.notes) == 1
    ids = [VOCABULARIES["spm"]()["tokenizer.ggml.tokens"].index("a")]
    assert np.argmax(model.logits(ids)[-1]) >= tokens
    for options in ({"temp": 0.0}, {"temp": 5.0, "top_k": 0, "seed": 1}, {"mirostat": 2, "seed": 1}):
        stream = model.stream(ids, 20, **options)  # type: ignore[arg-type]
        assert all(token < tokens for _ in stream for token in stream.ids)
        assert stream.ids
    for prompt, how in (([tokens], {}), (ids, {"logit_bias": {tokens: 1.0}})):
        with pytest.raises(RequestError, match="vocabulary"):
            model.generate(prompt, 2, **how)
    with puna.load(path, backend="reference").scheduler() as scheduler:
        assert "".join(scheduler.stream(ids, 2, temp=0.0)) == model.generate(ids, 2, temp=0.0)


def test_no_note_where_nothing_is_chosen_or_all_have_tokens(tmp_path: Path) -> None:
    """A model that fits, one without a vocabulary, and one that embeds load without a word."""
    for path, options in (
        (write(tmp_path / "fits.gguf", 0), {}),
        (write_tiny(tmp_path / "none.gguf", vocab="none"), {}),
        (write(tmp_path / "embeds.gguf", -3), {"pooling": "mean"}),
    ):
        assert not any("rows" in note for note in puna.load(path, backend="reference", **options).notes)


def test_an_array_is_counted_without_decoding() -> None:
    """Metadata.count: the elements of an array, 0 for what is none."""
    metadata = Metadata.of({"a": ["x", "y"], "b": 3, "c": np.zeros(5, np.int32)})
    assert [metadata.count(key) for key in ("a", "b", "c", "d")] == [2, 0, 5, 0]


def test_a_process_waits_for_a_tokenizer_that_is_being_built(tmp_path: Path) -> None:
    """A load that fails says so at once; its thread has left native code when the interpreter goes."""
    path = write_tiny(tmp_path / "m.gguf")
    done = subprocess.run([sys.executable, "-c", SLOW, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (3, ["refused", "built"], "")

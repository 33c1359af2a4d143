"""Errors that say the real reason at once: what a model cannot do, and how many positions it knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import puna
from random_encoders import TRAINED, write_encoder
from random_t5 import write_t5
from tiny_model import write_tiny

import puna as engine
from puna.errors import RequestError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with a table of positions, an encoder-decoder, and a text that is long for both."""
    path = tmp_path_factory.mktemp("models")
    write_encoder(path / "bert.gguf", "bert")
    write_t5(path / "t5.gguf")
    both_ways = {"qwen2.attention.causal": False}
    write_tiny(path / "both.gguf", architecture="qwen2", chat_template=None, metadata=both_ways)
    (path / "long.txt").write_text("a b c " * 400)
    return path


@pytest.mark.parametrize("command", ["chat", "perplexity", "imatrix"])
def test_an_encoder_gives_no_text_and_no_logits(folder: Path, command: str) -> None:
    """That is said before anything of templates and contexts."""
    words = ("-f", folder / "long.txt", "--backend", "reference")
    error = puna(command, folder / "bert.gguf", *words).error
    assert (
        error
        == f"bert: the model gives embeddings, no {'text' if command == 'chat' else 'logits'}; use puna embed"
    )


def test_who_fills_texts_in_does_not_talk(folder: Path) -> None:
    """A model whose tokens see those after them is no matter of a chat template."""
    assert "it fills texts in, and does not continue them" in puna("chat", folder / "both.gguf").error


def test_an_encoder_decoder_is_not_timed(folder: Path) -> None:
    """`puna bench` says so before its table; of a model that sees both ways it times prompts alone."""
    done = puna("bench", folder / "t5.gguf", "-p", 8, "-n", 2, "-r", 1)
    assert done.error.endswith(
        "t5.gguf: bench does not run encoder-decoders; time its encoder, converted alone"
    )
    assert not done.out
    done = puna("bench", folder / "both.gguf", "-p", 8, "-n", 2, "-r", 1)
    assert done.error.endswith("no text is gone on with; give -n 0, and no -pg or -d")
    assert not done.out


def test_a_text_beyond_the_table_of_positions(folder: Path) -> None:
    """No longer context is advised where the model knows no more positions."""
    error = puna("embed", folder / "bert.gguf", "-f", folder / "long.txt", "--embd-separator", "|").error
    assert error.endswith(
        f"do not fit the context of {TRAINED}; give less: the model knows {TRAINED} positions"
    )
    model = engine.load(folder / "bert.gguf", backend="reference", n_ctx=64)
    with pytest.raises(RequestError, match=r"of 64; raise n_ctx \(-c\)$"):
        model.embed([[5] * 100])
    assert model.positions == TRAINED


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ((), "or raise both n_batch (-b) and n_ctx (-c) to {} or more"),
        (("-c", 2048), "or raise n_batch (-b) to {} or more"),
        (("-b", 4096), "or raise both n_batch (-b) and n_ctx (-c) to {} or more"),
    ],
)
def test_a_step_is_what_batch_and_context_allow(
    folder: Path, options: tuple[object, ...], advice: str
) -> None:
    """What has to be encoded as a whole names each option that bounds it."""
    error = puna("run", folder / "t5.gguf", "-f", folder / "long.txt", *options).error
    count = error.split()[0]
    assert int(count) > 1000
    assert error.endswith("give a shorter text, " + advice.format(count))


def test_the_advice_is_right(folder: Path) -> None:
    """What is advised of -b and -c makes the text fit."""
    words = ("run", folder / "t5.gguf", "-f", folder / "long.txt", "-n", 1)
    count = int(puna(*words).error.split()[0])
    assert puna(*words, "-b", count, "-c", count + 8).status == 0


def test_an_encoder_decoder_gives_no_embeddings(folder: Path) -> None:
    """It is not sent to a pooling that is refused."""
    model = engine.load(folder / "t5.gguf", backend="reference")
    with pytest.raises(
        RequestError, match="an encoder-decoder gives no embeddings; convert its encoder alone"
    ):
        model.embed("a")


def test_a_prompt_that_is_computed_again_says_why(tmp_path: Path) -> None:
    """A prompt cache of a model with a state tells how much of the same prompt it could use, and why not all."""
    path = write_tiny(tmp_path / "m.gguf", architecture="lfm2")
    for prompt, used in (("abcdef", 0), ("abcde " * 20, 64)):
        words = ("run", path, "-p", prompt, "-n", 1, "--prompt-cache", tmp_path / f"kept{used}")
        assert "were used" not in puna(*words).err
        again = puna(*words).err
        assert (
            f" of the prompt are in {tmp_path / f'kept{used}'}, and {used} were used: a state is kept at"
            in again
        )
    other = write_tiny(tmp_path / "o.gguf")
    words = ("run", other, "-p", "abcdef", "-n", 1, "--prompt-cache", tmp_path / "kept")
    assert puna(*words).status == puna(*words).status == 0
    assert "were used" not in puna(*words).err

"""The whole path on a model made in code: load, tokenise, build the graph, plan, execute, sample."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import ALPHABET, HEADS, HEADS_KV, write_tiny

import puna
from puna.errors import BackendError, RequestError, TokenizerError
from puna.gguf import GGUFFile
from puna.quants import dequantize

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]


def load(path: Path, **options: Any) -> puna.Model:
    return puna.load(path, backend="reference", **options)


@pytest.fixture
def alphabet(tmp_path: Path) -> puna.Model:
    """A model that says the alphabet after a new line and ends after z."""
    return load(write_tiny(tmp_path / "alphabet.gguf", follow=ALPHABET))


class Plain:
    """Llama in float64, one position at a time, written from the paper and sharing no line with the engine."""

    def __init__(self, path: Path) -> None:
        with GGUFFile.open(path) as file:
            self.w = {
                n: dequantize(t.quant, file.data(n)).astype(np.float64) for n, t in file.tensors.items()
            }
        self.keys: list[list[np.ndarray]] = [[], []]
        self.values: list[list[np.ndarray]] = [[], []]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x) + 1e-5) * self.w[name]

    def rotate(self, head: np.ndarray, position: int) -> np.ndarray:
        pairs = head[0::2] + 1j * head[1::2]
        turned = pairs * np.exp(1j * position * 10000.0 ** (-np.arange(len(pairs)) / len(pairs)))
        return np.stack([turned.real, turned.imag], axis=1).reshape(-1)

    def step(self, token: int, position: int) -> np.ndarray:
        x = self.w["token_embd.weight"][token]
        for i in range(2):
            y = self.norm(x, f"blk.{i}.attn_norm.weight")
            q, k, v = (self.w[f"blk.{i}.attn_{n}.weight"] @ y for n in "qkv")
            q, k, v = q.reshape(HEADS, -1), k.reshape(HEADS_KV, -1), v.reshape(HEADS_KV, -1)
            self.keys[i].append(np.array([self.rotate(h, position) for h in k]))
            self.values[i].append(v)
            out = []
            for head in range(HEADS):
                past = np.array([key[head // 2] for key in self.keys[i]])
                scores = past @ self.rotate(q[head], position) / np.sqrt(q.shape[1])
                share = np.exp(scores - scores.max())
                out.append(share / share.sum() @ np.array([value[head // 2] for value in self.values[i]]))
            x = x + self.w[f"blk.{i}.attn_output.weight"] @ np.concatenate(out)
            y = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = self.w[f"blk.{i}.ffn_gate.weight"] @ y
            up = self.w[f"blk.{i}.ffn_up.weight"] @ y
            x = x + self.w[f"blk.{i}.ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        return self.w["output.weight"] @ self.norm(x, "output_norm.weight")


@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0", "Q4_1"])
def test_logits_of_a_plain_implementation(quant: str, tmp_path: Path) -> None:
    """A Llama written out in float64 gives the same logits, whatever the weights are stored as."""
    path = write_tiny(tmp_path / "m.gguf", quant=quant)
    ids = np.random.default_rng(3).integers(0, 280, 100).tolist()
    plain = Plain(path)
    want = np.array([plain.step(token, i) for i, token in enumerate(ids)])
    got = load(path).logits(ids)
    assert np.mean((got - want) ** 2) <= 1e-10 * np.mean(want**2)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_agree(architecture: str, tmp_path: Path) -> None:
    """Whole, in chunks of 7 and one by one, over more than one page and beyond the sliding window."""
    model = load(write_tiny(tmp_path / "m.gguf", architecture=architecture))
    ids = np.random.default_rng(5).integers(0, 280, 150).tolist()
    whole = model.logits(ids)
    for batch in (7, 1):
        np.testing.assert_allclose(model.logits(ids, batch=batch), whole, atol=1e-3 * np.abs(whole).max())
        error = np.mean((model.logits(ids, batch=batch) - whole) ** 2)
        assert error <= 1e-10 * np.mean(whole**2)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_neighbours_do_not_matter(architecture: str, tmp_path: Path) -> None:
    """Two sequences in one step, one deep and one new, get the logits that each gets alone."""
    model = load(write_tiny(tmp_path / "m.gguf", architecture=architecture))
    rng = np.random.default_rng(6)
    first, second = rng.integers(0, 280, 80).tolist(), rng.integers(0, 280, 9).tolist()
    alone = [model.logits(first)[-1], model.logits(second)[-1]]
    a, b = model.cache.open(), model.cache.open()
    model.step(a, first[:-1])
    together = np.empty((2, model.n_vocab), np.float32)
    batch = model.cache.append((a, first[-1:]), (b, second), outputs=[0, len(second)])
    model.backend.run(model.program, batch, together)
    for got, want in zip(together, alone, strict=True):
        assert np.mean((got - want) ** 2) <= 1e-10 * np.mean(want**2)


@pytest.mark.parametrize(("k", "v"), [("f16", "f16"), ("bf16", "f32"), ("q8_0", "q8_0"), ("q8_0", "f16")])
def test_cache_types(k: str, v: str, tmp_path: Path) -> None:
    """Smaller cache types take less memory and stay close."""
    path = write_tiny(tmp_path / "m.gguf", quant="Q8_0")
    ids = list(range(100))
    want, model = load(path).logits(ids), load(path, cache_type_k=k, cache_type_v=v)
    got = model.logits(ids)
    assert 0 < np.mean((got - want) ** 2) <= 3e-3 * np.mean(want**2)
    assert model.memory["kv"] < load(path).memory["kv"]


def test_reading_without_a_mapping(tmp_path: Path) -> None:
    """mmap=False gives the same logits."""
    path = write_tiny(tmp_path / "m.gguf")
    np.testing.assert_array_equal(load(path, mmap=False).logits([1, 2, 3]), load(path).logits([1, 2, 3]))


def test_generation(alphabet: puna.Model) -> None:
    """Greedy generation says the alphabet and stops at the end token, which is not shown."""
    stream = alphabet.stream("\n", 100, temp=0)
    assert "".join(stream) == "abcdefghijklmnopqrstuvwxyz"
    assert stream.finish_reason == "stop"
    assert (stream.timings.prompt_tokens, stream.timings.tokens) == (1, 27)
    assert alphabet.cache.sequences == []


def test_limits(alphabet: puna.Model) -> None:
    """n_predict, stop strings and the context each end it, and say so."""
    stream = alphabet.stream("\n", 3, temp=0)
    assert ("".join(stream), stream.finish_reason) == ("abc", "length")
    stream = alphabet.stream("\n", 0, temp=0)
    assert ("".join(stream), stream.finish_reason) == ("", "length")
    stream = alphabet.stream("\n", 100, temp=0, stop=["fg", "zz"])
    assert ("".join(stream), stream.finish_reason) == ("abcde", "stop")
    assert alphabet.generate("\n", 4, temp=0) == "abcd"


def test_a_full_context_ends_generation(tmp_path: Path) -> None:
    """Without a limit, generation goes on until the context is full, and the last token is still given."""
    model = load(write_tiny(tmp_path / "m.gguf", follow={"a": "b", "b": "a"}), n_ctx=10)
    stream = model.stream("a", -1, temp=0)
    assert ("".join(stream), stream.finish_reason) == ("bababababa", "length")


def test_an_open_sequence_is_reused(alphabet: puna.Model) -> None:
    """A second prompt that begins as the first is computed from where they part, with the same result."""
    sequence = alphabet.cache.open()
    list(alphabet.stream("\nabc", 3, temp=0, sequence=sequence))
    again = alphabet.stream("\nabcdxy", 2, temp=0, sequence=sequence)
    assert "".join(again) == "z"
    assert again.timings.cached == 5
    repeated = alphabet.stream("\nabcdxy", 2, temp=0, sequence=sequence)
    assert "".join(repeated) == "z"
    assert repeated.timings.cached == 6


def test_closing_early_frees_the_cache(alphabet: puna.Model) -> None:
    """A stream that is dropped half way leaves no sequence behind; one never begun takes none."""
    stream = alphabet.stream("\n", 100, temp=0)
    next(stream)
    stream.close()
    alphabet.stream("\n", 100, temp=0).close()
    assert alphabet.cache.sequences == []


def test_same_seed_same_text(tmp_path: Path) -> None:
    """Sampling repeats with its seed and differs between seeds."""
    model = load(write_tiny(tmp_path / "m.gguf"))
    texts = [model.generate("the", 20, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_chat(alphabet: puna.Model) -> None:
    """The reply comes after what the model's own template writes."""
    messages = [{"role": "user", "content": "hi"}]
    prompt = alphabet.detokenize(alphabet.chat_ids(messages))
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert alphabet.chat(messages, temp=0) == "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 999999], "token id 999999 is not in the vocabulary"),
        ([-1], "token id -1 is not in the vocabulary"),
        (range(65), "65 tokens do not fit the context of 64"),
    ],
)
def test_impossible_ids(ids: list[int], message: str, tmp_path: Path) -> None:
    """Ids out of range and too many ids are refused with the numbers."""
    model = load(write_tiny(tmp_path / "m.gguf"), n_ctx=64)
    with pytest.raises(RequestError, match=message):
        model.logits(ids)


def test_impossible_requests(alphabet: puna.Model) -> None:
    """Empty prompts, prompts longer than the context and batches of nothing are refused in one line."""
    with pytest.raises(RequestError, match="the prompt is empty"):
        alphabet.generate("")
    with pytest.raises(RequestError, match=r"the prompt has 400 tokens, the context 256"):
        alphabet.generate("a" * 400)
    with pytest.raises(RequestError, match="batch: 0"):
        alphabet.logits([1], batch=0)
    with pytest.raises(RequestError):
        alphabet.generate("a", temp=float("nan"))
    assert alphabet.logits([]).shape == (0, alphabet.n_vocab)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_ctx": -1}, RequestError, "n_ctx"),
        ({"n_batch": 0}, RequestError, "n_batch"),
        ({"cache_type_k": "q9"}, BackendError, "no KV cache of type 'q9'"),
        ({"n_ctx": 2_000_000_000}, BackendError, "needs .* of memory .* are free"),
        ({"backend": "fpga"}, BackendError, "no backend is called 'fpga'"),
        ({"threads": 0}, RequestError, "threads"),
    ],
)
def test_impossible_options(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    """Options that cannot be honoured are refused before anything is loaded."""
    with pytest.raises(error, match=message):
        puna.load(write_tiny(tmp_path / "m.gguf"), **{"backend": "reference", **options})


def test_context(tmp_path: Path) -> None:
    """The context is the model's own by default, and one beyond its training is said to be."""
    path = write_tiny(tmp_path / "m.gguf", n_ctx=96)
    assert load(path).n_ctx == load(path, n_ctx=0).n_ctx == 96
    assert any("exceeds the 96 that" in note for note in load(path, n_ctx=128).notes)


def test_a_model_without_a_vocabulary_runs_on_ids(tmp_path: Path) -> None:
    """Logits need no tokenizer; what needs one says what is missing."""
    model = load(write_tiny(tmp_path / "m.gguf", vocab="none"))
    assert model.logits([1, 2]).shape == (2, 300)
    with pytest.raises((TokenizerError, puna.errors.ModelError), match="tokenizer"):
        model.tokenize("a")


def test_tokenizer_alone(tmp_path: Path) -> None:
    """load_tokenizer gives the ids that the model gives."""
    path = write_tiny(tmp_path / "m.gguf", vocab="spm")
    alone, model = puna.load_tokenizer(path), load(path)
    assert alone.tokenize("the end") == model.tokenize("the end")
    assert alone.detokenize(alone.tokenize("the end")) == "the end"


def test_memory_is_what_is_allocated(tmp_path: Path) -> None:
    """The planned regions are the arrays that the program holds."""
    model = load(write_tiny(tmp_path / "m.gguf", quant="F16"), n_batch=32)
    program: Any = model.program
    assert model.memory["weights"] == sum(w.nbytes for w in program.weights.values())
    assert model.memory["compute"] == program.compute.nbytes + 4 * model.n_vocab
    assert model.memory["kv"] == sum(part.nbytes for pair in program.cache.values() for part in pair)
    assert model.memory["scratch"] == program.scratch.nbytes


def test_a_generation_that_is_dropped_gives_its_room_back(alphabet: puna.Model) -> None:
    """A loop that breaks off leaves nothing for the garbage collector to find."""
    room, enabled = alphabet.cache.room(), gc.isenabled()
    gc.disable()
    try:
        for _ in alphabet.stream("ab", 20):
            break
        assert alphabet.cache.sequences == []
        assert alphabet.cache.room() == room
    finally:
        if enabled:
            gc.enable()


def test_a_known_beginning_is_not_computed_again(tmp_path: Path) -> None:
    """A prompt that begins like an earlier one takes up its pages: the same bits, and the timings say how many."""
    model, other = (puna.load(write_tiny(tmp_path / "m.gguf"), backend="cpu", n_ctx=256) for _ in range(2))
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 200, 150)]
    list(model.stream(ids, 2, temp=0))
    again = model.stream([*ids[:140], 7], 5, temp=0)
    fresh = other.stream([*ids[:140], 7], 5, temp=0)
    assert list(again) == list(fresh)
    assert again.ids == fresh.ids
    assert (again.timings.cached, fresh.timings.cached) == (128, 0)
    assert "do not fill a page" in again.timings.uncached


@pytest.mark.parametrize(
    ("ids", "rows", "shape", "kind"),
    [
        ([300_000], [0], (1, None), np.float32),
        ([-1], [0], (1, None), np.float32),
        ([1, 2], [2], (1, None), np.float32),
        ([1], [0], (2, None), np.float32),
        ([1], [0], (1, 5), np.float32),
        ([1], [0], (1, None), np.float64),
    ],
)
def test_steps_that_cannot_be(
    ids: list[int], rows: list[int], shape: tuple[int, int | None], kind: type, alphabet: puna.Model
) -> None:
    """A step with ids, rows or memory for logits that do not fit is refused before it begins."""
    sequence = alphabet.cache.open()
    out: Any = np.empty((shape[0], shape[1] or alphabet.n_vocab), kind)
    with pytest.raises(RequestError):
        alphabet.run(sequence, ids, rows, out)
    assert len(sequence) == 0

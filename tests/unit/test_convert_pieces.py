"""SentencePiece vocabularies of a folder as metadata: from tokenizer.model, and from a tokenizer.json made of one."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_folders import CONFIG, write_json
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as Library

from puna.convert import prepare
from puna.convert.vocabulary import proto
from puna.errors import FormatError, PunaError
from puna.gguf import Metadata
from puna.tokenizer import load
from puna.tokenizer.sentence_piece import message, number

SPACE = "\u2581"
CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "pack my box with five dozen liquor jugs, the quicker the better",
    "how  vexingly quick daft zebras jump; 123 456 ... the end",
) * 4
TEXTS = ("the quick  fox", " a", "", "  ", "zebras jump 12\n\tover ünïcode 我", "jugs, the\n\n quicker")


def trained(path: Path, kind: str = "bpe", **options: Any) -> SentencePieceProcessor:
    """A model trained on a few lines, written as tokenizer.model beside a config.json."""
    path.mkdir()
    writer = io.BytesIO()
    SentencePieceTrainer.Train(
        sentence_iterator=iter(CORPUS),
        model_writer=writer,
        model_type=kind,
        minloglevel=2,
        **{
            "vocab_size": 400 if kind == "bpe" else 300,
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "hard_vocab_limit": False,
            **options,
        },
    )
    (path / "tokenizer.model").write_bytes(writer.getvalue())
    write_json(path / "config.json", CONFIG)
    return SentencePieceProcessor(model_proto=writer.getvalue())


def metadata(path: Path) -> Metadata:
    return prepare(path, path / "x.gguf", vocab_only=True).metadata


@pytest.mark.parametrize("prefix", [True, False])
def test_ids_are_sentencepieces(tmp_path: Path, prefix: bool) -> None:
    """A model of merged pairs gives its own ids after conversion, with a space first or not."""
    model = trained(tmp_path / "x", add_dummy_prefix=prefix)
    keys = metadata(tmp_path / "x")
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.add_space_prefix"] is prefix
    ours = load(keys)
    for text in (*TEXTS, *CORPUS):
        assert ours.encode(text, add_special=False) == model.encode(text), repr(text)


def test_kinds_of_pieces(tmp_path: Path) -> None:
    """Unknown, control, byte and user-defined pieces keep their kinds; a user-defined one has its spaces as spaces."""
    trained(tmp_path / "x", user_defined_symbols=["<tool>", SPACE * 3])
    found = prepare(tmp_path / "x", tmp_path, vocab_only=True)
    tokens, kinds = (found.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    held = dict(zip(tokens, kinds.tolist(), strict=True))
    wanted = {"<unk>": 2, "<s>": 3, "</s>": 3, "<tool>": 4, "   ": 4, "<0x0A>": 6, "the": 1}
    assert {text: held[text] for text in wanted} == wanted
    assert any("after an added token" in note for note in found.notes)


def test_added_tokens_take_their_places(tmp_path: Path) -> None:
    """added_tokens.json and tokenizer_config.json add to a model, special or not."""
    size = trained(tmp_path / "x", add_dummy_prefix=False).vocab_size()
    write_json(tmp_path / "x" / "added_tokens.json", {"<one>": size, f"{SPACE}two": size + 1})
    decoder = {str(size): {"content": "<one>", "special": True}, "1": {"content": "<s>", "special": True}}
    write_json(
        tmp_path / "x" / "tokenizer_config.json", {"added_tokens_decoder": decoder, "add_bos_token": False}
    )
    write_json(tmp_path / "x" / "config.json", {**CONFIG, "vocab_size": size + 3, "bos_token_id": 1})
    keys = metadata(tmp_path / "x")
    assert keys["tokenizer.ggml.tokens"][-3:] == ("<one>", " two", f"[PAD{size + 2}]")
    assert keys["tokenizer.ggml.token_type"][-3:].tolist() == [3, 4, 5]
    assert load(keys).encode("the<one> two") == [*load(keys).encode("the"), size, size + 1]


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model"])
def test_a_unigram_model_is_another_kind(name: str, tmp_path: Path) -> None:
    """It is written as t5, with its scores, its spaces and its normaliser's table, under either name."""
    model = trained(
        tmp_path / "x", "unigram", normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True
    )
    (tmp_path / "x" / "tokenizer.model").rename(tmp_path / "x" / name)
    keys = metadata(tmp_path / "x")
    assert keys["tokenizer.ggml.model"] == "t5"
    assert keys["tokenizer.ggml.add_space_prefix"] is keys["tokenizer.ggml.remove_extra_whitespaces"] is True
    assert keys["tokenizer.ggml.tokens"] == tuple(model.id_to_piece(n) for n in range(model.vocab_size()))
    scores = np.array([model.get_score(n) for n in range(model.vocab_size())], np.float32)
    assert np.array_equal(keys["tokenizer.ggml.scores"], scores)
    table = proto.read((tmp_path / "x" / name).read_bytes(), "").charsmap
    assert bytes(keys["tokenizer.ggml.precompiled_charsmap"]) == table != b""


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a normaliser": ({"normalization_rule_name": "nfkc"}, "asks for a normalizer"),
    "spaces that go": ({"remove_extra_whitespaces": True}, "asks for runs of spaces becoming one"),
    "spaces behind": ({"treat_whitespace_as_suffix": True}, "not at the start of words"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_that_cannot_be_expressed_are_refused(tmp_path: Path, what: str) -> None:
    """Steps that readers of this kind of vocabulary do not take are errors."""
    options, text = REFUSED[what]
    trained(tmp_path / "x", **options)
    with pytest.raises(PunaError, match=text):
        metadata(tmp_path / "x")


def json_of(path: Path, first: str | None = "Prepend") -> dict[str, Any]:
    """A tokenizer.json of a model's pieces, each two pieces that make one being merged at its score."""
    pieces = proto.read((path / "tokenizer.model").read_bytes(), "").pieces
    ids = {piece.text: n for n, piece in enumerate(pieces)}
    merges = [
        [piece.text[:cut], piece.text[cut:]]
        for piece in sorted((p for p in pieces if p.kind == 1), key=lambda piece: -piece.score)
        for cut in range(1, len(piece.text))
        if piece.text[:cut] in ids and piece.text[cut:] in ids
    ]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [spaces] if first is None else [{"type": "Prepend", "prepend": SPACE}, spaces]
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "vocab": ids, "merges": merges, "byte_fallback": True, "unk_token": "<unk>"},
    }


@pytest.mark.parametrize("first", ["Prepend", None])
def test_a_tokenizer_json_of_a_model_is_the_model(tmp_path: Path, first: str | None) -> None:
    """Scores come back from the order of merges: ids are those of the tokenizers library."""
    trained(tmp_path / "x")
    tokenizer = json_of(tmp_path / "x", first)
    (tmp_path / "x" / "tokenizer.model").unlink()
    path = write_json(tmp_path / "x" / "tokenizer.json", tokenizer)
    theirs, ours = Library.from_file(str(path)), load(metadata(tmp_path / "x"))
    for text in (*TEXTS[1:], *CORPUS):
        assert ours.encode(text, add_special=False) == (theirs.encode(text).ids if text else []), repr(text)


GEMMA4: Mapping[str, Any] = {
    **CONFIG,
    "architectures": ["Gemma4ForCausalLM"],
    "hidden_act": "gelu_pytorch_tanh",
}


def test_gemma_4_has_a_kind_of_its_own(tmp_path: Path) -> None:
    """Its merges are written as they are, ids are those of the tokenizers library, and BOS goes first."""
    size = trained(tmp_path / "x").vocab_size()
    tokenizer = json_of(tmp_path / "x", None)
    (tmp_path / "x" / "tokenizer.model").unlink()
    form = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    shown = {"id": size, "content": "<|channel>", "special": True, **form}
    tokenizer["added_tokens"] = [shown, {"id": 1, "content": "<s>", "special": True, **form}]
    path = write_json(tmp_path / "x" / "tokenizer.json", tokenizer)
    write_json(tmp_path / "x" / "tokenizer_config.json", {"bos_token": "<s>"})
    write_json(tmp_path / "x" / "config.json", {**GEMMA4, "vocab_size": size + 1})
    keys = metadata(tmp_path / "x")
    assert keys["tokenizer.ggml.model"] == "gemma4"
    assert keys["tokenizer.ggml.token_type"][[1, size]].tolist() == [3, 4]
    theirs, ours = Library.from_file(str(path)), load(keys)
    for text in (*TEXTS, "a<|channel>thought\n\n x"):
        assert ours.encode(text) == [1, *theirs.encode(text).ids], repr(text)
    tokenizer["model"]["vocab"]["a\n"] = size + 1
    write_json(path, tokenizer)
    with pytest.raises(PunaError, match="beyond the end of a line"):
        metadata(tmp_path / "x")


BROKEN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "merges without order": ({"merges": "shuffled"}, "do not follow each other"),
    "merges too few": ({"merges": "single"}, "but no merge says so"),
    "no byte fallback": ({"byte_fallback": False}, "no byte fallback"),
    "whole words": ({"ignore_merges": True}, "takes whole words"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_merges_that_no_scores_express_are_refused(tmp_path: Path, what: str) -> None:
    """A BPE model that merges otherwise than by the score of what is made is an error."""
    trained(tmp_path / "x")
    tokenizer = json_of(tmp_path / "x")
    merges = tokenizer["model"]["merges"]
    orders = {"shuffled": sorted(merges), "single": list({a + b: [a, b] for a, b in merges}.values())}
    changes, text = BROKEN[what]
    tokenizer["model"] |= {key: orders.get(value, value) for key, value in changes.items()}
    (tmp_path / "x" / "tokenizer.model").unlink()
    write_json(tmp_path / "x" / "tokenizer.json", tokenizer)
    with pytest.raises(PunaError, match=text):
        metadata(tmp_path / "x")


def test_steps_of_a_tokenizer_json(tmp_path: Path) -> None:
    """Metaspace says whether a space goes first; other steps are refused."""
    trained(tmp_path / "x")
    tokenizer = {**json_of(tmp_path / "x"), "normalizer": None}
    (tmp_path / "x" / "tokenizer.model").unlink()
    for scheme, prefix in (("always", True), ("never", False), ("first", True)):
        tokenizer["pre_tokenizer"] = {"type": "Metaspace", "prepend_scheme": scheme, "split": False}
        write_json(tmp_path / "x" / "tokenizer.json", tokenizer)
        found = prepare(tmp_path / "x", tmp_path, vocab_only=True)
        assert found.metadata["tokenizer.ggml.add_space_prefix"] is prefix
        assert bool(found.notes) is (scheme == "first")
    write_json(tmp_path / "x" / "tokenizer.json", {**tokenizer, "normalizer": {"type": "Lowercase"}})
    with pytest.raises(PunaError, match="the step 'Lowercase' of the tokenizer is none of SentencePiece's"):
        metadata(tmp_path / "x")


@pytest.mark.parametrize("of", ["Gemma", "T5"])
def test_a_unigram_tokenizer_json(of: str, tmp_path: Path) -> None:
    """Pieces with scores and a base64 table become the same keys, however runs of spaces are made one."""
    vocab = [["<unk>", 0.0], [f"{SPACE}a", -1.5], ["b", -2.5]]
    table = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"table").decode()}
    runs = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    metaspace = {"type": "Metaspace", "prepend_scheme": "always"}
    words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    tokenizer = {
        "model": {"type": "Unigram", "vocab": vocab, "unk_id": 0},
        "normalizer": table if of == "T5" else {"type": "Sequence", "normalizers": [table, strip, runs]},
        "pre_tokenizer": words if of == "T5" else metaspace,
    }
    (tmp_path / "x").mkdir()
    write_json(tmp_path / "x" / "config.json", CONFIG)
    write_json(tmp_path / "x" / "tokenizer.json", tokenizer)
    keys = metadata(tmp_path / "x")
    assert keys["tokenizer.ggml.scores"].tolist() == [0.0, -1.5, -2.5]
    assert keys["tokenizer.ggml.token_type"].tolist() == [2, 1, 1]
    assert bytes(keys["tokenizer.ggml.precompiled_charsmap"]) == b"table"
    assert keys["tokenizer.ggml.add_space_prefix"] is keys["tokenizer.ggml.remove_extra_whitespaces"] is True


def piece(text: bytes, score: bytes = b"", kind: int = 1) -> bytes:
    return message(1, message(1, text) + score + number(3, kind))


DAMAGED = {
    "nothing": b"",
    "text": b"this is no model at all",
    "a length beyond the end": b"\x0a\xff\xff\xff\xff\x0f",
    "a number without end": b"\xff" * 20,
    "a group": b"\x0b",
    "an unknown kind": piece(b"a", kind=9),
    "no UTF-8": piece(b"\xff"),
    "a score that is no number": piece(b"a", b"\x15" + struct.pack("<f", float("nan"))),
    "a model of words": piece(b"a") + message(2, number(3, 3)),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_models_are_refused(what: str) -> None:
    """What is no sound ModelProto is an error that names the file."""
    with pytest.raises(FormatError, match=r"^tokenizer\.model: "):
        proto.read(DAMAGED[what], "tokenizer.model")


def test_a_model_cut_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    """No cut of a file does anything but give fewer pieces or an error."""
    trained(tmp_path / "x")
    raw = (tmp_path / "x" / "tokenizer.model").read_bytes()
    whole = proto.read(raw, "").pieces
    for end in range(0, len(raw), 23):
        try:
            found = proto.read(raw[:end], "").pieces
        except FormatError:
            continue
        assert found == whole[: len(found)]

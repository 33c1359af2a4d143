"""A Hugging Face folder to a GGUF file: read and check everything, then write it a tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from puna.convert.architecture import Architecture
from puna.convert.config import Config
from puna.convert.folder import Checkpoint, Folder
from puna.convert.general import general
from puna.convert.output import OUTTYPES, OutType, encoder, out_type, tensor_type
from puna.convert.registry import all_features, find
from puna.convert.tensors import Planned, plan
from puna.convert.vocabulary import Vocabulary
from puna.convert.vocabulary import read as read_vocabulary
from puna.errors import ModelError, RequestError, TokenizerError
from puna.gguf import GGUFFile, Metadata, TensorInfo, Value, write
from puna.gguf.output import free_target
from puna.gguf.tensors import shape_fault, tensor_bytes
from puna.models.registry import architectures as models
from puna.models.registry import build
from puna.progress import Progress
from puna.quants import QuantType, by_name
from puna.store.progress import Silent, stage
from puna.tokenizer import load as load_tokenizer

__all__ = ["AUTO", "Conversion", "convert", "prepare"]

AUTO = "auto"
Data = NDArray[np.uint8] | Callable[[], Iterator[NDArray[np.uint8]]]
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class Conversion:
    """All that a file will hold, checked; `write` writes it.

    architecture: GGUF's name. tensors: with the type that each will have. vocabulary: in words.
    notes: what the file cannot say, or what was left out, a line each.
    """

    path: Path
    architecture: str
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    vocabulary: str
    notes: tuple[str, ...]
    _planned: tuple[Planned, ...]
    _made: Mapping[str, NDArray[np.float32]]
    _checkpoint: Checkpoint | None
    _config: Config

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def write(self, progress: Progress | None = None) -> list[str]:
        """Write the file; `path` has it whole or not at all. Raises PunaError.

        Returns the names of tensors with values that are infinite or no numbers, where their type can hold such.
        """
        odd: dict[str, None] = {}
        read = sum(tensor.nbytes for tensor in self.tensors if tensor.name not in self._made)
        with stage(progress or Silent(), self.path.name, read) as advance:
            rows = [
                (info.name, info.quant, info.shape, self._data(info, advance, odd)) for info in self.tensors
            ]
            write(self.path, self.metadata, rows)
        return list(odd)

    def _data(self, info: TensorInfo, advance: Callable[[int], None], odd: dict[str, None]) -> Data:
        """The bytes of a tensor, or what gives them. odd: gets the names of tensors with values that are no numbers."""
        made = self._made.get(info.name)
        if made is not None:
            return made.astype("<f4").view(np.uint8)
        assert self._checkpoint is not None
        source = next(tensor for tensor in self._planned if tensor.name == info.name)
        return encoder(self._checkpoint, source, info.quant, self._config, advance, odd)

    def close(self) -> None:
        """Let go of the folder's files."""
        if self._checkpoint is not None:
            self._checkpoint.close()


def convert(
    folder: str | Path,
    path: str | Path,
    *,
    outtype: str = AUTO,
    vocab_only: bool = False,
    pre: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a folder to a GGUF file, and say what it holds. The options are those of `prepare`."""
    done = prepare(folder, path, outtype=outtype, vocab_only=vocab_only, pre=pre, name=name)
    try:
        done.write(progress)
    finally:
        done.close()
    return done


def prepare(
    folder: str | Path,
    path: str | Path,
    *,
    outtype: str = AUTO,
    vocab_only: bool = False,
    pre: str | None = None,
    name: str | None = None,
) -> Conversion:
    """Read and check all that a conversion needs; nothing is written.

    folder: with config.json, *.safetensors and the tokenizer's files. path: of the file, or a folder for it.
    outtype: of the matrices: f32, f16, bf16, q8_0, or auto: bf16 where they are that, else f16.
    vocab_only: leave the tensors out. pre: name of the pre-tokenizer, where it is not recognised.
    name: of the model; by default the folder's.
    Raises FormatError for damaged files, ModelError for what GGUF cannot express, TokenizerError, RequestError.
    """
    if outtype != AUTO and outtype not in OUTTYPES:
        what = f"{outtype!r} is not one of {', '.join((*OUTTYPES, AUTO))}"
        raise RequestError(what, where="outtype", fix="choose one of these")
    source = Folder(Path(folder))
    if not Path(path).is_dir():
        free_target(path, source.files())
    config = Config(source.config(), source.where("config.json"))
    architecture = find(config)(config)
    with ExitStack() as opened:
        checkpoint = None if vocab_only else source.checkpoint()
        if checkpoint is not None:
            opened.callback(checkpoint.close)
        found = assembled(source, config, architecture, checkpoint, outtype, pre, name)
        placed = replace(found, path=target(Path(path), source, found, vocab_only))
        free_target(placed.path, source.files())
        opened.pop_all()
    return placed


def assembled(
    source: Folder,
    config: Config,
    architecture: Architecture,
    checkpoint: Checkpoint | None,
    outtype: str,
    pre: str | None,
    name: str | None,
) -> Conversion:
    """Keys and tensors together, and whether they fit."""
    planned, others = planned_tensors(checkpoint, architecture, config)
    kind = None if checkpoint is None else out_type(outtype, checkpoint, planned)
    made = {} if checkpoint is None else architecture.tensors()
    tensors = (*types(planned, kind, source), *map(float_info, made, made.values()))
    hyper = {f"{architecture.name}.{key}": value for key, value in architecture.keys().items()}
    vocabulary = read_vocabulary(
        source, config, size=rows(planned, config, source), preferred=architecture.pres, pre=pre
    )
    head = general(source, architecture.name, name, planned, kind)
    metadata = metadata_of({**head, **hyper, **vocabulary.keys}, source)
    notes = [*all_notes(config, architecture, vocabulary, others), *proven(source, metadata, tensors)]
    return Conversion(
        source.path,
        architecture.name,
        metadata,
        tensors,
        vocabulary.about,
        tuple(notes),
        planned,
        made,
        checkpoint,
        config,
    )


def planned_tensors(
    checkpoint: Checkpoint | None, architecture: Architecture, config: Config
) -> tuple[tuple[Planned, ...], list[str]]:
    """The tensors to write, and the names of those that belong to another model."""
    if checkpoint is None:
        return (), []
    names, others = architecture.names(checkpoint)
    return plan(checkpoint, names, architecture.rules(), config), others


def types(planned: Sequence[Planned], kind: OutType | None, source: Folder) -> list[TensorInfo]:
    """The tensors with their types. Raises ModelError for a shape that GGUF does not have."""
    found = []
    for tensor in planned:
        assert kind is not None
        quant = tensor_type(tensor.name, tensor.shape, kind)
        if fault := shape_fault(quant, tensor.shape):
            raise ModelError(f"tensor {tensor.name!r} {fault}", where=str(source.path))
        found.append(info(tensor.name, quant, tensor.shape))
    return found


def info(name: str, quant: QuantType, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(name, quant, shape, 0, tensor_bytes(quant, shape))


def float_info(name: str, values: NDArray[np.float32]) -> TensorInfo:
    return info(name, by_name("F32"), values.shape)


def rows(planned: Sequence[Planned], config: Config, source: Folder) -> int | None:
    """Tokens that the model has rows for. Raises ModelError where config.json says otherwise."""
    said = config.optional_count("vocab_size")
    held = next((tensor.shape[0] for tensor in planned if tensor.name == EMBEDDING), None)
    if held is not None and said not in (None, held):
        what = f"the embedding has {held} rows, and 'vocab_size' is {said}"
        raise ModelError(what, where=str(source.path), fix="take config.json and tensors of one model")
    return said if held is None else held


def metadata_of(keys: Mapping[str, Value], source: Folder) -> Metadata:
    try:
        return Metadata.of(keys, str(source.path))
    except ValueError as error:  # such as half a surrogate pair in a token
        raise ModelError(f"a metadata value cannot be written: {error}", where=str(source.path)) from None


def all_notes(
    config: Config, architecture: Architecture, vocabulary: Vocabulary, others: Sequence[str]
) -> list[str]:
    """What the user should know. Raises ModelError for a feature that the conversion would drop."""
    notes = [*architecture.notes(), *vocabulary.notes]
    unread = config.refuse_unread(all_features())
    if others:
        notes.append(
            f"{len(others)} tensors of parts that {architecture.name!r} has not are left out, such as {others[0]!r}"
        )
    if unread:
        notes.append(f"keys of config.json without a meaning here: {', '.join(unread)}")
    return notes


def proven(source: Folder, metadata: Metadata, tensors: Sequence[TensorInfo]) -> list[str]:
    """Build Puna's graph and tokenizer from what will be written; notes where Puna has none.

    Raises ModelError where keys and tensors do not fit together.
    """
    notes = []
    name = metadata.string("general.architecture")
    if name not in models():
        notes.append(f"Puna itself does not run architecture {name!r} yet")
    elif tensors:
        draft = Draft(source.path, metadata, {tensor.name: tensor for tensor in tensors})
        try:
            build(cast(GGUFFile, draft))
        except ModelError as error:
            fix = error.fix or "take config.json and tensors of one model"
            raise ModelError(error.what, where=source.where("config.json"), fix=fix) from None
    try:
        notes += load_tokenizer(metadata).notes
    except TokenizerError as error:
        notes.append(f"Puna itself cannot use this vocabulary: {error.what}")
    return notes


@dataclass(frozen=True)
class Draft:
    """What a graph is built from, before there is a file."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]


def target(path: Path, source: Folder, found: Conversion, vocab_only: bool) -> Path:
    """Where the file goes: into a folder under the model's name and type, else to the path itself."""
    if not path.is_dir():
        return path
    largest = max(found.tensors, key=lambda tensor: tensor.nbytes, default=None)
    kind = "vocab" if vocab_only or largest is None else largest.quant.name
    return path / f"{source.name}-{kind}.gguf"

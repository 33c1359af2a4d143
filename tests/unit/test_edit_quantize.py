"""Writing a model in another type: what the new file holds, in how much memory, and what stops it."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from puna.edit import files
from puna.edit.choice import Options
from puna.edit.importance import Weights
from puna.edit.mixes import MIXES
from puna.edit.quantize import Plan, check_plan, make_plan, run_plan
from puna.errors import RequestError
from puna.gguf import GGUFFile, Value, ValueType, write
from puna.quants import by_name, dequantize, quantize

resource = pytest.importorskip("resource", reason="limits on files are those of Unix")


def run(source: Path, target: Path, mix: str = "Q8_0", **options: Any) -> Plan:
    """Quantise a file. options: of run_plan, and weights."""
    with GGUFFile.open(source) as file:
        plan = make_plan(file, MIXES[mix], weights=options.pop("weights", None))
        run_plan(file, target, plan, **options)
    return plan


def contents(path: Path) -> Mapping[str, Any]:
    with GGUFFile.open(path) as file:
        return {name: (t.quant.name, t.shape, file.data(name).tobytes()) for name, t in file.tensors.items()}


def weights_of(columns: Mapping[str, Any], **options: Any) -> Weights:
    return Weights(Path("a.imatrix"), columns, options.get("dataset", ""), options.get("chunks", 0))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "in.gguf", architecture="qwen2")


@pytest.mark.parametrize("mix", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"])
def test_blocks_are_the_quantisers(model: Path, tmp_path: Path, mix: str) -> None:
    """Each matrix has the bytes that its quantiser gives for the whole of it; vectors stay."""
    run(model, tmp_path / "out.gguf", mix)
    before, after = contents(model), contents(tmp_path / "out.gguf")
    assert set(after) == set(before)
    kinds = {"output.weight": mix if by_name(mix).is_float else "Q8_0"}  # its rows are no 256 values
    for name, (kind, shape, raw) in after.items():
        values = np.frombuffer(before[name][2], np.float32).reshape(shape)
        assert kind == ("F32" if values.ndim == 1 else kinds.get(name, mix))
        assert raw == quantize(by_name(kind), values).tobytes()


def test_pieces_and_threads_change_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the same whatever is in memory at once and however many threads there are."""
    run(model, tmp_path / "a.gguf", "Q4_K_M")
    monkeypatch.setattr(files, "PIECE", 200)
    for threads in (1, 3):
        run(model, tmp_path / "b.gguf", "Q4_K_M", threads=threads)
        assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_metadata(tmp_path: Path) -> None:
    """All keys stay with their types but for those of parts; the file's type and version are set, at the end."""
    old = {"general.file_type": Value(ValueType.UINT32, 0), "x.list": Value(ValueType.INT16, [1, 2])}
    source = write_tiny(tmp_path / "in.gguf", metadata={**old, "split.count": Value(ValueType.UINT16, 1)})
    run(source, tmp_path / "out.gguf", "Q4_0")
    with GGUFFile.open(source) as before, GGUFFile.open(tmp_path / "out.gguf") as after:
        assert list(after.metadata)[-2:] == ["general.quantization_version", "general.file_type"]
        assert after.metadata["general.file_type"] == 2
        assert after.metadata["general.quantization_version"] == 2
        kept = set(before.metadata) - {"general.file_type", "split.count"}
        assert kept == set(after.metadata) - set(list(after.metadata)[-2:])
        assert all(after.metadata.type_of(key) is before.metadata.type_of(key) for key in kept)
        assert after.metadata.element_type("x.list") is ValueType.INT16


def test_importance_counts(model: Path, tmp_path: Path) -> None:
    """Columns that an importance matrix has go to the quantiser, and the file says where they came from."""
    name = "blk.0.ffn_up.weight"
    columns = np.linspace(0.1, 9, 64, dtype=np.float32)
    plan = run(
        model, tmp_path / "out.gguf", "Q4_0", weights=weights_of({name: columns}, dataset="t", chunks=7)
    )
    values = np.frombuffer(contents(model)[name][2], np.float32).reshape(128, 64)
    assert contents(tmp_path / "out.gguf")[name][2] == quantize(by_name("Q4_0"), values, columns).tobytes()
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        found = {key: file.metadata[key] for key in file.metadata if key.startswith("quantize.")}
    assert found == {
        "quantize.imatrix.file": "a.imatrix",
        "quantize.imatrix.dataset": "t",
        "quantize.imatrix.entries_count": 1,
        "quantize.imatrix.chunks_count": 7,
    }
    assert any(note.startswith("a.imatrix has no importance of 15 tensors") for note in plan.notes)


def test_each_expert_has_its_columns(tmp_path: Path) -> None:
    """The matrices of a tensor of experts are quantised by their own columns."""
    random = np.random.default_rng(1)
    values = random.standard_normal((3, 8, 64)).astype(np.float32)
    columns = random.random((3, 64), np.float32)
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    rows = [("blk.0.ffn_up_exps.weight", by_name("F32"), values.shape, values.view(np.uint8))]
    write(tmp_path / "in.gguf", keys, rows)
    weights = weights_of({"blk.0.ffn_up_exps.weight": columns.ravel()})
    run(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_0", weights=weights)
    raw = contents(tmp_path / "out.gguf")["blk.0.ffn_up_exps.weight"][2]
    parts = [quantize(by_name("Q4_0"), x, w) for x, w in zip(values, columns, strict=True)]
    assert raw == b"".join(part.tobytes() for part in parts)


def test_big_endian(tmp_path: Path) -> None:
    """A big-endian model stays one, and holds the same values."""
    with GGUFFile.open(write_tiny(tmp_path / "in.gguf")) as file:
        rows = [(t.name, t.quant, t.shape, file.data(t.name)) for t in file.tensors.values()]
        write(tmp_path / "big.gguf", file.metadata, rows, byteorder="big")
    for name in ("in", "big"):
        run(tmp_path / f"{name}.gguf", tmp_path / f"{name}.out.gguf", "Q4_1")
    assert contents(tmp_path / "in.out.gguf") == contents(tmp_path / "big.out.gguf")
    with GGUFFile.open(tmp_path / "big.out.gguf") as file:
        assert file.byteorder == "big"


def test_a_plan_is_right_to_the_byte(model: Path, tmp_path: Path) -> None:
    """The bytes and the order that a plan says are those of the new file."""
    plan = run(model, tmp_path / "out.gguf", "Q5_1")
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        assert sum(tensor.nbytes for tensor in file.tensors.values()) == plan.new_bytes
        assert list(file.tensors) == [step.tensor.name for step in plan.steps]
    assert list(contents(tmp_path / "out.gguf"))[:3] == [
        "output.weight",
        "output_norm.weight",
        "token_embd.weight",
    ]


def test_quantised_twice(tmp_path: Path) -> None:
    """Tensors that are quantised are refused, unless that is wanted; those of the right type are copied."""
    source = write_tiny(tmp_path / "in.gguf", quant="Q8_0")
    with pytest.raises(
        RequestError, match=r"tensor .* is quantised already, in Q8_0; start from .*--allow-requantize"
    ):
        run(source, tmp_path / "out.gguf", "Q4_0")
    assert not (tmp_path / "out.gguf").exists()
    run(source, tmp_path / "same.gguf", "Q8_0")
    assert contents(tmp_path / "same.gguf") == contents(source)
    run(source, tmp_path / "out.gguf", "Q4_0", requantize=True)
    name = "blk.0.attn_q.weight"
    with GGUFFile.open(source) as file:
        values = dequantize(by_name("Q8_0"), file.data(name))
    assert contents(tmp_path / "out.gguf")[name][2] == quantize(by_name("Q4_0"), values).tobytes()


def test_what_needs_importance(tmp_path: Path) -> None:
    """Q2_K_S without importance is refused, as by llama-quantize."""
    with GGUFFile.open(wide(tmp_path)) as file:
        plan = make_plan(file, MIXES["Q2_K_S"])
        with pytest.raises(
            RequestError, match=r"Q2_K_S needs the importance of tensor 'blk\.0\.ffn_up\.weight'"
        ):
            check_plan(file, plan)
        weights = weights_of({"blk.0.ffn_up.weight": np.ones(256, np.float32)})
        check_plan(file, make_plan(file, MIXES["Q2_K_S"], weights=weights))


def wide(folder: Path, columns: int = 256, rows: int = 4) -> Path:
    """A model with one matrix."""
    values = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    row = ("blk.0.ffn_up.weight", by_name("F32"), values.shape, values.view(np.uint8))
    write(folder / "wide.gguf", keys, [row])
    return folder / "wide.gguf"


def test_types_without_a_quantiser(tmp_path: Path) -> None:
    """A type that can only be read is refused before anything is written; a pattern without a match is told."""
    asked = [(re.compile(pattern), by_name("IQ2_XS")) for pattern in ("ffm", "ffn")]
    with GGUFFile.open(wide(tmp_path)) as file:
        plan = make_plan(file, MIXES["Q4_0"], Options(tensor_types=tuple(asked)))
        assert plan.notes == ("--tensor-type ffm: no tensor has such a name",)
        with pytest.raises(RequestError, match="Q4_0: Puna reads IQ2_XS but cannot quantise to it"):
            check_plan(file, plan)


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    """A value that the new type cannot hold is an error that names the tensor."""
    values = np.full((2, 32), 1e30, np.float32)
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    write(tmp_path / "in.gguf", keys, [("x.weight", by_name("F32"), values.shape, values.view(np.uint8))])
    with pytest.raises(RequestError, match=r"in\.gguf: tensor 'x\.weight': "):
        run(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_memory_is_a_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the tensor."""
    source = wide(tmp_path, columns=1024, rows=8192)  # 32 MiB
    monkeypatch.setattr(files, "PIECE", 1 << 14)
    run(source, tmp_path / "out.gguf", "Q4_0")
    tracemalloc.start()
    run(source, tmp_path / "out.gguf", "Q4_0", threads=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


class Interrupted:
    """Progress during which someone presses Ctrl-C."""

    def start(self, label: str, total: int) -> None:
        self.left = total // 2

    def advance(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise KeyboardInterrupt

    def done(self) -> None:
        self.left = 0


def test_interrupted(model: Path, tmp_path: Path) -> None:
    """Ctrl-C in the middle leaves the old file, and nothing else."""
    (tmp_path / "out.gguf").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path / "out.gguf", threads=2, progress=Interrupted())
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]


def test_no_room(model: Path, tmp_path: Path) -> None:
    """Where the system takes no more bytes, that is a RequestError, and leaves nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(RequestError, match=r"out\.gguf: cannot write the file: "):
            run(model, tmp_path / "out.gguf", "F16")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_out_is_never_in(model: Path, tmp_path: Path) -> None:
    """The file to read is not written to, by whatever name."""
    (tmp_path / "link.gguf").symlink_to(model)
    (tmp_path / "hard.gguf").hardlink_to(model)
    raw = model.read_bytes()
    for name in ("in.gguf", "link.gguf", "hard.gguf", "../" + tmp_path.name + "/in.gguf"):
        with pytest.raises(RequestError, match="this is the file to read; write to another file"):
            run(model, tmp_path / name)
    assert model.read_bytes() == raw


def test_places_that_are_no_file(model: Path, tmp_path: Path) -> None:
    """Folders, devices and folders that are not there are refused before the work."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    places = {tmp_path: "a folder", "/dev/null": "a device", tmp_path / "none" / "x": "no such folder"}
    for place, message in {
        **places,
        "a\0b": "no path of a file",
        tmp_path / "loop": "no path of a file",
    }.items():
        with pytest.raises(RequestError) as error:
            run(model, place)  # type: ignore[arg-type]
        assert message in str(error.value)


def test_a_link_leads_to_the_file(model: Path, tmp_path: Path) -> None:
    """Where OUT is a link, the file that it names is written, and the link stays."""
    (tmp_path / "link.gguf").symlink_to(tmp_path / "out.gguf")
    run(model, tmp_path / "link.gguf")
    assert (tmp_path / "link.gguf").is_symlink()
    assert contents(tmp_path / "out.gguf")

"""Whole models with code for other processors: right, the same bits in any chunks, and nothing that must be linked."""

from __future__ import annotations

import functools
import string
import struct
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from small_kernels import CPUS, target
from tiny_model import ALPHABET, write_tiny

import puna
from puna import backends, plan
from puna.backends import Backend
from puna.backends.cpu import CPUBackend
from puna.backends.cpu.codecache import CodeCache
from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.features import family_of
from puna.backends.cpu.kernels.linear import few
from puna.backends.cpu.panels import Panel
from puna.backends.cpu.target import Target
from puna.cache import KVCache
from puna.gguf import GGUFFile
from puna.models.registry import build

KINDS = ("Q8_0", "Q5_1", "F16")
IDS = np.random.default_rng(2).integers(0, 280, 40).tolist()
# What the C library of every system has, and the name that stands for a table of addresses.
HARMLESS = {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"}


class Kept(CodeCache):
    """Object code kept in memory."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.objects: dict[str, bytes] = {}

    def load(self, key: str) -> bytes | None:
        return None

    def store(self, key: str, code: bytes, *, name: str, cpu: str) -> None:
        self.objects[name] = code


@functools.cache
def backend(cpu: str | None) -> tuple[CPUBackend, Kept]:
    """One for each processor, so that a kernel is compiled once."""
    kept = Kept()
    return CPUBackend(target(cpu), kept, 1), kept


def logits(engine: Backend, file: GGUFFile, chunk: int) -> np.ndarray:
    """Logits of IDS, `chunk` at a time."""
    graph, _ = build(file)
    about = engine.describe()
    graph = plan.lower(graph, about.ops)
    kv = plan.KVLayout.of(graph, 64, "F32", "F32")
    steps = plan.make_plan(
        graph, tokens=chunk, rows=chunk, kv=kv, scratch=engine.scratch, row_ops=about.row_ops
    )
    program = engine.compile(steps, engine.upload(graph, file, None))
    cache = KVCache(kv, 64)
    sequence, out = cache.open(), np.empty((len(IDS), graph.output.type.shape[1]), np.float32)
    for start in range(0, len(IDS), chunk):
        part = IDS[start : start + chunk]
        engine.run(
            program, cache.append((sequence, part), outputs=range(len(part))), out[start : start + len(part)]
        )
    return out


@functools.cache
def model(kind: str, folder: Path) -> Path:
    return write_tiny(folder / f"{kind}.gguf", quant=kind, architecture="gemma3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@functools.cache
def found(kind: str, cpu: str | None, folder: Path) -> np.ndarray:
    with GGUFFile.open(model(kind, folder)) as file:
        return logits(backend(cpu)[0], file, len(IDS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cpu", CPUS)
def test_models_are_right(cpu: str | None, kind: str, folder: Path) -> None:
    """Logits are the reference backend's, up to what quantised activations cost; in chunks they are the same bits."""
    got = found(kind, cpu, folder)
    with GGUFFile.open(model(kind, folder)) as file:
        want = logits(backends.create("reference"), file, len(IDS))
        assert np.mean((got - want) ** 2) <= (1e-7 if kind == "F16" else 2e-3) * np.mean(want**2)
        for chunk in (1,) if cpu else (7, 1):
            np.testing.assert_array_equal(logits(backend(cpu)[0], file, chunk), got)


@pytest.mark.parametrize("kind", KINDS)
def test_processors_agree(kind: str, folder: Path) -> None:
    """Processors that fuse multiply and add, and those that do not, give the same bits among themselves."""
    groups: dict[bool, list[np.ndarray]] = {}
    for cpu in runnable():
        groups.setdefault(target(cpu).fused, []).append(found(kind, cpu, folder))
    for results in groups.values():
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


def test_the_whole_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that knows the alphabet says it through the cpu backend, on two threads, with code that was kept too."""
    monkeypatch.setattr("puna.backends.cpu.backend.default_folder", lambda: folder / "code")
    path = write_tiny(folder / "alphabet.gguf", follow=ALPHABET, quant="Q8_0")
    for _ in range(2):
        said = puna.load(path, backend="cpu", threads=2).generate("say:\n", 100, temp=0)
        assert said == string.ascii_lowercase
    assert list(CodeCache(folder / "code").entries())


def runnable() -> Iterator[str | None]:
    for cpu in CPUS:
        try:
            target(cpu)
        except pytest.skip.Exception:
            continue
        yield cpu


def undefined(code: bytes) -> set[str]:
    """Names that an ELF object (64-bit, little-endian) wants from elsewhere.

    Its header has the offset of the section headers at 40 and their number at 60; a section of type 2 is the table
    of symbols, 24 bytes each (u32 name, u8 kind, u8 other, u16 section, u64 value, u64 size), its link the names'.
    """
    (start,), (count,) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<H", code, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i) for i in range(count)]
    names: set[str] = set()
    for section in sections:
        if section[1] != 2:
            continue
        texts = sections[section[6]][4]
        for at in range(section[4] + 24, section[4] + section[5], 24):
            name, _, _, place = struct.unpack_from("<IBBH", code, at)
            if place == 0:
                names.add(code[texts + name : code.index(b"\0", texts + name)].decode())
    return names


@pytest.mark.parametrize("cpu", CPUS)
def test_nothing_is_left_to_link(cpu: str | None, folder: Path) -> None:
    """No kernel calls a library for arithmetic that the processor has no instruction for."""
    for kind in KINDS:
        found(kind, cpu, folder)
    backend(cpu)[0].compiler.addresses_of(
        [Spec.of(few, panel=Panel(name), tokens=2) for name in ("Q4_K", "Q6_K")]
    )
    objects = backend(cpu)[1].objects
    assert len(objects) > 15
    for name, code in objects.items():
        if not code.startswith(b"\x7fELF"):
            pytest.skip("object files of this system are not ELF")
        assert undefined(code) <= HARMLESS, name


def test_what_would_be_left_is_found() -> None:
    """The reader of object files sees a call of the C library."""
    compiler = Compiler(target(CPUS[0]), None)

    def rounded(k: object) -> None:
        from puna.backends.cpu.lang import Kernel
        from puna.backends.cpu.verbs import call

        assert isinstance(k, Kernel)
        value = k.args[0].load("f32")
        k.args[0].store(call("llvm.sin.f32", value, value))

    spec = Spec(rounded, (), ("ptr",))
    code = compiler.object_code(spec, compiler.key(spec))
    if code.startswith(b"\x7fELF"):
        assert undefined(code) - HARMLESS == {"sinf"}


SLOW = {"attention.attend", "linear.many"}  # to compile, and nothing is in `many` that is not in `few`
X86 = ("x86_64-pc-windows-msvc", "haswell")
FOREIGN = {
    "x86_64": [
        *(("aarch64-unknown-linux-gnu", cpu) for cpu in ("cortex-a53", "neoverse-n1", "neoverse-v1")),
        X86,
    ],
    "aarch64": [("x86_64-unknown-linux-gnu", "x86-64"), X86],
}


def test_code_for_other_families(folder: Path) -> None:
    """All kernels of these models can be written for the other family and for Windows, with nothing left to link."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for kind in KINDS:
        found(kind, None, folder)
    specs = backend(None)[0].compiler.seconds
    # Of kernels that differ only in their tile, one.
    distinct = {
        (spec.function, str(dict(spec.static).get("panel", spec.static[-1:]))): spec for spec in specs
    }
    foreign = FOREIGN[family_of(llvm.get_process_triple())]
    for triple, cpu in foreign:
        compiler = Compiler(Target.of(triple, cpu), None)
        for spec in distinct.values():
            if spec.function in SLOW and (triple, cpu) != foreign[0]:
                continue
            code = compiler.object_code(spec, compiler.key(spec))
            # Windows has a function of the system look at large frames.
            assert undefined(code) <= HARMLESS | ({"__chkstk"} if "windows" in triple else set()), spec.name

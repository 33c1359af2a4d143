"""From kernels to addresses: write IR, optimise, emit object code or take it from the cache, link."""

from __future__ import annotations

import hashlib
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

import puna.plan.kv
import puna.quants
from puna.backends.cpu.codecache import CodeCache
from puna.backends.cpu.lang import Kernel
from puna.backends.cpu.target import Target

__all__ = ["Compiler", "Spec"]

# Every kernel is called as f(args, begin, end, scratch): work on units begin to end - 1 of the record's.
PARAMS = ("ptr", "i64", "i64", "ptr")


@dataclass(frozen=True)
class Spec:
    """A kernel to compile: the function that writes it, and its static parameters, which must have a stable repr."""

    write: Callable[..., None]
    static: tuple[tuple[str, Any], ...] = ()
    params: Sequence[str] = field(default=PARAMS, repr=False)

    @classmethod
    def of(cls, write: Callable[..., None], **static: Any) -> Spec:
        return cls(write, tuple(sorted(static.items())))

    @cached_property
    def label(self) -> str:
        """For the key: the function and all of its parameters."""
        values = ", ".join(f"{name}={value!r}" for name, value in self.static)
        return f"{self.function}({values})"

    @property
    def function(self) -> str:
        return f"{self.write.__module__.rsplit('.', 1)[-1]}.{self.write.__name__}"

    @property
    def name(self) -> str:
        """For people: the function and the gist of its parameters. Kernels that differ may share it."""
        return " ".join([self.function, *(f"{name}={gist(value)}" for name, value in self.static)])


class Compiler:
    """Compiles for one target; what it links stays in memory as long as it does."""

    def __init__(self, target: Target, cache: CodeCache | None) -> None:
        self.target, self.cache = target, cache
        self.addresses: dict[str, int] = {}
        self.seconds: dict[Spec, float | None] = {}  # of each kernel asked for; None: it came from the cache
        self.engines: list[llvm.ExecutionEngine] = []
        self.lock = threading.RLock()  # held while LLVM is at work
        self.looks = 0.0  # that a waiting thread takes a second, once that is known

    def addresses_of(self, specs: Iterable[Spec]) -> dict[Spec, int]:
        """Addresses of the kernels, ready to call."""
        with self.lock:
            return self.linked({spec: self.key(spec) for spec in specs})

    def linked(self, keys: Mapping[Spec, str]) -> dict[Spec, int]:
        """Addresses of kernels by their keys, those linked now that were not before."""
        missing = {key: spec for spec, key in keys.items() if key not in self.addresses}
        for key, spec in missing.items():
            # An engine of its own for each: one that has been finalised does not relocate what is added later.
            engine = llvm.create_mcjit_compiler(
                llvm.parse_assembly(str(self.module())), self.target.machine()
            )
            engine.add_object_file(llvm.ObjectFileRef.from_data(self.object_code(spec, key)))
            engine.finalize_object()
            self.addresses[key] = engine.get_function_address(symbol(key))
            self.engines.append(engine)
        return {spec: self.addresses[key] for spec, key in keys.items()}

    def object_code(self, spec: Spec, key: str) -> bytes:
        stored = self.cache.load(key) if self.cache else None
        self.seconds[spec] = None
        if stored is not None:
            return stored
        started, machine = time.perf_counter(), self.target.machine()
        code: bytes = machine.emit_object(self.optimised(spec, key, machine))
        self.seconds[spec] = time.perf_counter() - started
        if self.cache:
            self.cache.store(key, code, name=spec.name, cpu=self.target.cpu)
        return code

    def optimised(self, spec: Spec, key: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
        module = llvm.parse_assembly(self.write(spec, key))
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        # Kernels say themselves what to unroll and what to make a vector.
        options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return module

    def write(self, spec: Spec, key: str) -> str:
        """The kernel as its function wrote it."""
        module = self.module()
        kernel = Kernel(module, symbol(key), self.target, spec.params)
        spec.write(kernel, **dict(spec.static))
        kernel.end()
        return str(module)

    def intermediate(self, spec: Spec) -> str:
        """A kernel in LLVM's language after its passes, for people."""
        return str(self.optimised(spec, self.key(spec), self.target.machine()))

    def assembly(self, spec: Spec) -> str:
        """The machine code of a kernel, for people."""
        machine = self.target.machine()
        text: str = machine.emit_assembly(self.optimised(spec, self.key(spec), machine))
        return text

    def module(self) -> ir.Module:
        module = ir.Module(name="puna")
        module.triple = self.target.code_triple
        return module

    def key(self, spec: Spec) -> str:
        """Hash of all that decides the machine code."""
        version = ".".join(map(str, llvm.llvm_version_info))
        parts = (self.sources, version, self.target.triple, self.target.cpu, self.target.features, spec.label)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    @cached_property
    def sources(self) -> str:
        """Hash of the source that writes kernels: this folder, and the types whose lines end up in them."""
        digest = hashlib.sha256()
        folders = (Path(__file__).parent, Path(inspect.getfile(puna.quants)).parent)
        files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
        for path in (*files, Path(inspect.getfile(puna.plan.kv))):  # the last for the size of a page
            digest.update(path.read_bytes())
        return digest.hexdigest()


def symbol(key: str) -> str:
    return f"puna_{key}"


def gist(value: Any) -> str:
    """A static parameter in a word."""
    for attribute in ("op", "name"):
        if hasattr(value, attribute):
            return str(getattr(value, attribute))
    if isinstance(value, tuple):
        return "+".join(map(gist, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    is_record = is_dataclass(value) and not isinstance(value, type)
    return ",".join(map(gist, astuple(value))) if is_record else str(value)

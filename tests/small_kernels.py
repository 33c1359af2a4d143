"""Small kernels for tests: written in the test, compiled for one processor or another, called on arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from puna.backends.cpu.compiler import Compiler, Spec
from puna.backends.cpu.features import family_of
from puna.backends.cpu.lang import Value
from puna.backends.cpu.target import Target
from puna.errors import RequestError

__all__ = ["CPUS", "KINDS", "apply", "run", "target"]

# Processors that differ in what kernels choose by, the oldest first; None is the one at hand.
FAMILIES = {
    "x86_64": ("x86-64", "x86-64-v2", "haswell", "alderlake", "skylake-avx512", None),
    "aarch64": ("cortex-a53", "cortex-a76", "neoverse-v1", None),
}
CPUS = FAMILIES.get(family_of(llvm.get_process_triple()), (None,))
KINDS = {
    np.dtype(name): kind
    for kind, name in {
        "u8": "uint8",
        "i8": "int8",
        "u16": "uint16",
        "i16": "int16",
        "u32": "uint32",
        "i32": "int32",
        "i64": "int64",
        "f32": "float32",
    }.items()
}


@functools.cache
def found(cpu: str | None) -> Target | RequestError:
    try:
        return Target.host(cpu)
    except RequestError as error:
        return error


def target(cpu: str | None) -> Target:
    """A processor by name. The test is skipped where this machine cannot stand in for it."""
    result = found(cpu)
    if isinstance(result, RequestError):
        pytest.skip(str(result))
    return result


def run(write: Callable[..., None], *arrays: np.ndarray, cpu: str | None = None) -> None:
    """Compile `write(k, *addresses)` and call it with the addresses of the arrays."""
    compiler = Compiler(target(cpu), None)
    spec = Spec(lambda k: write(k, *k.args), (), ("ptr",) * len(arrays))
    address = compiler.addresses_of([spec])[spec]
    native = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(address)
    native(*(array.ctypes.data for array in arrays))


def apply(
    how: Callable[..., Value], *inputs: np.ndarray, to: Any, lanes: int = 16, cpu: str | None = None
) -> np.ndarray:
    """how(...) on `lanes` lanes at a time of all inputs, which have a multiple of that many; numbers of type `to`."""
    out = np.zeros(inputs[0].shape, to)

    def write(k: Any, target: Any, *sources: Any) -> None:
        for i in k.loop(0, out.size, lanes):
            kinds = [KINDS[array.dtype] for array in inputs]
            values = [
                source.load(kind, lanes, i * array.itemsize)
                for source, kind, array in zip(sources, kinds, inputs, strict=True)
            ]
            target.store(how(*values), i * out.itemsize)

    assert all(array.size == out.size and array.flags.c_contiguous for array in inputs)
    assert out.size % lanes == 0
    run(write, out, *inputs, cpu=cpu)
    return out

"""Which instructions a processor has: LLVM is asked, and on Linux on ARM the system."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import llvmlite.binding as llvm

__all__ = ["family_of", "features_of", "host_features", "is_known"]

# A feature that every processor of a family has.
ALWAYS: Mapping[str, str] = {"x86_64": "cx8", "aarch64": "neon"}
# Linux on ARM gives a program two words of bits (AT_HWCAP and AT_HWCAP2): word, bit, LLVM's name of the feature.
# Numbers: arch/arm64/include/uapi/asm/hwcap.h.
HWCAPS = (
    (16, 3, "aes"),
    (16, 6, "sha2"),
    (16, 7, "crc"),
    (16, 8, "lse"),
    (16, 10, "fullfp16"),
    (16, 12, "rdm"),
    (16, 13, "jsconv"),
    (16, 14, "complxnum"),
    (16, 15, "rcpc"),
    (16, 17, "sha3"),
    (16, 19, "sm4"),
    (16, 20, "dotprod"),
    (16, 22, "sve"),
    (16, 23, "fp16fml"),
    (16, 25, "lse2"),
    (16, 26, "rcpc-immo"),
    (16, 27, "flagm"),
    (26, 1, "sve2"),
    (26, 7, "altnzcv"),
    (26, 8, "fptoint"),
    (26, 13, "i8mm"),
    (26, 14, "bf16"),
    (26, 23, "sme"),
)


def family_of(triple: str) -> str:
    """ "x86_64", "aarch64", or what else the triple begins with."""
    arch = triple.split("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)


def features_of(triple: str, cpu: str, features: str, names: Iterable[str]) -> frozenset[str]:
    """Those of some features, by LLVM's names, that a processor has.

    LLVM has no call for that, but its inliner knows: a function that needs a feature goes into one that does not
    ask for it only where the processor has it anyway. So here is a function a feature, and the question is which
    of the calls are still there after inlining.
    """
    names = list(names)
    calls = [f'call void @"{name}"()' for name in names]
    text = [
        f'target triple = "{triple}"',
        "define void @all() {",
        *calls,
        "ret void",
        "}",
        "declare void @work()",
    ]
    for i, name in enumerate(names):
        wanted = f"{features},+{name}".strip(",")
        text += [f'define internal void @"{name}"() #{i} {{', "call void @work()", "ret void", "}"]
        text += [f'attributes #{i} = {{ "target-features"="{wanted}" }}']
    module = llvm.parse_assembly("\n".join(text))
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    left = {function.name for function in module.functions}
    return frozenset(name for name in names if name not in left)


def is_known(triple: str, cpu: str, features: str) -> bool:
    """Whether LLVM knows a processor of that name: it says so itself, but goes on with one that has nothing."""
    always = ALWAYS.get(family_of(triple))
    with quiet():
        return always is None or always in features_of(triple, cpu, features, [always])


def host_features() -> dict[str, bool]:
    """Features of this machine, by LLVM's names: on or off. Empty where only the processor's name is known."""
    if sys.platform == "linux" and platform.machine() == "aarch64":
        return from_hwcaps(auxiliary(16), auxiliary(26))
    with suppress(RuntimeError):
        return dict(llvm.get_host_cpu_features())
    return {}


def from_hwcaps(first: int, second: int) -> dict[str, bool]:
    """The features that Linux's two words of bits stand for."""
    words = {16: first, 26: second}
    return {name: bool(words[word] >> bit & 1) for word, bit, name in HWCAPS}


def auxiliary(entry: int) -> int:
    """An entry of what Linux tells a program at its start. It is right under an emulator too, unlike /proc."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(getauxval(entry))


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing that LLVM writes to standard error is seen."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)

"""What the processor can do. This module alone knows instruction sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

from puna.errors import BackendError

__all__ = ["Target"]

# Of each family, the instructions for a dot product of bytes, the best first: (feature, name of the recipe).
DOTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "x86_64": (
        ("avx512vnni", "vpdpbusd.512"),
        ("avxvnni", "vpdpbusd.256"),
        ("avx2", "pmaddubsw.256"),
        ("ssse3", "pmaddubsw.128"),
    ),
    "aarch64": (("i8mm", "usdot"), ("dotprod", "sdot")),
}


@dataclass(frozen=True)
class Target:
    """A processor to write code for.

    triple, cpu, features: as LLVM names them.  have: the features that are on.  family: "x86_64", "aarch64" or other.
    """

    triple: str
    cpu: str
    features: str
    have: frozenset[str]

    @classmethod
    def host(cls, cpu: str | None = None) -> Target:
        """The machine that this runs on, or an older one of its family (`cpu`, as LLVM names it).

        Raises BackendError for a processor that LLVM does not know or this machine cannot run.
        """
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple = llvm.get_process_triple()
        own = {name for name, on in llvm.get_host_cpu_features().items() if on}
        if cpu is None:
            features = ",".join(f"+{name}" for name in sorted(own))
            return cls(triple, llvm.get_host_cpu_name(), features, frozenset(own))
        return cls(triple, cpu, "", features_of(triple, cpu))

    @property
    def family(self) -> str:
        arch = self.triple.split("-")[0]
        return {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)

    @property
    def dot(self) -> str:
        """The recipe for `dot_u8s8`; "plain" where no instruction helps."""
        return next(
            (recipe for feature, recipe in DOTS.get(self.family, ()) if feature in self.have), "plain"
        )

    @property
    def fused(self) -> bool:
        """Whether a * b + c is one instruction that rounds once."""
        return self.family == "aarch64" or bool({"fma", "avx512f"} & self.have)

    @property
    def halves(self) -> bool:
        """Whether half floats are converted by an instruction."""
        return self.family == "aarch64" or bool({"f16c", "avx512f"} & self.have)

    @property
    def vector(self) -> int:
        """Bytes of a vector register."""
        return 64 if "avx512f" in self.have else 32 if "avx2" in self.have else 16

    @property
    def registers(self) -> int:
        """Vector registers."""
        return 32 if self.family == "aarch64" or "avx512f" in self.have else 16

    def machine(self) -> llvm.TargetMachine:
        """A new LLVM target machine; an execution engine takes it over."""
        target = llvm.Target.from_triple(self.triple)
        # LLVM keeps to half of a 512-bit register unless it is told otherwise.
        features = f"{self.features},-prefer-256-bit" if "avx512f" in self.have else self.features
        return target.create_target_machine(cpu=self.cpu, features=features.strip(","), opt=3, reloc="pic")


# What named processors have, for tests that compile for an older machine than they run on.
NAMED: Mapping[str, frozenset[str]] = {
    "x86-64": frozenset(),
    "x86-64-v2": frozenset({"ssse3", "sse4.1", "sse4.2", "popcnt"}),
    "x86-64-v3": frozenset({"ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c"}),
    "haswell": frozenset({"ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c"}),
    "generic": frozenset(),
}


def features_of(triple: str, cpu: str) -> frozenset[str]:
    if cpu not in NAMED:
        raise BackendError(
            f"no processor is called {cpu!r}", where="PUNA_CPU", fix=f"use one of {', '.join(NAMED)}"
        )
    return NAMED[cpu]

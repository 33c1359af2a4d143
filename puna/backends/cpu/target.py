"""What the processor can do. This module alone knows instruction sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

from puna.backends.cpu.features import family_of, features_of, host_features, is_known
from puna.errors import RequestError

__all__ = ["Target"]

# Of each family, the instructions for a dot product of bytes, the best first: (feature, name of the recipe).
DOTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "x86_64": (
        ("avx512vnni", "vpdpbusd.512"),
        ("avxvnni", "vpdpbusd.256"),
        ("avx512bw", "pmaddubsw.512"),
        ("avx2", "pmaddubsw.256"),
        ("ssse3", "pmaddubsw.128"),
    ),
    "aarch64": (("i8mm", "usdot"), ("dotprod", "sdot"), ("neon", "smull")),
}
# Those that look bytes up in a table of 16 bytes.
LOOKUPS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "x86_64": (("avx512bw", "pshufb.512"), ("avx2", "pshufb.256"), ("ssse3", "pshufb.128")),
    "aarch64": (("neon", "tbl1"),),
}
# Those for a dot product of pairs of bf16.
PAIRS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "x86_64": (("avx512bf16", "vdpbf16ps"),),
    "aarch64": (("bf16", "bfdot"),),
}
# The other features that kernels choose by.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("sse4.1", "avx2", "fma", "f16c", "avx512f", "avx512vbmi")
}
# What must be said of every processor: LLVM ends the process if it takes one for a 32-bit one.
NEEDED: Mapping[str, str] = {"x86_64": "+64bit"}


@dataclass(frozen=True)
class Target:
    """A processor to write code for.

    triple, cpu, features: as LLVM names them.  have: of the features that kernels choose by, those that are on.
    """

    triple: str
    cpu: str
    features: str
    have: frozenset[str]

    @classmethod
    def of(cls, triple: str, cpu: str, features: str = "") -> Target:
        """A processor by its name, with features of its own added (`+name`) or taken away (`-name`), by commas."""
        family = family_of(triple)
        features = ",".join(filter(None, (NEEDED.get(family), features)))
        recipes = [recipe for table in (DOTS, LOOKUPS, PAIRS) for recipe in table.get(family, ())]
        names = dict.fromkeys((*CHOICES.get(family, ()), *(feature for feature, _ in recipes)))
        return cls(triple, cpu, features, features_of(triple, cpu, features, names))

    @classmethod
    def named(cls, cpu: str, where: str = "PUNA_CPU") -> Target:
        """A processor of this machine's family, which need not be one whose code can run here.

        where: who named it. Raises RequestError for a name that LLVM does not know.
        """
        triple = process_triple()
        if not is_known(triple, cpu, NEEDED.get(family_of(triple), "")):
            fix = f"give LLVM's name of one, such as {llvm.get_host_cpu_name()}"
            raise RequestError(f"no {family_of(triple)} processor is called {cpu!r}", where=where, fix=fix)
        return cls.of(triple, cpu)

    @classmethod
    def host(cls, cpu: str | None = None) -> Target:
        """The machine that this runs on, or another of its family (`cpu`, as LLVM names it).

        Code for another never has an instruction that this machine lacks. Raises RequestError where kernels would
        have chosen one, and for a name that LLVM does not know.
        """
        triple, name, own = process_triple(), llvm.get_host_cpu_name(), host_features()
        has = ",".join(f"+{feature}" for feature, on in own.items() if on)
        lacks = ",".join(f"-{feature}" for feature, on in own.items() if not on)
        here = cls.of(triple, name, f"{has},{lacks}".strip(","))  # what it lacks comes last: it wins
        if cpu is None:
            return here
        missing = cls.named(cpu).have - here.have
        if missing:
            what = f"{cpu} has {', '.join(sorted(missing))}, and this machine ({name}) does not"
            raise RequestError(what, where="PUNA_CPU", fix="name an older processor")
        return cls.of(triple, cpu, lacks)

    @property
    def family(self) -> str:
        """x86_64, aarch64, or what else the triple begins with."""
        return family_of(self.triple)

    @property
    def code_triple(self) -> str:
        """What modules are written for: on Windows in the ELF format, the only one that LLVM links there in memory."""
        return f"{self.triple}-elf" if "windows" in self.triple else self.triple

    @property
    def dot(self) -> str:
        """The recipe for `dot_u8s8`; "plain" where no instruction helps."""
        return next(
            (recipe for feature, recipe in DOTS.get(self.family, ()) if feature in self.have), "plain"
        )

    @property
    def lookups(self) -> tuple[str, ...]:
        """The recipes for `lookup`, the widest first."""
        return tuple(recipe for feature, recipe in LOOKUPS.get(self.family, ()) if feature in self.have)

    @property
    def pairs(self) -> str:
        """The recipe for `dot_pairs`; "" where there is no such instruction."""
        return next((recipe for feature, recipe in PAIRS.get(self.family, ()) if feature in self.have), "")

    @property
    def wide_lookups(self) -> bool:
        """Whether an instruction looks 64 bytes up in a table of 128."""
        return "avx512vbmi" in self.have

    @property
    def fused(self) -> bool:
        """Whether a * b + c is one instruction that rounds once."""
        return self.family == "aarch64" or bool({"fma", "avx512f"} & self.have)

    @property
    def halves(self) -> bool:
        """Whether half floats are converted by an instruction."""
        return self.family == "aarch64" or bool({"f16c", "avx512f"} & self.have)

    @property
    def rounds(self) -> bool:
        """Whether floats are rounded to whole ones by an instruction."""
        return self.family == "aarch64" or "sse4.1" in self.have

    @property
    def vector(self) -> int:
        """Bytes of a vector register."""
        return 64 if "avx512f" in self.have else 32 if "avx2" in self.have else 16

    @property
    def registers(self) -> int:
        """Vector registers."""
        return 32 if self.family == "aarch64" or "avx512f" in self.have else 16

    @property
    def tile(self) -> tuple[int, int]:
        """Panels of 16 rows, and tokens, whose sums a product of many tokens holds in registers."""
        sums = self.registers * self.vector // 64  # vectors of 16 sums that all registers could hold
        if sums >= 32:  # a dot of three instructions wants registers of its own
            return (2, 6) if self.dot.startswith("vpdpbusd") else (2, 4)
        return (1, 4) if sums >= 8 else (1, 2)

    @property
    def float_tile(self) -> tuple[int, int]:
        """As `tile`, for plain weights, where each product takes four sums."""
        return (2, 3) if self.registers * self.vector // 64 >= 32 else (1, 4)

    @property
    def queries(self) -> int:
        """Queries of a tile of attention; where registers are few or narrow, sharing loads costs more than it saves."""
        return 6 if "avx512f" in self.have or (self.family == "x86_64" and self.vector == 16) else 1

    def machine(self) -> llvm.TargetMachine:
        """A new LLVM target machine; an execution engine takes it over."""
        # LLVM keeps to half of a 512-bit register unless it is told otherwise.
        wide = "-prefer-256-bit" if "avx512f" in self.have else ""
        features = ",".join(filter(None, (self.features, wide)))
        target = llvm.Target.from_triple(self.code_triple)
        return target.create_target_machine(cpu=self.cpu, features=features, opt=3, reloc="pic")


def process_triple() -> str:
    """LLVM's name of the kind of machine that this process runs on; LLVM is made ready to write code for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return str(llvm.get_process_triple())

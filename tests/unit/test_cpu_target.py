"""Which processor code is written for: features as LLVM knows them, other processors by name, refusals."""

from __future__ import annotations

import os
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from small_kernels import CPUS, target
from tiny_model import write_tiny

import puna
from puna.backends.cpu import features
from puna.backends.cpu.features import family_of, features_of, from_hwcaps, host_features, is_known
from puna.backends.cpu.target import Target
from puna.errors import RequestError
from puna.settings import Settings

LINUX = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
# What LLVM's processors have: recipe of byte dots, fused multiply-add, half floats, rounding, bytes of a vector.
KNOWN = {
    "x86-64": ("plain", False, False, False, 16),
    "core2": ("pmaddubsw.128", False, False, False, 16),
    "nehalem": ("pmaddubsw.128", False, False, True, 16),
    "x86-64-v2": ("pmaddubsw.128", False, False, True, 16),
    "sandybridge": ("pmaddubsw.128", False, False, True, 16),
    "ivybridge": ("pmaddubsw.128", False, True, True, 16),
    "haswell": ("pmaddubsw.256", True, True, True, 32),
    "x86-64-v3": ("pmaddubsw.256", True, True, True, 32),
    "znver1": ("pmaddubsw.256", True, True, True, 32),
    "alderlake": ("vpdpbusd.256", True, True, True, 32),
    "skylake-avx512": ("pmaddubsw.512", True, True, True, 64),
    "x86-64-v4": ("pmaddubsw.512", True, True, True, 64),
    "icelake-server": ("vpdpbusd.512", True, True, True, 64),
    "znver4": ("vpdpbusd.512", True, True, True, 64),
    "cortex-a53": ("smull", True, True, True, 16),
    "cortex-a72": ("smull", True, True, True, 16),
    "cortex-a76": ("sdot", True, True, True, 16),
    "apple-m1": ("sdot", True, True, True, 16),
    "apple-m2": ("usdot", True, True, True, 16),
    "neoverse-v1": ("usdot", True, True, True, 16),
}
ARM = ("cortex", "apple", "neoverse")


@pytest.fixture(autouse=True)
def _all_families() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@pytest.mark.parametrize("cpu", KNOWN)
def test_known_processors(cpu: str) -> None:
    """What processors have comes from LLVM, and decides recipes, vectors and registers."""
    found = Target.of(LINUX["aarch64" if cpu.startswith(ARM) else "x86_64"], cpu)
    assert (found.dot, found.fused, found.halves, found.rounds, found.vector) == KNOWN[cpu]
    assert found.registers == (32 if cpu.startswith(ARM) or found.vector == 64 else 16)


def test_features_added_and_taken_away() -> None:
    """`+name` and `-name` change what a processor has, with all that needs it."""
    plus = Target.of(LINUX["x86_64"], "haswell", "+avxvnni")
    assert plus.dot == "vpdpbusd.256"
    minus = Target.of(LINUX["x86_64"], "znver4", "-avx")
    assert minus.dot == "pmaddubsw.128"
    assert (minus.fused, minus.halves, minus.vector) == (False, False, 16)


def test_families_by_any_name() -> None:
    """Triples of other systems are of the same families; an unknown family takes the plain way."""
    assert [family_of(t) for t in ("arm64-apple-darwin24", "amd64-pc-windows-msvc")] == ["aarch64", "x86_64"]
    other = Target("riscv64-unknown-linux-gnu", "generic-rv64", "", frozenset())
    assert not any((other.fused, other.halves, other.rounds))
    assert (other.dot, other.vector) == ("plain", 16)


def test_the_machine_at_hand() -> None:
    """The host has just the features that LLVM, or the system, finds on; `features` names each as on or off."""
    here, own = Target.host(), host_features()
    assert here.cpu == llvm.get_host_cpu_name()
    for name, on in own.items():
        assert f"{'+' if on else '-'}{name}" in here.features.split(",")
    signs = [feature[0] for feature in here.features.split(",")]
    assert signs == sorted(signs), "what is off must come last, to win"
    asked = {
        name: name in here.have for name in own if name in {"avx2", "fma", "avx512vnni", "dotprod", "i8mm"}
    }
    assert asked == {name: own[name] for name in asked}


@pytest.mark.parametrize("cpu", CPUS)
def test_another_processor_never_has_what_this_one_lacks(cpu: str | None) -> None:
    """Code for another processor is kept to the instructions of this machine."""
    found = target(cpu)
    off = {name for name, on in host_features().items() if not on}
    assert not off & features_of(found.triple, found.cpu, found.features, sorted(off))


def test_unknown_processors_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """A name that LLVM does not know is refused in one line, and LLVM's own complaints are not seen."""
    for name in ("pentium-12", "help", 'a"b\n'):
        with pytest.raises(
            RequestError, match=r"^PUNA_CPU: no .* processor is called .*; give LLVM's name of one"
        ):
            Target.host(name)
    assert capfd.readouterr() == ("", "")
    print("seen")  # standard output and standard error work as before
    os.write(2, b"seen")
    assert capfd.readouterr() == ("seen\n", "seen")


def test_processors_with_more_than_this_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor whose instructions this machine lacks is refused, with their names."""
    family = family_of(llvm.get_process_triple())
    newer, feature = {"x86_64": ("haswell", "avx2"), "aarch64": ("cortex-a76", "dotprod")}[family]
    older = {name: on and name != feature for name, on in host_features().items()}
    monkeypatch.setattr("puna.backends.cpu.target.host_features", lambda: {**older, feature: False})
    with pytest.raises(RequestError, match=f"PUNA_CPU: {newer} has .*{feature}.*; name an older processor"):
        Target.host(newer)


def test_a_wrong_name_is_no_reason_for_another_backend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`auto` does not go on with a slower backend when PUNA_CPU is wrong."""
    monkeypatch.setenv("PUNA_CPU", "pentium-12")
    with pytest.raises(RequestError, match="PUNA_CPU"):
        puna.load(write_tiny(tmp_path / "m.gguf"))


def test_a_processor_for_looking_only() -> None:
    """`named` takes any processor of the family, also one that could not run here, and checks the name."""
    names = {"x86_64": ("znver5", "core2"), "aarch64": ("neoverse-v2", "cortex-a53")}
    for name in names[family_of(llvm.get_process_triple())]:
        assert Target.named(name).cpu == name
    with pytest.raises(RequestError, match=r"^--cpu: "):
        Target.named("pentium-12", "--cpu")


def test_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without standard error can ask as well."""

    def closed(_: int) -> int:
        raise OSError("Bad file descriptor")

    monkeypatch.setattr(features.os, "dup", closed)
    assert is_known(llvm.get_process_triple(), llvm.get_host_cpu_name(), "")


def test_bits_of_linux_on_arm() -> None:
    """Each bit of Linux's two words stands for one feature, by a name that LLVM knows."""
    assert from_hwcaps(1 << 20, 0) == {**dict.fromkeys(from_hwcaps(0, 0), False), "dotprod": True}
    assert [name for name, on in from_hwcaps(0, 1 << 13).items() if on] == ["i8mm"]
    names = list(from_hwcaps(0, 0))
    every = ",".join(f"+{name}" for name in names)
    assert features_of(LINUX["aarch64"], "generic", every, names) == set(names)
    assert features_of(LINUX["aarch64"], "cortex-a53", "", names) == {"aes", "sha2", "crc"}


def test_the_setting() -> None:
    """PUNA_CPU is read as it stands; empty counts as unset."""
    assert Settings.from_environment({"PUNA_CPU": "haswell"}).cpu == "haswell"
    assert Settings.from_environment({"PUNA_CPU": ""}).cpu is None
    assert Settings.from_environment({}).cpu is None

"""Whole models on the CPU backend: their threads, interrupts, and what happens without a kernel."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cpu_rig import compiler, load, write_model
from tiny_model import write_tiny

import puna
from puna.backends import Description, cpu
from puna.backends.cpu.backend import CPUBackend
from puna.errors import BackendError
from puna.gguf import GGUFFile, Value, ValueType, write

TESTS = Path(__file__).resolve().parents[1]
PATHS = os.pathsep.join([str(TESTS.parent), str(TESTS), str(TESTS / "backend")])
IDS = np.random.default_rng(1).integers(0, 280, 70).tolist()


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("puna-")}


def test_a_dropped_model_leaves_no_thread(tmp_path: Path) -> None:
    """A model starts one thread fewer than it was given, and they end with it; those of its loading have ended."""
    before = running()
    model = load(write_model(tmp_path / "m.gguf", "llama", "Q8_0"), threads=3)
    assert len(running() - before) == 2
    list(model.stream("the", 5))
    del model
    gc.collect()
    assert running() == before


def test_a_loading_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    """Whatever ends the loading half way, its threads end too."""

    class Impatient:
        def start(self, label: str, total: int) -> None:
            self.left = total // 2

        def advance(self, count: int) -> None:
            self.left -= count
            if self.left < 0:
                raise KeyboardInterrupt

        def done(self) -> None:
            raise AssertionError("the loading went on")

    before = running()
    with pytest.raises(KeyboardInterrupt):
        load(write_model(tmp_path / "m.gguf", "llama", "F32"), threads=3, progress=Impatient())
    gc.collect()
    assert running() == before


def test_two_models_in_turn(tmp_path: Path) -> None:
    """Steps of two models that alternate, one of them dropped half way, give what each gives alone."""
    paths = [write_model(tmp_path / f"{kind}.gguf", "llama", kind) for kind in ("F32", "Q8_0")]
    want = [load(path, threads=2).logits(IDS) for path in paths]
    models = [load(path, threads=2) for path in paths]
    sequences = [model.cache.open() for model in models]
    for place in range(40):
        for model, sequence, logits in zip(models, sequences, want, strict=True):
            np.testing.assert_array_equal(model.step(sequence, IDS[place : place + 1]), logits[place])
    del model, models[0]
    gc.collect()
    for place in range(40, 50):
        np.testing.assert_array_equal(models[0].step(sequences[1], IDS[place : place + 1]), want[1][place])


def test_two_models_from_two_threads(tmp_path: Path) -> None:
    """Two models that run at the same time give what each gives alone."""
    paths = [write_model(tmp_path / f"{kind}.gguf", "llama", kind) for kind in ("F32", "Q8_0")]
    models = [load(path, threads=2) for path in paths]
    want, got = [model.logits(IDS) for model in models], [[], []]

    def work(n: int) -> None:
        got[n] += [models[n].logits(IDS, batch=batch) for batch in (1, 512, 7)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for n in range(2):
        assert len(got[n]) == 3
        for logits in got[n]:
            np.testing.assert_array_equal(logits, want[n])


def test_a_model_used_from_another_thread(tmp_path: Path) -> None:
    """A model may be used from a thread that did not load it, and is dropped there."""
    before, seen = running(), []
    models = [load(write_model(tmp_path / "m.gguf", "llama", "F32"), threads=2)]
    want = models[0].logits(IDS)

    def work() -> None:
        seen.append((models[0].logits(IDS) == want).all())
        models.clear()
        gc.collect()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert seen == [True]
    assert running() == before


GENERATE = """
    import sys
    from pathlib import Path
    from test_cpu_rig import load
    model = load(Path(sys.argv[1]), threads=2, n_ctx=100_000)
    def generate():
        for n, _ in enumerate(model.stream([1, 2, 3], -1, ignore_eos=True)):
            if n == 20:
                print("begun", flush=True)
    before = model.logits(range(50))
    try:
        generate()
    except KeyboardInterrupt:
        print(model.cache.sequences, (model.logits(range(50)) == before).all(), flush=True)
    generate()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGINT to send to another process")
def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a generation ends it, and the model can be used on; not caught, it ends the process."""
    path = write_model(tmp_path / "m.gguf", "llama", "F32", n_ctx=100_000)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(GENERATE), str(path)],
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch = threading.Timer(60, process.kill)
    watch.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "[] True\n"
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
    finally:
        watch.cancel()
        process.kill()
    assert (process.returncode, out) == (-signal.SIGINT, ""), errors


def moe_file(path: Path) -> Path:
    """A tiny Llama whose feed-forward is a mixture of two experts."""
    with GGUFFile.open(write_tiny(path.with_name("dense.gguf"))) as file:
        metadata = {
            **file.metadata,
            "llama.expert_count": Value(ValueType.UINT32, 2),
            "llama.expert_used_count": Value(ValueType.UINT32, 1),
        }
        tensors: list[Any] = []
        for name, tensor in file.tensors.items():
            raw = file.data(name)
            if ".ffn_" in name and "norm" not in name:
                name = name.replace(".weight", "_exps.weight")
                tensors.append((name, tensor.quant, (2, *tensor.shape), np.stack([raw, raw])))
                if "gate" in name:
                    router = np.ones((2, 64), np.float32)
                    gate = name.replace("gate_exps", "gate_inp")
                    tensors.append((gate, tensor.quant, (2, 64), router.view(np.uint8)))
            else:
                tensors.append((name, tensor.quant, tensor.shape, raw))
        write(path, metadata, tensors)
    return path


@pytest.fixture
def without_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU backend that has no kernels for mixtures of experts."""
    monkeypatch.delenv("PUNA_BACKEND", raising=False)
    describe = CPUBackend.describe

    def lacking(backend: CPUBackend) -> Description:
        about = describe(backend)
        return dataclasses.replace(about, ops=about.ops - {"linear_experts", "pick"})

    monkeypatch.setattr(CPUBackend, "describe", lacking)


def test_a_graph_without_kernels_falls_back_aloud(tmp_path: Path, without_experts: None) -> None:
    """On auto the reference backend runs what the CPU backend cannot, and a note says why, once."""
    model = puna.load(moe_file(tmp_path / "moe.gguf"))
    assert model.about.name == "reference"
    said = [note for note in model.notes if "slower" in note]
    assert len(said) == 1
    assert "the cpu backend has no kernel for linear_experts, pick" in said[0]
    assert said[0].endswith("using the slower reference backend")
    assert np.isfinite(model.logits([1, 2])).all()


def test_a_graph_without_kernels_is_refused(tmp_path: Path, without_experts: None) -> None:
    """Asked for by name, the CPU backend says in one line what it lacks, and starts no thread."""
    before = running()
    with pytest.raises(BackendError, match=r"^the cpu backend has no kernel for [a-z_, ]+$"):
        puna.load(moe_file(tmp_path / "moe.gguf"), backend="cpu")
    assert running() == before


def test_auto_takes_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that it has kernels for runs on it, without a word."""
    monkeypatch.delenv("PUNA_BACKEND", raising=False)
    target = compiler().target
    monkeypatch.setattr(cpu, "create", lambda *rest: cpu.CPUBackend(target, None, *rest))
    model = puna.load(write_model(tmp_path / "m.gguf", "llama", "Q8_0"))
    assert model.about.name == "cpu"
    assert model.notes == ()


@pytest.mark.parametrize("repack", [True, False])
def test_mixtures_of_experts(tmp_path: Path, repack: bool) -> None:
    """The reference backend's logits, and the same bits for any threads, chunks, and with weights as in the file."""
    path = moe_file(tmp_path / "moe.gguf")
    whole = puna.load(path, backend="cpu", threads=1).logits(IDS)
    want = puna.load(path, backend="reference").logits(IDS)
    assert np.mean((whole - want) ** 2) <= 1e-3 * np.mean(want**2)
    for threads, batch in ((1, 1), (2, 7), (3, 64)):
        model = puna.load(path, backend="cpu", threads=threads, repack=repack)
        np.testing.assert_array_equal(model.logits(IDS[:64], batch=batch), whole[:64])

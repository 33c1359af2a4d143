"""Options of the whole suite, and a cache folder of its own."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from puna.settings import Settings

# Before NumPy is there: on the small matrices of tests more threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--network", action="store_true", help="run the tests that need a package index")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a cache folder that its workers and processes share: each kernel is compiled once.

    None is taken from the user's own folder or left there; models are. (The variable has a meaning on Linux alone.)
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    folder, patch = tempfile.mkdtemp(prefix="puna-tests-"), pytest.MonkeyPatch()
    patch.setenv("PUNA_MODELS", str(Settings.from_environment().models))
    patch.setenv("XDG_CACHE_HOME", folder)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests marked `network` unless they are asked for."""
    if config.getoption("--network"):
        return
    for item in items:
        if item.get_closest_marker("network"):
            item.add_marker(pytest.mark.skip(reason="needs a package index; give --network"))

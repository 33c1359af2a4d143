"""What tests of architectures share: files of fixtures, and a folder for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from arch_files import write_model


@pytest.fixture(scope="module", autouse=True)
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a folder of these tests."""
    folder = tmp_path_factory.mktemp("code")
    with mock.patch("platformdirs.user_cache_path", return_value=folder):
        yield


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the GGUF file of a fixture for seed 1."""
    folder = tmp_path_factory.mktemp("archs")
    return lambda name: write_model(name, folder)

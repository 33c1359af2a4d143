"""What tests of architectures share: files of fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.register_assert_rewrite("arch_files")

from arch_files import write_model  # noqa: E402


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the GGUF file of a fixture for seed 1."""
    folder = tmp_path_factory.mktemp("archs")
    return lambda name: write_model(name, folder)

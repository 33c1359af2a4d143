"""Settings come from the environment and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.errors import RequestError
from puna.settings import Settings, default_models


def test_empty_environment_gives_the_defaults() -> None:
    """Without variables the models lie in the cache folder, and threads and backend are Puna's choice."""
    settings = Settings.from_environment({})
    assert settings == Settings(models=default_models(), threads=None, backend=None)
    assert settings.models.name == "models"
    assert "puna" in settings.models.parts


def test_every_variable_is_read() -> None:
    """PUNA_MODELS, PUNA_THREADS and PUNA_BACKEND set the three fields, with ~ as the home folder."""
    env = {"PUNA_MODELS": "~/m", "PUNA_THREADS": "3", "PUNA_BACKEND": "reference"}
    assert Settings.from_environment(env) == Settings(Path("~/m").expanduser(), 3, "reference")


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With no mapping given the variables of the process count."""
    monkeypatch.setenv("PUNA_MODELS", str(tmp_path))
    assert Settings.from_environment().models == tmp_path


def test_a_home_folder_that_nobody_has() -> None:
    """PUNA_MODELS below the home folder of an unknown user is refused."""
    with pytest.raises(
        RequestError, match="PUNA_MODELS: the home folder of '~no-such-user/m' is unknown; write"
    ):
        Settings.from_environment({"PUNA_MODELS": "~no-such-user/m"})


def test_empty_variables_count_as_unset() -> None:
    """An empty PUNA_MODELS or PUNA_BACKEND is the default."""
    assert Settings.from_environment({"PUNA_MODELS": "", "PUNA_BACKEND": ""}) == Settings.from_environment({})


@pytest.mark.parametrize("threads", ["", "0", "-1", "two", "1.5", " 2"])
def test_threads_must_be_a_whole_number_above_zero(threads: str) -> None:
    """Any other PUNA_THREADS is refused, with the variable's name and value."""
    with pytest.raises(RequestError, match="PUNA_THREADS: ") as caught:
        Settings.from_environment({"PUNA_THREADS": threads})
    assert repr(threads) in str(caught.value)


def test_settings_are_frozen() -> None:
    """Settings cannot be changed after they are made."""
    with pytest.raises(AttributeError):
        Settings(Path()).threads = 2  # type: ignore[misc]

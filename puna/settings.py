"""Settings from the environment. This module alone reads `os.environ`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from puna.errors import RequestError

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What a user may set for every run.

    models: folder of fetched models (PUNA_MODELS); default `models` in the user's cache folder.
    threads: compute threads (PUNA_THREADS); None lets the backend choose.
    backend: backend used for `auto` (PUNA_BACKEND); None lets Puna choose.
    cpu: processor that the cpu backend writes code for, by LLVM's name (PUNA_CPU); None is the one at hand.
    """

    models: Path
    threads: int | None = None
    backend: str | None = None
    cpu: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the PUNA_* variables. Raises RequestError where a value has the wrong form."""
        env = os.environ if environment is None else environment
        threads = env.get("PUNA_THREADS")
        if threads is not None and not (threads.isdecimal() and int(threads) > 0):
            raise RequestError(
                f"{threads!r} is not a number of threads",
                where="PUNA_THREADS",
                fix="set a whole number above 0",
            )
        models = env.get("PUNA_MODELS")
        return cls(
            models=expanded(models) if models else default_models(),
            threads=int(threads) if threads else None,
            backend=env.get("PUNA_BACKEND") or None,
            cpu=env.get("PUNA_CPU") or None,
        )


def expanded(models: str) -> Path:
    """The path with `~` as the home folder that it stands for."""
    try:
        return Path(models).expanduser()
    except RuntimeError:
        what = f"the home folder of {models!r} is unknown"
        raise RequestError(what, where="PUNA_MODELS", fix="write out the path") from None


def default_models() -> Path:
    """The folder of fetched models: a cache, since every model can be fetched again."""
    from platformdirs import user_cache_path

    return user_cache_path("puna", appauthor=False) / "models"

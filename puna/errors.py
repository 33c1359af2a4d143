"""Every error that a user can cause.

    PunaError
    ├── FormatError      the bytes of a file are wrong (file and field named)
    ├── ModelError       the file is sound, but Puna cannot run the model it describes
    ├── TokenizerError   a vocabulary that cannot be used
    ├── RequestError     what the caller asked for is impossible: a prompt too long, an option out of range
    ├── BackendError     a device or backend that is missing or lacks a feature
    └── StoreError       a model name that is unknown, or a download that failed

Each message is one line: where it happened, what was wrong, and what to change.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "FormatError",
    "ModelError",
    "PunaError",
    "RequestError",
    "StoreError",
    "TokenizerError",
]


class PunaError(Exception):
    """An error with a one-line message for people: `where: what; fix`.

    where: the file, tensor, metadata key or option at fault.
    what: what is wrong with it, with the offending value.
    fix: what to change, as an imperative.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        message = f"{where}: {what}" if where else what
        if fix:
            message = f"{message}; {fix}"
        # Text out of a hostile file must not break the line or the terminal.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))
        self.what, self.where, self.fix = what, where, fix


class FormatError(PunaError):
    """The bytes of a file are not what its format demands."""


class ModelError(PunaError):
    """A sound file whose model Puna cannot run: architecture, metadata key, tensor or shape."""


class TokenizerError(PunaError):
    """A vocabulary or pre-tokenizer that cannot be used."""


class RequestError(PunaError, ValueError):
    """An argument, option or prompt that cannot be honoured."""


class BackendError(PunaError):
    """A backend or device that is missing, or lacks what the model needs."""


class StoreError(PunaError):
    """A model that cannot be found, fetched or verified."""

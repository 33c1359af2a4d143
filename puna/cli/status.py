"""The exit statuses of the command line. 130 and 141 are what a shell says of SIGINT and SIGPIPE."""

from __future__ import annotations

__all__ = ["BUG", "INTERRUPTED", "NO", "PIPE", "USER"]

BUG, USER, INTERRUPTED, PIPE = 1, 2, 130, 141
NO = 1  # the answer to what `diff`, `verify` and `plan` are asked

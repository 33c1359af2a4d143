"""--arch-file: architectures that are no part of Puna."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_option", "run_files"]


def add_option(group: argparse._ActionsContainer) -> None:
    """The option, which may be given several times."""
    group.add_argument(
        "--arch-file",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that defines an architecture (docs/add-a-model.md). It is run, and may do whatever you may",
    )


def run_files(arguments: argparse.Namespace) -> None:
    """Run the files that are named, for a command that has the option. Raises RequestError."""
    files = arguments.arch_file if "arch_file" in arguments else []
    if files:
        from puna.models.arch_file import run_file

        # A file that is named twice is run once.
        for file in {Path(file).resolve(): Path(file) for file in files}.values():
            run_file(file)

"""`python -m puna`."""

from __future__ import annotations

import sys

from puna.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

"""Models by name: what can be fetched, how, and where it lies."""

from __future__ import annotations

from puna.store.catalogue import CatalogueModel, catalogue
from puna.store.models import Damaged, Entry, check, damaged, installed, pull, resolve

__all__ = [
    "CatalogueModel",
    "Damaged",
    "Entry",
    "catalogue",
    "check",
    "damaged",
    "installed",
    "pull",
    "resolve",
]

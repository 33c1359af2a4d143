"""Names of a model file as weight nodes: `layer.attn_q` is blk.<n>.attn_q, with its bias where it has one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from puna.errors import ModelError
from puna.gguf import TensorInfo
from puna.graph import Dim, Node, make
from puna.models.config import ModelConfig

__all__ = ["Layer", "Parameter", "Weights"]

SOME = 4  # names that an error lists
LAYER = re.compile(r"^blk\.(\d{1,9})\.")


class Weights:
    """The tensors of a file. Remembers which a model has asked for, so that none is ignored unseen.

    ignored: names without the layer ("attn_q.bias"), or their beginnings ("cls"), of tensors to leave out.
    """

    def __init__(
        self, tensors: Mapping[str, TensorInfo], path: str, config: ModelConfig, ignored: Collection[str] = ()
    ) -> None:
        self.path, self.config = path, config
        self.tensors = {
            name: info
            for name, info in tensors.items()
            if not begins(name, ignored) and not (config.n_next and layer_of(name) >= config.n_layer)
        }
        self.nodes: dict[str, Node] = {}
        self.missing: dict[str, None] = {}
        self.known: set[str] = set()

    def __getattr__(self, name: str) -> Parameter:
        if name.startswith("_"):
            raise AttributeError(name)
        return Parameter(self, name)

    def node(self, name: str, shape: tuple[Dim | None, ...]) -> Node:
        """The weight node of a tensor; None in `shape` accepts any size.

        A missing tensor is noted, for `check` to tell. Raises ModelError when it has another shape.
        """
        info = self.tensors.get(name)
        if info is None:
            self.missing[name] = None
            return make("weight", tensor=name, dtype="F32", shape=tuple(dim or 1 for dim in shape))
        # Files drop dimensions of 1, or have more of them.
        is_same = len(info.shape) != len(shape) and without_ones(shape) == without_ones(info.shape)
        full = shape if is_same else info.shape
        fits = len(full) == len(shape) and all(
            want in (None, got) for want, got in zip(shape, full, strict=True)
        )
        if not fits:
            expected = f"[{', '.join('any' if d is None else str(d) for d in shape)}]"
            raise ModelError(
                f"tensor '{name}' has shape {list(info.shape)}, the architecture asks for {expected}",
                where=self.path,
            )
        if name not in self.nodes:
            self.nodes[name] = make("weight", tensor=name, dtype=info.quant.name, shape=full)
        return self.nodes[name]

    def check(self) -> None:
        """Raise ModelError naming the tensors that are missing and those that the model has not asked for."""
        unused = [name for name in self.tensors if name not in self.nodes and name not in self.known]
        found = [listed(self.missing, "missing")] if self.missing else []
        found += [listed(unused, "without a place")] if unused else []
        if found:
            raise ModelError(
                f"architecture '{self.config.architecture}': {'; '.join(found)}", where=self.path
            )


def layer_of(name: str) -> int:
    """The layer that a tensor belongs to, -1 for none."""
    found = LAYER.match(name)
    return int(found[1]) if found else -1


def without_ones(shape: tuple[Dim | None, ...]) -> list[Dim | None]:
    return [dim for dim in shape if dim != 1]


def begins(name: str, starts: Collection[str]) -> bool:
    """Whether a tensor's name, without its layer, is one of `starts` or goes on from one after a dot."""
    within = LAYER.sub("", name)
    return any(within == start or within.startswith(f"{start}.") for start in starts)


def listed(names: Collection[str], what: str) -> str:
    some = ", ".join(f"'{name}'" for name in list(names)[:SOME])
    return f"{len(names)} tensor{'s' * (len(names) > 1)} {what}: {some}{', ...' * (len(names) > SOME)}"


class Parameter:
    """A weight with its optional bias, under one name."""

    def __init__(self, weights: Weights, name: str) -> None:
        self.weights, self.name = weights, name

    def __bool__(self) -> bool:
        return self.tensor in self.weights.tensors

    @property
    def tensor(self) -> str:
        """The name in the file, which ends in ".weight" but for a few."""
        full = f"{self.name}.weight"
        return self.name if self.name in self.weights.tensors and full not in self.weights.tensors else full

    def weight(self, *shape: Dim | None) -> Node:
        return self.weights.node(self.tensor, shape)

    def bias(self, *shape: Dim | None) -> Node | None:
        name = f"{self.name}.bias"
        return self.weights.node(name, shape) if name in self.weights.tensors else None

    def ignore(self) -> None:
        """A model may know that a tensor has no effect."""
        self.weights.known |= {self.tensor, f"{self.name}.bias"}

    @property
    def config(self) -> ModelConfig:
        return self.weights.config

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight, () where it is missing."""
        info = self.weights.tensors.get(self.tensor)
        return info.shape if info else ()

    @property
    def rows(self) -> int:
        """Rows of the weight, 0 where it is missing."""
        return self.shape[0] if self.shape else 0


class Layer:
    """The weights and the configuration of one layer.

    slot: where the cache holds its keys and values, when a layer runs more than once for a token.
    """

    def __init__(self, weights: Weights, config: ModelConfig, index: int, slot: int | None = None) -> None:
        self.weights, self.config, self.index = weights, config, index
        self.slot = index if slot is None else slot
        self.n_head, self.n_head_kv = config.n_head[index], config.n_head_kv[index]
        self.n_ff = config.n_ff[index]
        self.windowed = bool(config.window and config.windowed and config.windowed[index])
        self.window = config.window if self.windowed else 0

    def __getattr__(self, name: str) -> Parameter:
        if name.startswith("_"):
            raise AttributeError(name)
        return Parameter(self.weights, f"blk.{self.index}.{name}")

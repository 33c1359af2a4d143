"""Names of a model file as weight nodes: `layer.attn_q` is blk.<n>.attn_q, with its bias where it has one."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from math import prod

from puna.errors import ModelError
from puna.gguf import TensorInfo
from puna.graph import Dim, Node, make
from puna.models.config import ModelConfig

__all__ = ["BIASES", "NORMS", "Layer", "Parameter", "Weights"]

# What an architecture requires whose norms, or whose matrices too, all have biases.
NORMS = ("*norm.bias",)
BIASES = (*NORMS, "attn_output.bias", "attn_qkv.bias", "ffn_*.bias")

SOME = 4  # names that an error lists
CLOSE, MOST_COMPARED = 0.75, 256  # how like a name's nearest is, at least; of how many it is sought
LAYER = re.compile(r"^blk\.(\d{1,9})\.")


class Weights:
    """The tensors of a file. Remembers which a model has asked for, so that none is ignored unseen.

    ignored: names without the layer ("attn_q.bias"), or their beginnings ("cls"), of tensors to leave out.
    required: patterns of such names, "output" or "*norm.bias", of those that no block is to do without.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorInfo],
        path: str,
        config: ModelConfig,
        ignored: Collection[str] = (),
        required: Collection[str] = (),
    ) -> None:
        self.path, self.config, self.required = path, config, required
        self.tensors = {
            name: info
            for name, info in tensors.items()
            if not begins(name, ignored) and not (config.n_next and layer_of(name) >= config.n_layer)
        }
        self.nodes: dict[str, Node] = {}
        self.missing: dict[str, None] = {}
        self.absent: dict[int, set[str]] = defaultdict(set)  # by layer, what a block has done without
        self.known: set[str] = set()

    def __getattr__(self, name: str) -> Parameter:
        if name.startswith("_"):
            raise AttributeError(name)
        return Parameter(self, name)

    def has(self, name: str) -> bool:
        """Whether a block is to ask for a tensor that it could do without."""
        within = LAYER.sub("", name)
        if name in self.tensors or any(
            fnmatchcase(within.removesuffix(".weight"), one) for one in self.required
        ):
            return True
        self.absent[layer_of(name)].add(within)
        return False

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
        is_same |= len(shape) == 3 and info.shape == (times(shape[:2]), shape[2])  # or stack matrices
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
        """Raise ModelError naming the tensors that are missing, with the nearest left over, and those left over."""
        unused = [name for name in self.tensors if name not in self.nodes and name not in self.known]
        missing = {**self.missing, **dict.fromkeys(self.uneven())}
        found = [listed(missing, "missing", unused)] if missing else []
        found += [listed(unused, "without a place")] if unused else []
        if found:
            raise ModelError(
                f"architecture '{self.config.architecture}': {'; '.join(found)}", where=self.path
            )

    def uneven(self) -> list[str]:
        """What layers have done without that others of their kind have, which read the same tensors beside it."""
        reads = defaultdict[int, set[str]](set)
        for name in self.nodes:
            reads[layer_of(name)].add(LAYER.sub("", name))
        kinds = {(frozenset(names), self.windowed(layer)) for layer, names in reads.items() if layer >= 0}
        found = list[str]()
        for layer, names in sorted(reads.items()):
            more = [
                kind - names for kind, windowed in kinds if kind > names and windowed == self.windowed(layer)
            ]
            found += [
                f"blk.{layer}.{name}" for some in more if some <= self.absent[layer] for name in sorted(some)
            ]
        return found

    def windowed(self, layer: int) -> bool:
        flags = self.config.windowed
        return layer < len(flags) and flags[layer]


def layer_of(name: str) -> int:
    """The layer that a tensor belongs to, -1 for none."""
    found = LAYER.match(name)
    return int(found[1]) if found else -1


def times(shape: tuple[Dim | None, ...]) -> int:
    return prod(dim for dim in shape if isinstance(dim, int))


def without_ones(shape: tuple[Dim | None, ...]) -> list[Dim | None]:
    return [dim for dim in shape if dim != 1]


def begins(name: str, starts: Collection[str]) -> bool:
    """Whether a tensor's name, without its layer, is one of `starts` or goes on from one after a dot."""
    within = LAYER.sub("", name)
    return any(within == start or within.startswith(f"{start}.") for start in starts)


def nearest(name: str, names: Collection[str]) -> str:
    """Of a layer's names, or of those that belong to none, the one most like another; "" for none."""
    same = [other for other in names if layer_of(other) == layer_of(name)][:MOST_COMPARED]
    return next(iter(difflib.get_close_matches(name, same, n=1, cutoff=CLOSE)), "")


def listed(names: Collection[str], what: str, others: Collection[str] = ()) -> str:
    """How many, and some of them: of a name that several layers have the first, with the nearest of the others."""
    kinds = Counter(LAYER.sub("", name) for name in names)
    first = {LAYER.sub("", name): name for name in reversed(list(names))}
    shown = [(first[kind], count) for kind, count in list(kinds.items())[:SOME]]
    some = ", ".join(described(name, count, nearest(name, others)) for name, count in shown)
    more = ", ..." * (len(kinds) > SOME)
    return f"{len(names)} tensor{'s' * (len(names) > 1)} {what}: {some}{more}"


def described(name: str, count: int, near: str) -> str:
    about = [f"in {count} layers"] * (count > 1) + [f"nearest is '{near}'"] * bool(near)
    return f"'{name}' ({', '.join(about)})" if about else f"'{name}'"


class Parameter:
    """A weight with its optional bias, under one name."""

    def __init__(self, weights: Weights, name: str) -> None:
        self.weights, self.name = weights, name

    def __bool__(self) -> bool:
        return self.weights.has(self.tensor)

    @property
    def tensor(self) -> str:
        """The name in the file, which ends in ".weight" but for a few."""
        full = f"{self.name}.weight"
        return self.name if self.name in self.weights.tensors and full not in self.weights.tensors else full

    def weight(self, *shape: Dim | None) -> Node:
        return self.weights.node(self.tensor, shape)

    def bias(self, *shape: Dim | None) -> Node | None:
        name = f"{self.name}.bias"
        return self.weights.node(name, shape) if self.weights.has(name) else None

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
    prefix: that of the names of its tensors.
    """

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        index: int,
        slot: int | None = None,
        prefix: str = "blk",
    ) -> None:
        self.weights, self.config, self.index, self.prefix = weights, config, index, prefix
        self.slot = index if slot is None else slot
        self.n_head, self.n_head_kv = config.n_head[index], config.n_head_kv[index]
        self.n_ff = config.n_ff[index]
        self.windowed = bool(config.window and config.windowed and config.windowed[index])
        self.window = config.window if self.windowed else 0
        self.head_k = (config.head_k_windowed if self.windowed else 0) or config.head_k
        self.head_v = (config.head_v_windowed if self.windowed else 0) or config.head_v

    def __getattr__(self, name: str) -> Parameter:
        if name.startswith("_"):
            raise AttributeError(name)
        return Parameter(self.weights, f"{self.prefix}.{self.index}.{name}")

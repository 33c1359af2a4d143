"""Names of a model file as weight nodes: `layer.attn_q` is blk.<n>.attn_q, with its bias where it has one."""

from __future__ import annotations

from collections.abc import Mapping

from puna.errors import ModelError
from puna.gguf import TensorInfo
from puna.graph import Dim, Node, make
from puna.models.config import ModelConfig

__all__ = ["Layer", "Parameter", "Weights"]


class Weights:
    """The tensors of a file. Remembers which a model has used, so that none is ignored unseen."""

    def __init__(self, tensors: Mapping[str, TensorInfo], path: str) -> None:
        self.tensors, self.path = tensors, path
        self.nodes: dict[str, Node] = {}

    def __getattr__(self, name: str) -> Parameter:
        if name.startswith("_"):
            raise AttributeError(name)
        return Parameter(self, name)

    def node(self, name: str, shape: tuple[Dim | None, ...]) -> Node:
        """The weight node of a tensor; None in `shape` accepts any size.

        Raises ModelError when the tensor is missing or has another shape.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"tensor '{name}' is missing", where=self.path)
        fits = len(info.shape) == len(shape) and all(
            want in (None, got) for want, got in zip(shape, info.shape, strict=True)
        )
        if not fits:
            expected = f"[{', '.join('any' if d is None else str(d) for d in shape)}]"
            raise ModelError(
                f"tensor '{name}' has shape {list(info.shape)}, the architecture asks for {expected}",
                where=self.path,
            )
        if name not in self.nodes:
            self.nodes[name] = make("weight", tensor=name, dtype=info.quant.name, shape=info.shape)
        return self.nodes[name]

    def unused(self) -> list[str]:
        """Tensors that no node stands for."""
        return [name for name in self.tensors if name not in self.nodes]


class Parameter:
    """A weight with its optional bias, under one name."""

    def __init__(self, weights: Weights, name: str) -> None:
        self.weights, self.name = weights, name

    def __bool__(self) -> bool:
        return f"{self.name}.weight" in self.weights.tensors

    def weight(self, *shape: Dim | None) -> Node:
        return self.weights.node(f"{self.name}.weight", shape)

    def bias(self, *shape: Dim | None) -> Node | None:
        name = f"{self.name}.bias"
        return self.weights.node(name, shape) if name in self.weights.tensors else None

    @property
    def rows(self) -> int:
        """Rows of the weight, 0 where it is missing."""
        info = self.weights.tensors.get(f"{self.name}.weight")
        return info.shape[0] if info else 0


class Layer:
    """The weights and the configuration of one layer."""

    def __init__(self, weights: Weights, config: ModelConfig, index: int) -> None:
        self.weights, self.config, self.index = weights, config, index
        self.n_head, self.n_head_kv = config.n_head[index], config.n_head_kv[index]
        self.n_ff = config.n_ff[index]
        self.windowed = bool(config.window and config.windowed and config.windowed[index])
        self.window = config.window if self.windowed else 0

    def __getattr__(self, name: str) -> Parameter:
        if name.startswith("_"):
            raise AttributeError(name)
        return Parameter(self.weights, f"blk.{self.index}.{name}")

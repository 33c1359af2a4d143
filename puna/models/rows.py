"""The tokens of a vocabulary beside the rows of the tables that their ids read."""

from __future__ import annotations

from collections.abc import Iterator

from puna.errors import ModelError
from puna.gguf import Metadata
from puna.graph import Graph
from puna.models.config import ModelConfig

__all__ = ["row_notes"]

TOKENS = "tokenizer.ggml.tokens"


def row_notes(metadata: Metadata, graph: Graph, config: ModelConfig) -> tuple[str, ...]:
    """What a user must see of rows that no token has: in a model that writes, they are never chosen.

    Raises ModelError, with the tensor's name, where tokens have no row. A file without a vocabulary has no tokens.
    """
    tokens = metadata.count(TOKENS)
    if not tokens:
        return ()
    for name, rows in tables(graph):
        if rows < tokens:
            raise ModelError(
                f"the vocabulary has {tokens} tokens, and tensor '{name}' rows for {rows}",
                where=metadata.where,
                fix="convert the model again, or download another file",
            )
    most = max(tables(graph), key=lambda table: table[1], default=("", 0))
    if most[1] == tokens or config.pooling is not None:
        return ()
    return (
        f"tensor '{most[0]}' has {most[1]} rows, and the vocabulary {tokens} tokens: ids without one are never chosen",
    )


def tables(graph: Graph) -> Iterator[tuple[str, int]]:
    """Tensors whose rows are read by a token's id, and how many they have."""
    for node in graph.nodes:
        if node.op == "embed" and node.inputs[1].op == "tokens" and node.inputs[0].op == "weight":
            yield str(node.inputs[0].attrs["tensor"]), int(node.inputs[0].type.shape[0])

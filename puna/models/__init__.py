"""Architectures, one file each, over shared blocks."""

from __future__ import annotations

from puna.models.config import ModelConfig
from puna.models.decoder import Decoder
from puna.models.weights import Layer, Weights

__all__ = ["Decoder", "Layer", "ModelConfig", "Weights"]

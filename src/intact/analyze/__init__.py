"""What quantisation does to a model, layer by layer."""

from __future__ import annotations

from intact.analyze.errors import LayerError, QuantLoss, quant_loss

__all__ = ["LayerError", "QuantLoss", "quant_loss"]

"""Questions about Quantize and Dequantize nodes of a written model, asked of the model alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from intact.graph import constant_array, input_value, moves_values

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
SATURATIONS = frozenset({"Relu", "Clip"})

_SCALE, _ZERO_POINT = 1, 2


def scale_of(quantizer: ir.Node) -> npt.NDArray[Any] | None:
    """Return the scale of a Quantize or Dequantize; None where it is no constant."""
    return constant_array(input_value(quantizer, _SCALE))


def zero_point_of(quantizer: ir.Node) -> npt.NDArray[Any] | None:
    """Return the zero point of a Quantize or Dequantize; None where it is no constant."""
    return constant_array(input_value(quantizer, _ZERO_POINT))


def axis_of(quantizer: ir.Node) -> int:
    """Return the axis of scales by channel."""
    return quantizer.attributes.get_int("axis", 1)


def dequantizer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the Dequantize that a value comes from, perhaps moved on the way."""
    maker = None if value is None else value.producer()
    while maker is not None and maker.op_type != DEQUANTIZE and moves_values(maker):
        source = input_value(maker, 0)
        maker = None if source is None else source.producer()
    return maker if maker is not None and maker.op_type == DEQUANTIZE else None


def quantizer_of(dequantizer: ir.Node) -> ir.Node | None:
    """Return the Quantize that a Dequantize reads."""
    source = input_value(dequantizer, 0)
    maker = None if source is None else source.producer()
    return maker if maker is not None and maker.op_type == QUANTIZE else None


def constant_behind(quantizer: ir.Node) -> npt.NDArray[Any] | None:
    """Return the constant that a Quantize or Dequantize is about; None for activations."""
    first = quantizer
    if quantizer.op_type == DEQUANTIZE:
        first = quantizer_of(quantizer) or quantizer
    return constant_array(input_value(first, 0))


def tensor_name(quantizer: ir.Node, known: Collection[str]) -> str:
    """Return what the float model calls the activation that a Quantize reads.

    Where that is an output of the model, the Dequantize has its name; where a range is narrower
    than its type, a Clip stands before the Quantize.

    Args:
        quantizer: The Quantize.
        known: The names of the float model's tensors.
    """
    value = input_value(quantizer, 0)
    maker = None if value is None else value.producer()
    clipped = None if maker is None or maker.op_type != "Clip" else input_value(maker, 0)
    outputs = (use.node.outputs[0] for use in quantizer.outputs[0].uses())
    candidates = [str(each.name) for each in (value, *outputs, clipped) if each is not None]
    return next((name for name in candidates if name in known), candidates[0] if candidates else "")

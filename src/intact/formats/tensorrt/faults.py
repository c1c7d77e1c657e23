"""All that TensorRT's explicit int8 quantisation has no form for, listed before it is written.

Sources: TensorRT developer guide, "Working with Quantized Types" (symmetric int8; activations per
tensor, weights per channel) and "Explicit Quantization"; the ONNX parser's support matrix
(``QuantizeLinear``: the zero point must be 0); NVIDIA/TensorRT issue 2380 (no scales by output
channel of a transposed convolution), issue 1293 and onnxruntime issue 11535 (no integer biases).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.errors import ExportError
from intact.plan import QuantizedGraph, QuantPoint, quantization_points

_BITS = 8
_WIDEST_DATA = 16
"""Bits; wider codes are those of biases."""


def refuse_inexpressible(plan: QuantizedGraph) -> None:
    """Refuse a calibrated plan that TensorRT cannot compute.

    Raises:
        ExportError: With all reasons listed.
    """
    reasons: dict[str, list[str]] = {}
    for point in quantization_points(plan):
        for reason in _reasons(point):
            reasons.setdefault(reason, []).append(str(point.end))
    if reasons:
        told = [f"{reason} ({', '.join(ends)})" for reason, ends in reasons.items()]
        listed = [f"{end}: {reason}" for reason, ends in reasons.items() for end in ends]
        raise ExportError(
            f"TensorRT has no form for {'; '.join(told)}",
            remedy="quantize with --target tensorrt, and 8 bits throughout",
            listed=listed,
        )


def _reasons(point: QuantPoint) -> Iterator[str]:
    config, params = point.config, point.config.params
    if point.is_constant and config.bits > _WIDEST_DATA:
        yield "biases as integers, it adds floats"
        return
    if config.grid.exponential:
        yield "logarithmic levels"
        return
    if config.bits != _BITS:
        yield f"{config.bits} bits, it computes with 8"
    if config.quant_min >= 0:
        yield "unsigned codes"
    elif params is not None and np.any(params.zero_point):
        yield "zero points other than 0"
    if config.granularity.axis is not None:
        if not point.is_constant:
            yield "activations with one scale a channel"
        elif any(_is_transposed_convolution(node) for node, _ in point.readers):
            yield "weights of a ConvTranspose with one scale a channel"


def _is_transposed_convolution(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "ConvTranspose"

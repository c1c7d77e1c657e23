"""OpenVINO's FakeQuantize: the form in which it takes a quantizer.

``FakeQuantize(x, low, high, low, high, levels)`` moves ``x`` to the nearest of ``levels`` numbers
between ``low`` and ``high``, which stand for the smallest and the largest code.

Source: the document on MQBench's OpenVINO backend; OpenVINO's operation set, FakeQuantize-1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.numerics.conversion import Ends, ends_of_codes
from intact.plan import QuantPoint

DOMAIN = "org.openvinotoolkit"
OP_TYPE = "FakeQuantize"

MOST_BITS = 16
"""Wider codes have no levels: a bias of 32 bits is written as the floats that it stands for."""


@dataclass(frozen=True)
class Quantizer:
    """The numbers of one FakeQuantize.

    Attributes:
        low: What the smallest code stands for, float32, of the shape that broadcasts.
        high: What the largest code stands for.
        levels: How many codes there are.
    """

    low: Ends
    high: Ends
    levels: int


def stored_range(config: TensorQuantConfig, *, is_constant: bool) -> tuple[int, int]:
    """Return the codes that a FakeQuantize is given for those of a config.

    Constants are written on their grid already, so the range of theirs may be wider than what they
    use. OpenVINO computes with integers where weights have 255 or 256 levels: fewer than 8 bits are
    stored as 8, with the scale kept (128 levels from -64 as 256 levels from -128).
    """
    low, high = config.quant_min, config.quant_max
    if is_constant and low >= -128 and high <= 255:
        if low >= 0:
            return 0, 255
        if (low, high) != (-127, 127) and high <= 127:
            return -128, 127
    return low, high


def quantizer(point: QuantPoint) -> Quantizer:
    """Return the FakeQuantize of a point that has one (see ``unsupported_reason``)."""
    config = point.config
    params = config.params
    if params is None:
        raise ValueError(f"{point.end} has no scale")
    low, high = stored_range(config, is_constant=point.is_constant)
    ends = ends_of_codes(params, low, high)
    axis = config.granularity.axis
    if axis is not None:
        shape = [1] * _rank(point.value)
        shape[axis] = -1
        ends = ends[0].reshape(shape), ends[1].reshape(shape)
    return Quantizer(*ends, levels=high - low + 1)


def unsupported_reason(point: QuantPoint) -> str | None:
    """Tell why there is no FakeQuantize for a point; None if there is one, or needs to be none."""
    config = point.config
    if config.grid.exponential:
        return "logarithmic levels"
    if is_plain(point):
        return None
    if config.bits > MOST_BITS:
        return f"{config.quant_min}..{config.quant_max}"
    if config.granularity.axis is not None and point.value.shape is None:
        return "one scale a channel of a tensor of unknown rank"
    span = quantizer(point)
    if not (np.isfinite(span.low).all() and np.isfinite(span.high).all()):
        return "a range beyond float32"
    return None


def is_plain(point: QuantPoint) -> bool:
    """Check whether a constant is written as the floats that it stands for, without a quantizer."""
    return point.is_constant and point.config.bits > MOST_BITS


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)

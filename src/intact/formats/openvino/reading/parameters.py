"""The five inputs and the levels of a FakeQuantize as scale, zero point and range."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import (
    Granularity,
    PerChannel,
    PerTensor,
    QuantState,
    TensorQuantConfig,
    make_policy,
)
from intact.errors import ModelError
from intact.formats.openvino.fake_quantize import DOMAIN, MOST_BITS, OP_TYPE
from intact.graph import constant_array, input_value
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import Ends, params_of_ends
from intact.plan import Codes
from intact.targets import full_range

READ = "read"
"""Stands as ``observer`` of a config that was read, in the place of a method's name."""

_SMALLEST = float(np.finfo(np.float32).tiny)
"""Scale that a plan can hold."""

_OFF = 0.01
"""How far, in steps, 0 may lie from a level. Ends in float32 are off by 1e-4 at 16 bits."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """How codes and numbers of one tensor belong together.

    Attributes:
        params: Scale and zero point, ``[]`` or ``[channels]``.
        quant_min: Smallest code.
        quant_max: Largest code.
        axis: The channel axis counted from 0; None for one scale.
    """

    params: QuantParams
    quant_min: int
    quant_max: int
    axis: int | None

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """The smallest NumPy type that holds the codes."""
        return np.result_type(
            np.min_scalar_type(self.quant_min), np.min_scalar_type(self.quant_max)
        )

    def equals(self, other: Parameters) -> bool:
        """Tell whether equal codes mean equal numbers."""
        mine, theirs = ((each.quant_min, each.quant_max, each.axis) for each in (self, other))
        (scale, zero_point), (other_scale, other_zero_point) = self.params, other.params
        return (
            mine == theirs
            and np.array_equal(scale, other_scale)
            and np.array_equal(zero_point, other_zero_point)
        )

    def config(self, state: QuantState = QuantState.ACTIVATED) -> TensorQuantConfig:
        """Return a new config that says the same; calibration leaves its scale alone."""
        granularity: Granularity = PerTensor() if self.axis is None else PerChannel(self.axis)
        return TensorQuantConfig(
            policy=make_policy(granularity, symmetric=not self.params.zero_point.any()),
            bits=(self.quant_max - self.quant_min).bit_length(),
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            granularity=granularity,
            scale=self.params.scale,
            offset=self.params.zero_point,
            observer=READ,
            detail={"fixed": True},
            state=state,
        )

    def narrowed(self, codes: Codes) -> Parameters:
        """Return the parameters of a constant with the range of the narrowest width for its codes.

        Fewer than 8 bits are stored as 256 levels, of which half or more are not used.
        """
        if self.quant_max - self.quant_min != 255 or not codes.any():
            return self
        signed = self.quant_min < 0
        least = min(int(codes.min()), int(self.params.zero_point.min()))
        most = max(int(codes.max()), int(self.params.zero_point.max()))
        for bits in range(2, 8):
            low, high = full_range(bits, signed=signed, narrow=False)
            if low <= least and most <= high:
                return replace(self, quant_min=low, quant_max=high)
        return self


def is_fake_quantize(node: ir.Node) -> bool:
    """Tell whether a node is OpenVINO's quantiser."""
    return node.op_type == OP_TYPE and node.domain == DOMAIN


def read_parameters(node: ir.Node) -> Parameters:
    """Return the parameters of a FakeQuantize.

    Raises:
        ModelError: They are not fixed in the model, or are none that a plan can hold; the node is
            named.
    """
    if len(node.inputs) != 5 or len(node.outputs) != 1 or node.inputs[0] is None:
        raise refusal(node, f"it has {len(node.inputs)} inputs and {len(node.outputs)} outputs")
    levels = _levels(node)
    low, high, out_low, out_high = (_ends(node, slot) for slot in range(1, 5))
    if not (np.array_equal(low, out_low) and np.array_equal(high, out_high)):
        raise refusal(node, "its output range is not its input range")
    low, high, axis = _by_channel(node, low, high)
    if not ((low < high) & (low <= 0) & (high >= 0)).all():
        raise refusal(node, "a range of it is empty or does not hold 0")
    if ((high.astype(np.float64) - low) / (levels - 1) < _SMALLEST).any():
        raise refusal(node, "its levels are nearer than normal float32 numbers")
    quant_min, params = _codes(low, high, levels)
    if _off(low, params, quant_min) > _OFF:
        raise refusal(node, "0 lies between two of its levels")
    return Parameters(params, quant_min, quant_min + levels - 1, axis)


def refusal(node: ir.Node, reason: str, remedy: str = "quantize the float model") -> ModelError:
    """Return the error that names a node which cannot be read."""
    return ModelError(f"node {node.name!r} ({node.op_type}): {reason}", remedy=remedy)


def _codes(low: Ends, high: Ends, levels: int) -> tuple[int, QuantParams]:
    """Return the smallest code, scale and zero point: signed codes if 0 is in their middle."""
    half = -(levels // 2)
    signed = params_of_ends(low, high, half, half + levels - 1)
    if not signed.zero_point.any():
        return half, signed
    return 0, params_of_ends(low, high, 0, levels - 1)


def _off(low: Ends, params: QuantParams, quant_min: int) -> float:
    """Return by how many steps the ends say another zero point."""
    exact = quant_min - low.astype(np.float64) / params.scale
    return float(np.abs(exact - params.zero_point).max())


def _levels(node: ir.Node) -> int:
    attribute = node.attributes.get("levels")
    if attribute is None or attribute.type is not ir.AttributeType.INT or attribute.is_ref():
        raise refusal(node, "its attribute levels is no integer")
    levels = attribute.as_int()
    if not 3 <= levels <= 1 << MOST_BITS:
        raise refusal(node, f"it has {levels} levels", f"3 to {1 << MOST_BITS} are read")
    return levels


def _ends(node: ir.Node, slot: int) -> npt.NDArray[np.float32]:
    array = constant_array(input_value(node, slot))
    if array is None:
        raise refusal(node, "its range is computed by the model")
    if array.dtype != np.float32 or array.size == 0 or not np.isfinite(array).all():
        raise refusal(node, "its range is not finite float32")
    return array


def _by_channel(node: ir.Node, low: Ends, high: Ends) -> tuple[Ends, Ends, int | None]:
    """Return the ends as ``[]`` or ``[channels]``, with the axis."""
    try:
        low, high = np.broadcast_arrays(low, high)
    except ValueError as error:
        raise refusal(node, "its ends have different shapes") from error
    long = [axis for axis, length in enumerate(low.shape) if length != 1]
    if not long:
        return low.reshape(()), high.reshape(()), None
    value = node.inputs[0]
    shape = None if value is None else value.shape
    rank = low.ndim if shape is None else len(shape)
    axis = long[0] + rank - low.ndim
    if len(long) > 1 or low.ndim > rank:
        raise refusal(node, f"its ends have shape {list(low.shape)}")
    length = low.shape[long[0]]
    if shape is not None and shape[axis] != length and not shape.is_unknown_dim(axis):
        raise refusal(node, f"it has {length} scales along axis {axis} of shape {shape}")
    return low.reshape(-1), high.reshape(-1), axis

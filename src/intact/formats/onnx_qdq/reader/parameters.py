"""Reads scale, zero point and type of a QuantizeLinear or DequantizeLinear node.

The type that holds the codes of a config needs an opset of its own.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
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
from intact.errors import ConfigError, ModelError
from intact.graph import constant_array, input_value
from intact.ops.operators import DequantizeLinear, QuantizeLinear
from intact.plan.stored_weights import is_stored


class Container(msgspec.Struct, frozen=True):
    """An ONNX integer type.

    Attributes:
        data_type: The ONNX type.
        numpy: The NumPy type of its arrays.
        low: Smallest integer it holds.
        high: Largest integer it holds.
        opset: First default opset whose QuantizeLinear takes it.
    """

    data_type: ir.DataType
    numpy: npt.DTypeLike
    low: int
    high: int
    opset: int

    def opset_for(self, config: TensorQuantConfig) -> int:
        """Return the first opset that expresses a config: scales by channel came with 13."""
        return self.opset if config.granularity.axis is None else max(self.opset, _PER_CHANNEL)

    @property
    def in_bytes(self) -> Container:
        """The smallest type of whole bytes that holds the same codes: what kernels read."""
        family = _SIGNED if self.low < 0 else _UNSIGNED
        return family[1] if self.is_packed else self

    @property
    def is_packed(self) -> bool:
        """Whether a byte holds two codes."""
        return self.data_type.bitwidth < _BYTE

    @property
    def codes(self) -> np.dtype[Any]:
        """The NumPy type in which codes are kept: without the 4-bit types that NumPy lacks."""
        return np.dtype(f"{'i' if self.low < 0 else 'u'}{max(self.data_type.bitwidth // 8, 1)}")

    def holds_exactly(self, config: TensorQuantConfig) -> bool:
        """Check whether saturating to the type is saturating to the config's range."""
        return (config.quant_min, config.quant_max) == (self.low, self.high)


_PER_CHANNEL = 13
_BYTE = 8

_SIGNED = (
    Container(ir.DataType.INT4, ml_dtypes.int4, -8, 7, 21),
    Container(ir.DataType.INT8, np.int8, -128, 127, 10),
    Container(ir.DataType.INT16, np.int16, -(2**15), 2**15 - 1, 21),
    Container(ir.DataType.INT32, np.int32, -(2**31), 2**31 - 1, 10),
)
_UNSIGNED = (
    Container(ir.DataType.UINT4, ml_dtypes.uint4, 0, 15, 21),
    Container(ir.DataType.UINT8, np.uint8, 0, 255, 10),
    Container(ir.DataType.UINT16, np.uint16, 0, 2**16 - 1, 21),
)


_BY_TYPE = {container.data_type: container for container in (*_SIGNED, *_UNSIGNED)}


def container_of(data_type: ir.DataType | None) -> Container | None:
    """Return the container that an ONNX type is; None for what holds no codes."""
    return None if data_type is None else _BY_TYPE.get(data_type)


def container_for(config: TensorQuantConfig, *, is_constant: bool) -> Container | None:
    """Return the smallest type that holds a config's range; None if ONNX has none.

    A weight of a float node takes 8 bits at least: older opsets look up whole bytes only.

    Activations take 8 bits at least: ONNX Runtime 1.31 refuses a model in which a Clip stands
    before a 4-bit QuantizeLinear, and gives no 4-bit tensors.
    """
    may_pack = is_constant and not is_stored(config)
    return container_of_range(config.quant_min, config.quant_max, may_pack=may_pack)


def container_of_range(low: int, high: int, *, may_pack: bool = False) -> Container | None:
    """Return the smallest type that holds a range, of 8 bits or more unless it may be packed."""
    family = _SIGNED if low < 0 else _UNSIGNED
    return next(
        (
            container
            for container in (family if may_pack else family[1:])
            if container.low <= low and high <= container.high
        ),
        None,
    )


DOMAINS = frozenset({"", "com.microsoft"})
"""Where QuantizeLinear and DequantizeLinear live; the second had 4 and 16 bits first."""

READ = "read"
"""Stands as ``observer`` of a config that was read, in the place of a method's name."""

ONLY_KNOWN = "only models whose integer operators intact knows can be read"
_STATIC = "only static quantization with one scale a tensor or channel is read"


class Parameters(msgspec.Struct, frozen=True, eq=False):
    """How codes and numbers of one tensor belong together.

    Attributes:
        scale: float32, ``[]`` or ``[channels]``.
        zero_point: int64, like ``scale``.
        container: The ONNX type of the codes.
        axis: The channel axis counted from 0; None for one scale.
        quant_min: Smallest code, of the type unless the model says another.
        quant_max: Largest code.
        is_symmetric: The zero point is 0 by choice: of signed codes, or of a fake quantizer.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    container: Container
    axis: int | None
    quant_min: int
    quant_max: int
    is_symmetric: bool

    def equals(self, other: Parameters) -> bool:
        """Check whether equal codes mean equal numbers."""
        return (
            self._grid == other._grid
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    @property
    def _grid(self) -> tuple[object, ...]:
        return self.container, self.axis, self.quant_min, self.quant_max

    def config(self, state: QuantState = QuantState.ACTIVATED) -> TensorQuantConfig:
        """Return a new config that says the same; calibration leaves its scale alone.

        Raises:
            ConfigError: Scale or zero point are impossible.
        """
        granularity: Granularity = PerTensor() if self.axis is None else PerChannel(self.axis)
        return TensorQuantConfig(
            policy=make_policy(granularity, symmetric=self.is_symmetric),
            bits=(self.quant_max - self.quant_min).bit_length(),
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            granularity=granularity,
            scale=self.scale,
            offset=self.zero_point,
            observer=READ,
            detail={"fixed": True},
            state=state,
        )


def is_quantize(node: ir.Node) -> bool:
    """Check whether a node turns numbers into codes."""
    return node.op_type == QuantizeLinear.name and node.domain in DOMAINS


def is_dequantize(node: ir.Node) -> bool:
    """Check whether a node turns codes into numbers."""
    return node.op_type == DequantizeLinear.name and node.domain in DOMAINS


def read_parameters(node: ir.Node) -> Parameters:
    """Return the parameters of a QuantizeLinear or DequantizeLinear.

    Raises:
        ModelError: They are not fixed in the model, or are none that a plan can hold: float8,
            scales by block, scales that are not float32, not positive or not finite.
    """
    scale = constant_array(input_value(node, 1))
    zero_value = input_value(node, 2)
    zero_point = constant_array(zero_value)
    if scale is None or (zero_value is not None and zero_point is None):
        raise unreadable(node, "its scale or zero point is computed by the model", _STATIC)
    if scale.dtype != np.float32:
        raise unreadable(node, f"its scales are {scale.dtype}", "export the model in float32")
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise unreadable(
            node,
            "a scale of it is not positive and finite",
            "a channel of zeros takes any positive scale: quantize the float model again",
        )
    if scale.ndim > 1 or integer_attribute(node, "block_size", 0) != 0:
        raise unreadable(node, "it has one scale a block", _STATIC)
    container = _container(node)
    codes = np.zeros(1, np.int64) if zero_point is None else zero_point.astype(np.int64)
    axis = None if scale.size == 1 else _axis(node, scale.size)
    shape = () if axis is None else scale.shape
    # ONNX wants as many as scales, and files with one for all are common.
    if codes.size not in (1, scale.size):
        raise unreadable(node, f"it has {scale.size} scales and {codes.size} zero points")
    spread = np.broadcast_to(codes.reshape(() if codes.size == 1 else shape), shape)
    low = integer_attribute(node, "quant_min", container.low)
    high = integer_attribute(node, "quant_max", container.high)
    if not container.low <= low < high <= container.high:
        name = container.data_type.name.lower()
        raise unreadable(node, f"its codes {low}..{high} are not within its type {name}")
    # A zero point of 0 of unsigned codes is most often one that calibration found, not a choice.
    is_symmetric = not codes.any() and (low < 0 or "quant_min" in node.attributes)
    parameters = Parameters(scale.reshape(shape), spread, container, axis, low, high, is_symmetric)
    try:
        # Made and dropped: impossible numbers are refused here, where the node is known.
        parameters.config()
    except ConfigError as error:
        raise unreadable(node, str(error)) from error
    return parameters


def integer_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute.

    Raises:
        ModelError: It is of another type.
    """
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    if attribute.type is not ir.AttributeType.INT or attribute.is_ref():
        raise unreadable(node, f"its attribute {name} is no integer")
    return attribute.as_int()


def unreadable(node: ir.Node, reason: str, remedy: str = "quantize the float model") -> ModelError:
    """Return the error that names a node which cannot be read."""
    return ModelError(f"node {node.name!r} ({node.op_type}): {reason}", remedy=remedy)


def _container(node: ir.Node) -> Container:
    """Return the type of the codes: the zero point's, or what stands in its place."""
    zero_point = input_value(node, 2)
    number = integer_attribute(node, "output_dtype", 0)
    if number not in ir.DataType.__members__.values():
        raise unreadable(node, f"its output_dtype is {number}")
    declared = ir.DataType(number)
    if is_dequantize(node):
        if declared not in (ir.DataType.UNDEFINED, ir.DataType.FLOAT):
            raise unreadable(
                node, f"it gives {declared.name.lower()}", "export the model in float32"
            )
        codes = input_value(node, 0)
        data_type = None if codes is None else codes.dtype
    else:
        data_type = declared or ir.DataType.UINT8
    if zero_point is not None and zero_point.const_value is not None:
        data_type = zero_point.const_value.dtype
    container = container_of(data_type)
    if container is None:
        name = "unknown" if data_type is None else data_type.name.lower()
        raise unreadable(node, f"its codes are of type {name}", "integers of 4 to 32 bits are read")
    return container


def _axis(node: ir.Node, channels: int) -> int:
    """Return the channel axis, counted from 0."""
    axis = integer_attribute(node, "axis", 1)
    value = input_value(node, 0)
    if value is None or value.shape is None:
        if axis < 0:
            raise unreadable(node, f"axis {axis} of a tensor of unknown rank")
        return axis
    rank = len(value.shape)
    if not -rank <= axis < rank:
        raise unreadable(node, f"axis {axis} of a tensor of {rank} dimension(s)")
    if value.shape[axis] != channels and not value.shape.is_unknown_dim(axis):
        raise unreadable(node, f"it has {channels} scales along axis {axis} of shape {value.shape}")
    return axis % rank

"""Reads codes, scales and zero points of weights in blocks.

A block of zeros has a scale of 0 in files of ONNX Runtime's quantizer: its codes are the zero
point, whatever the scale is.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import PerBlock, QuantState, TensorQuantConfig, make_policy
from intact.errors import ConfigError
from intact.formats.onnx_qdq.reader.parameters import (
    READ,
    container_of,
    integer_attribute,
    unreadable,
)
from intact.graph import constant_array, input_value, is_constant
from intact.numerics.affine import dequantize
from intact.numerics.packing import unpack_bits
from intact.ops.operators import Cast, Identity, Reshape, is_a
from intact.plan.stored_weights import STORED

WIDTHS = (2, 4, 8)
_BYTE = 8
_OF_ZEROS = np.float32(2.0**-24)
"""The scale of a block of zeros."""


class BlockParameters(msgspec.Struct, frozen=True, eq=False):
    """How codes and numbers of a weight in blocks belong together.

    Attributes:
        scale: float32, one for each block.
        zero_point: int64, like ``scale``; float32 where they lie between the codes.
        grain: The blocks.
        quant_min: Smallest code.
        quant_max: Largest code.
        is_symmetric: There are no zero points.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    grain: PerBlock
    quant_min: int
    quant_max: int
    is_symmetric: bool

    @property
    def lies_between(self) -> bool:
        """Whether zero points are floats, which may lie between the codes."""
        return self.zero_point.dtype.kind == "f"

    def config(self, state: QuantState = QuantState.BAKED) -> TensorQuantConfig:
        """Return a new config that says the same.

        Raises:
            ConfigError: Scale or zero point are impossible.
        """
        return TensorQuantConfig(
            policy=make_policy(self.grain, symmetric=self.is_symmetric),
            bits=(self.quant_max - self.quant_min).bit_length(),
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            granularity=self.grain,
            scale=self.scale,
            offset=self.zero_point,
            observer=READ,
            detail={"fixed": True, STORED: True},
            state=state,
        )


class BlockWeight(msgspec.Struct, frozen=True):
    """Codes of a constant, with how they are read."""

    codes: npt.NDArray[np.integer[Any]]
    parameters: BlockParameters

    def turned(self) -> BlockWeight:
        """Return the transposed matrix."""
        own = self.parameters
        parameters = msgspec.structs.replace(
            own,
            scale=np.ascontiguousarray(own.scale.T),
            zero_point=np.ascontiguousarray(own.zero_point.T),
            grain=PerBlock(1 - own.grain.axis, own.grain.size),
        )
        return BlockWeight(np.ascontiguousarray(self.codes.T), parameters)


def packed(
    node: ir.Node, rows: int, length: int, bits: int, size: int, *, data: int
) -> BlockWeight:
    """Read codes in bytes, as ``[rows, length]`` with blocks along the last axis.

    Args:
        node: The operator.
        rows: Rows of codes.
        length: Numbers in a row.
        bits: Width of a code.
        size: Numbers in a block.
        data: Slot of the codes; scales and zero points are behind it, but for indices.
    """
    if bits not in WIDTHS:
        raise unreadable(node, f"its codes have {bits} bits", f"use {listed(WIDTHS)}")
    # Blocks begin at whole bytes; of others no runtime says where they begin.
    if size * bits % _BYTE:
        raise unreadable(node, f"blocks of {size} codes of {bits} bits are no whole bytes")
    first = 2 if data == 0 else data + 1
    blocks = -(-length // size)
    stored = constant_through(input_value(node, data))
    if stored is None or stored.dtype != np.uint8:
        raise unreadable(node, "its codes are computed, or no bytes")
    whole = rows * blocks * size * bits // _BYTE
    # Weights have their last block padded, tables end with their row: the size tells which.
    is_padded = stored.size == whole
    if not is_padded and stored.size != rows * -(-length * bits // _BYTE):
        raise unreadable(
            node,
            f"its codes have {stored.size} bytes, {rows} rows of {blocks} blocks of {size} have "
            f"{whole}",
        )
    codes = unpack_bits(stored.reshape(rows, -1), bits, blocks * size if is_padded else length)
    codes = codes[:, :length]
    scales = _scales(node, input_value(node, first), (rows, blocks))
    zeros = _zero_points(node, input_value(node, first + 1), (rows, blocks), bits)
    if data == 0 and zeros is not None and zeros.dtype.kind == "f":
        raise unreadable(node, "its zero points are floats, those of tables are codes")
    return _weight(node, codes, scales, zeros, 1, size, bits)


def plain(
    node: ir.Node,
    codes: npt.NDArray[Any],
    axis: int,
    size: int,
    *,
    scales: int,
    zero_points: int,
) -> BlockWeight:
    """Read codes of which each has its place."""
    value = input_value(node, 0)
    container = container_of(None if value is None else value.dtype)
    if container is None or container.data_type.bitwidth > _BYTE:
        raise unreadable(node, "its codes are of no type of 4 or 8 bits")
    shape = PerBlock(axis, size).scales_shape(codes.shape)
    found = _scales(node, input_value(node, scales), shape)
    given = constant_through(input_value(node, zero_points))
    if given is None and input_value(node, zero_points) is not None:
        raise unreadable(node, "its zero points are computed")
    zeros = None if given is None else given.astype(np.int64).reshape(-1)
    if zeros is not None and zeros.size != found.size:
        raise unreadable(node, f"it has {found.size} scales and {zeros.size} zero points")
    zeros = None if zeros is None else zeros.reshape(shape)
    numbers = codes.astype(container.codes)
    bits = container.data_type.bitwidth
    if container.low < 0 or zeros is not None:
        is_signed = container.low < 0
        return _weight(node, numbers, found, zeros, axis, size, bits, is_signed=is_signed)
    return _weight(node, numbers, found, np.zeros(shape, np.int64), axis, size, bits)


def _scales(
    node: ir.Node, value: ir.Value | None, shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    found = constant_through(value)
    if found is None or (found.dtype.kind != "f" and found.dtype.name != "bfloat16"):
        raise unreadable(node, "its scales are computed, or no floats")
    if found.size != int(np.prod(shape)):
        raise unreadable(node, f"it has {found.size} scales, its blocks are {shape}")
    scales = found.astype(np.float32).reshape(shape)
    if not np.isfinite(scales).all():
        raise unreadable(node, "a scale of it is not finite", "quantize the float model again")
    return scales


def _zero_points(
    node: ir.Node, value: ir.Value | None, shape: tuple[int, int], bits: int
) -> npt.NDArray[np.int64] | None:
    """Return zero points of blocks: bytes with several, or numbers."""
    found = constant_through(value)
    if found is None:
        if value is not None:
            raise unreadable(node, "its zero points are computed")
        return None
    rows, blocks = shape
    if found.dtype == np.uint8 and found.size == rows * -(-blocks * bits // _BYTE):
        return unpack_bits(found.reshape(rows, -1), bits, blocks).astype(np.int64)
    if found.size != rows * blocks:
        raise unreadable(node, f"it has {found.size} zero points, its blocks are {shape}")
    numbers = found.reshape(shape)
    if not np.isfinite(numbers.astype(np.float32)).all():
        raise unreadable(node, "a zero point of it is not finite", "quantize the float model again")
    if found.dtype.kind not in "iu":
        # Also where all are whole: the runtime computes by their type, not by their values.
        return numbers.astype(np.float32)
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= 1 << bits:
        raise unreadable(node, f"a zero point of it is no code of {bits} bits")
    return numbers.astype(np.int64)


def _weight(
    node: ir.Node,
    codes: npt.NDArray[Any],
    scales: npt.NDArray[np.float32],
    zeros: npt.NDArray[np.int64] | None,
    axis: int,
    size: int,
    bits: int,
    *,
    is_signed: bool = False,
) -> BlockWeight:
    """Join codes and scales; without zero points, codes are counted from the middle."""
    middle = 1 << bits - 1
    if zeros is None and not is_signed:
        codes = (codes.astype(np.int16) - middle).astype(np.int8)
        is_signed = True
    low = -middle if is_signed else 0
    is_symmetric = zeros is None
    points = np.zeros(scales.shape, np.int64) if zeros is None else zeros
    empty = scales == 0
    if empty.any():
        scales = np.where(empty, _OF_ZEROS, scales)
        # Codes of empty blocks are shown by scales of 1, all others vanish: what is left are
        # numbers that a scale of 0 lost.
        spread = dequantize(
            codes,
            np.where(empty, np.float32(1), np.float32(2.0**-100)),
            points,
            axis=axis,
            block=size,
        )
        if (np.abs(spread) >= 1).any():
            raise unreadable(
                node,
                "a block of it has the scale 0 and codes of other numbers",
                "quantize the float model again",
            )
    parameters = BlockParameters(
        scales, points, PerBlock(axis, size), low, low + (1 << bits) - 1, is_symmetric
    )
    try:
        parameters.config()
    except ConfigError as error:
        raise unreadable(node, str(error)) from error
    return BlockWeight(codes, parameters)


def listed(numbers: tuple[int, ...]) -> str:
    """Return numbers as a choice, for messages."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}"


def constant_through(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return a constant, also behind a Cast or Reshape; None for what is computed or absent."""
    if value is None or is_constant(value):
        return None if value is None else constant_array(value)
    node = value.producer()
    source = None if node is None or node.domain != "" else constant_through(input_value(node, 0))
    if node is None or source is None:
        return None
    if is_a(node, Reshape):
        shape = constant_array(input_value(node, 1))
        return None if shape is None else _reshape(node, source, [int(n) for n in shape])
    if is_a(node, Cast):
        return source.astype(ir.DataType(integer_attribute(node, "to", 1)).numpy())
    return source if is_a(node, Identity) else None


def _reshape(node: ir.Node, source: npt.NDArray[Any], shape: list[int]) -> npt.NDArray[Any]:
    if not integer_attribute(node, "allowzero", 0):  # 0 keeps the length
        shape = [source.shape[k] if n == 0 and k < source.ndim else n for k, n in enumerate(shape)]
    try:
        return source.reshape(shape)
    except ValueError:
        raise unreadable(node, f"its shape {shape} does not fit {list(source.shape)}") from None

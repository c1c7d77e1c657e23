"""Reads weights in blocks: MatMulNBits, GatherBlockQuantized, DequantizeLinear.

They become float products, and lookups, of constants whose numbers the codes stand for; the codes
are noted. ONNX Runtime's own quantizer, Olive, its generative builder and others write such files.

A block of zeros has a scale of 0 in files of ONNX Runtime's quantizer: its codes are the zero
point, whatever the scale is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import PerBlock, PerRow, QuantState, TensorQuantConfig, make_policy
from intact.errors import ConfigError
from intact.formats.base.read_points import GraphEdits, ReadPoint
from intact.formats.onnx_qdq.blocks import MICROSOFT, OF_INTEGERS
from intact.formats.onnx_qdq.reader.parameters import (
    READ,
    container_of,
    integer_attribute,
    is_dequantize,
    unreadable,
)
from intact.graph import constant_array, input_value, is_constant
from intact.graph.passes.replace import replace_value
from intact.numerics.affine import dequantize
from intact.numerics.packing import unpack_bits
from intact.ops import DENSE, IN_BLOCKS
from intact.plan import Note, NoteKind, TensorEnd
from intact.plan.stored_weights import STORED

PRODUCT, LOOKUP = (MICROSOFT, "MatMulNBits"), (MICROSOFT, "GatherBlockQuantized")
_WIDTHS = (2, 4, 8)
_BYTE = 8
_OF_ZEROS = np.float32(2.0**-24)
"""The scale of a block of zeros."""
_READERS = {(each, 1 if each in DENSE else 0) for each in IN_BLOCKS}
"""What reads a weight in blocks, with its slot."""
_FUSED = (
    "{count} product(s) read a DequantizeLinear with blocks along its first axis (first: {first}): "
    "ONNX Runtime makes MatMulNBits of level 4 of them, which quantizes activations, unless "
    "session.qdq_matmulnbits_accuracy_level is 1"
)


class BlockParameters(msgspec.Struct, frozen=True, eq=False):
    """How codes and numbers of a weight in blocks belong together.

    Attributes:
        scale: float32, one for each block.
        zero_point: int64, like ``scale``.
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


class RowParameters(msgspec.Struct, frozen=True, eq=False):
    """Activations that a product quantizes while it runs, in blocks as large as its weight's.

    Attributes:
        size: Numbers in a block.
    """

    size: int

    def config(self, state: QuantState = QuantState.DYNAMIC) -> TensorQuantConfig:
        """Return a new config that says the same."""
        grain = PerRow(self.size)
        return TensorQuantConfig(
            policy=make_policy(grain, symmetric=True),
            bits=8,
            quant_min=-127,
            quant_max=127,
            granularity=grain,
            observer=READ,
            state=QuantState.DYNAMIC if state is QuantState.ACTIVATED else state,
        )


def has_blocks(model: ir.Model) -> bool:
    """Tell whether a model has weights in blocks."""
    return any(
        (node.domain, node.op_type) in (PRODUCT, LOOKUP) or _is_block_dequantize(node)
        for node in model.graph
    )


def lift_blocks(model: ir.Model) -> tuple[list[ReadPoint], list[Note]]:
    """Put floats in the place of weights in blocks, in place.

    Returns:
        Where they were, and what is to be said of them.

    Raises:
        ModelError: A node cannot be read; it is named.
    """
    lift = _Lift(model)
    for node in tuple(model.graph):
        if (node.domain, node.op_type) == PRODUCT:
            lift.product(node)
        elif (node.domain, node.op_type) == LOOKUP:
            lift.lookup(node)
        elif _is_block_dequantize(node):
            lift.dequantized(node)
    return lift.points, lift.notes()


def _is_block_dequantize(node: ir.Node) -> bool:
    attribute = node.attributes.get("block_size")
    if attribute is None or attribute.type is not ir.AttributeType.INT or attribute.is_ref():
        return False
    return is_dequantize(node) and attribute.as_int() != 0


class _Weight(msgspec.Struct, frozen=True):
    """Codes of a constant, with how they are read."""

    codes: npt.NDArray[np.integer[Any]]
    parameters: BlockParameters

    def turned(self) -> _Weight:
        """Return the transposed matrix."""
        own = self.parameters
        parameters = msgspec.structs.replace(
            own,
            scale=np.ascontiguousarray(own.scale.T),
            zero_point=np.ascontiguousarray(own.zero_point.T),
            grain=PerBlock(1 - own.grain.axis, own.grain.size),
        )
        return _Weight(np.ascontiguousarray(self.codes.T), parameters)


class _Lift:
    """Edits one graph."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._edits = GraphEdits(model.graph)
        self.points: list[ReadPoint] = []
        self._fused: list[str] = []

    def notes(self) -> list[Note]:
        """Say what ONNX Runtime computes otherwise than the file says."""
        if not self._fused:
            return []
        message = _FUSED.format(count=len(self._fused), first=repr(self._fused[0]))
        return [Note(NoteKind.EXPORT, self._fused[0], message)]

    def product(self, node: ir.Node) -> None:
        """Make a MatMul of a MatMulNBits, with an Add behind it for its bias."""
        length, rows, bits, size = (
            _positive(node, name) for name in ("K", "N", "bits", "block_size")
        )
        # Codes in an order of their own would have to be sorted, and written back so.
        if constant_through(input_value(node, 4)) is not None:
            raise unreadable(node, "it orders its inputs by g_idx", "write it without")
        level = integer_attribute(node, "accuracy_level", 0)
        weight = _packed(node, rows, length, bits, size, data=1).turned()
        constant = self._constant(node, weight, 1)
        bias = input_value(node, 5)
        result, data = node.outputs[0], node.inputs[0]
        self._become(node, "MatMul", [data, constant])
        if bias is not None:
            product = ir.Node("", "Add", [None, bias], num_outputs=1)
            product.name = self._edits.names.fresh(f"{node.name}_bias")
            self._graph.insert_after(node, product)
            replace_value(result, product.outputs[0])
            # The name goes to what other nodes read: the sum with the bias.
            result.name = self._edits.names.fresh(f"{node.name}_product")
            product.replace_input_with(0, result)
        self._note(node, 1, weight)
        if level >= OF_INTEGERS:
            end = TensorEnd.input(str(node.name), 0)
            self.points.append(ReadPoint(RowParameters(size), (end,)))

    def lookup(self, node: ir.Node) -> None:
        """Make a Gather of a GatherBlockQuantized."""
        size = integer_attribute(node, "block_size", 128)
        axes = tuple(integer_attribute(node, name, d) for name, d in _AXES)
        data = constant_through(input_value(node, 0))
        if data is None or data.ndim != 2 or axes not in ((0, 1), (0, -1)):
            raise unreadable(node, "it looks up other than rows of a constant matrix")
        bits = integer_attribute(node, "bits", 4)
        if data.dtype == np.uint8:
            if bits not in _WIDTHS:
                raise unreadable(node, f"its codes have {bits} bits", f"use {_listed(_WIDTHS)}")
            length = data.shape[1] * _BYTE // bits
            weight = _packed(node, data.shape[0], length, bits, size, data=0)
        else:
            weight = _plain(node, data, 1, size, scales=2, zero_points=3)
        constant = self._constant(node, weight, 0)
        self._become(node, "Gather", [constant, node.inputs[1]])
        self._note(node, 0, weight)

    def dequantized(self, node: ir.Node) -> None:
        """Put numbers in the place of a DequantizeLinear with blocks."""
        codes = constant_through(input_value(node, 0))
        if codes is None:
            raise unreadable(node, "what it reads in blocks is computed", "only weights may be so")
        size, axis = _positive(node, "block_size"), integer_attribute(node, "axis", 1)
        if not -codes.ndim <= axis < codes.ndim:
            raise unreadable(node, f"axis {axis} of a tensor of {codes.ndim} dimension(s)")
        weight = _plain(node, codes, axis % codes.ndim, size, scales=1, zero_points=2)
        for result, is_turned in tuple(_results(node)):
            own = weight.turned() if is_turned else weight
            for use in tuple(result.uses()):
                reader, slot = use.node, use.idx
                if is_turned is None or (reader.op_type, slot) not in _READERS:
                    if is_turned is False and reader.op_type == "Transpose":
                        continue
                    raise unreadable(
                        reader,
                        f"it reads the weight in blocks of {node.name!r}",
                        "blocks are read of MatMul, Gemm and Gather: quantize this one otherwise",
                    )
                if own.parameters.grain.axis == 0 and reader.op_type == "MatMul" and not is_turned:
                    self._fused.append(str(reader.name))
                reader.replace_input_with(slot, self._constant(reader, own, slot))
                self._note(reader, slot, own)

    def _constant(self, node: ir.Node, weight: _Weight, slot: int) -> ir.Value:
        """Add the numbers that codes stand for; they are computed when they are read."""
        own, codes = weight.parameters, weight.codes
        shape = ir.Shape(codes.shape)

        def numbers() -> ir.TensorProtocol:
            params = own.scale, own.zero_point
            found = dequantize(codes, *params, axis=own.grain.axis, block=own.grain.size)
            return ir.Tensor(found)

        name = self._edits.names.fresh(f"{node.name}_weight" if slot else f"{node.name}_table")
        tensor = ir.LazyTensor(numbers, ir.DataType.FLOAT, shape, name=name)
        value = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape, const_value=tensor
        )
        self._graph.register_initializer(value)
        return value

    def _become(self, node: ir.Node, op_type: str, inputs: list[ir.Value | None]) -> None:
        for name in list(node.attributes):
            node.attributes.pop(name)
        node.op_type, node.domain = op_type, ""
        node.resize_inputs(len(inputs))
        for slot, value in enumerate(inputs):
            node.replace_input_with(slot, value)

    def _note(self, node: ir.Node, slot: int, weight: _Weight) -> None:
        end = TensorEnd.input(str(node.name), slot)
        self.points.append(ReadPoint(weight.parameters, (end,), weight.codes))


_AXES = (("gather_axis", 0), ("quantize_axis", 1))


def _results(node: ir.Node) -> Iterator[tuple[ir.Value, bool | None]]:
    """Yield what a DequantizeLinear gives, and its transposes; None for other orders of axes."""
    for use in node.outputs[0].uses():
        reader = use.node
        if reader.op_type == "Transpose" and reader.domain == "":
            order = reader.attributes.get_ints("perm") or (1, 0)
            yield reader.outputs[0], True if list(order) == [1, 0] else None
    yield node.outputs[0], False


def constant_through(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return a constant, also behind a Cast or Reshape; None for what is computed or absent."""
    if value is None or is_constant(value):
        return None if value is None else constant_array(value)
    node = value.producer()
    source = None if node is None or node.domain != "" else constant_through(input_value(node, 0))
    if node is None or source is None:
        return None
    if node.op_type == "Reshape":
        shape = constant_array(input_value(node, 1))
        return None if shape is None else _reshape(node, source, [int(n) for n in shape])
    if node.op_type == "Cast":
        return source.astype(ir.DataType(integer_attribute(node, "to", 1)).numpy())
    return source if node.op_type == "Identity" else None


def _reshape(node: ir.Node, source: npt.NDArray[Any], shape: list[int]) -> npt.NDArray[Any]:
    if not integer_attribute(node, "allowzero", 0):  # 0 keeps the length
        shape = [source.shape[k] if n == 0 and k < source.ndim else n for k, n in enumerate(shape)]
    try:
        return source.reshape(shape)
    except ValueError:
        raise unreadable(node, f"its shape {shape} does not fit {list(source.shape)}") from None


def _positive(node: ir.Node, name: str) -> int:
    number = integer_attribute(node, name, 0)
    if number < 1:
        raise unreadable(node, f"its {name} is {number}")
    return number


def _packed(node: ir.Node, rows: int, length: int, bits: int, size: int, *, data: int) -> _Weight:
    """Read codes in bytes, as ``[rows, length]`` with blocks along the last axis.

    Args:
        node: The operator.
        rows: Rows of codes.
        length: Numbers in a row.
        bits: Width of a code.
        size: Numbers in a block.
        data: Slot of the codes; scales and zero points are behind it, but for indices.
    """
    if bits not in _WIDTHS:
        raise unreadable(node, f"its codes have {bits} bits", f"use {_listed(_WIDTHS)}")
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
    return _weight(node, codes, scales, zeros, 1, size, bits)


def _plain(
    node: ir.Node,
    codes: npt.NDArray[Any],
    axis: int,
    size: int,
    *,
    scales: int,
    zero_points: int,
) -> _Weight:
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
    plain = codes.astype(container.codes)
    bits = container.data_type.bitwidth
    if container.low < 0 or zeros is not None:
        is_signed = container.low < 0
        return _weight(node, plain, found, zeros, axis, size, bits, is_signed=is_signed)
    return _weight(node, plain, found, np.zeros(shape, np.int64), axis, size, bits)


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
    numbers = found.astype(np.float64).reshape(shape)
    if not np.array_equal(numbers, np.rint(numbers)):
        raise unreadable(
            node,
            "its zero points are no whole numbers, which a plan cannot hold",
            "quantize the float model again",
        )
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
) -> _Weight:
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
    return _Weight(codes, parameters)


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}"

"""Declares what a ``.tflite`` file holds: tensors, operators, buffers of its main graph.

Only the structure is judged here; whether an operator can be read is for `operators` to say.

Sparse constants are stored numbers, and where they stand in a tensor of zeros. Source:
``SparsityParameters`` of the TFLite schema. The axes of a tensor, of which some are split
into blocks, are levels in an order of traversal. A dense level has every place, a sparse one lists
those of each place before it (``segments`` and ``indices``, as of a compressed row).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.config import (
    Granularity,
    PerChannel,
    PerTensor,
    QuantState,
    Rounding,
    TensorQuantConfig,
    make_policy,
)
from intact.errors import Unsupported
from intact.formats.tflite.reader.schema import Element
from intact.numerics.affine import dequantize

Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the traversal of a sparse tensor's axes.

    Attributes:
        length: Places of a dense level; 0 for a sparse one.
        segments: Where the indices of each place before it begin, and the end; None if dense.
        indices: The places that are there; None if dense.
    """

    length: int
    segments: Integers | None = None
    indices: Integers | None = None


@dataclass(frozen=True, eq=False)
class Sparsity:
    """Where the stored numbers of a tensor stand, unchecked.

    Attributes:
        order: The axis of each level; axes from the tensor's rank on are those inside blocks.
        blocks: The axis of the tensor that each axis inside blocks belongs to.
        levels: By place in the order.
    """

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


def positions(sparsity: Sparsity, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return where each stored number stands in the flat tensor.

    Raises:
        Unsupported: The levels do not fit the shape or each other.
    """
    # Lengths are checked first, so that strides and products below are of a real shape.
    lengths = _lengths(sparsity, shape)
    rank, size = len(shape), math.prod(shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(rank)]
    inner = {rank + k: lengths[rank + k] for k in range(len(sparsity.blocks))}
    steps = [
        stride * math.prod(inner[rank + k] for k, own in enumerate(sparsity.blocks) if own == axis)
        for axis, stride in enumerate(strides)
    ]
    # An axis in blocks steps from block to block, its inner axis within one.
    steps += [strides[axis] for axis in sparsity.blocks]
    places = np.zeros(1, np.int64)
    flat = np.zeros(1, np.int64)
    for axis, level in zip(sparsity.order, sparsity.levels, strict=True):
        if level.segments is None or level.indices is None:
            # The product is looked at before the arrays grow to it.
            if level.length != lengths[axis] or len(places) * level.length > size:
                raise _odd(f"axis {axis} has {level.length} places")
            every = np.arange(level.length)
            flat = (flat[:, None] + every * steps[axis]).reshape(-1)
            places = (places[:, None] * level.length + every).reshape(-1)
            continue
        begins, counts = _segments(level.segments, len(places), len(level.indices))
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(begins, counts) + within
        chosen = level.indices.astype(np.int64)[places]
        if ((chosen < 0) | (chosen >= lengths[axis])).any() or len(places) > size:
            raise _odd(f"an index of axis {axis} lies outside it")
        flat = np.repeat(flat, counts) + chosen * steps[axis]
    return flat


def _segments(
    segments: Integers, places: int, indices: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the indices of each place begin, and how many there are."""
    bounds = segments.astype(np.int64)
    counts = np.diff(bounds)
    # Bounds that go back or end elsewhere would repeat indices, or read others' ones.
    if places != len(counts) or (counts < 0).any() or bounds[0] != 0 or bounds[-1] != indices:
        raise _odd("its segments do not fit its indices")
    return bounds[:-1], counts


def _lengths(sparsity: Sparsity, shape: tuple[int, ...]) -> dict[int, int]:
    """Return the length of each axis, those of blocks included."""
    rank, blocks = len(shape), sparsity.blocks
    count = rank + len(blocks)
    if sorted(sparsity.order) != list(range(count)) or len(sparsity.levels) != count:
        raise _odd(f"its order of axes is {list(sparsity.order)}")
    # An axis is split once: twice would multiply the steps below.
    if len(set(blocks)) != len(blocks) or not set(blocks) <= set(range(rank)):
        raise _odd(f"its blocks lie along {list(blocks)}")
    lengths = dict(enumerate(shape))
    by_axis = dict(zip(sparsity.order, sparsity.levels, strict=True))
    for number, axis in enumerate(blocks):
        length = by_axis[rank + number].length
        if length < 1 or shape[axis] % length:
            raise _odd(f"blocks of {length} along axis {axis} of shape {list(shape)}")
        lengths[rank + number] = length
        lengths[axis] = shape[axis] // length
    return lengths


def _odd(reason: str) -> Unsupported:
    return Unsupported(f"a sparse tensor: {reason}")


@dataclass(frozen=True, eq=False)
class Quantization:
    """What stands beside a tensor, unchecked: scales, zero points and the axis they lie along."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int
    is_custom: bool


@dataclass(frozen=True, eq=False)
class FileTensor:
    """One tensor.

    Attributes:
        index: Its number in the graph.
        name: As in the file; may be empty.
        shape: Lengths, positive, with a batch of one as a rule.
        signature: Lengths with -1 where they are open; as ``shape`` where the file has none.
        element: Type of the elements.
        quantization: None for what is not quantized.
        data: Bytes of a constant, of the length that type and shape ask for; None for others.
        odd: Why it cannot be used, "" where it can.
        sparsity: Where the elements of the data stand, if zeros are left out.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    element: Element
    quantization: Quantization | None
    data: memoryview | None
    odd: str = ""
    sparsity: Sparsity | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    Attributes:
        index: Its position.
        name: What its kind is called in the schema.
        inputs: Numbers of tensors; -1 for an optional one that is absent.
        outputs: Numbers of tensors.
        options: By name; defaults where the file has none.
        turn: What WHILE runs, which gives whether to go on and then the values (see `turns`).
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    turn: Subgraph | None = None


@dataclass(frozen=True, eq=False)
class Subgraph:
    """One graph of a file.

    Attributes:
        tensors: By number.
        operators: In the order of execution.
        inputs: Numbers of tensors.
        outputs: Numbers of tensors.
    """

    tensors: tuple[FileTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """Names that callers use, which may differ from those of the tensors.

    Attributes:
        inputs: Numbers of tensors by name.
        outputs: The same for what the graph gives.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class State:
    """A resource variable as an input and an output.

    Attributes:
        name: What the variable is called, and the input too.
        next_name: What the output is called.
        before: Number of the tensor that is the input.
        after: Number of the tensor that is the output.
        first: The constant that it holds before the first run.
    """

    name: str
    next_name: str
    before: int
    after: int
    first: FileTensor


@dataclass(frozen=True, eq=False)
class TfliteFile:
    """The main graph of a file.

    Attributes:
        source: How messages call the file.
        size: Bytes.
        description: What the converter wrote.
        tensors: By number.
        operators: In the order of execution.
        inputs: Numbers of tensors.
        outputs: Numbers of tensors.
        signature: What callers of the graph's signature call its inputs and outputs, if it has one.
        states: Resource variables that became the last inputs and outputs.
        same: Tensors that are another one, because a variable was read again.
    """

    source: str
    size: int
    description: str
    tensors: tuple[FileTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signature: Signature
    states: tuple[State, ...] = ()
    same: Mapping[int, int] = field(default_factory=dict)


READ = "read"
"""Stands as ``observer`` of a config that was read, in the place of a method's name."""


_WIDTHS = {Element.INT4: 4, Element.INT8: 8, Element.UINT8: 8, Element.INT16: 16, Element.INT32: 32}

_NUMPY: dict[Element, npt.DTypeLike] = {
    Element.FLOAT32: np.float32,
    Element.FLOAT16: np.float16,
    Element.INT4: np.int8,
    Element.INT8: np.int8,
    Element.UINT8: np.uint8,
    Element.INT16: np.int16,
    Element.INT32: np.int32,
    Element.INT64: np.int64,
    Element.BOOL: np.bool_,
}


@dataclass(frozen=True, eq=False)
class Parameters:
    """How codes and numbers of one tensor belong together.

    Attributes:
        scale: float32, ``[]`` or ``[channels]``.
        zero_point: int64, like ``scale``.
        bits: Width of the codes, which fill their type.
        signed: Whether codes go below 0.
        axis: The channel axis; None for one scale.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    bits: int
    signed: bool
    axis: int | None = None

    @property
    def low(self) -> int:
        """Smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """Largest code."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def key(self) -> Hashable:
        """What is equal for parameters under which equal codes mean equal numbers."""
        scales, zeros = self.scale.tobytes(), self.zero_point.tobytes()
        return self.bits, self.signed, self.axis, self.scale.shape, scales, zeros

    def equals(self, other: Parameters | None) -> bool:
        """Tell whether equal codes mean equal numbers."""
        return other is not None and self.key == other.key

    def along(self, axis: int | None) -> Parameters:
        """Return the same with the scales along another axis."""
        return self if self.axis is None else replace(self, axis=axis)

    def numbers(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Dequantize codes."""
        return dequantize(codes, self.scale, self.zero_point, axis=self.axis)

    def config(self, state: QuantState) -> TensorQuantConfig:
        """Return a new config that says the same; calibration leaves its scale alone.

        LiteRT rounds numbers half away from zero (``std::round``).
        """
        granularity: Granularity = PerTensor() if self.axis is None else PerChannel(self.axis)
        return TensorQuantConfig(
            policy=make_policy(granularity, symmetric=self.signed and not self.zero_point.any()),
            rounding=Rounding.HALF_AWAY_FROM_ZERO,
            bits=self.bits,
            quant_min=self.low,
            quant_max=self.high,
            granularity=granularity,
            scale=self.scale,
            offset=self.zero_point,
            observer=READ,
            detail={"fixed": True},
            state=state,
        )


def parameters_of(tensor: FileTensor) -> Parameters | None:
    """Return the parameters of a tensor; None where it is not quantized.

    Raises:
        Unsupported: They are impossible, or of a kind that is not read.
    """
    found = tensor.quantization
    if found is None or tensor.element not in _WIDTHS:
        return None
    scale, zero_point = found.scale.astype(np.float32), found.zero_point.astype(np.int64)
    if found.is_custom:
        raise Unsupported(f"tensor {tensor.name!r} is quantized by block or in a custom way")
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise Unsupported(f"a scale of tensor {tensor.name!r} is not positive and finite")
    if zero_point.size not in (0, 1, scale.size):
        raise Unsupported(
            f"tensor {tensor.name!r} has {scale.size} scales and {zero_point.size} zero points"
        )
    # One scale is that of the whole tensor, whatever axis the file names.
    axis = None if scale.size == 1 else found.axis
    if axis is not None and not (0 <= axis < tensor.rank and tensor.shape[axis] == scale.size):
        raise Unsupported(
            f"tensor {tensor.name!r} has {scale.size} scales along axis {axis} of shape"
            f" {list(tensor.shape)}"
        )
    shape = () if axis is None else scale.shape
    # Files may leave zero points out where all are 0.
    zeros = np.zeros(1, np.int64) if zero_point.size == 0 else zero_point
    spread = np.broadcast_to(zeros.reshape(() if zeros.size == 1 else shape), shape)
    signed = tensor.element is not Element.UINT8
    parameters = Parameters(scale.reshape(shape), spread, _WIDTHS[tensor.element], signed, axis)
    if ((spread < parameters.low) | (spread > parameters.high)).any():
        raise Unsupported(f"a zero point of tensor {tensor.name!r} is no code of its type")
    return parameters


def constant_of(tensor: FileTensor) -> npt.NDArray[np.generic]:
    """Return the stored numbers or codes of a constant, read-only; 4 bits in an int8.

    Raises:
        Unsupported: Its data is shorter or longer than its shape, or of a type that is not read.
    """
    kind = _NUMPY.get(tensor.element)
    if kind is None or tensor.data is None:
        raise Unsupported(f"tensor {tensor.name!r} is a constant of {tensor.element.name.lower()}")
    packed = tensor.element is Element.INT4
    if tensor.sparsity is not None and not packed:
        return _dense(tensor, tensor.sparsity, tensor.data, np.dtype(kind).newbyteorder("<"))
    size = -(-tensor.size // 2) if packed else tensor.size * np.dtype(kind).itemsize
    if len(tensor.data) != size:
        raise Unsupported(
            f"tensor {tensor.name!r} of shape {list(tensor.shape)} has {len(tensor.data)} bytes,"
            f" not {size}"
        )
    if packed:  # the lower four bits come first
        # Shifted up and down again, the lower four bits get their sign.
        both = np.frombuffer(tensor.data, np.int8)
        codes = np.stack([both << 4 >> 4, both >> 4], axis=-1).reshape(-1)
        return codes[: tensor.size].reshape(tensor.shape)
    return np.frombuffer(tensor.data, np.dtype(kind).newbyteorder("<")).reshape(tensor.shape)


def _dense(
    tensor: FileTensor, sparsity: Sparsity, data: memoryview, kind: np.dtype[Any]
) -> npt.NDArray[np.generic]:
    """Return a sparse constant with its zeros, which are codes 0 of what is quantized."""
    places = positions(sparsity, tensor.shape)
    if len(data) != len(places) * kind.itemsize:
        raise Unsupported(
            f"tensor {tensor.name!r} has {len(data)} bytes for {len(places)} stored elements"
        )
    dense = np.zeros(tensor.size, kind)
    dense[places] = np.frombuffer(data, kind)
    return dense.reshape(tensor.shape)

"""Declares ``Program``: a lowered plan, steps between tensors of codes.

A plan has the configuration of each tensor end; a program has the operations, in order, and the
integers that they compute with. The integer engine runs it, formats for integer hardware write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.plan import TensorEnd
from intact.program.operations import Operation
from intact.targets import Arithmetic

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int | None, ...]
"""Lengths by axis; None where the model leaves one open (the batch, as a rule)."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """The meaning of codes: ``real = (code - zero_point) * scale``.

    Attributes:
        scale: float32, ``[]``, ``[channels]``, or one for each block of the tensor.
        zero_point: int64, of the same shape; of blocks float32 where they lie between the codes.
        quant_min: Smallest code.
        quant_max: Largest code.
        axis: The axis of channels or blocks of the tensor as it is stored; None for one scale.
        rounding: How a float is rounded to a code.
        block: How many neighbours along the axis have a scale together; None without blocks.
        channel_codes: The smallest and the largest code of each channel, where they differ.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    quant_min: int
    quant_max: int
    axis: int | None = None
    rounding: Rounding = Rounding.HALF_EVEN
    block: int | None = None
    channel_codes: tuple[tuple[int, int], ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest integer type that holds the codes."""
        kinds = (
            (np.int8, np.int16, np.int32, np.int64) if self.quant_min < 0 else (np.uint8, np.uint16)
        )
        for kind in kinds:
            info = np.iinfo(kind)
            if info.min <= self.quant_min and self.quant_max <= info.max:
                return np.dtype(kind)
        return np.dtype(np.int32)

    def same_as(self, other: Encoding | None) -> bool:
        """Whether equal codes stand for equal numbers and saturate alike."""
        return (
            other is not None
            and (self.quant_min, self.quant_max, self.axis, self.block, self.channel_codes)
            == (other.quant_min, other.quant_max, other.axis, other.block, other.channel_codes)
            # Bit for bit: nearly equal scales round some codes to others.
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )


@dataclass(frozen=True, eq=False)
class Tensor:
    """The result of a step, an input of the program, or a constant.

    Attributes:
        name: Unique in its program.
        shape: The shape that is stored.
        encoding: What its codes stand for; None for floats.
        data: The codes (of ``encoding.dtype``) or floats of a constant, as stored; None for an
            activation.
        value: Name of the float model's tensor that it stands for, "" if there is none.
        end: The quantization point of the plan, where it has one.
        permutation: Axis ``k`` of this tensor is axis ``permutation[k]`` of ``value``; None where
            they lie alike.
        plain: Type of what is not encoded: float32, or that of indices and conditions.
    """

    name: str
    shape: Shape
    encoding: Encoding | None = None
    data: Array | None = None
    value: str = ""
    end: TensorEnd | None = None
    permutation: tuple[int, ...] | None = None
    plain: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009  immutable

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its arrays."""
        return self.plain if self.encoding is None else self.encoding.dtype

    @property
    def is_constant(self) -> bool:
        """Whether its data is fixed in the program."""
        return self.data is not None

    def as_in_model(self, array: Array) -> Array:
        """Return an array of this tensor with its axes in the order of the float model's."""
        if self.permutation is None:
            return array
        # `argsort` gives the inverse of a permutation.
        return array.transpose(np.argsort(self.permutation))

    def as_stored(self, array: Array) -> Array:
        """Return an array whose axes are those of the float model as this tensor is stored."""
        return array if self.permutation is None else array.transpose(self.permutation)


@dataclass(frozen=True, eq=False)
class Step:
    """One operation.

    Attributes:
        name: Unique in its program; that of the (first) node it computes, where there is one.
        operation: What is computed.
        inputs: By slot; None for an absent optional one.
        outputs: At least one.
        arithmetic: How the target computes it.
        nodes: Names of the float model's nodes that it computes; none for conversions.
    """

    name: str
    operation: Operation
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    arithmetic: Arithmetic
    nodes: tuple[str, ...] = ()

    @property
    def activations(self) -> tuple[Tensor, ...]:
        """The inputs that are no constants, by slot."""
        return tuple(t for t in self.inputs if t is not None and not t.is_constant)


@dataclass(frozen=True, eq=False)
class Program:
    """Steps in the order in which they can run.

    Attributes:
        inputs: What the caller feeds, by the model's input names.
        outputs: What the caller gets, by the model's output names.
        steps: The steps, in topological order.
        in_float: Nodes that the plan quantizes but that are computed in float, between a dequantize
            and a quantize, with the reason.
        float_ends: Inputs and outputs that stay floats where the others become integers: they are
            decoded in float, or read by what computes spectra in float, because integers lose more,
            or nothing around computes with integers.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    steps: tuple[Step, ...]
    in_float: Mapping[str, str] = field(default_factory=dict)
    float_ends: frozenset[str] = frozenset()

    def tensors(self) -> Iterator[Tensor]:
        """Yield inputs, then the constants and results of the steps in order, each once."""
        seen: set[str] = set()
        candidates = [*self.inputs.values()]
        for step in self.steps:
            candidates += [tensor for tensor in step.inputs if tensor is not None]
            candidates += step.outputs
        for tensor in candidates:
            if tensor.name not in seen:
                seen.add(tensor.name)
                yield tensor

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        """Return this program with other steps."""
        return replace(self, steps=steps)

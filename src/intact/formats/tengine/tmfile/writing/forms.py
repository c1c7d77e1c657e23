"""In which numbers a model is written: its own floats, or the integers of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import MEANING, StateMeaning, TensorQuantConfig
from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import Quantization
from intact.formats.tengine.tmfile.layout import Element
from intact.graph import Graph
from intact.plan import QuantizedGraph, QuantPoint, quantization_points

_BIAS_BITS = 32
_ON_GRID = (StateMeaning.QUANTIZES, StateMeaning.BAKED, StateMeaning.GOVERNED)


@dataclass(frozen=True, eq=False)
class Stored:
    """The elements of a constant as they are written.

    Attributes:
        array: Numbers or codes.
        element: Their type.
        quantization: One scale, or one for each index of the first axis; None for floats.
    """

    array: npt.NDArray[Any]
    element: Element
    quantization: Quantization | None = None

    @property
    def key(self) -> bytes:
        """What is equal for constants that are one tensor."""
        scales = b"" if self.quantization is None else self.quantization.scale.tobytes()
        return b"".join((str(self.array.shape).encode(), bytes([self.element]), scales))


class Form(Protocol):
    """How tensors of a graph are written."""

    @property
    def element(self) -> Element:
        """Type of activations."""

    def activation(self, value: ir.Value) -> tuple[Element, Quantization | None]:
        """Return the type of an activation, and its scale.

        Raises:
            Unsupported: Tengine has no such type, or the plan no such scale.
        """

    def constant(self, node: ir.Node, slot: int, channel_axis: int | None = None) -> Stored:
        """Return a constant as a node reads it.

        Args:
            node: Who reads it.
            slot: Where.
            channel_axis: Of the output channels, if there may be a scale for each; they come
                first in what is returned.

        Raises:
            Unsupported: As above.
        """

    def fuses(self, value: ir.Value, /) -> bool:
        """Tell whether a value is inside a node of the hardware."""


class FloatForm:
    """A model in float32."""

    element = Element.FLOAT32

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def activation(self, value: ir.Value) -> tuple[Element, Quantization | None]:
        """See `Form`."""
        if value.dtype is not None and value.dtype is not ir.DataType.FLOAT:
            raise Unsupported(f"{value.name!r} is {value.dtype.name}, not FLOAT")
        return Element.FLOAT32, None

    def constant(self, node: ir.Node, slot: int, channel_axis: int | None = None) -> Stored:
        """See `Form`."""
        array = constant_of(self._graph, node, slot)
        return Stored(_first(array.astype(np.float32), channel_axis), Element.FLOAT32)

    def fuses(self, _value: ir.Value, /) -> bool:
        """Nothing is fused: each tensor keeps a name that a table of scales may give."""
        return False


class IntegerForm:
    """A plan: activations of 8 bits with one scale each, weights with one a channel.

    Raises:
        PlanError: An end has no scale yet.
    """

    def __init__(self, plan: QuantizedGraph) -> None:
        self._plan = plan
        self._points: dict[tuple[ir.Node, int], QuantPoint] = {}
        self._read: dict[ir.Value, list[TensorQuantConfig]] = {}
        for point in quantization_points(plan):
            if point.is_constant:
                self._points.update(dict.fromkeys(point.readers, point))
            elif not point.at_output:
                self._read.setdefault(point.value, []).append(point.config.dominator)
        first = next((each[0] for each in self._read.values()), None)
        signed = first is None or first.quant_min < 0
        self.element = Element.INT8 if signed else Element.UINT8

    def activation(self, value: ir.Value) -> tuple[Element, Quantization | None]:
        """See `Form`."""
        producer = self._plan.producer_config(value)
        configs = list(self._read.get(value, ()))
        if producer is not None and MEANING[producer.state] in _ON_GRID:
            configs.insert(0, producer.dominator)
        scales = [self._scales(config) for config in configs]
        if not scales:
            raise Unsupported(f"{value.name!r} stays float")
        if any(not scales[0].equals(each) for each in scales[1:]):
            raise Unsupported(f"{value.name!r} is quantized in several ways")
        return self.element, scales[0]

    def constant(self, node: ir.Node, slot: int, channel_axis: int | None = None) -> Stored:
        """See `Form`."""
        point = self._points.get((node, slot))
        if point is None or point.config.params is None:
            raise Unsupported(f"its input {slot} stays float")
        config, params = point.config, point.config.params
        is_bias = config.bits == _BIAS_BITS
        element = Element.INT32 if is_bias else self.element
        signed = config.quant_min < 0
        if config.grid.exponential or config.bits > (_BIAS_BITS if is_bias else 8):
            raise Unsupported(f"input {slot} has {config.bits} bits, or logarithmic codes")
        if signed is (element is Element.UINT8):
            raise Unsupported(f"the codes of input {slot} and of activations are not of one sign")
        axis = config.grid.axis
        if axis is not None and axis != channel_axis:
            raise Unsupported(f"input {slot} has scales along axis {axis}")
        codes = _first(point.constant_codes(), channel_axis)
        scale = np.atleast_1d(np.asarray(params.scale, np.float32))
        zeros = np.broadcast_to(np.asarray(params.zero_point, np.int32), scale.shape)
        if channel_axis is not None and self.element is Element.INT8:
            # Kernels of int8 read a scale for each channel, whatever they are.
            scale = np.broadcast_to(scale, codes.shape[:1])
            zeros = np.broadcast_to(zeros, codes.shape[:1])
        if self.element is Element.UINT8 and scale.size > 1:
            raise Unsupported(f"input {slot} has {scale.size} scales; Tengine's uint8 has one")
        if element is not Element.UINT8 and zeros.any():
            raise Unsupported(f"input {slot} has a zero point; Tengine's {element.name} has none")
        return Stored(codes, element, Quantization(scale, zeros))

    def fuses(self, value: ir.Value, /) -> bool:
        """Tell whether the plan leaves a value inside a chain of nodes."""
        producer = self._plan.producer_config(value)
        return producer is not None and MEANING[producer.state] is StateMeaning.GOVERNED

    def _scales(self, config: TensorQuantConfig) -> Quantization:
        params = config.params
        fits = config.bits == 8 and not config.grid.exponential and config.grid.axis is None
        if params is None or not fits:
            raise Unsupported(
                f"activations of {config.bits} bits, with several scales or logarithmic codes"
            )
        if (config.quant_min < 0) is (self.element is Element.UINT8):
            raise Unsupported("its codes and those of other activations are not of one sign")
        zero_point = np.atleast_1d(np.asarray(params.zero_point, np.int32))
        if self.element is Element.INT8 and zero_point.any():
            raise Unsupported("activations with a zero point; Tengine's INT8 has none")
        return Quantization(np.atleast_1d(np.asarray(params.scale, np.float32)), zero_point)


def constant_of(graph: Graph, node: ir.Node, slot: int) -> npt.NDArray[Any]:
    """Return a constant of the graph.

    Raises:
        Unsupported: The input is computed, or left out.
    """
    value = node.inputs[slot] if slot < len(node.inputs) else None
    array = graph.constant(value)
    if array is None:
        raise Unsupported(f"input {slot} is no constant")
    return array


def _first(array: npt.NDArray[Any], axis: int | None) -> npt.NDArray[Any]:
    """Bring an axis of a matrix or a kernel to the front, where scales lie along it."""
    return array if axis in (None, 0) else np.moveaxis(array, axis, 0)

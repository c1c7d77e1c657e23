"""Builds a program: its steps, and the forms in which each value of the model exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.config import Grid, QuantState
from intact.errors import PlanError, Unsupported
from intact.graph import constant_array, input_value, is_constant
from intact.graph.names import Names
from intact.ops.operators import QuantizeLinear
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd
from intact.plan.dynamic import dynamic_quantizer
from intact.program.forms import (
    dequantize_constant,
    encoding_of,
    has_blocks,
    moved_last,
    permute,
    plain_type,
    shape_of,
)
from intact.program.lower.chains import Points
from intact.program.operations import (
    Dequantize,
    DynamicQuantize,
    Operation,
    Quantize,
    Requantize,
    Transpose,
)
from intact.program.program import Array, Encoding, Shape, Step, Tensor

_CONVERSION = QuantizeLinear.name

"""The operator whose arithmetic conversions between numbers and codes follow."""


class ProgramBuilder:
    """Collects the steps of one program.

    A value of the model can exist in several forms: as floats, and as codes of each point that
    quantizes it. A form is made where it is first asked for.

    Args:
        plan: What is lowered.
        points: Its quantization points.

    Attributes:
        floating: Operands are read as floats, and results are floats that a step of their own
            quantizes: for nodes that no integer operation computes.
    """

    def __init__(self, plan: QuantizedGraph, points: Points) -> None:
        self.plan = plan
        self.points = points
        self.steps: list[Step] = []
        self.inputs: dict[str, Tensor] = {}
        self.floating = False
        self._forms: dict[tuple[ir.Value, TensorEnd | None], Tensor] = {}
        self._dequantized: dict[str, Tensor] = {}
        self._dynamic: dict[tuple[ir.Value, Grid], tuple[Tensor, Tensor, Tensor]] = {}
        # Tensors and steps have names apart: formats write both into tables of their own, where the
        # model's names should stay what they are.
        self._names = Names()
        self._step_names = Names()
        for value in plan.graph.inputs:
            tensor = self.tensor(value, None)
            self.inputs[str(value.name)] = tensor
            self._forms[value, None] = tensor

    # ---- reading -----------------------------------------------------------------------------

    def read(self, node: ir.Node, slot: int) -> Tensor:
        """Return a node's operand at a slot, constant or not: codes where it is quantized.

        Raises:
            Unsupported: There is nothing at the slot.
        """
        tensor = self._read(node, slot)
        return self.dequantize(tensor) if self.floating else tensor

    def read_weight(self, node: ir.Node, slot: int) -> Tensor:
        """Return an operand as `read` does; codes in blocks stay codes beside floats, too."""
        tensor = self._read(node, slot)
        return self.dequantize(tensor) if self.floating and not has_blocks(tensor) else tensor

    def _read(self, node: ir.Node, slot: int) -> Tensor:
        value = input_value(node, slot)
        if value is None:
            raise Unsupported(f"its input {slot} is absent")
        point = self.points.at_input.get((str(node.name), slot))
        if is_constant(value):
            return self._constant(value, point)
        source = self._result_of(value)
        if point is None:
            return source
        encoding = encoding_of(point)
        # The reader asks for what the producer has: ends that share a scale cost no requantization.
        if source.encoding is not None and encoding.same_as(source.encoding):
            return source
        key = (value, point.end)
        if key not in self._forms:
            self._forms[key] = self.convert(source, encoding, point.end)
        return self._forms[key]

    def read_dynamic(self, node: ir.Node, slot: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes of an operand that is quantized while running, scale and zero point.

        Readers of one value on one grid share them.
        """
        value, config = input_value(node, slot), self.plan.input_config(node, slot)
        if value is None or config.state is not QuantState.DYNAMIC:
            raise Unsupported(f"its input {slot} is not quantized while running")
        key = (value, config.grid)
        if key not in self._dynamic:
            self._dynamic[key] = self._quantize_dynamically(
                value, TensorEnd.input(str(node.name), slot)
            )
        return self._dynamic[key]

    def _quantize_dynamically(
        self, value: ir.Value, end: TensorEnd
    ) -> tuple[Tensor, Tensor, Tensor]:
        source = self.floats_of(value)
        arithmetic = self.plan.arithmetic_of(self.plan.graph.node(end.node))
        quantizer = dynamic_quantizer(self.plan.configs[end].grid, arithmetic)
        rows = tuple(source.shape[:-1]) if quantizer.rows else None
        kind = np.dtype(np.int8 if quantizer.quant_min < 0 else np.uint8)
        name = source.value or source.name
        shape = () if rows is None else (*rows, quantizer.blocks(source.shape[-1]))
        codes = Tensor(self._names.fresh(f"{name}_codes"), source.shape, end=end, plain=kind)
        scale = Tensor(self._names.fresh(f"{name}_scale"), shape)
        zero = Tensor(self._names.fresh(f"{name}_zero_point"), shape, plain=kind)
        self.emit((), DynamicQuantize(quantizer), (source,), (codes, scale, zero))
        return codes, scale, zero

    def read_stored(self, node: ir.Node, slot: int) -> Tensor:
        """Return a node's operand in the plan's form, also where the node computes in float."""
        return self._read(node, slot)

    def read_float(self, node: ir.Node, slot: int) -> Tensor:
        """Return the floats that a node computes with, on their grid where they are quantized."""
        return self.dequantize(self._read(node, slot))

    def floats_of(self, value: ir.Value) -> Tensor:
        """Return a value as floats, as its producer computes it."""
        if is_constant(value):
            return self._constant(value, None)
        return self.dequantize(self._result_of(value))

    def dequantize(self, tensor: Tensor) -> Tensor:
        """Return a tensor as floats."""
        if tensor.encoding is None:
            return tensor
        if tensor.data is not None:
            return dequantize_constant(tensor)
        if tensor.name not in self._dequantized:
            self._dequantized[tensor.name] = self.convert(tensor, None, None)
        return self._dequantized[tensor.name]

    def _result_of(self, value: ir.Value) -> Tensor:
        point = self.points.at_output.get(value)
        key = (value, None if point is None else point.end)
        if key not in self._forms:
            raise PlanError(f"tensor {value.name!r} is read before it is computed")
        return self._forms[key]

    def _constant(self, value: ir.Value, point: QuantPoint | None) -> Tensor:
        array, encoding, end = constant_array(value), None, None
        if point is not None:
            encoding, end = encoding_of(point), point.end
            array = point.constant_codes().astype(encoding.dtype)
        if array is None:
            raise Unsupported(f"its input {value.name!r} is computed")
        name = self._names.fresh(str(value.name))
        return Tensor(name, array.shape, encoding, array, str(value.name), end)

    # ---- writing -----------------------------------------------------------------------------

    def tensor(
        self, value: ir.Value, encoding: Encoding | None, end: TensorEnd | None = None
    ) -> Tensor:
        """Return a new tensor that stands for a value, as it lies in the model."""
        name = str(value.name)
        return Tensor(
            self._names.fresh(name),
            shape_of(value),
            encoding,
            value=name,
            end=end,
            plain=plain_type(value),
        )

    def inner(self, value: ir.Value, shape: Shape, data: Array | None = None) -> Tensor:
        """Return a new float tensor that is needed on the way to a value."""
        return Tensor(self._names.fresh(f"{value.name}_part"), shape, None, data)

    def emit(
        self,
        nodes: Sequence[ir.Node],
        operation: Operation,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
    ) -> None:
        """Add a step; its arithmetic is that of the first node, or of a conversion."""
        plan, target = self.plan, self.plan.target
        arithmetic = plan.arithmetic_of(nodes[0]) if nodes else target.arithmetic_for(_CONVERSION)
        name = str(nodes[0].name) if nodes else outputs[0].name
        self.steps.append(
            Step(
                self._step_names.fresh(name),
                operation,
                tuple(inputs),
                tuple(outputs),
                arithmetic,
                tuple(str(node.name) for node in nodes),
            )
        )

    def wanted_encoding(self, value: ir.Value) -> Encoding | None:
        """Return the encoding that the plan gives a value at its producer."""
        point = self.points.at_output.get(value)
        return None if point is None or self.floating else encoding_of(point)

    def result(self, value: ir.Value) -> Tensor:
        """Make a tensor for a node's result: codes where the plan quantizes it."""
        point = self.points.at_output.get(value)
        if point is None or self.floating:
            return self.tensor(value, None)
        return self.tensor(value, encoding_of(point), point.end)

    def set_result(self, value: ir.Value, tensor: Tensor) -> None:
        """Set the result of a node, converted to the plan's codes where it is not.

        Args:
            value: The node's output.
            tensor: Floats, or codes of any encoding, as they lie in the model.
        """
        point = self.points.at_output.get(value)
        if point is None:
            self._forms[value, None] = self.dequantize(tensor)
            return
        encoding = encoding_of(point)
        # Named after the value that it is converted for, which may be another than it was made as.
        if tensor.encoding is None or not encoding.same_as(tensor.encoding):
            tensor = replace(tensor, value=str(value.name))
            tensor = self.convert(tensor, encoding, point.end)
        self._forms[value, point.end] = tensor

    def convert(self, source: Tensor, encoding: Encoding | None, end: TensorEnd | None) -> Tensor:
        """Add a Quantize, Dequantize or Requantize step; return its result."""
        operation: Operation = Requantize()
        if source.encoding is None:
            operation = Quantize()
        elif encoding is None:
            operation = Dequantize()
        name = self._names.fresh(f"{source.value or source.name}")
        result = replace(source, name=name, encoding=encoding, end=end)
        self.emit((), operation, (source,), (result,))
        return result

    def encode(self, tensor: Tensor, encoding: Encoding) -> Tensor:
        """Return codes in another encoding.

        Raises:
            Unsupported: They are constant: the plan says which codes those are.
        """
        if encoding.same_as(tensor.encoding):
            return tensor
        if tensor.is_constant:
            raise Unsupported("a constant operand has another scale than the result")
        return self.convert(tensor, encoding, None)

    def channels_last(self, tensor: Tensor) -> Tensor:
        """Return an activation ``[N, C, *S]`` with its channels moved to the end."""
        return self.transpose(tensor, moved_last(len(tensor.shape)))

    def channels_first(self, tensor: Tensor) -> Tensor:
        """Return an activation ``[N, *S, C]`` with its channels moved behind the batch."""
        order = moved_last(len(tensor.shape))
        return self.transpose(tensor, tuple(int(axis) for axis in np.argsort(order)))

    def transpose(self, tensor: Tensor, permutation: tuple[int, ...]) -> Tensor:
        """Add a Transpose and return its result."""
        result = permute(tensor, permutation)
        result = replace(result, name=self._names.fresh(tensor.value or tensor.name))
        self.emit((), Transpose(permutation), (tensor,), (result,))
        return result

"""Expands operators on codes, such as QLinearConv, to pairs around a float operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from intact.formats.onnx_qdq.reader.parameters import (
    ONLY_KNOWN,
    integer_attribute,
    is_dequantize,
    is_quantize,
    read_parameters,
    unreadable,
)
from intact.graph import constant_array, input_value, moves_values
from intact.graph.names import value_names
from intact.graph.passes.replace import add_constant
from intact.ops import functions
from intact.ops.operators import (
    Add,
    AveragePool,
    Concat,
    Conv,
    ConvInteger,
    DequantizeLinear,
    DynamicQuantizeLinear,
    Gemm,
    GlobalAveragePool,
    MatMul,
    MatMulInteger,
    Mul,
    Named,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
    Softmax,
    is_a,
    type_of,
)


@dataclass(frozen=True)
class QOperator:
    """Where an operator on codes has its operands.

    Attributes:
        op_type: The float operator that it stands for.
        operands: Positions of codes, scale and zero point, in the order of the float operator.
        output: Positions of the output's scale and zero point.
        bias: Position of the int32 bias, None where there is none.
        variadic: The operands begin at ``operands[0]`` and repeat to the end.
        dropped: Attributes that the float operator does not have, with their only value that
            changes nothing; None where any value does.
    """

    op_type: str
    operands: tuple[tuple[int, int, int], ...]
    output: tuple[int, int]
    bias: int | None = None
    variadic: bool = False
    dropped: Mapping[str, int | None] = field(default_factory=dict)


_ONE, _TWO = ((0, 1, 2),), ((0, 1, 2), (3, 4, 5))

_NCHW = MappingProxyType({"channels_last": 0})

_MS = "com.microsoft"

QOPERATORS: Mapping[tuple[str, str], QOperator] = MappingProxyType(
    {
        ("", QLinearConv.name): QOperator(Conv.name, _TWO, (6, 7), bias=8),
        ("", QLinearMatMul.name): QOperator(MatMul.name, _TWO, (6, 7)),
        (_MS, QLinearConv.name): QOperator(Conv.name, _TWO, (6, 7), bias=8, dropped=_NCHW),
        (_MS, "QGemm"): QOperator(Gemm.name, _TWO, (7, 8), bias=6),
        (_MS, "QLinearAdd"): QOperator(Add.name, _TWO, (6, 7)),
        (_MS, "QLinearMul"): QOperator(Mul.name, _TWO, (6, 7)),
        (_MS, "QLinearSigmoid"): QOperator(functions.sigmoid.name, _ONE, (3, 4)),
        (_MS, "QLinearLeakyRelu"): QOperator(functions.leaky_relu.name, _ONE, (3, 4)),
        (_MS, "QLinearSoftmax"): QOperator(Softmax.name, _ONE, (3, 4), dropped={"opset": None}),
        (_MS, "QLinearConcat"): QOperator(Concat.name, ((2, 3, 4),), (0, 1), variadic=True),
        (_MS, "QLinearAveragePool"): QOperator(AveragePool.name, _ONE, (3, 4), dropped=_NCHW),
        (_MS, "QLinearGlobalAveragePool"): QOperator(
            GlobalAveragePool.name, _ONE, (3, 4), dropped=_NCHW
        ),
    }
)
"""The table, by domain and operator type."""

DYNAMIC = frozenset(
    {
        DynamicQuantizeLinear.name,
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        ConvInteger.name,
        MatMulInteger.name,
        "MatMulIntegerToFloat",
    }
)
"""Operators of models whose activations are quantized anew for each input."""

_OPSET_OF_FREE_SOFTMAX = 13
"""From this opset on, Softmax works along one axis; before, along it and all behind it."""


def expand_qoperators(model: ir.Model) -> None:
    """Replace every operator on codes by pairs around its float operator, in place.

    Operators that only move values (MaxPool, Reshape, Concat ...) and are given codes are
    replaced too.

    Raises:
        ModelError: An operator computes on codes and is not in the table.
    """
    for node in tuple(model.graph):
        row = QOPERATORS.get((node.domain, node.op_type))
        if node.op_type in DYNAMIC:
            raise unreadable(
                node,
                "its activations are quantized while it runs: of such, MatMulInteger between "
                "DynamicQuantizeLinear and a Mul by its scales is read",
                "quantize the float model",
            )
        if row is not None:
            _Expansion(model, node).of_row(row)
        elif not (is_quantize(node) or is_dequantize(node)):
            _Expansion(model, node).of_mover()


class _Expansion:
    """One node between pairs."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self._model = model
        self._graph = model.graph
        self._node = node

    def of_row(self, row: QOperator) -> None:
        """Replace an operator of the table."""
        self._refuse_attributes(row)
        slots = list(row.operands)
        if row.variadic:
            first = slots[0][0]
            slots = [(k, k + 1, k + 2) for k in range(first, len(self._node.inputs), 3)]
        inputs = [
            self._dequantized(self._input(codes), self._input(scale), self._input(zero), index)
            for index, (codes, scale, zero) in enumerate(slots)
        ]
        if row.bias is not None and input_value(self._node, row.bias) is not None:
            inputs.append(self._bias(row, row.bias))
        attributes = [a for a in self._node.attributes.values() if a.name not in row.dropped]
        if row.op_type == Softmax.name:
            attributes = [ir.AttrInt64("axis", integer_attribute(self._node, "axis", -1))]
        scale, zero_point = (input_value(self._node, slot) for slot in row.output)
        self._replace(row.op_type, inputs, attributes, scale, zero_point)

    def of_mover(self) -> None:
        """Replace an operator that is given codes, if it only moves them."""
        readings = [
            (slot, value.producer())
            for slot, value in enumerate(self._node.inputs)
            if value is not None and (maker := value.producer()) is not None and is_quantize(maker)
        ]
        if not readings:
            return
        makers = [maker for _, maker in readings if maker is not None]
        first = makers[0]
        joins = is_a(self._node, Concat) and len(readings) == len(self._node.inputs)
        moved = moves_values(self._node) and [slot for slot, _ in readings] == [0]
        alike = all(read_parameters(m).equals(read_parameters(first)) for m in makers)
        if self._node.domain != "" or not alike or not (moved or joins):
            raise unreadable(
                self._node,
                f"it computes on the codes of {first.outputs[0].name!r}",
                ONLY_KNOWN,
            )
        parameters = input_value(first, 1), input_value(first, 2)
        inputs = list(self._node.inputs)
        for slot, _ in readings:
            inputs[slot] = self._dequantized(inputs[slot], *parameters, 0)
        self._replace(self._node.op_type, inputs, list(self._node.attributes.values()), *parameters)

    def _input(self, slot: int) -> ir.Value | None:
        return input_value(self._node, slot)

    def _refuse_attributes(self, row: QOperator) -> None:
        for name, harmless in row.dropped.items():
            if harmless is not None and integer_attribute(self._node, name, harmless) != harmless:
                raise unreadable(self._node, f"its attribute {name} is not {harmless}")
        written = integer_attribute(self._node, "opset", _OPSET_OF_FREE_SOFTMAX)
        if row.op_type != Softmax.name:
            return
        axis = integer_attribute(self._node, "axis", -1)
        value = self._input(0)
        shape = None if value is None else value.shape
        # Along the last axis both meanings of Softmax are one.
        last = axis == -1 or (shape is not None and axis == len(shape) - 1)
        same = (written < _OPSET_OF_FREE_SOFTMAX) == (
            self._model.opset_imports[""] < _OPSET_OF_FREE_SOFTMAX
        )
        if not (last or same):
            raise unreadable(self._node, f"it means the Softmax of opset {written} along {axis}")

    def _dequantized(
        self,
        codes: ir.Value | None,
        scale: ir.Value | None,
        zero_point: ir.Value | None,
        operand: int,
    ) -> ir.Value:
        axis = self._weight_axis() if operand == 1 else None
        return self._add(
            DequantizeLinear,
            [codes, scale, zero_point],
            [] if axis is None else [ir.AttrInt64("axis", axis)],
            ir.DataType.FLOAT,
            None if codes is None else codes.shape,
        )

    def _weight_axis(self) -> int | None:
        """Return the axis along which the second operand may have scales of its own."""
        match self._node.op_type:
            case QLinearConv.name:
                return 0
            case QLinearMatMul.name:
                return -1
            case "QGemm":
                return 0 if integer_attribute(self._node, "transB", 0) else 1
        return None

    def _bias(self, row: QOperator, slot: int) -> ir.Value:
        """Dequantize the bias, whose scale is the product of those of input and weight."""
        scales = [constant_array(self._input(operand[1])) for operand in row.operands]
        codes, alpha = self._input(slot), self._node.attributes.get("alpha")
        if scales[0] is None or scales[1] is None or codes is None:
            raise unreadable(self._node, "its scale is computed by the model")
        # A bias has one scale a channel, which follows from one scale of the data.
        if scales[0].size != 1 or not scales[1].size:
            raise unreadable(self._node, f"its data has {scales[0].size} scales")
        if alpha is not None and alpha.type is not ir.AttributeType.FLOAT:
            raise unreadable(self._node, "its attribute alpha is no number")
        factor = np.float32(1 if alpha is None else alpha.as_float())
        product = factor * scales[0].reshape(()) * scales[1]
        # A product of small scales may vanish in float32, and a scale must not be 0.
        product = np.maximum(product, np.finfo(np.float32).tiny).astype(np.float32)
        name = value_names(self._graph).fresh(f"{codes.name}_scale")
        scale = add_constant(self._graph, product.reshape(-1 if product.size > 1 else ()), name)
        axis = [] if codes.shape is None else [ir.AttrInt64("axis", len(codes.shape) - 1)]
        return self._add(DequantizeLinear, [codes, scale], axis, ir.DataType.FLOAT, codes.shape)

    def _replace(
        self,
        operator: Named,
        inputs: list[ir.Value | None] | list[ir.Value],
        attributes: list[ir.Attr],
        scale: ir.Value | None,
        zero_point: ir.Value | None,
    ) -> None:
        """Put the float operator and a QuantizeLinear for each output in the node's place."""
        op_type = type_of(operator)
        node, graph = self._node, self._graph
        twin = ir.Node("", op_type, inputs, attributes, num_outputs=len(node.outputs))
        twin.name = node.name
        graph.insert_before(node, twin)
        for old, new in zip(node.outputs, twin.outputs, strict=True):
            new.shape, new.type = old.shape, ir.TensorType(ir.DataType.FLOAT)
            if old.uses() or old.is_graph_output():
                self._quantize(old, new, scale, zero_point)
        graph.remove(node, safe=True)

    def _quantize(
        self,
        old: ir.Value,
        new: ir.Value,
        scale: ir.Value | None,
        zero_point: ir.Value | None,
    ) -> None:
        """Let ``new``, quantized, stand for the codes ``old``."""
        name, is_port = str(old.name), old.is_graph_output()
        stem = name.removesuffix("_quantized")
        # Free again, since the codes that take its place may need it.
        old.name = None
        if scale is None:  # a QGemm may give floats
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name = name
            return
        inputs = [new, scale, zero_point]
        codes = self._add(QuantizeLinear, inputs, [], _type_of(zero_point), old.shape)
        old.replace_all_uses_with(codes, replace_graph_outputs=True)
        codes.name = name if is_port else value_names(self._graph).fresh(f"{stem}_quantized")
        new.name = value_names(self._graph).fresh(stem)

    def _add(
        self,
        operator: Named,
        inputs: list[ir.Value | None],
        attributes: list[ir.Attr],
        dtype: ir.DataType,
        shape: ir.Shape | None,
    ) -> ir.Value:
        """Insert a node with one output before the node that is replaced."""
        op_type = type_of(operator)
        present = inputs if inputs[-1] is not None else inputs[:-1]
        node = ir.Node("", op_type, present, attributes, num_outputs=1)
        self._graph.insert_before(self._node, node)
        value = node.outputs[0]
        value.type, value.shape = ir.TensorType(dtype), shape
        return value


def _type_of(zero_point: ir.Value | None) -> ir.DataType:
    known = None if zero_point is None else zero_point.dtype
    return known or ir.DataType.UINT8

"""Reads layers whose activations are quantized anew for each input, as float operators.

ONNX Runtime's ``quantize_dynamic`` writes ``DynamicQuantizeLinear -> MatMulInteger -> Cast ->
Mul``, with the product of both scales as the second factor. Each becomes a MatMul of floats and a
DequantizeLinear of its weight, which is read like any other. Codes that are looked up in a table
reach MatMulInteger too: they have a fixed scale, and get a DequantizeLinear of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import onnx_ir as ir

from intact.formats.base.read_points import GraphEdits
from intact.formats.onnx_qdq.reader.parameters import unreadable
from intact.graph import constant_array, input_value
from intact.graph.passes import library
from intact.graph.passes.replace import add_constant, replace_value
from intact.ops.operators import (
    Cast,
    Declared,
    DequantizeLinear,
    DynamicQuantizeLinear,
    MatMul,
    MatMulInteger,
    Mul,
    is_a,
)
from intact.plan import Decision, QuantizedGraph, TensorEnd
from intact.plan.schemes import quantized_running

_REMEDY = "quantize the float model"


def lift_dynamic(model: ir.Model) -> frozenset[str]:
    """Let floats be multiplied in the place of codes, in place.

    Returns:
        Names of the MatMul nodes whose first input is quantized while the model runs.

    Raises:
        ModelError: A product of codes is not followed by its scales, or a factor is no constant.
    """
    layers = [node for node in model.graph if is_a(node, MatMulInteger)]
    # All are looked at before the first is changed: a refused model stays as it was.
    found = [_Layer.of(node) for node in layers]
    edits = GraphEdits(model.graph)
    for layer in found:
        layer.lift(edits)
    if found:
        library.remove_unused(model)  # the quantizers, and the products of scales
    return frozenset(layer.name for layer in found if layer.is_dynamic)


def with_dynamic(plan: QuantizedGraph, names: Collection[str]) -> QuantizedGraph:
    """Return a plan in which nodes quantize their first input while they run."""
    configs, decisions = dict(plan.configs), dict(plan.decisions)
    for name in sorted(names):
        configs[TensorEnd.input(name, 0)] = quantized_running(0, 255)
        decisions[name] = Decision(
            True, "quantized by the model that was read, its input while it runs"
        )
    return replace(plan, configs=configs, decisions=decisions)


@dataclass(frozen=True, eq=False)
class _Layer:
    """A product of codes and what makes floats of it.

    Attributes:
        product: The product.
        result: Its numbers.
        data: Codes of the left factor.
        data_scale: Their scale.
        weight_scale: That of the constant.
    """

    product: ir.Node
    result: ir.Value
    data: ir.Value
    data_scale: ir.Value
    weight_scale: ir.Value

    @classmethod
    def of(cls, product: ir.Node) -> _Layer:
        """Find what belongs to a product.

        Raises:
            ModelError: See `lift_dynamic`.
        """
        data, weight = input_value(product, 0), input_value(product, 1)
        if data is None or constant_array(weight) is None:
            raise unreadable(product, "its right factor is no constant", _REMEDY)
        scaled = _reader(_reader(product, Cast), Mul)
        if scaled is None:
            raise unreadable(product, "no Cast and Mul by its scales follow it", _REMEDY)
        other = next((v for v in scaled.inputs if v is not None and not _is_cast(v)), None)
        both = None if other is None else other.producer()
        if not is_a(both, Mul):
            raise unreadable(product, "its scales are no product of two", _REMEDY)
        left, right = both.inputs
        maker = data.producer()
        # Quantizers write the product of both scales with either of them first.
        if is_a(maker, DynamicQuantizeLinear) and right is maker.outputs[1]:
            left, right = right, left
        if left is None or right is None or constant_array(right) is None:
            raise unreadable(product, "the scale of its weight is computed", _REMEDY)
        return cls(product, scaled.outputs[0], data, left, right)

    @property
    def name(self) -> str:
        return str(self.product.name)

    @property
    def is_dynamic(self) -> bool:
        """Whether the scale of the left factor is computed while the model runs."""
        return self._quantizer is not None

    @property
    def _quantizer(self) -> ir.Node | None:
        maker = self.data.producer()
        if not is_a(maker, DynamicQuantizeLinear):
            return None
        return maker if self.data_scale is maker.outputs[1] else None

    def lift(self, edits: GraphEdits) -> None:
        """Put a MatMul of floats in the place of the product."""
        quantizer = self._quantizer
        zero = input_value(self.product, 2)
        source = (
            self._dequantized(edits, self.data, self.data_scale, zero)
            if quantizer is None
            else quantizer.inputs[0]
        )
        weight = input_value(self.product, 1)
        if weight is None or source is None:
            raise unreadable(self.product, "it lacks a factor", _REMEDY)
        factor = self._dequantized(edits, weight, self.weight_scale, input_value(self.product, 3))
        node = ir.Node("", MatMul.name, [source, factor], num_outputs=1)
        node.name = self.name
        result = node.outputs[0]
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), self.result.shape
        edits.graph.insert_before(self.product, node)
        chain = [self.product, *_behind(self.product)]
        replace_value(self.result, result)
        # From behind, as only what nothing reads can be taken out.
        for each in reversed(chain):
            edits.graph.remove(each, safe=True)

    def _dequantized(
        self, edits: GraphEdits, codes: ir.Value, scale: ir.Value, zero: ir.Value | None
    ) -> ir.Value:
        inputs: list[ir.Value] = [codes]
        for part in (scale, zero):
            array = constant_array(part)
            if part is not None and array is None:
                raise unreadable(self.product, "a scale or zero point is computed", _REMEDY)
            if array is not None:
                # MatMulInteger takes parameters of one element with an axis, DequantizeLinear
                # without.
                flat = array.reshape(() if array.size == 1 else -1)
                name = edits.names.fresh(f"{codes.name}_of_{self.name}")
                inputs.append(add_constant(edits.graph, flat, name))
        if len(inputs) == 3 and inputs[1].shape != inputs[2].shape:
            raise unreadable(self.product, "a scale and its zero point differ in shape", _REMEDY)
        last = 0 if codes.shape is None else len(codes.shape) - 1
        node = ir.Node(
            "", DequantizeLinear.name, inputs, [ir.AttrInt64("axis", last)], num_outputs=1
        )
        node.name = node.outputs[0].name = edits.names.fresh(f"{codes.name}_dequantized")
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].shape = codes.shape
        edits.graph.insert_before(self.product, node)
        return node.outputs[0]


def _behind(product: ir.Node) -> list[ir.Node]:
    cast = _reader(product, Cast)
    scaled = _reader(cast, Mul)
    return [node for node in (cast, scaled) if node is not None]


def _is_cast(value: ir.Value) -> bool:
    return is_a(value.producer(), Cast)


def _reader(node: ir.Node | None, operator: Declared) -> ir.Node | None:
    """Return the only reader of a node's result, where it is one of an operator."""
    if node is None or node.outputs[0].is_graph_output():
        return None
    uses = tuple(node.outputs[0].uses())
    if len(uses) != 1 or not is_a(uses[0].node, operator):
        return None
    return uses[0].node

"""Quantizers as nodes of an ONNX graph, whose scales the graph computes from the values at hand.

They compute what `intact.numerics.dynamic` does, bit for bit where values are finite.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.engines.quantizer_nodes import ROUNDERS, Chain
from intact.errors import PlanError
from intact.graph.edit import Editor
from intact.numerics.dynamic import DynamicQuantizer, Factor
from intact.numerics.levels import Rounding

_AXES_AS_INPUT = 18
"""The opset since which ReduceMin and ReduceMax read their axes."""


def add_dynamic_quantizer(
    editor: Editor, value: ir.Value, quantizer: DynamicQuantizer, name: str
) -> ir.Value:
    """Add the nodes of one quantizer after a value, and return the numbers that codes stand for.

    Args:
        editor: The copy of the model that is edited.
        value: The float32 value to quantize.
        quantizer: How.
        name: Prefix of the new names.

    Raises:
        PlanError: It has scales of blocks, and the value no known length.
    """
    if quantizer.block is not None:
        return _in_blocks(editor, value, quantizer, name)
    if quantizer == _OF_ONNX:
        result = _by_one_operator(editor, value, name)
    else:
        result = _Composed(editor, value, quantizer, name).result()
    result.shape = value.shape
    return result


_OF_ONNX = DynamicQuantizer(0, 255)


def _in_blocks(editor: Editor, value: ir.Value, quantizer: DynamicQuantizer, name: str) -> ir.Value:
    """Quantize the blocks of rows as rows of their own."""
    shape, size = value.shape, quantizer.block or 1
    length = None if shape is None or len(shape) == 0 else shape[-1]
    if shape is None or not isinstance(length, int):
        raise PlanError(f"{name}: blocks of rows whose length is not known")
    rank, missing = len(shape), -length % size
    padded = value
    if missing:
        pads = editor.integers(*[0] * (2 * rank - 1), missing, name=f"{name}/pads")
        padded = editor.node("Pad", [value, pads], f"{name}/Pad")
    blocks = (length + missing) // size
    parts = editor.integers(*[0] * (rank - 1), blocks, size, name=f"{name}/parts")
    apart = editor.node("Reshape", [padded, parts], f"{name}/apart")
    rows = replace(quantizer, block=None)
    numbers = _Composed(editor, apart, rows, name).result()
    whole = editor.integers(*[0] * (rank - 1), length + missing, name=f"{name}/whole")
    joined = editor.node("Reshape", [numbers, whole], f"{name}/joined")
    if missing:
        ends = [editor.integers(number, name=f"{name}/at") for number in (0, length, rank - 1)]
        joined = editor.node("Slice", [joined, *ends], f"{name}/Slice")
    joined.shape = value.shape
    return joined


def _by_one_operator(editor: Editor, value: ir.Value, name: str) -> ir.Value:
    kinds = {"codes": ir.DataType.UINT8, "scale": ir.DataType.FLOAT, "zero": ir.DataType.UINT8}
    outputs = [
        ir.Value(name=editor.names.fresh(f"{name}/{part}"), type=ir.TensorType(kind))
        for part, kind in kinds.items()
    ]
    editor.add("DynamicQuantizeLinear", [value], outputs, name=str(outputs[0].name))
    return editor.node("DequantizeLinear", outputs, f"{name}/DequantizeLinear")


class _Composed:
    """A quantizer put together from single operators."""

    def __init__(
        self, editor: Editor, value: ir.Value, quantizer: DynamicQuantizer, name: str
    ) -> None:
        self._editor, self._value, self._quantizer, self._name = editor, value, quantizer, name
        self._chain = Chain(editor, name)

    def result(self) -> ir.Value:
        chain, quantizer = self._chain, self._quantizer
        zero = chain.constant(0.0)
        low = chain("Min", self._reduced("ReduceMin"), zero)
        high = chain("Max", self._reduced("ReduceMax"), zero)
        if quantizer.symmetric:
            span, codes = chain("Max", chain("Neg", low), high), quantizer.quant_max
        else:
            span, codes = chain("Sub", high, low), quantizer.quant_max - quantizer.quant_min
        is_flat = chain("Equal", low, high, dtype=ir.DataType.BOOL)
        one, count = chain.constant(1.0), chain.constant(float(codes))
        scale = chain("Where", is_flat, one, chain("Div", span, count))
        if quantizer.factor is Factor.SCALE:
            steps = chain("Div", self._value, scale)
        elif quantizer.factor is Factor.RECIPROCAL:
            steps = chain("Mul", self._value, chain("Div", one, scale))
        else:
            factor = chain("Where", is_flat, one, chain("Div", count, span))
            steps = chain("Mul", self._value, factor)
        rounded = ROUNDERS[quantizer.rounding](chain, steps)
        least, most = (chain.constant(float(c)) for c in (quantizer.quant_min, quantizer.quant_max))
        if not quantizer.symmetric:
            offset = self._zero_point(low, scale, least, most)
            least, most = chain("Sub", least, offset), chain("Sub", most, offset)
        return chain("Mul", chain("Min", chain("Max", rounded, least), most), scale)

    def _zero_point(
        self, low: ir.Value, scale: ir.Value, least: ir.Value, most: ir.Value
    ) -> ir.Value:
        chain = self._chain
        offset = chain("Sub", least, chain("Div", low, scale))
        bounded = chain("Min", chain("Max", offset, least), most)
        return ROUNDERS[Rounding.HALF_EVEN](chain, bounded)

    def _reduced(self, op_type: str) -> ir.Value:
        name = f"{self._name}/{op_type}"
        if not self._quantizer.rows:
            return self._editor.node(op_type, [self._value], name, {"keepdims": 0})
        if self._editor.model.opset_imports[""] < _AXES_AS_INPUT:
            return self._editor.node(op_type, [self._value], name, {"axes": [-1], "keepdims": 1})
        axes = self._editor.initializer(f"{name}_axes", np.array([-1], np.int64))
        return self._editor.node(op_type, [self._value, axes], name, {"keepdims": 1})

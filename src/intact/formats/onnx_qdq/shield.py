"""Products that the plan leaves in float, kept from being quantized by the runtime.

ONNX Runtime quantizes the float weight and bias of a Conv, ConvTranspose or Gemm that stands
between a DequantizeLinear and a QuantizeLinear (its `WeightBiasQuantization`), with one scale
for the whole weight: a node kept float on purpose would compute with integers, or lose accuracy
for nothing. It leaves alone what has a bias that is no plain constant, so such a node gets its
bias through a DequantizeLinear that yields exactly the same floats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import (
    constant_array,
    input_value,
    is_constant,
    moves_values,
    output_channels,
)
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph
from intact.targets import DType

_QUANTIZED_BY_RUNTIME = {"Conv", "ConvTranspose", "Gemm"}
_SATURATIONS = {"Relu", "Clip"}  # the runtime looks for a QuantizeLinear behind them
_SINCE_OPSET = 13
"""From here on a DequantizeLinear has a scale for each element of a bias."""


def shield_float_products(plan: QuantizedGraph, editor: Editor) -> None:
    """Give the float products between quantizers a bias that the runtime does not touch.

    Nothing to do for targets that add float biases: their runtimes take no integers there, and
    below opset 13, where weights per channel, and with them such plans, do not exist either.

    Args:
        plan: The plan.
        editor: The written model, with its pairs in place; it is changed.
    """
    if plan.target.bias.dtype is not DType.INT32 or editor.model.opset_imports[""] < _SINCE_OPSET:
        return
    for node in plan.graph.nodes:
        weight = input_value(node, 1)
        known = node.domain == "" and node.op_type in _QUANTIZED_BY_RUNTIME
        if not known or plan.is_quantized(node):
            continue
        twin = editor.nodes_by_name[str(node.name)]
        if is_constant(weight) and _is_float32(weight) and _is_between_quantizers(twin):
            _shield(editor, twin)


def _is_float32(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is ir.DataType.FLOAT


def _is_between_quantizers(product: ir.Node) -> bool:
    return _reads_codes(product.inputs[0]) and _feeds_quantizer(product)


def _reads_codes(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is None:
        return False
    if moves_values(producer):  # the runtime pulls the DequantizeLinear through
        return _reads_codes(producer.inputs[0])
    return producer.op_type == "DequantizeLinear"


def _feeds_quantizer(node: ir.Node) -> bool:
    reader = _sole_reader(node)
    while reader is not None and (reader.op_type in _SATURATIONS or moves_values(reader)):
        reader = _sole_reader(reader)
    return reader is not None and reader.op_type == "QuantizeLinear"


def _sole_reader(node: ir.Node) -> ir.Node | None:
    uses = tuple(node.outputs[0].uses())
    return uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None


def _shield(editor: Editor, product: ir.Node) -> None:
    bias = input_value(product, 2)
    zeros = np.zeros(output_channels(product) or 0, np.float32)
    array = zeros if bias is None else constant_array(bias)
    if array is None or array.ndim != 1 or not np.isfinite(array).all():
        return  # the runtime leaves these alone, or nothing can be lost
    name = str(product.outputs[0].name if bias is None else bias.name)
    codes, scale = _exact_codes(array)
    value = editor.node(
        "DequantizeLinear",
        [
            editor.initializer(f"{name}_sign", codes),
            editor.initializer(f"{name}_magnitude", scale),
        ],
        f"{name}_kept_float",
        {"axis": 0},
        shape=ir.Shape(array.shape),
    )
    product.resize_inputs(3)
    product.replace_input_with(2, value)


def _exact_codes(
    array: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Write floats as integers times positive scales, to the last bit: sign times magnitude."""
    codes = np.sign(array).astype(np.int32)
    return codes, np.where(codes == 0, 1, np.abs(array)).astype(np.float32)

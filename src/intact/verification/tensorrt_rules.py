"""What TensorRT's documents ask of an explicitly quantised model, checked on the files themselves.

Nothing here looks at how a model was made: a rule reads the written ONNX model and the tables
beside it, and names the places that break it. Sources: TensorRT developer guide, "Working with
Quantized Types" and "Explicit Quantization"; ``docs/operators.md`` of onnx-tensorrt; see also
`intact.formats.tensorrt.faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.formats.tensorrt.opsets import NEWEST, OLDEST, PER_CHANNEL
from intact.graph import input_value
from intact.verification.quantizer_pairs import (
    DEQUANTIZE,
    QUANTIZE,
    SATURATIONS,
    axis_of,
    constant_behind,
    dequantizer_of,
    quantizer_of,
    scale_of,
    zero_point_of,
)
from intact.verification.tensorrt_tables import WrittenModel, table_names, table_scales

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_NOT_READ = frozenset(
    {
        "BitShift",
        "ConvInteger",
        "Det",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "MaxUnpool",
        "Multinomial",
        "QLinearConv",
        "QLinearMatMul",
        "StringNormalizer",
        "TfIdfVectorizer",
        "Unique",
    }
)
"""Operators that onnx-tensorrt's table has as unsupported, in every release."""


def check_tensorrt(written: WrittenModel) -> dict[str, list[str]]:
    """Return each rule with the places that break it; nothing is executed."""
    return {text: list(find(written)) for text, find in RULES.items()}


# ---- quantisers --------------------------------------------------------------------------------


def _zero_points(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        zero = zero_point_of(node)
        if zero is None or zero.dtype != np.int8 or zero.any():
            yield _place(node)


def _scales(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        scale, zero = scale_of(node), zero_point_of(node)
        same_shape = scale is None or zero is None or zero.shape == scale.shape
        if not (_is_sound(scale) and same_shape):
            yield _place(node)


def _is_sound(scale: npt.NDArray[Any] | None) -> bool:
    if scale is None or scale.dtype != np.float32 or not scale.size:
        return False
    return bool((np.isfinite(scale) & (scale > 0)).all())


def _pairs(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        if node.op_type == DEQUANTIZE:
            maker = quantizer_of(node)
            paired = maker is not None and _is_pair(maker, node)
        else:
            readers = [use.node for use in node.outputs[0].uses()]
            seen = bool(readers) and not node.outputs[0].is_graph_output()
            paired = seen and all(_is_pair(node, reader) for reader in readers)
        if not paired:
            yield _place(node)


def _is_pair(quantizer: ir.Node, other: ir.Node) -> bool:
    first, second = scale_of(quantizer), scale_of(other)
    if other.op_type != DEQUANTIZE or first is None or second is None:
        return False
    return axis_of(quantizer) == axis_of(other) and np.array_equal(first, second)


def _activations_per_tensor(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        scale = scale_of(node)
        if scale is not None and scale.ndim and constant_behind(node) is None:
            yield _place(node)


def _weights_per_channel(written: WrittenModel) -> Iterator[str]:
    for node in written.model.graph:
        for slot in (0, 1) if node.op_type in _PRODUCTS else ():
            pair = dequantizer_of(input_value(node, slot))
            scale = None if pair is None else scale_of(pair)
            weight = None if pair is None else constant_behind(pair)
            if pair is None or scale is None or weight is None or not scale.ndim:
                continue
            axis = axis_of(pair)
            fits = weight.shape[axis : axis + 1] == scale.shape
            if not fits or axis != _channel_axis(node, slot, weight.ndim):
                yield f"{_place(node)} along axis {axis}"


def _channel_axis(product: ir.Node, slot: int, rank: int) -> int | None:
    """Return the axis of a product's constant factor that has the output channels."""
    match product.op_type:
        case "Conv":
            return 0
        case "Gemm":
            transposed = product.attributes.get_int("transA" if slot == 0 else "transB", 0) != 0
            return int(transposed) if slot == 0 else int(not transposed)
        case "MatMul":
            return rank - 2 if slot == 0 else rank - 1
    return None


# ---- layers ------------------------------------------------------------------------------------


def _all_inputs(written: WrittenModel) -> Iterator[str]:
    for node in written.model.graph:
        if node.op_type in _PRODUCTS:
            quantized = [_is_quantized(value) for value in node.inputs[:2]]
            if any(quantized) and not all(quantized):
                yield _place(node)


def _float_biases(written: WrittenModel) -> Iterator[str]:
    for node in written.model.graph:
        if node.op_type in _PRODUCTS and _is_quantized(input_value(node, 2)):
            yield _place(node)


def _residuals(written: WrittenModel) -> Iterator[str]:
    """Look at each sum that is quantised next, of which an int8 product is a float operand."""
    for node in written.model.graph:
        if node.op_type != "Add" or not _is_quantized_next(node):
            continue
        products = [value for value in node.inputs if _is_integer_product(value)]
        others = [value for value in node.inputs if not _is_integer_product(value)]
        if len(products) > 1 or (products and not all(_is_addend(value) for value in others)):
            yield _place(node)


def _is_addend(value: ir.Value | None) -> bool:
    return _is_quantized(value) or (value is not None and value.const_value is not None)


def _is_integer_product(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    return maker is not None and maker.op_type == "Conv" and _is_quantized(maker.inputs[0])


def _is_quantized_next(node: ir.Node) -> bool:
    readers = [use.node for use in node.outputs[0].uses()]
    if len(readers) == 1 and readers[0].op_type in SATURATIONS:
        readers = [use.node for use in readers[0].outputs[0].uses()]
    return bool(readers) and all(reader.op_type == QUANTIZE for reader in readers)


# ---- the model ---------------------------------------------------------------------------------


def _operators(written: WrittenModel) -> Iterator[str]:
    for node in written.model.graph.all_nodes():
        own = node.op_identifier() in written.model.functions
        if node.op_type in _NOT_READ if node.domain in ("", "ai.onnx") else not own:
            yield f"{_place(node)} ({node.op_type})"


def _opset(written: WrittenModel) -> Iterator[str]:
    opset = written.model.opset_imports.get("", 0)
    scales = (scale_of(node) for node in written.quantizers())
    per_channel = any(scale is not None and scale.ndim for scale in scales)
    if not (PER_CHANNEL if per_channel else OLDEST) <= opset <= NEWEST:
        yield f"opset {opset}"


# ---- the table of rules ------------------------------------------------------------------------


def _is_quantized(value: ir.Value | None) -> bool:
    """Tell whether a value comes from a Dequantize, perhaps moved on the way."""
    return dequantizer_of(value) is not None


def _place(node: ir.Node) -> str:
    return str(node.name or node.op_type)


RULES: Mapping[str, Callable[[WrittenModel], Iterator[str]]] = {
    "every zero point is there, int8 and 0": _zero_points,
    "every scale is a positive finite float32, with a zero point of its shape": _scales,
    "quantisers stand in pairs of one scale, so weights are floats too": _pairs,
    "activations have one scale": _activations_per_tensor,
    "scales of weights run along the output channels; of a ConvTranspose there is one": (
        _weights_per_channel
    ),
    "products read all their factors quantised, or none": _all_inputs,
    "biases are floats": _float_biases,
    "a sum behind an int8 convolution reads the other operand quantised": _residuals,
    "operators are those that TensorRT's ONNX parser reads": _operators,
    "the opset is one that TensorRT's ONNX parser reads": _opset,
    "the tables name tensors of the float model": table_names,
    "the tables have the scales of the model": table_scales,
}
"""In the order in which they are told."""

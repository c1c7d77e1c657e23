"""Expands a BatchNormalization that could not be folded into the layer in front.

It is folded into the layers behind where that is exact, and else becomes Mul and Add.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.batch_norm import INPUT_KEY, BatchNorm, remember
from intact.graph.edit import Editor
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.fold_linear import parameters_of
from intact.graph.passes.replace import replace_constant
from intact.ops.operators import Add, Conv, Gemm, MatMul, Mul, is_a

_Doubles = npt.NDArray[np.float64]
_Folded = tuple[np.ndarray, np.ndarray]
"""A weight and its bias, in the types in which they are stored."""


def expand_batch_norm(editor: Editor, node: ir.Node) -> None:
    """Write ``x * ratio + offset`` by channel, ``ratio = gamma / sqrt(variance + epsilon)``.

    A node stays as it is if it trains, if a parameter is computed or gives no finite number, or if
    its input is not float32 of known rank.
    """
    data, norm = input_value(node, 0), parameters_of(node)
    if norm is None or data is None or data.shape is None or len(data.shape) < 2:
        return
    if data.dtype is not ir.DataType.FLOAT:
        return
    with np.errstate(all="ignore"):
        factors = norm.ratio.astype(np.float32), norm.offset.astype(np.float32)
    if not all(np.isfinite(each).all() for each in factors):
        return
    if not _fold_into_readers(editor, node, norm):
        _scale_and_shift(editor, node, data, norm, *factors)


def _scale_and_shift(
    editor: Editor,
    node: ir.Node,
    data: ir.Value,
    norm: BatchNorm,
    ratio: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32],
) -> None:
    """Replace a node by Mul and Add; the Add keeps its name and the parameters."""
    name = str(node.name)
    along = (-1, *(1,) * (len(data.shape or ()) - 2))
    factor = editor.initializer(f"{name}_scale", ratio.reshape(along))
    shift = editor.initializer(f"{name}_shift", offset.reshape(along))
    scaled = editor.node(Mul, (data, factor), f"{name}_Mul", shape=data.shape)
    result = editor.node(Add, (scaled, shift), f"{name}_Add", shape=data.shape)
    last = result.producer()
    editor.put_in_place(node, result)
    if last is not None:
        last.name = name
        remember(last, norm)


def _fold_into_readers(editor: Editor, node: ir.Node, norm: BatchNorm) -> bool:
    """Fold a node into all that read it, if each is a layer that can take it exactly."""
    result, source, graph = node.outputs[0], node.inputs[0], editor.model.graph
    uses = tuple(result.uses())
    if source is None or not uses or result.is_graph_output():
        return False
    if any(use.node.graph is not graph for use in uses):
        return False  # the body of an If or Loop reads it
    found = [(use.node, _fold(use.node, use.idx, norm)) for use in uses]
    layers = [(layer, folded) for layer, folded in found if folded is not None]
    if len(layers) < len(found):
        return False
    for layer, (weight, bias) in layers:
        replace_constant(graph, layer, 1, weight, editor.names.fresh(f"{layer.name}_weight"))
        replace_constant(graph, layer, 2, bias, editor.names.fresh(f"{layer.name}_bias"))
        # A MatMul has no bias, which takes the offset.
        layer.op_type = Conv.name if is_a(layer, Conv) else Gemm.name
        remember(layer, norm, INPUT_KEY)
    result.replace_all_uses_with(source)
    graph.remove(node, safe=True)
    return True


def _fold(layer: ir.Node, slot: int, norm: BatchNorm) -> _Folded | None:
    """Return weight and bias of a layer that does the work of a norm in front; None if none can.

    A convolution that pads with zeros cannot: they would have to be ``-offset / ratio``.
    """
    weight, bias = constant_array(input_value(layer, 1)), input_value(layer, 2)
    if layer.domain != "" or slot != 0 or weight is None or weight.dtype != np.float32:
        return None
    row = constant_array(bias)
    if bias is not None and row is None:
        return None
    # So that weight and bias are rounded once.
    wide = weight.astype(np.float64)
    factors = _factors(layer, wide, norm)
    if factors is None:
        return None
    ratio, offset, inputs = factors
    with np.errstate(all="ignore"):
        scaled = (wide * ratio).astype(np.float32)
        shift = (wide * offset).sum(axis=inputs)
        own = np.zeros(shift.shape) if row is None else row.astype(np.float64)
        if own.size not in {1, shift.size} or own.ndim > 2:
            return None
        moved = (own.reshape(-1) + shift).astype(np.float32)
    return (scaled, moved) if np.isfinite(scaled).all() and np.isfinite(moved).all() else None


def _factors(
    layer: ir.Node, weight: _Doubles, norm: BatchNorm
) -> tuple[_Doubles, _Doubles, tuple[int, ...]] | None:
    """Arrange ratio and offset along a weight's input channels.

    Returns:
        Both, broadcasting against the weight, and the axes that a sum of its products runs over.
    """
    channels = norm.ratio.size
    match layer.op_type:
        case Conv.name if _is_unpadded(layer):
            group = Conv.of(layer).group
            outputs, depth = weight.shape[0], weight.shape[1]
            if depth * group != channels or outputs % group:
                return None
            shape = (outputs, depth, *(1,) * (weight.ndim - 2))
            ratio, offset = (
                np.repeat(each.reshape(group, depth), outputs // group, axis=0).reshape(shape)
                for each in (norm.ratio, norm.offset)
            )
            return ratio, offset, tuple(range(1, weight.ndim))
        case Gemm.name if _is_plain(layer):
            transposed = Gemm.of(layer).transB
        case MatMul.name if weight.ndim == 2 and _is_matrix(layer.inputs[0]):
            transposed = 0
        case _:
            return None
    axis = 1 if transposed else 0
    if weight.shape[axis] != channels:
        return None
    along = (1, -1) if transposed else (-1, 1)
    return norm.ratio.reshape(along), norm.offset.reshape(along), (axis,)


def _is_unpadded(layer: ir.Node) -> bool:
    options = Conv.of(layer)
    return not any(options.pads) and not options.pads_to_same


def _is_plain(layer: ir.Node) -> bool:
    options = Gemm.of(layer)
    return not options.transA and options.alpha == options.beta == 1.0


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == 2

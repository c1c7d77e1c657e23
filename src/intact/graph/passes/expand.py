"""Expands operators into simpler ones, for hardware that has only these.

A LayerNormalization, for example, becomes means, differences and products.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported, UsageError, nearest
from intact.graph.edit import Editor
from intact.graph.given_nodes import note_given_nodes
from intact.graph.graph import Graph
from intact.graph.metadata import PART_KEY, WHOLE_KEY
from intact.graph.ops import constant_array, function_options, input_value
from intact.graph.passes.composite import Composite, axes_of
from intact.graph.passes.control_flow import choose_results
from intact.graph.passes.expand_attention import (
    expand_attention,
    expand_grouped_attention,
    expand_heads,
)
from intact.graph.passes.expand_batch_norm import expand_batch_norm
from intact.graph.passes.expand_dft import expand_dft
from intact.graph.passes.expand_einsum import expand_einsum
from intact.graph.passes.expand_places import expand_grid_sample, expand_rotation
from intact.graph.passes.fold_linear import fold_scales
from intact.graph.passes.library import remove_unused
from intact.graph.passes.loops import choose_turns
from intact.ops import functions
from intact.ops.functions import FUNCTIONS
from intact.ops.operators import (
    DFT,
    Add,
    Attention,
    BatchNormalization,
    Clip,
    Col2Im,
    ConvTranspose,
    DepthToSpace,
    Div,
    Einsum,
    GridSample,
    GroupNormalization,
    If,
    InstanceNormalization,
    LayerNormalization,
    Loop,
    LpNormalization,
    Max,
    MeanVarianceNormalization,
    Mul,
    Named,
    Pow,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceSum,
    ReduceSumSquare,
    RMSNormalization,
    RotaryEmbedding,
    Sub,
    is_a,
    type_of,
)

_AXES_ARE_INPUT = 18
"""From this opset on the axes of ReduceMean are an input."""

_HAS_LAYER_NORM = 17
"""The first opset with LayerNormalization."""


def expand(graph: Graph, op_types: Iterable[str]) -> Graph:
    """Expand every operator of these types into simpler ones.

    Args:
        graph: A normalized graph; not changed.
        op_types: Keys of ``EXPANSIONS``.

    Raises:
        UsageError: An operator type has no expansion.
    """
    wanted = set(op_types)
    for op_type in sorted(wanted - EXPANSIONS.keys()):
        raise UsageError(f"--expand {op_type!r}", remedy=nearest(op_type, EXPANSIONS))
    if not any(_is_among(node, wanted) for node in graph.nodes):
        return graph
    editor = Editor(graph.model)
    while_new, tried = True, set[ir.Node]()
    while while_new:  # what a composite was written with may be expanded in turn
        new = [n for n in editor.model.graph if _is_among(n, wanted) and n not in tried]
        for node in new:
            # A node that stays as it is would be found again. Nodes of two bodies share names.
            tried.add(node)
            try:
                EXPANSIONS[node.op_type](editor, node)
            except Unsupported as reason:  # what was written for it has no readers
                node.metadata_props[WHOLE_KEY] = str(reason)
                remove_unused(editor.model)
        while_new = bool(new)
    while fold_scales(editor.model):
        pass  # a new Mul or Add may fold into the layer in front
    model = note_given_nodes(graph.model, editor.finish())
    if any(PART_KEY in node.metadata_props for node in model.graph):
        from intact.graph.normalization import normalize

        # Constants of composites are folded, their dense layers joined with what is added to them.
        return normalize(model, in_place=True)
    return Graph(model)


def _is_among(node: ir.Node, op_types: Collection[str]) -> bool:
    return node.op_type in op_types and node.domain in _DOMAINS[node.op_type]


def _layer_norm(editor: Editor, node: ir.Node) -> None:
    """Write ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias``.

    A node that outputs mean or deviation, or whose input has unknown rank, is not expanded.
    Source: the definition of the ONNX operator.
    """
    data, scale = node.inputs[0], node.inputs[1]
    outputs = [value for value in node.outputs if value.name]
    if data is None or scale is None or data.shape is None or len(outputs) != 1:
        return
    rank = len(data.shape)
    options = LayerNormalization.of(node)
    axis = options.axis
    axes = list(range(axis + rank if axis < 0 else axis, rank))
    reduced = ir.Shape([1 if k in axes else size for k, size in enumerate(data.shape)])
    epsilon = np.float32(options.epsilon)

    def add(operator: Named, *inputs: ir.Value, shape: ir.Shape | None = data.shape) -> ir.Value:
        op_type = type_of(operator)
        return editor.node(op_type, inputs, f"{node.name}_{op_type}", shape=shape)

    def mean(value: ir.Value) -> ir.Value:
        if editor.model.opset_imports[""] >= _AXES_ARE_INPUT:
            listed = editor.initializer(f"{node.name}_axes", np.array(axes, np.int64))
            return add(ReduceMean, value, listed, shape=reduced)
        result = add(ReduceMean, value, shape=reduced)
        producer = result.producer()
        if producer is not None:
            producer.attributes["axes"] = ir.AttrInt64s("axes", axes)
        return result

    centred = add(Sub, data, mean(data))
    variance = mean(add(Mul, centred, centred))
    small = editor.initializer(f"{node.name}_epsilon", epsilon)
    deviation = add(functions.sqrt, add(Add, variance, small, shape=reduced), shape=reduced)
    # One division a row instead of one an element.
    factor = add(functions.reciprocal, deviation, shape=reduced)
    result = add(Mul, add(Mul, centred, factor), scale)
    bias = input_value(node, 2)
    if bias is not None:
        result = add(Add, result, bias)
    editor.put_in_place(node, result)


def _division(editor: Editor, node: ir.Node) -> None:
    """Write ``x * (1 / y)``, which differs from ``x / y`` by one rounding of float32.

    A node of other numbers than float32 is not expanded.
    """
    data, divisor = node.inputs[0], node.inputs[1]
    if data is None or divisor is None or divisor.dtype is not ir.DataType.FLOAT:
        return
    name = str(node.name)
    factor = editor.node(
        functions.reciprocal, (divisor,), f"{name}_Reciprocal", shape=divisor.shape
    )
    editor.put_in_place(node, editor.node(Mul, (data, factor), f"{name}_Mul"))


@dataclass(frozen=True)
class _Term:
    """A value of a formula, which adds the node of what is computed from it."""

    value: ir.Value
    name: str
    editor: Editor

    def _made(self, operator: Named, *numbers: float) -> _Term:
        # Attributes are float32.
        op_type = type_of(operator)
        constants = [self.editor.number(float(np.float32(each))) for each in numbers]
        name, shape = f"{self.name}_{op_type}", self.value.shape
        made = self.editor.node(op_type, (self.value, *constants), name, shape=shape)
        return replace(self, value=made)

    def __mul__(self, number: float) -> _Term:
        return self._made(Mul, number)

    def __add__(self, number: float) -> _Term:
        return self._made(Add, number)

    __rmul__, __radd__ = __mul__, __add__

    def clip(self, low: float, high: float) -> _Term:
        return self._made(Clip, low, high)


def _formula(editor: Editor, node: ir.Node) -> None:
    """Write the nodes of a function that is declared as a formula.

    A node whose input is not float32 is not expanded.
    """
    data = input_value(node, 0)
    if data is None or data.dtype is not ir.DataType.FLOAT:
        return
    result: Any = FUNCTIONS[node.op_type].body(
        _Term(data, str(node.name), editor), *function_options(node)
    )
    editor.put_in_place(node, result.value)


def _power(editor: Editor, node: ir.Node) -> None:
    """Write ``x * x * x``, and ``(x * x) * (x * x)``, for the constant exponents 3 and 4.

    A node of other exponents, or of other numbers than float32, is not expanded.
    """
    data, exponent = input_value(node, 0), constant_array(input_value(node, 1))
    if data is None or data.dtype is not ir.DataType.FLOAT or data.shape is None:
        return
    if exponent is None or exponent.size != 1 or exponent.ndim > len(data.shape):
        return  # more axes would broadcast
    power = exponent.item()
    if power not in (3, 4):
        return

    def times(first: ir.Value, second: ir.Value) -> ir.Value:
        return editor.node(Mul, (first, second), f"{node.name}_Mul", shape=data.shape)

    square = times(data, data)
    editor.put_in_place(node, times(square, data if power == 3 else square))


def _rms_normalization(editor: Editor, node: ir.Node) -> None:
    """Expand RMSNormalization: ``x / sqrt(mean(x^2) + epsilon) * scale``, from ``axis`` on.

    A node that outputs more, or whose input has unknown rank, is not expanded.
    """
    written = Composite(editor, node, RMSNormalization.name)
    data, scale = written.input(0), written.input(1)
    if data is None or scale is None or data.shape is None or written.reads(1):
        return
    rank = len(data.shape)
    axes = list(range(written.integer("axis", -1) % rank, rank))
    written.put(written(Mul, _unit(written, data, axes), scale, shape=axes_of(data)))


def _unit(written: Composite, data: ir.Value, axes: list[int]) -> ir.Value:
    """Write ``x / sqrt(mean(x^2) + epsilon)``."""
    squares = written.reduce(ReduceMean, written(Mul, data, data), axes)
    small = written.constant(np.array(written.number("epsilon", 1e-5)), data)
    factor = written(functions.reciprocal, written(functions.sqrt, written(Add, squares, small)))
    return written(Mul, data, factor)


def _instances(editor: Editor, node: ir.Node) -> None:
    """Expand InstanceNormalization and GroupNormalization.

    Each channel, or group of channels, is normalized by itself. A node whose input has unknown rank
    is not expanded. Groups of opsets 18 to 20 are instances already (see
    `intact.graph.passes.opset_forms`).
    """
    written = Composite(editor, node)
    data, scale, bias = (written.input(slot) for slot in range(3))
    if data is None or scale is None or bias is None or data.shape is None:
        return
    rank, groups = len(data.shape), written.integer("num_groups")
    # Without positions there is nothing to take a mean of.
    if rank < 3 and not groups:
        return
    grouped = data
    if is_a(node, GroupNormalization):
        grouped = written.reshape(data, [written.length(data, 0), groups, -1])
    axes = list(range(2, len(grouped.shape or ())))
    centred = written(Sub, grouped, written.reduce(ReduceMean, grouped, axes))
    result = _unit(written, centred, axes)
    if grouped is not data:
        result = written.reshape(result, [written.length(data, axis) for axis in range(rank)])
    channels = [-1, *(1,) * (rank - 2)]
    factor, shift = (_along(written, each, channels) for each in (scale, bias))
    result = written(Add, written(Mul, result, factor), shift, shape=axes_of(data))
    written.put(result)


def _along(written: Composite, value: ir.Value, lengths: list[int]) -> ir.Value:
    array = constant_array(value)
    if array is not None:
        return written.constant(array.reshape(lengths))
    return written.reshape(value, lengths)


def _mean_variance(editor: Editor, node: ir.Node) -> None:
    """Expand MeanVarianceNormalization: ``(x - mean) / (sqrt(mean(x^2) - mean^2) + 1e-9)``.

    A node whose input has unknown rank is not expanded. Source: the definition of the operator.
    """
    written = Composite(editor, node)
    data = written.input(0)
    if data is None or data.shape is None:
        return
    rank = len(data.shape)
    given = node.attributes.get_ints("axes", (0, 2, 3)) or ()
    axes = sorted(axis % rank for axis in given)
    centred = written(Sub, data, written.reduce(ReduceMean, data, axes))
    # Of centred data, since the difference of two means of squares loses digits.
    variance = written.reduce(ReduceMean, written(Mul, centred, centred), axes)
    deviation = written(
        Add, written(functions.sqrt, variance), written.constant(np.array(1e-9), data)
    )
    written.put(written(Div, centred, deviation))


def _skip_layer(editor: Editor, node: ir.Node) -> None:
    """Expand SkipLayerNormalization and the simplified one.

    They are a sum, then the normalization of its rows. A node that outputs mean or deviation, or
    whose input has unknown rank, is not expanded; the first needs LayerNormalization, of opset 17.
    Source: ONNX Runtime's contributed operators.
    """
    written = Composite(editor, node, RMSNormalization.name)
    is_simple = node.op_type == "SkipSimplifiedLayerNormalization"
    data, skip, scale = (written.input(slot) for slot in range(3))
    shift, bias = (None, written.input(3)) if is_simple else (written.input(3), written.input(4))
    if data is None or skip is None or scale is None or data.shape is None:
        return
    if written.reads(1, 2) or (not is_simple and written.opset < _HAS_LAYER_NORM):
        return
    total = written(Add, data, skip, shape=axes_of(data))
    if bias is not None:
        total = written(Add, total, bias, shape=axes_of(data))
    rank = len(data.shape)
    if is_simple:
        result = written(Mul, _unit(written, total, [rank - 1]), scale, shape=axes_of(data))
    else:
        operands = (total, scale) if shift is None else (total, scale, shift)
        epsilon = written.number("epsilon", 1e-12)
        result = written(
            LayerNormalization, *operands, shape=axes_of(data), axis=-1, epsilon=epsilon
        )
        _forget_part(result)
    _forget_part(total)
    written.put(result, None, None, total)


def _reduction(editor: Editor, node: ir.Node) -> None:
    """Expand ReduceL1, ReduceL2, ReduceSumSquare, ReduceLogSum and ReduceLogSumExp by sums.

    A node with computed axes, of unknown rank, or of integers, is not expanded.
    """
    written = Composite(editor, node)
    data, listed = written.input(0), written.input(1)
    if data is None or data.shape is None or data.dtype is not ir.DataType.FLOAT:
        return
    rank, constant = len(data.shape), constant_array(listed)
    if listed is not None and constant is None:
        return
    attribute = node.attributes.get_ints("axes", ()) or ()
    given = attribute if constant is None else constant.reshape(-1)
    axes = sorted(int(axis) % rank for axis in given)
    if not axes and written.integer("noop_with_empty_axes"):
        return
    # No axes mean all of them, unless the node says that they mean none.
    axes = axes or list(range(rank))
    keep = written.integer("keepdims", 1) == 1
    written.put(_REDUCTIONS[node.op_type](written, data, axes, keep))


def _sum(written: Composite, data: ir.Value, axes: list[int], keep: bool) -> ir.Value:
    return written.reduce(ReduceSum, data, axes, keep=keep)


def _log_sum_exp(written: Composite, data: ir.Value, axes: list[int], keep: bool) -> ir.Value:
    """Write ``log(sum(exp(x - max))) + max``, which no large number overflows."""
    highest = written.reduce(ReduceMax, data, axes)
    total = _sum(written, written(functions.exp, written(Sub, data, highest)), axes, keep)
    if not keep:
        highest = written.reduce(ReduceMax, data, axes, keep=False)
    return written(Add, written(functions.log, total), highest)


_REDUCTIONS: dict[str, Callable[[Composite, ir.Value, list[int], bool], ir.Value]] = {
    ReduceL1.name: lambda c, x, axes, keep: _sum(c, c(functions.absolute, x), axes, keep),
    ReduceL2.name: lambda c, x, axes, keep: c(
        functions.sqrt.name, _sum(c, c(Mul, x, x), axes, keep)
    ),
    ReduceLogSum.name: lambda c, x, axes, keep: c(functions.log, _sum(c, x, axes, keep)),
    ReduceLogSumExp.name: _log_sum_exp,
    ReduceSumSquare.name: lambda c, x, axes, keep: _sum(c, c(Mul, x, x), axes, keep),
}


def _unit_length(editor: Editor, node: ir.Node) -> None:
    """Expand LpNormalization: ``x / norm``, 0 where the norm is 0, as ONNX Runtime has it.

    A node of other norms than the first two, or whose input has unknown rank, is not expanded.
    """
    written = Composite(editor, node)
    data, power = written.input(0), written.integer("p", 2)
    if data is None or data.shape is None or power not in (1, 2):
        return
    axis = written.integer("axis", -1) % len(data.shape)
    norm = _REDUCTIONS[f"ReduceL{power}"](written, data, [axis], True)
    # A norm of 0 has a data of 0 only, and 0 divided by anything is 0.
    least = written.constant(np.array(np.finfo(np.float32).tiny), data)
    written.put(written(Div, data, written(Max, norm, least)))


def _columns_to_image(editor: Editor, node: ir.Node) -> None:
    """Expand Col2Im over two axes, which adds windows up to an image.

    Square windows side by side are a DepthToSpace, others a ConvTranspose with weights of 0 and 1,
    a group a channel. A node of other axes, or of unknown sizes, is not expanded. Source: the
    definition of the ONNX operator.
    """
    written = Composite(editor, node)
    data = written.input(0)
    image, block = (constant_array(written.input(slot)) for slot in (1, 2))
    if data is None or data.shape is None or image is None or block is None or image.size != 2:
        return
    columns = data.shape[1]
    if not isinstance(columns, int):
        return
    given = {name: node.attributes.get_ints(name, None) for name in ("strides", "dilations")}
    strides, dilations = (np.array(each or (1, 1)) for each in given.values())
    pads = np.array(node.attributes.get_ints("pads", None) or (0, 0, 0, 0))
    spans = dilations * (block - 1) + 1
    counts = (image + pads[:2] + pads[2:] - spans) // strides + 1
    channels = columns // int(block.prod())
    rows = [written.length(data, 0), columns, *map(int, counts)]
    grid = written.reshape(data, rows)
    shape = [data.shape[0], channels, *map(int, image)]
    touching = np.array_equal(strides, block) and np.array_equal(counts * block, image)
    if touching and block[0] == block[1] and not pads.any() and (dilations == 1).all():
        size = int(block[0])
        result = written(DepthToSpace, grid, shape=shape, blocksize=size, mode="CRD")
        _forget_part(grid)  # values are moved alone
        _forget_part(result)
    else:
        ones = np.eye(int(block.prod()), dtype=np.float32).reshape(-1, 1, *map(int, block))
        weight = written.constant(np.tile(ones, (channels, 1, 1, 1)), data)
        rest = image - ((counts - 1) * strides + spans - pads[:2] - pads[2:])
        result = written(
            ConvTranspose,
            grid,
            weight,
            shape=shape,
            group=channels,
            strides=[int(each) for each in strides],
            dilations=[int(each) for each in dilations],
            pads=[int(each) for each in pads],
            output_padding=[int(each) for each in rest],
        )
    written.put(result)


def _forget_part(value: ir.Value) -> None:
    """Let the target's rules for its own type decide about the node that makes a value."""
    maker = value.producer()
    if maker is not None:
        maker.metadata_props[PART_KEY] = ""


EXPANSIONS: dict[str, Callable[[Editor, ir.Node], None]] = {
    Attention.name: expand_attention,
    BatchNormalization.name: expand_batch_norm,
    Col2Im.name: _columns_to_image,
    DFT.name: expand_dft,
    Div.name: _division,
    Einsum.name: expand_einsum,
    GridSample.name: expand_grid_sample,
    GroupNormalization.name: _instances,
    "GroupQueryAttention": expand_grouped_attention,
    If.name: choose_results,
    InstanceNormalization.name: _instances,
    LayerNormalization.name: _layer_norm,
    Loop.name: choose_turns,
    LpNormalization.name: _unit_length,
    MeanVarianceNormalization.name: _mean_variance,
    "MultiHeadAttention": expand_heads,
    Pow.name: _power,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **{name: _formula for name, each in FUNCTIONS.items() if each.is_formula},
    RMSNormalization.name: _rms_normalization,
    RotaryEmbedding.name: expand_rotation,
    "SimplifiedLayerNormalization": _rms_normalization,
    "SkipLayerNormalization": _skip_layer,
    "SkipSimplifiedLayerNormalization": _skip_layer,
}
"""The expansions by operator type; the names are `intact.ops.EXPANDABLE`."""

_OF_RUNTIME = frozenset({"com.microsoft"})
_DOMAINS = {
    **dict.fromkeys(EXPANSIONS, frozenset({""})),
    "GroupQueryAttention": _OF_RUNTIME,
    "MultiHeadAttention": _OF_RUNTIME,
    RotaryEmbedding.name: frozenset({"", *_OF_RUNTIME}),
    "SkipLayerNormalization": _OF_RUNTIME,
    "SkipSimplifiedLayerNormalization": _OF_RUNTIME,
}
"""The domains of each operator."""

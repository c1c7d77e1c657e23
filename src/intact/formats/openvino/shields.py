"""Prevents what OpenVINO computes wrong, by a node behind each place that is at risk.

1. Several nodes read a result of integers: some would be multiplied twice.

Its low-precision pass puts the scales of a product behind it, as a Multiply, and moves that on
through the nodes that read it: Relu, a mean, a maximum. Where the Multiply has another reader as
well, both get results that were multiplied twice. So it is where a convolution without a bias (or
of zeros), a product of two activations, or a multiplication of either by a constant is read twice;
a bias lies between and prevents it. Measured with openvino 2026.4.1 over 6 kinds of producers and
18 of readers. Some operators alone are several readers, because OpenVINO computes them so: a sum of
squares multiplies what it reads by itself.

2. A convolution of rows, ``[N, C, W]``, without a bias is reduced along them, also behind what its
scales are moved through (a Relu, a transposition, a maximum): they are wrong then (-3 to 3 dB).
Those of images are right.

3. Rows are reduced along them, and constants for each channel are added, multiplied or raised to
behind, also behind what moves or scales all alike: samples and channels change places in what comes
out (-11 to 16 dB), in float models too. Not so of images; a maximum behind the reduction prevents
it. Measured with openvino 2026.4.1 over 10 reductions, 2 pools, 6 nodes behind and 5 before them.
Beside a convolution of rows each reduction of rows gets one: what else goes wrong there was not
measured.

4. A quantizer reads the largest or smallest number along axes, or what is computed of it: OpenVINO
fuses both, and what comes out agrees with neither (0 to 19 dB, with AVX-512 VNNI and with AVX2).

5. A value is multiplied for each channel, and by negative numbers too: OpenVINO's CPU plugin takes
the factors into the quantizer behind, which then multiplies all channels by the first one's. Not so
positive ones, which other passes have taken before, and one factor for all channels. Several
multiplications become one, scalars move across them, and quantizers move before what moves values.
A shift of each channel's own in a BatchNormalization prevents it. Measured with openvino 2026.4.1.

6. A window moves over the axis of a matrix product that its scales lie along: OpenVINO moves them
through MaxPool, AveragePool and nearest Resize as if that axis were the channels. It refuses the
model then, or gives numbers that are wrong (9 dB), also where the product is multiplied by a
constant before; not behind a bias or a Relu.

7. A constant multiplies a matrix product with weights, also behind its bias, by row or element:
OpenVINO moves the product's own scales, which lie along the columns, through it as if both were of
one kind (-5 to 9 dB; not by column, nor by one number, nor behind a Relu). Weights of more than two
axes are as bad as no bias, wherever several nodes read.

8. A Relu, or one with slopes, makes of a product without a bias what negative numbers multiply
behind it: OpenVINO takes the factors into the product, in front of the Relu (-4 to 16 dB); scalars
move through shapes, sums prevent it. Measured over 9 kinds of products and 20 of nodes behind.

9. A product of two activations has a number for each column behind, added, multiplied or a slope:
one that multiplies is read beyond its end (-700 dB, NaN, and otherwise in each run), also behind a
Relu; behind other functions of one number the product's kernel is one whose pairs saturate, on
processors with 8-bit dot products as well.

10. A quantizer reads a transposed convolution without groups whose kernel is smaller than its
stride along some axis, also behind a Relu: OpenVINO computes it in floats and takes its scales and
bias into the quantizer, which then gives all channels the first one's (-12 to 11 dB). Not so
without a quantizer, nor where the kernel is as large as its stride. Measured with openvino 2026.4.1
on AVX2 over 1 to 32 channels, with and without a bias.

A maximum with the lowest number changes no number; nothing is moved through it, nor fused across.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.formats.openvino.dialect import DOMAIN
from intact.graph import constant_array, data_slots, input_value, is_constant
from intact.graph.edit import Editor
from intact.graph.passes.fold_linear import parameters_of
from intact.ops import functions
from intact.ops.operators import (
    CONVOLUTIONS,
    LAYERS,
    REDUCTIONS,
    Add,
    AveragePool,
    BatchNormalization,
    Concat,
    ConvTranspose,
    Div,
    GlobalAveragePool,
    GlobalMaxPool,
    LayerNormalization,
    MatMul,
    MaxPool,
    MeanVarianceNormalization,
    Mul,
    Pow,
    PRelu,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMin,
    ReduceSumSquare,
    Relu,
    Resize,
    Sub,
    is_a,
    types_of,
)
from intact.plan import QuantizedGraph

FACTORS = types_of(Mul, Div)
SUMS = types_of(Add, Sub)
_EXTREMES = types_of(GlobalMaxPool, ReduceMax, ReduceMin)
_RELUS = types_of(functions.leaky_relu, PRelu, Relu)
"""What positive scales are moved through."""
_READ_TWICE = types_of(functions.celu, MeanVarianceNormalization, ReduceLogSumExp, ReduceSumSquare)
"""Operators that OpenVINO makes several readers of; measured over 45 kinds of nodes."""
_REDUCTIONS = REDUCTIONS | types_of(GlobalAveragePool, GlobalMaxPool)
_FUSED = SUMS | FACTORS | types_of(BatchNormalization, PRelu, Pow)
"""What OpenVINO computes in the kernel of a reduction, with a constant for each channel."""
_ROWS = 3
"""Axes of what a convolution of rows gives: samples, channels, positions."""
_OVER_AXES = types_of(AveragePool, MaxPool, Resize)
_WEIGHT_SLOT, _BIAS_SLOT = 1, 2
_CHANNELS = 1
"""The axis of which OpenVINO takes factors into a quantizer."""

_Floats = npt.NDArray[Any]


def keep_results(editor: Editor, plan: QuantizedGraph) -> list[str]:
    """Put a maximum behind each float result that would come out wrong, before all its readers.

    Args:
        editor: Edits the model with its quantizers.
        plan: What is written.

    Returns:
        The names of those results.
    """
    model = editor.model
    results = _bare_results(model, plan)
    # 1. Several readers, 2. convolutions of rows that are reduced.
    found = [value for value in results if _is_fork(value) or _is_reduced_row(value)]
    # 9. A number for each column behind a product of two activations.
    found += _products_by_columns(model, plan)
    # 8. Negative factors behind a Relu.
    found += _results_before_negation(model, {*results, *_matrix_products(model, plan)})
    # 4. The largest or smallest number in front of a quantizer.
    found += [value for value in _extremes(model) if _reaches_quantizer(value)]
    # 5. Factors of both signs for channels, in front of a quantizer.
    found += [value for value in _channels_of_both_signs(model) if value not in found]
    for others in (
        # 6. Windows over the columns of a product.
        _products_under_windows(model, plan),
        # 7. Factors otherwise than by column.
        _products_before_factors(model, plan),
        # 3. Rows that are reduced in front of constants for channels.
        _reduced_rows(model),
        # 10. Transposed convolutions with gaps in front of a quantizer.
        _transposed_with_gaps(model, plan),
    ):
        found += [value for value in others if value not in found]
    # Indices and shapes have no lowest float, and no scales that could be moved.
    found = [value for value in found if value.dtype is None or value.dtype.is_floating_point()]
    for value in found:
        # Collected before the maximum is added, which reads the value too.
        uses = [use for use in value.uses() if use.node.graph is model.graph]
        kept = editor.kept(value)
        for use in uses:
            use.node.replace_input_with(use.idx, kept)
    return [str(value.name) for value in found]


def _bare_results(model: ir.Model, plan: QuantizedGraph) -> list[ir.Value]:
    """Return what products without a bias give, also times constants, in order."""
    integers = _in_integers(plan)
    bare: dict[ir.Value, None] = {}
    for node in model.graph:
        if node.domain == "" and (
            (node.op_type in CONVOLUTIONS and str(node.name) in integers and not _has_bias(node))
            or (is_a(node, MatMul) and str(node.name) in integers and not _is_dense(node))
            or (node.op_type in FACTORS and _has_constant(node) and bare.keys() & {*node.inputs})
        ):
            bare[node.outputs[0]] = None
    return list(bare)


def _products_by_columns(model: ir.Model, plan: QuantizedGraph) -> list[ir.Value]:
    """Return the products of two activations that have a number for each column behind."""
    origin = {value: value for value in _activation_products(model, plan)}
    found: dict[ir.Value, None] = {}
    for node in model.graph:
        sources = [value for value in node.inputs if value in origin]
        fixed = [_fixed_array(node, slot) for slot in range(len(node.inputs))]
        if node.domain or not sources or sum(array is None for array in fixed) > 1:
            continue
        source = origin[sources[0]]
        if node.op_type in _FUSED and any(
            a is not None and 1 < a.size == a.shape[-1] for a in fixed
        ):
            found[source] = None
        # What is made of it with constants alone still counts as the product, through which scales
        # move.
        origin |= dict.fromkeys(node.outputs, source)
    return list(found)


def _activation_products(model: ir.Model, plan: QuantizedGraph) -> list[ir.Value]:
    """Return what products of two activations give."""
    integers = _in_integers(plan)
    return [
        node.outputs[0]
        for node in model.graph
        if is_a(node, MatMul) and str(node.name) in integers and not _has_constant(node)
    ]


def _matrix_products(model: ir.Model, plan: QuantizedGraph) -> Iterator[ir.Value]:
    """Yield what matrix products in integers give."""
    integers = _in_integers(plan)
    for node in model.graph:
        if is_a(node, MatMul) and str(node.name) in integers:
            yield node.outputs[0]


def _results_before_negation(model: ir.Model, products: set[ir.Value]) -> list[ir.Value]:
    """Return what Relus make of products, also times constants, before negative factors."""
    scaled, rectified = {*products}, set[ir.Value]()
    found: list[ir.Value] = []
    for node in (each for each in model.graph if each.domain == ""):
        source = next((value for value in node.inputs if value in scaled), None)
        if source is None or not (node.op_type in _RELUS or _scales(node)):
            continue
        if source in rectified and _is_negative(node):
            found.append(source)
            continue
        scaled.add(node.outputs[0])
        if source in rectified or node.op_type in _RELUS:
            rectified.add(node.outputs[0])
    return list(dict.fromkeys(found))


def _scales(node: ir.Node) -> bool:
    """Check for a node that multiplies its only activation by a constant."""
    is_difference = is_a(node, Sub) and _is_zero(_fixed_array(node, 0))
    return (
        is_a(node, functions.negative)
        or is_difference
        or (node.op_type in FACTORS and _has_constant(node))
    )


def _is_negative(node: ir.Node) -> bool:
    """Check for a factor that may be negative, of a node that scales or of one with slopes."""
    if node.op_type in _RELUS:
        return False
    if node.op_type not in FACTORS:
        return True
    arrays = [_fixed_array(node, slot) for slot in (0, 1)]
    return any(each is not None and bool((each < 0).any()) for each in arrays)


def _is_zero(array: _Floats | None) -> bool:
    return array is not None and not array.any()


def _products_under_windows(model: ir.Model, plan: QuantizedGraph) -> list[ir.Value]:
    """Return the products that windows read, also times constants."""
    products = _products(model, plan, lambda node: node.op_type in FACTORS)
    readers = (n for n in model.graph if n.domain == "" and n.op_type in _OVER_AXES)
    read = (node.inputs[0] for node in readers)
    return list(dict.fromkeys(value for value in read if value in products and value is not None))


def _transposed_with_gaps(model: ir.Model, plan: QuantizedGraph) -> list[ir.Value]:
    """Return what transposed convolutions with places without a tap give to quantizers."""
    integers = _in_integers(plan)
    return [
        node.outputs[0]
        for node in model.graph
        if is_a(node, ConvTranspose)
        and str(node.name) in integers
        and _leaves_places(node)
        and _reaches_quantizer(node.outputs[0])
    ]


def _leaves_places(node: ir.Node) -> bool:
    """Check for one group, several channels, and a stride beyond the kernel."""
    weight = _fixed_array(node, _WEIGHT_SLOT)
    # With one channel the first one's scale is right.
    options = ConvTranspose.of(node)
    if weight is None or options.group != 1 or weight.shape[1] == 1:
        return False
    kernel = weight.shape[2:]
    strides = options.strides or (1,) * len(kernel)
    return any(size < stride for size, stride in zip(kernel, strides, strict=True))


def _products_before_factors(model: ir.Model, plan: QuantizedGraph) -> list[ir.Value]:
    """Return the products, also with a bias, that constants multiply otherwise than by column."""

    def keeps_columns(node: ir.Node) -> bool:
        return node.op_type in SUMS or (node.op_type in FACTORS and _is_by_column(node))

    products = _products(model, plan, keeps_columns)
    factors = (
        node
        for node in model.graph
        if node.domain == "" and node.op_type in FACTORS and _has_constant(node)
    )
    read = (value for node in factors if not _is_by_column(node) for value in node.inputs)
    return list(dict.fromkeys(value for value in read if value in products and value is not None))


def _products(
    model: ir.Model, plan: QuantizedGraph, follows: Callable[[ir.Node], bool]
) -> set[ir.Value]:
    """Return what matrix products with weights give, and what such nodes make of it."""
    integers = _in_integers(plan)
    found: set[ir.Value] = set()
    for node in model.graph:
        if node.domain == "" and _has_constant(node):
            is_product = is_a(node, MatMul) and str(node.name) in integers
            if is_product or (follows(node) and found & {*node.inputs}):
                found.add(node.outputs[0])
    return found


def _is_by_column(node: ir.Node) -> bool:
    """Check for a constant of one number, or of one for each place along the last axis."""
    arrays = (_fixed_array(node, slot) for slot in (0, 1))
    return any(
        each is not None and (each.size == 1 or each.shape[-1] == each.size) for each in arrays
    )


def _is_dense(node: ir.Node) -> bool:
    """Check for a matrix product with weights of two axes."""
    arrays = (_fixed_array(node, slot) for slot in (0, 1))
    return any(array is not None and array.ndim <= 2 for array in arrays)


def _in_integers(plan: QuantizedGraph) -> set[str]:
    return {name for name, decision in plan.decisions.items() if decision.quantized}


def _extremes(model: ir.Model) -> list[ir.Value]:
    return [n.outputs[0] for n in model.graph if n.domain == "" and n.op_type in _EXTREMES]


def _channels_of_both_signs(model: ir.Model) -> list[ir.Value]:
    """Return what channels are multiplied to, some by negative numbers, and a quantizer reads."""
    found: list[ir.Value] = []
    factors: dict[ir.Value, _Floats] = {}
    for node in model.graph:
        own = _factors(node) if node.domain == "" else None
        if own is None:
            continue
        before = [factors[v] for v in node.inputs if v is not None and v in factors]
        # signs and differences of all of them: whether they cancel each other is left open
        both = np.concatenate([own.ravel(), *before])
        result = node.outputs[0]
        if _differ(both) and (both < 0).any() and _reaches_quantizer(result):
            found.append(result)
        else:
            factors[result] = both
    return found


def _factors(node: ir.Node) -> _Floats | None:
    """Return what a node multiplies its only activation by: 1, or a number for each channel.

    None is for other nodes, and where each channel has a shift of its own.
    """
    ones = np.ones(1, np.float32)
    match node.op_type:
        case Add.name | Sub.name if _has_constant(node):
            # A constant that is added multiplies nothing; what is subtracted from one changes its
            # sign.
            return -ones if is_a(node, Sub) and _fixed_array(node, 0) is not None else ones
        case functions.negative.name:
            return -ones
        case Mul.name:
            numbers = [_fixed_array(node, slot) for slot in (0, 1)]
            return _by_channel(node, next((each for each in numbers if each is not None), None))
        case Div.name | LayerNormalization.name:
            return _by_channel(node, _fixed_array(node, 1))
        case BatchNormalization.name:
            return _norm_factors(node)
    return None


def _norm_factors(node: ir.Node) -> _Floats | None:
    """Return the factors of a BatchNormalization."""
    norm = parameters_of(node)
    return None if norm is None or _differ(norm.beta - norm.mean * norm.ratio) else norm.ratio


def _by_channel(node: ir.Node, array: _Floats | None) -> _Floats | None:
    """Return factors of a node where they are one number, or one for each channel."""
    if array is None or array.size == 0:
        return None
    if array.size == 1:
        return array
    shape = node.outputs[0].shape
    rank = array.ndim if shape is None else max(len(shape), array.ndim)
    aligned = (1,) * (rank - array.ndim) + array.shape
    return array if rank > _CHANNELS and aligned[_CHANNELS] == array.size else None


def _differ(numbers: _Floats) -> bool:
    return bool((numbers != numbers.flat[0]).any())


def _reaches_quantizer(value: ir.Value) -> bool:
    """Check for a quantizer behind nodes that read no other activation, or join several."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        current = waiting.pop()
        seen.add(current)
        if _is_quantized(current):
            return True
        for use in current.uses():
            slots = data_slots(use.node)
            if sum(_fixed_array(use.node, slot) is None for slot in slots) == 1 or is_a(
                use.node, Concat
            ):
                waiting += [each for each in use.node.outputs if each not in seen]
    return False


def _is_quantized(value: ir.Value) -> bool:
    return any(use.node.domain == DOMAIN for use in value.uses())


def _is_fork(value: ir.Value) -> bool:
    uses = value.uses()
    twice = any(use.node.op_type in _READ_TWICE for use in uses)
    # An output of the model reads the value too.
    return len(uses) + value.is_graph_output() + twice > 1


def _reduced_rows(model: ir.Model) -> list[ir.Value]:
    """Return what rows are reduced to before constants by channel, or beside a convolution."""
    nodes = [node for node in model.graph if node.domain == ""]
    beside = any(n.op_type in CONVOLUTIONS and _rank(n.outputs[0]) == _ROWS for n in nodes)
    reductions = (node for node in nodes if node.op_type in _REDUCTIONS)
    return [
        node.outputs[0]
        for node in reductions
        if _rank(node.inputs[0]) == _ROWS
        and node.outputs[0].uses()
        and (beside or _meets_channels(node.outputs[0]))
    ]


def _meets_channels(value: ir.Value) -> bool:
    """Check for several constants of one node behind nodes that read no other activation."""
    waiting, seen = [value], {value}
    while waiting:
        for node in (use.node for use in waiting.pop().uses()):
            fixed = [_fixed_array(node, slot) for slot in range(len(node.inputs))]
            if node.op_type in _FUSED and any(a is not None and a.size > 1 for a in fixed):
                return True
            alone = sum(array is None for array in fixed) == 1
            behind = {*node.outputs} - seen if alone and node.op_type not in LAYERS else set()
            waiting += behind
            seen |= behind
    return False


def _rank(value: ir.Value | None) -> int:
    """Return how many axes a value has; 0 where that is unknown."""
    return 0 if value is None or value.shape is None else len(value.shape)


def _is_reduced_row(value: ir.Value) -> bool:
    """Check for a convolution of rows that is reduced, with nothing but floats between."""
    if _rank(value) != _ROWS:
        return False
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses():
            if use.node.op_type in _REDUCTIONS:
                return True
            if use.node.domain != DOMAIN:
                behind = {*use.node.outputs} - seen
                waiting += behind
                seen |= behind
    return False


def _has_bias(node: ir.Node) -> bool:
    bias = node.inputs[_BIAS_SLOT] if len(node.inputs) > _BIAS_SLOT else None
    stored = None if bias is None else bias.const_value
    return bias is not None and (stored is None or bool(stored.numpy().any()))


def _has_constant(node: ir.Node) -> bool:
    """Check for an input that does not depend on the model's own, through quantizers too."""
    return any(is_constant(_before_quantizer(value)) for value in node.inputs if value is not None)


def _fixed_array(node: ir.Node, slot: int) -> _Floats | None:
    """Return the numbers of an input that does not depend on the model's own."""
    value = input_value(node, slot)
    return None if value is None else constant_array(_before_quantizer(value))


def _before_quantizer(value: ir.Value) -> ir.Value:
    maker = value.producer()
    source = None if maker is None or maker.domain != DOMAIN else maker.inputs[0]
    return value if source is None else source

"""Writes operators of ONNX that OpenVINO reads otherwise so that both mean the same.

Measured with openvino 2026.4.1: it reduces all axes where those of ReduceL1, ReduceLogSum and
ReduceLogSumExp are an attribute, and it keeps the last window of a pool with ``ceil_mode`` that
starts in the pads behind; `normalize` leaves ``ceil_mode`` only where sizes are not known. What If
and Loop ask may have any number of axes of length 1 in ONNX Runtime, and one at most in OpenVINO.
A slope of one axis is one for each channel there, where it has as many numbers. It swaps the first
two axes of what a recurrent operator reads, once for all readers that need it so, and gives all but
the last of them something else (-4 to 2 dB, in float models too): several recurrent operators of
one direction, or a Transpose beside one. Equal nodes become one again, so each reader gets a
maximum, with the lowest number, of the one before.
Beside a recurrent operator, and where a length is open, it takes the bias of a convolution into the
quantizer behind, which gives all channels the first one's (-4 to 2 dB): a bias that is added with
all its axes is fused into the convolution, as everywhere else.

``FakeQuantize(x, low, high, low, high, levels)`` moves ``x`` to the nearest of ``levels`` numbers
between ``low`` and ``high``, which stand for the smallest and the largest code.

Source: the document on MQBench's OpenVINO backend; OpenVINO's operation set, FakeQuantize-1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.graph.edit import Editor
from intact.graph.traversal import nodes_of
from intact.numerics.conversion import Ends, ends_of_codes
from intact.ops import RECURRENT, functions
from intact.ops.operators import (
    CONVOLUTIONS,
    Add,
    AveragePool,
    If,
    Loop,
    MaxPool,
    PRelu,
    ReduceL1,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceSum,
    Reshape,
    Shape,
    Transpose,
    is_a,
)
from intact.plan import Note, NoteKind, QuantPoint
from intact.program.unsupported import UnsupportedNodes

DOMAIN = "org.openvinotoolkit"
OP_TYPE = "FakeQuantize"

MOST_BITS = 16
"""Wider codes have no levels: a bias of 32 bits is written as the floats that it stands for."""


@dataclass(frozen=True)
class Quantizer:
    """The numbers of one FakeQuantize.

    Attributes:
        low: What the smallest code stands for, float32, of the shape that broadcasts.
        high: What the largest code stands for.
        levels: How many codes there are.
    """

    low: Ends
    high: Ends
    levels: int


def stored_range(config: TensorQuantConfig, *, is_constant: bool) -> tuple[int, int]:
    """Return the codes that a FakeQuantize is given for those of a config.

    Constants are written on their grid already, so the range of theirs may be wider than what they
    use. OpenVINO computes with integers where weights have 255 or 256 levels: fewer than 8 bits are
    stored as 8, with the scale kept (128 levels from -64 as 256 levels from -128).
    """
    low, high = config.quant_min, config.quant_max
    if is_constant and low >= -128 and high <= 255:
        if low >= 0:
            return 0, 255
        # These 255 levels run in integers as they are.
        if (low, high) != (-127, 127) and high <= 127:
            return -128, 127
    return low, high


def quantizer(point: QuantPoint) -> Quantizer:
    """Return the FakeQuantize of a point that has one (see ``unsupported_reason``)."""
    config = point.config
    params = config.params
    if params is None:
        raise ValueError(f"{point.end} has no scale")
    low, high = stored_range(config, is_constant=point.is_constant)
    ends = ends_of_codes(params, low, high)
    axis = config.granularity.axis
    if axis is not None:
        shape = [1] * _rank(point.value)
        shape[axis] = -1
        ends = ends[0].reshape(shape), ends[1].reshape(shape)
    return Quantizer(*ends, levels=high - low + 1)


def unsupported_reason(point: QuantPoint) -> str | None:
    """Tell why there is no FakeQuantize for a point; None if there is one, or needs to be none."""
    config = point.config
    if config.grid.exponential:
        return "logarithmic levels"
    if is_plain(point) or config.grid.block is not None:
        return None
    if config.bits > MOST_BITS:
        return f"{config.quant_min}..{config.quant_max}"
    if config.granularity.axis is not None and point.value.shape is None:
        return "one scale a channel of a tensor of unknown rank"
    span = quantizer(point)
    if not (np.isfinite(span.low).all() and np.isfinite(span.high).all()):
        return "a range beyond float32"
    return None


def is_plain(point: QuantPoint) -> bool:
    """Check whether a constant is written as the floats that it stands for, without a quantizer."""
    return point.is_constant and point.config.bits > MOST_BITS


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


_INNER = {
    ReduceL1.name: functions.absolute.name,
    ReduceLogSum.name: "",
    ReduceLogSumExp.name: functions.exp.name,
}
"""What is applied before the sum; the logarithms have Log behind it."""
_ASKED = {If.name: (0,), Loop.name: (0, 1)}
"""At which slots control flow asks whether, or how often, to run its body."""
_UNSURE = "OpenVINO may have one window more (ceil_mode): the sizes are not known"
_GIVE_SIZES = "export the float model with fixed sizes"
_SMALL = 64
"""Elements of constants that are compared."""
_AXES_AS_INPUT = 13
"""The opset from which ReduceSum takes its axes so."""


def translate(editor: Editor, unsupported: UnsupportedNodes) -> list[Note]:
    """Replace what OpenVINO reads otherwise, in place; list what cannot be replaced.

    Returns:
        What may come out otherwise, for want of sizes.
    """
    unsure = []
    # In bodies too, which hold control flow of their own.
    for node in list(nodes_of(editor.model.graph)):
        if node.domain == "" and node.op_type in _ASKED:
            _ask_one_number(editor, node)
    _part_readers(editor)
    for node in list(editor.model.graph):
        if node.domain != "":
            continue
        if node.op_type in _INNER and "axes" in node.attributes:
            _reduction(editor, node, unsupported)
        elif is_a(node, PRelu):
            _align_slopes(editor, node)
        elif is_a(node, MaxPool, AveragePool) and _flag(node, "ceil_mode"):
            unsure.append(Note(NoteKind.EXPORT, str(node.name), _UNSURE, _GIVE_SIZES))
    return unsure


def _align_slopes(editor: Editor, node: ir.Node) -> None:
    """Give slopes of one axis all axes of what they are for."""
    data, slopes = node.inputs
    rank = 0 if data is None or data.shape is None else len(data.shape)
    fixed = None if slopes is None else slopes.const_value
    if slopes is None or fixed is None or len(fixed.shape) != 1 or rank < 2:
        return
    aligned = fixed.numpy().reshape(*[1] * (rank - 1), -1)
    node.replace_input_with(1, editor.initializer(f"{slopes.name}_aligned", aligned))


def _part_readers(editor: Editor) -> None:
    """Let no two readers swap the axes of equal tensors, if one of them is recurrent."""
    graph = editor.model.graph
    swapping = [node for node in graph if _swaps(node)]
    if not any(node.op_type in RECURRENT for node in swapping):
        return
    # OpenVINO joins equal nodes, so that readers of two equal results share one there.
    equal = _equal_values(graph)
    readers: dict[ir.Value | None, list[ir.Node]] = {}
    for node in swapping:
        value = node.inputs[0]
        readers.setdefault(equal.get(value, value), []).append(node)
    for nodes in readers.values():
        if any(node.op_type in RECURRENT for node in nodes):
            before = nodes[0].inputs[0]
            # Each behind the one before: equal maxima would be joined to one again.
            for node in nodes[1:]:
                before = None if before is None else editor.kept(before)
                node.replace_input_with(0, before)


_ASKING = (*RECURRENT, Shape.name)
"""What asks for lengths while the model runs.

Where something does, OpenVINO 2026.4.1 loses biases: it reads a bias as a Reshape to the axes of
the convolution, for which it asks too, and drops the sum and the Relu behind it."""


def add_biases(editor: Editor) -> None:
    """Add the biases of convolutions by nodes of their own, with all axes, where OpenVINO errs."""
    graph = editor.model.graph
    lengths = [each for value in graph.inputs for each in value.shape or (None,)]
    is_open = any(not isinstance(each, int) for each in lengths)
    if not is_open or not any(node.op_type in _ASKING for node in nodes_of(graph)):
        return
    for node in list(graph):
        bias = node.inputs[2] if node.op_type in CONVOLUTIONS and len(node.inputs) > 2 else None
        weight = node.inputs[1] if bias is not None else None
        if bias is None or bias.const_value is None or weight is None or weight.shape is None:
            continue
        result = node.outputs[0]
        axes = bias.const_value.numpy().reshape(1, -1, *[1] * (len(weight.shape) - 2))
        node.resize_inputs(2)
        added = editor.initializer(f"{bias.name}_axes", axes)
        total = editor.node(Add, [result, added], f"{node.name}_bias", shape=result.shape)
        for use in tuple(result.uses()):
            if use.node is not total.producer():
                use.node.replace_input_with(use.idx, total)
        name = str(result.name)
        editor.replace_output(result, total)
        if total.name != name:
            # An output of the model keeps its name, behind the bias.
            result.name, total.name = editor.names.fresh(f"{name}_sum"), name


def _equal_values(graph: ir.Graph) -> dict[ir.Value | None, ir.Value]:
    """Return for each result the first one that the same operators make of the same inputs."""
    found: dict[ir.Value | None, ir.Value] = {}
    first: dict[tuple[object, ...], ir.Value] = {}
    for node in graph:
        inputs = tuple(_identity(found.get(value, value)) for value in node.inputs)
        attributes = tuple(sorted(str(each) for each in node.attributes.values()))
        for place, result in enumerate(node.outputs):
            key = (node.domain, node.op_type, attributes, inputs, place)
            found[result] = first.setdefault(key, result)
    return found


def _identity(value: ir.Value | None) -> object:
    """Return what tells a value from others: its numbers where it is a small constant."""
    fixed = None if value is None else value.const_value
    # Digesting large weights would take time, and only small constants are written twice.
    if fixed is None or fixed.size > _SMALL:
        return value
    return fixed.dtype, tuple(fixed.shape), fixed.numpy().tobytes()


def _swaps(node: ir.Node) -> bool:
    """Check for a recurrent operator, or a transposition of the first two axes of three."""
    swapped = is_a(node, Transpose) and [*node.attributes.get_ints("perm", [])] == [1, 0, 2]
    return node.domain == "" and (swapped or node.op_type in RECURRENT)


def _ask_one_number(editor: Editor, node: ir.Node) -> None:
    """Let a node of control flow, in a body too, ask tensors of one axis."""
    for slot in _ASKED[node.op_type]:
        value = node.inputs[slot] if slot < len(node.inputs) else None
        if value is not None and value.name and (value.shape is None or len(value.shape) > 1):
            node.replace_input_with(slot, _flat(editor, value, node))
    if is_a(node, Loop) and not node.attributes["body"].is_ref():
        body = node.attributes["body"].as_graph()
        for inner, outer in zip(body.inputs[2:], node.inputs[2:], strict=False):
            if inner.shape is None and outer is not None and outer.shape is not None:
                inner.shape = ir.Shape([None] * len(outer.shape))  # it reads known ranks only
        goes_on = body.outputs[0]
        if goes_on.shape is None or len(goes_on.shape) > 1:
            body.outputs[0] = _flat(editor, goes_on, None, body)


def _flat(
    editor: Editor, value: ir.Value, reader: ir.Node | None, body: ir.Graph | None = None
) -> ir.Value:
    """Return a value of one element as a tensor of one axis, made before its reader."""
    name = editor.names.fresh(f"{value.name}_flat")
    shape = editor.initializer(f"{value.name}_flat_shape", np.array([1], np.int64))
    node = ir.node(Reshape.name, [value, shape], num_outputs=1, name=name)
    result = node.outputs[0]
    result.name, result.type, result.shape = name, value.type, ir.Shape([1])
    if reader is not None and reader.graph is not None:
        reader.graph.insert_before(reader, node)
    elif body is not None:
        body.append(node)
    return result


def _reduction(editor: Editor, node: ir.Node, unsupported: UnsupportedNodes) -> None:
    """Make it a ReduceSum of what it sums."""
    if editor.model.opset_imports.get("", 0) < _AXES_AS_INPUT or is_a(node, ReduceLogSumExp):
        unsupported.add(str(node.name), f"OpenVINO reads {node.op_type} without its axes")
        return
    data, result = node.inputs[0], node.outputs[0]
    if data is None:
        return
    inner = _INNER[node.op_type]
    name = str(node.name)
    if inner:
        data = editor.node(inner, [data], f"{name}_inner", shape=data.shape)
    axes = np.asarray(node.attributes["axes"].as_ints(), np.int64)
    keep = _flag(node, "keepdims", 1)
    given = editor.initializer(f"{name}_axes", axes)
    total = editor.node(
        ReduceSum, [data, given], f"{name}_sum", {"keepdims": keep}, shape=result.shape
    )
    if not is_a(node, ReduceL1):
        total = editor.node(functions.log, [total], f"{name}_log", shape=result.shape)
    for use in tuple(result.uses()):
        use.node.replace_input_with(use.idx, total)
    editor.replace_output(result, total)
    editor.model.graph.remove(node, safe=True)


def _flag(node: ir.Node, key: str, default: int = 0) -> int:
    return node.attributes[key].as_int() if key in node.attributes else default

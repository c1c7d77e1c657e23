"""Operators that only move values: shapes, orders, parts."""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.ncnn.draft import Draft, Write, reshape
from intact.formats.ncnn.shapes import Parameter, lengths, present, rank_of, same_size, sample
from intact.graph import constant_array, input_value
from intact.program.lower.attributes import integers

_ORDERS = {
    2: "wh hw",
    3: "whc hwc wch cwh hcw chw",
    4: "whdc hwdc wdhc dwhc hdwc dhwc whcd hwcd wchd cwhd hcwd chwd "
    "wdch dwch wcdh cwdh dcwh cdwh hdcw dhcw hcdw chdw dchw cdhw",
}
"""ncnn's ``order_type`` by the axes that it brings to ``w``, ``h``, ``d`` and ``c``."""
_PAD_MODES = {"constant": 0, "edge": 1, "reflect": 2}


def flatten(draft: Draft, node: ir.Node) -> None:
    """Flatten behind the batch."""
    rank = rank_of(present(node, 0))
    if node.attributes.get_int("axis", 1) % rank != 1:
        raise Unsupported("it does not flatten all behind the batch")
    draft.unary("Flatten", node)


def reshaped(draft: Draft, node: ir.Node) -> None:
    """Reshape, Squeeze and Unsqueeze that leave the batch alone."""
    value, result = present(node, 0), node.outputs[0]
    before, after = sample(value), sample(result)
    if not same_size(before, after):
        raise Unsupported("it moves values between samples")
    reshape(draft, str(node.name), draft.read(node, 0), draft.blob(result), after)


def transpose(draft: Draft, node: ir.Node) -> None:
    """Transpose of the axes of a sample."""
    rank = rank_of(present(node, 0))
    order = integers(node, "perm") or tuple(reversed(range(rank)))
    if order[0] != 0 or rank - 1 not in _ORDERS:
        raise Unsupported(f"it moves the batch, or has more axes than a blob: {list(order)}")
    names = {2: "hw", 3: "chw", 4: "cdhw"}[rank - 1]
    brought = "".join(names[axis - 1] for axis in reversed(order[1:]))
    draft.unary("Permute", node, {0: _ORDERS[rank - 1].split().index(brought)})


def concat(draft: Draft, node: ir.Node) -> None:
    """Concat along an axis of a sample."""
    axis = _axis(node, present(node, 0))
    bottoms = [draft.read(node, slot) for slot in range(len(node.inputs))]
    draft.emit("Concat", str(node.name), bottoms, [draft.blob(node.outputs[0])], {0: axis})


def sliced(draft: Draft, node: ir.Node) -> None:
    """Slice without steps: ``Crop``."""
    shape = sample(present(node, 0))
    starts, ends, axes, steps = _slice(node)
    if any(step != 1 for step in steps):
        raise Unsupported("it takes every second element or so")
    inner = [axis % (len(shape) + 1) - 1 for axis in axes]
    if -1 in inner:
        raise Unsupported("it takes some of the samples")
    ends_of = zip(inner, starts, ends, strict=True)
    ranges = [slice(start, end).indices(shape[axis])[:2] for axis, start, end in ends_of]
    if any(start >= stop for start, stop in ranges):
        raise Unsupported("it takes nothing")
    first, last = (tuple(pair[k] for pair in ranges) for k in (0, 1))
    draft.unary("Crop", node, {9: first, 10: last, 11: tuple(inner)})


def gather(draft: Draft, node: ir.Node) -> None:
    """Gather of one constant index: ``Crop``, and ``Reshape`` where an axis goes."""
    value, result = present(node, 0), node.outputs[0]
    index = constant_array(present(node, 1))
    if index is None or index.size != 1:
        raise Unsupported("it gathers by several indices, or computed ones")
    shape, axis = sample(value), _axis(node, value)
    start = int(index.item()) % shape[axis]
    bottom, top = draft.read(node, 0), draft.blob(result)
    inner = draft.inner(result)
    cut: dict[int, Parameter] = {9: (start,), 10: (start + 1,), 11: (axis,)}
    draft.emit("Crop", str(node.name), [bottom], [inner], cut)
    reshape(draft, f"{node.name}_axes", inner, top, sample(result))


def split(draft: Draft, node: ir.Node) -> None:
    """Split along an axis of a sample: ``Slice``."""
    axis = _axis(node, present(node, 0))
    sizes = tuple(sample(value)[axis] for value in node.outputs)
    tops = [draft.blob(value) for value in node.outputs]
    draft.emit("Slice", str(node.name), [draft.read(node, 0)], tops, {0: sizes, 1: axis})


def pad(draft: Draft, node: ir.Node) -> None:
    """Pad of images."""
    shape = sample(present(node, 0))
    mode = node.attributes.get_string("mode", "constant") or "constant"
    try:
        pads = integers(node, "pads", 1)
    except Unsupported as reason:
        raise Unsupported(str(reason)) from None
    rank = len(shape) + 1
    if input_value(node, 3) is not None:
        raise Unsupported("it names the axes that it pads")
    if pads is None or len(pads) != 2 * rank or rank != 4 or mode not in _PAD_MODES:
        raise Unsupported("only images are padded, by constants, edges or reflection")
    if min(pads) < 0 or pads[0] or pads[rank]:
        raise Unsupported("it cuts off, or pads the batch")
    if mode != "constant" and (pads[1] or pads[rank + 1]):
        raise Unsupported("it pads channels by more than constants")
    filled = constant_array(input_value(node, 2))
    number = node.attributes.get_float("value", 0.0) if filled is None else float(filled.item())
    (_, front, top, left), (_, behind, bottom, right) = pads[:4], pads[4:]
    parameters: dict[int, Parameter] = {0: top, 1: bottom, 2: left, 3: right}
    parameters |= {4: _PAD_MODES[mode], 5: number, 7: front, 8: behind}
    draft.unary("Padding", node, parameters)


def depth_to_space(draft: Draft, node: ir.Node) -> None:
    """DepthToSpace: ``PixelShuffle``."""
    mode = node.attributes.get_string("mode", "DCR") or "DCR"
    block = node.attributes.get_int("blocksize", 1) or 1
    draft.unary("PixelShuffle", node, {0: block, 1: int(mode == "DCR")})


def product_of_activations(draft: Draft, node: ir.Node) -> None:
    """MatMul of two activations with equally many axes."""
    values = [present(node, slot) for slot in (0, 1)]
    if rank_of(values[0]) != rank_of(values[1]) or rank_of(values[0]) < 3:
        raise Unsupported("its operands are no matrices with equally many axes")
    bottoms = [draft.read(node, slot) for slot in (0, 1)]
    draft.emit("MatMul", str(node.name), bottoms, [draft.blob(node.outputs[0])])


def _slice(node: ir.Node) -> tuple[tuple[int, ...], ...]:
    try:
        starts, ends = integers(node, "starts", 1), integers(node, "ends", 2)
        if starts is None or ends is None:
            raise Unsupported("it has no ends")
        axes = integers(node, "axes", 3) or tuple(range(len(starts)))
        steps = integers(node, "steps", 4) or (1,) * len(starts)
    except Unsupported as reason:
        raise Unsupported(str(reason)) from None
    return starts, ends, axes, steps


def _axis(node: ir.Node, value: ir.Value) -> int:
    """Return the axis of a sample along which a node works."""
    axis = node.attributes.get_int("axis", 0) % rank_of(value)
    if axis == 0:
        raise Unsupported("it works along the batch")
    lengths((1,) * (rank_of(value) - 1))
    return axis - 1


TABLE: dict[str, Write] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Flatten": flatten,
    "Gather": gather,
    "Pad": pad,
    "Reshape": reshaped,
    "Slice": sliced,
    "Split": split,
    "Squeeze": reshaped,
    "Transpose": transpose,
    "Unsqueeze": reshaped,
}

"""Writes pads that the runtime would have to find, of pools and convolutions, explicitly.

These are pools that round their output length up (``ceil_mode``), and pools and transposed
convolutions that pad by themselves (``auto_pad``, ``output_shape``), which not every runtime
computes alike.

Below opset 22 ONNX's shape inference counts windows that begin in the pads behind, which runtimes
leave out: this comes before shapes are inferred.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.graph.names import node_names, value_names
from intact.graph.ops import input_value
from intact.graph.passes import library
from intact.graph.passes.replace import add_constant
from intact.ops.declaration import Window, lacking_for_same, steps_rounded_up
from intact.ops.operators import AveragePool, ConvTranspose, LpPool, MaxPool, Pad

_POOLS = {each.name for each in (AveragePool, LpPool, MaxPool)}


def write_pads(model: ir.Model) -> int:
    """Replace ``ceil_mode``, ``auto_pad``, ``output_shape`` by pads where lengths are known.

    An AveragePool that counts its pads counts those of the model only, not what rounding up adds
    (so ONNX Runtime computes it): they become a Pad in front, and the pool counts none.

    Returns:
        The number of changed nodes.
    """
    windows = [node for node in model.graph if _is_meant(node)]
    if not windows:
        return 0
    changed, waiting = 0, windows
    while waiting:  # the first of them depends on no other
        # A length behind a window is only right once its pads are written.
        uncertain = _behind(waiting)
        _forget(uncertain)
        library.infer_shapes(model)
        ready = [node for node in waiting if input_value(node, 0) not in uncertain]
        waiting = [node for node in waiting if input_value(node, 0) in uncertain]
        changed += sum(_replace(model.graph, node) for node in ready)
    # What was inferred with rounding up was of the runtime's count, not of the pads.
    _forget(_behind(windows))
    library.infer_shapes(model)
    return changed


def _is_meant(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    options = AveragePool.of(node)
    is_automatic = options.auto_pad != "NOTSET"
    if node.op_type == ConvTranspose.name:
        return is_automatic or "output_shape" in node.attributes
    return node.op_type in _POOLS and (options.ceil_mode != 0 or is_automatic)


def _behind(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    """Return the values that depend on nodes, their results included."""
    found: dict[ir.Value, None] = {}
    ahead = list(nodes)
    while ahead:
        for value in ahead.pop().outputs:
            if value not in found:
                found[value] = None
                ahead += [use.node for use in value.uses()]
    return found


def _forget(values: Iterable[ir.Value]) -> None:
    for value in values:
        value.shape = None


def _replace(graph: ir.Graph, node: ir.Node) -> bool:
    window = _window(node)
    if window is None:
        return False
    options = AveragePool.of(node)
    # 1. Lengths that a transposed convolution names: ONNX has them win over pads.
    if "output_shape" in node.attributes:
        return _pad_to_shape(node, window)
    # 2. SAME, of which the side with the odd pad is named.
    if options.pads_to_same:
        return _pad_to_same(node, window)
    before, behind, kernel = window.before, window.behind, window.kernel
    # 3. VALID, which is no pads at all.
    if node.op_type == ConvTranspose.name or not options.ceil_mode:
        _set_pads(node, [*before, *behind])
        return True
    # 4. Lengths that are rounded up.
    spans = window.spans
    axes = zip(window.sizes, spans, window.strides, before, behind, strict=True)
    added = [_pad_behind(*axis) for axis in axes]
    grown = [old + new for old, new in zip(behind, added, strict=True) if new is not None]
    if len(grown) != len(kernel) or any(p >= k for p, k in zip(grown, kernel, strict=True)):
        return False  # runtimes refuse a window of pads alone
    if any(added) and options.count_include_pad == 1:
        data = input_value(node, 0)
        if data is not None and any((*before, *behind)):
            _pad_in_front(graph, node, data, [*before, *behind])
        before, grown = [0] * len(kernel), [new or 0 for new in added]
        node.attributes.pop("count_include_pad")
    _set_pads(node, [*before, *grown])
    return True


class _Window(NamedTuple):
    """A window over known lengths; a list has one entry an axis."""

    sizes: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    behind: list[int]

    @property
    def spans(self) -> list[int]:
        """How far the window reaches."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def _window(node: ir.Node) -> _Window | None:
    """Return the window of a node; None where its lengths are not known."""
    data, weight = input_value(node, 0), input_value(node, 1)
    options = Window.of(node)
    kernel = list(options.kernel_shape)
    if not kernel and weight is not None and weight.shape is not None:
        kernel = [size for size in weight.shape[2:] if isinstance(size, int)]
    if data is None or data.shape is None or not kernel or len(data.shape) != len(kernel) + 2:
        return None
    sizes = [size for size in data.shape[2:] if isinstance(size, int)]
    strides, dilations = map(list, options.steps(len(kernel)))
    given = options.pads if options.auto_pad == "NOTSET" else ()
    pads = list(given or [0] * (2 * len(kernel)))
    lengths = {len(sizes), len(strides), len(dilations), len(pads) / 2, len(kernel)}
    if len(lengths) > 1:
        return None
    return _Window(sizes, kernel, strides, dilations, pads[: len(kernel)], pads[len(kernel) :])


def _pad_to_same(node: ir.Node, window: _Window) -> bool:
    """Write what SAME stands for, as ONNX Runtime computes it.

    Of an odd number one more is on the side that it names. A window that is smaller than its
    stride has none, but ONNX Runtime moves that of an LpPool: it is left alone.
    """
    axes = list(zip(window.sizes, window.spans, window.strides, strict=True))
    options = ConvTranspose.of(node)
    if node.op_type == ConvTranspose.name:  # it removes what is more than size * stride
        extra = options.output_padding or [0] * len(axes)
        needed = [span - stride + more for (_, span, stride), more in zip(axes, extra, strict=True)]
    else:
        needed = [lacking_for_same(*axis) for axis in axes]
    if node.op_type == LpPool.name and min(needed) < 0:
        return False
    needed = [max(0, each) for each in needed]
    fewer, more = [each // 2 for each in needed], [each - each // 2 for each in needed]
    is_upper = options.auto_pad == "SAME_UPPER"
    _set_pads(node, [*fewer, *more] if is_upper else [*more, *fewer])
    return True


def _pad_to_shape(node: ir.Node, window: _Window) -> bool:
    """Write the pads that give a transposed convolution the lengths that it names.

    Of an odd number one more is in front, but for SAME_UPPER. Where lengths are wanted that no
    pads give, the node is left alone.
    """
    options = ConvTranspose.of(node)
    wanted = options.output_shape[-len(window.sizes) :]
    extra = options.output_padding or (0,) * len(window.sizes)
    axes = zip(window.sizes, window.spans, window.strides, extra, wanted, strict=True)
    cut = [(size - 1) * stride + more + span - given for size, span, stride, more, given in axes]
    if min(cut) < 0:
        return False
    fewer, more_pads = [each // 2 for each in cut], [each - each // 2 for each in cut]
    is_upper = options.auto_pad == "SAME_UPPER"
    del node.attributes["output_shape"]
    _set_pads(node, [*fewer, *more_pads] if is_upper else [*more_pads, *fewer])
    return True


def _set_pads(node: ir.Node, pads: list[int]) -> None:
    for name in ("auto_pad", "ceil_mode"):
        node.attributes.pop(name, None)
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _pad_behind(size: int, span: int, stride: int, before: int, behind: int) -> int | None:
    """Return what completes the last window that begins in the data or in the pads before it.

    None for numbers that no pool has.
    """
    room = size + before + behind - span
    if min(stride, size) < 1 or min(span - 1, before, behind, room) < 0:
        return None
    count = steps_rounded_up(size, span, stride, before, behind)
    added = max(count * stride - room, 0)
    return added if (room + added) // stride == count else None


def _pad_in_front(graph: ir.Graph, node: ir.Node, data: ir.Value, pads: list[int]) -> None:
    """Put a Pad with zeros in front of a pool."""
    values, rank = value_names(graph), len(pads) // 2
    all_pads = np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64)
    listed = add_constant(graph, all_pads, values.fresh(f"{node.name}_pads"))
    pad = ir.node(Pad.name, [data, listed], num_outputs=1)
    pad.name = node_names(graph).fresh(f"{node.name}_pad")
    pad.outputs[0].name = values.fresh(f"{node.name}_padded")
    pad.outputs[0].type = data.type
    graph.insert_before(node, pad)
    node.replace_input_with(0, pad.outputs[0])

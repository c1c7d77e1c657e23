"""Reads a quantized ONNX model as a plan that keeps its scales, types and integers.

Both forms of ONNX Runtime are read: pairs of QuantizeLinear and DequantizeLinear (QDQ), as other
quantizers and exporters write them too, and operators on codes (QOperator). Fake quantizers of one
operator, of OpenVINO and of training tools, become such pairs first. Written again, a model of ONNX
Runtime computes bit for bit the same.

Training tools that export plain operators write ``(clip(round(x / s) + z, low, high) - z) * s``,
with Mul or Div, the zero point in front of Round or behind it or absent, and Clip on either side.
Each becomes one operator of the table in `quantizers`, which then reads it like the others.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from intact.formats.base.read_points import GraphEdits, plan_of
from intact.formats.onnx_qdq.compose import join_composed
from intact.formats.onnx_qdq.reader.blocks import has_blocks, lift_blocks
from intact.formats.onnx_qdq.reader.dynamic import lift_dynamic, with_dynamic
from intact.formats.onnx_qdq.reader.expand import DYNAMIC, QOPERATORS, expand_qoperators
from intact.formats.onnx_qdq.reader.lookups import lift_lookups
from intact.formats.onnx_qdq.reader.parameters import is_dequantize, is_quantize
from intact.formats.onnx_qdq.reader.quantizers import is_quantizer
from intact.formats.onnx_qdq.reader.strip import strip_pairs
from intact.formats.onnx_qdq.reader.translate import translate_quantizers
from intact.graph import input_value, load_model
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.no_ops import remove_no_ops
from intact.graph.passes.replace import add_constant, replace_value
from intact.graph.passes.widen import widen_floats
from intact.graph.traversal import nodes_of
from intact.ops import functions
from intact.ops.operators import Add, Clip, Constant, Div, Mul, Sub, is_a
from intact.plan import Overrides, QuantizedGraph
from intact.targets import Target

_CLOSE = 1e-5
"""How far two factors may be from undoing each other, relative to 1."""

Numbers = npt.NDArray[np.float64]


class _Chain(msgspec.Struct, frozen=True, eq=False):
    """What was found.

    Attributes:
        data: What is quantized.
        last: The node that gives the numbers.
        scale: Scales, of any shape that broadcasts.
        zero_point: Zero points, of any shape that broadcasts.
        low: Smallest code.
        high: Largest code.
    """

    data: ir.Value
    last: ir.Node
    scale: Numbers
    zero_point: Numbers
    low: int
    high: int


def is_written_out(model: ir.Model) -> bool:
    """Tell whether a model has such a quantizer."""
    return any(_chain(node) is not None for node in model.graph)


def join_written_out(model: ir.Model) -> int:
    """Replace each by one operator, in place; return how many there were."""
    chains = [found for node in model.graph if (found := _chain(node)) is not None]
    names = GraphEdits(model.graph).names
    for each in chains:
        base = str(each.last.name)
        zero_point: Numbers = np.broadcast_to(each.zero_point, each.scale.shape)
        given: list[tuple[str, Numbers]] = [("scale", each.scale), ("zero_point", zero_point)]
        inputs = [
            add_constant(model.graph, array.astype(np.float32), names.fresh(f"{base}_{name}"))
            for name, array in given
        ]
        node = ir.node(
            "FixedPerTensorAffine",
            [each.data, *inputs],
            {"quant_min": each.low, "quant_max": each.high},
            num_outputs=1,
            name=names.fresh(f"{base}_quantizer"),
        )
        model.graph.insert_before(each.last, node)
        replace_value(each.last.outputs[0], node.outputs[0])
    return len(chains)


def _chain(node: ir.Node) -> _Chain | None:
    """Follow a Round in both directions."""
    if not is_a(node, functions.round_half_even) or node.inputs[0] is None:
        return None
    value, maker = node.inputs[0], node.inputs[0].producer()
    bounds = None if maker is None else _bounds(maker)
    if bounds is not None and maker is not None and maker.inputs[0] is not None:
        value = maker.inputs[0]
    data, before = _offset(value)
    # The division by the scale stands before Round and what is added, if it is one of these chains.
    source, factor = _factor(None if data is None else data.producer())
    last, offset, back = _sole_reader(node), before, np.zeros(())
    while last is not None:
        found, moved = _bounds(last), _added(last)
        if found is not None and bounds is None and not back.any():
            bounds = found
        elif moved is not None and bounds is None and not before.any():
            offset = offset + moved
        elif moved is not None and bounds is not None:
            # Added behind the Clip, it takes the zero point away again: both must sum to 0.
            back = back + moved
        else:
            break
        last = _sole_reader(last)
    scale = _factor(last)[1]
    if source is None or factor is None or last is None or scale is None or bounds is None:
        return None
    low, high = bounds
    # Round gives whole numbers, and the codes are whole only if all that is added to them is.
    whole = [*np.ravel(offset), *np.ravel(back), low, high]
    if any(number != np.rint(number) for number in whole) or not low < high:
        return None
    try:
        undone = np.abs(factor * scale - 1).max() <= _CLOSE and not (offset + back).any()
    except ValueError:  # shapes that do not go together
        return None
    by_channel = scale.size > 1 and scale.ndim < 2  # along which axis is not known
    if not undone or by_channel or np.size(offset) not in (1, scale.size):
        return None
    return _Chain(source, last, scale, offset, int(low), int(high))


def _number(value: ir.Value | None) -> Numbers | None:
    """Return a constant, of an initializer or a Constant node."""
    if value is None or value.is_graph_input():
        return None
    tensor, maker = value.const_value, value.producer()
    if tensor is None and is_a(maker, Constant):
        attribute = maker.attributes.get("value")
        tensor = None if attribute is None else attribute.as_tensor()
    # NumPy would turn a text of digits into a number.
    if tensor is None or tensor.dtype is ir.DataType.STRING:
        return None
    array = np.asarray(tensor.numpy(), np.float64)
    return array if array.size and np.isfinite(array).all() else None


def _factor(node: ir.Node | None) -> tuple[ir.Value | None, Numbers | None]:
    """Return what a Mul or Div by a constant reads, and what it multiplies that by."""
    if not is_a(node, Mul, Div):
        return None, None
    left, right = node.inputs
    number = _number(right)
    if is_a(node, Mul) and number is None:
        left, number = right, _number(left)
    # A factor of 0 has no inverse, and a negative one turns the range around.
    if number is None or not (number > 0).all():
        return None, None
    return left, 1 / number if is_a(node, Div) else number


def _added(node: ir.Node) -> Numbers | None:
    """Return the constant that an Add or Sub adds."""
    if not is_a(node, Add, Sub):
        return None
    right = _number(node.inputs[1])
    if is_a(node, Sub):
        return None if right is None else -right
    return right if right is not None else _number(node.inputs[0])


def _offset(value: ir.Value) -> tuple[ir.Value | None, Numbers]:
    """Return what is read before a constant is added, and that constant."""
    node = value.producer()
    moved = None if node is None else _added(node)
    if node is None or moved is None:
        return value, np.zeros(())
    return next((each for each in node.inputs if _number(each) is None), None), moved


def _bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a Clip."""
    if not is_a(node, Clip):
        return None
    low, high = (_number(input_value(node, slot)) for slot in (1, 2))
    if low is None or high is None or low.size != 1 or high.size != 1:
        return None
    return float(low.reshape(())), float(high.reshape(()))


def _sole_reader(node: ir.Node) -> ir.Node | None:
    uses = tuple(node.outputs[0].uses())
    # What another node reads, or a user, is not an inner value of one quantizer.
    return uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None


def read_qdq(
    source: str | Path | onnx.ModelProto | ir.Model,
    target: Target,
    asked: Overrides | None = None,
) -> QuantizedGraph:
    """Read a quantized model.

    The float model of the plan is the source without its quantizers; its constants are the numbers
    that the stored integers stand for. Unlike ``normalize``, nothing is folded into anything else,
    because the model's scales belong to its tensors as they are.

    Args:
        source: A path, or a loaded model; that is never changed.
        target: The hardware that the plan is for; what the model says stays, wherever it differs.
        asked: Widths of quantizers that do not say their range.

    Returns:
        A calibrated plan. Ends that the model quantizes are ACTIVATED (constants BAKED or
        PASSIVE_BAKED, with their integers), with ``detail["fixed"]`` on those that own a scale;
        inside an operator and the activation behind it they are OVERLAPPED; all others are FP32
        or SOI.

    Raises:
        ModelError: The model cannot be read, is not quantized, or is so in a way that a plan
            cannot hold (convolutions and LSTM of dynamic activations, float8); the node is named.
        UsageError: A width is asked for that is none, or of a node that there is not.
    """
    # In this order: points are noted by names, which must be unique, and only constants that were
    # lifted are told from computed scales.
    model = load_model(source)
    library.sort_nodes(model)
    make_names_unique(model)
    library.lift_constants(model)
    if has_blocks(model):
        widen_floats(model)  # a plan computes in float32; pairs with scales of float16 are refused
    remove_no_ops(model)
    library.remove_unused(model)
    library.infer_shapes(model)
    # Before other quantizers are looked for: each becomes one of theirs.
    if join_written_out(model):
        library.remove_unused(model)
    # Blocks and dynamic layers first, as what is left of DequantizeLinear and MatMulInteger must be
    # known forms or is refused.
    blocks, said = lift_blocks(model, target)
    library.remove_unused(model)
    notes = (*translate_quantizers(model, asked), *said)
    dynamic = lift_dynamic(model)
    lift_lookups(model)
    expand_qoperators(model)
    # Expanding gives new nodes the names of old ones.
    make_names_unique(model)
    # Behind expansion, so that models of QLinear operators are recognized too.
    join_composed(model)
    points = [*strip_pairs(model), *blocks]
    plan = with_dynamic(plan_of(model, target, points), dynamic).with_notes(notes)
    if asked is not None:
        asked.resolved(plan.graph)  # refuses what fits nothing
    return plan


def is_quantized(model: ir.Model) -> bool:
    """Check whether a model holds integers already: pairs, or operators on codes."""
    return any(
        is_quantizer(node)
        or is_quantize(node)
        or is_dequantize(node)
        or (node.domain, node.op_type) in QOPERATORS
        or node.op_type in DYNAMIC
        for node in nodes_of(model.graph)
    ) or (has_blocks(model) or is_written_out(model))

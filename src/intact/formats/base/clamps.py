"""Restores activations that a quantized model keeps in its zero points only.

Codes that begin at 0 clamp what lies below, so quantizers leave out the Relu or Clip there: ONNX
Runtime's does, and TOCO did. Without its codes such a model computes something else. Where
the codes of a tensor begin at 0 and nothing before says that it is never negative, a Clip to the
range of the codes is put there. No code changes by it, so writers leave it out again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.formats.base.read_points import GraphEdits, Parameters
from intact.graph import constant_array, data_slots, facts, input_value, moves_values
from intact.graph.passes.replace import add_constant
from intact.ops.operators import Clip, DequantizeLinear, Mul, Pow, is_a

_KEY, _VALUE = "intact.clamp", "of the codes"
"""Metadata of a node that was put there."""

_KINDS = "biuf"
"""NumPy's kinds of real numbers."""
_LARGEST = 1 << 20
"""Elements of a constant up to which its signs are looked at."""


class Clamps:
    """Finds the tensors whose codes clamp what the float model would not.

    Args:
        edits: Edit the model whose quantizers are taken out, from its inputs to its outputs.
    """

    def __init__(self, edits: GraphEdits) -> None:
        self._edits = edits
        self._known: set[ir.Value] = set()

    def restore(self, value: ir.Value, parameters: Parameters, before: ir.Node) -> ir.Value | None:
        """Put the clamp of a quantized tensor into the graph, if it is missing there.

        What is fed, and what only moves values, is left alone: no activation is left out there.

        Args:
            value: The tensor, behind whose producer the clamp goes.
            parameters: How it is quantized.
            before: The first node that quantizes it, in front of which the clamp stands. What it
                reads takes over the tensor's name, if nothing but quantizers reads the tensor.

        Returns:
            What the tensor's quantizers have to read; None if nothing is missing.
        """
        config = parameters.config()
        if not is_clamped_only(value, config, self._known):
            return None
        # A recorded table names what was quantized: where nothing else sees the free value, the
        # clamped one takes its name.
        is_quantized_only = not value.is_graph_output() and all(
            use.node.op_type == before.op_type for use in value.uses()
        )
        clamp, result = self._clamp(value, config)
        self._edits.graph.insert_before(before, clamp)
        if is_quantized_only:
            value.name, result.name = self._edits.names.fresh(f"{value.name}_free"), value.name
        return result

    def _clamp(self, value: ir.Value, config: TensorQuantConfig) -> tuple[ir.Node, ir.Value]:
        name = self._edits.names.fresh(f"{value.name}_clamped")
        bounds = [
            add_constant(
                self._edits.graph, np.asarray(bound), self._edits.names.fresh(f"{name}_{what}")
            )
            for what, bound in (("low", np.float32(0)), ("high", highest(config)))
        ]
        # A Clip and no Relu: codes saturate above too, and a Relu would let more through.
        node = ir.Node("", Clip.name, [value, *bounds], num_outputs=1)
        result = node.outputs[0]
        node.name = result.name = name
        mark(node)
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        return node, result


def is_clamped_only(value: ir.Value, config: TensorQuantConfig, known: set[ir.Value]) -> bool:
    """Tell whether nothing but the codes of a tensor keeps it from being negative.

    Args:
        value: The tensor, in a float model.
        config: How it is quantized.
        known: What is never negative, which grows.
    """
    params, node = config.params, value.producer()
    # Only codes that begin at 0 take the place of a Relu; others clip both signs, as any quantizer
    # does.
    if params is None or not (params.zero_point == config.quant_min).all():
        return False
    if node is None or moves_values(node) or _is_never_negative(value, known):
        known.add(value)
        return False
    return True


def mark(node: ir.Node) -> None:
    """Say of a node that it stands for what codes do."""
    node.metadata_props[_KEY] = _VALUE


def _is_never_negative(value: ir.Value, known: set[ir.Value]) -> bool:
    """Follow a value back to operators whose results are not negative; without recursion."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        each = waiting.pop()
        if each in known or each in seen:
            continue
        seen.add(each)
        node = each.producer()
        # Whoever runs the model may give an initializer that is an input other, negative values.
        if node is None and each.const_value is not None and not each.is_graph_input():
            if not _has_no_sign(each):
                return False
            continue
        operands = None if node is None else _operands_to_ask(node)
        if operands is None:
            return False
        waiting += operands
    # Whatever was seen is never negative, or the walk had ended above.
    known |= seen
    return True


def highest(config: TensorQuantConfig) -> np.float32:
    """Return the largest number that codes from 0 on stand for, in any channel."""
    scale = 0.0 if config.scale is None else float(config.scale.max())
    span = config.quant_max - config.quant_min
    # A scale near the largest float would make the bound infinite.
    return np.float32(min(scale * span, float(np.finfo(np.float32).max)))


def drop_clamps(graph: ir.Graph, is_quantizer: Callable[[ir.Node], bool]) -> None:
    """Take out what `Clamps` put into a model, where only quantizers read it, in place.

    One between two quantizers stays: without it they would touch, and runtimes join such.

    Args:
        graph: A model with its quantizers.
        is_quantizer: Tells them.
    """
    for node in tuple(graph):
        if node.metadata_props.get(_KEY) != _VALUE:
            continue
        source, result = node.inputs[0], node.outputs[0]
        readers = [use.node for use in result.uses()]
        maker = None if source is None else source.producer()
        touches = maker is None or is_quantizer(maker) or maker.op_type == DequantizeLinear.name
        if source is None or touches or result.is_graph_output():
            continue
        if all(is_quantizer(reader) for reader in readers):
            if len(source.uses()) == 1 and not source.is_graph_output():
                # The tensor gets back the name that `restore` took from it.
                source.name, result.name = result.name, None
            result.replace_all_uses_with(source)
            graph.remove(node, safe=True)


def _operands_to_ask(node: ir.Node) -> list[ir.Value] | None:
    """List what must not be negative for a result not to be; None if that does not do."""
    if node.domain != "":
        return None
    low = _numbers(input_value(node, 1)) if is_a(node, Clip) else None
    if facts(node).low >= 0 or (low is not None and low.size == 1 and low.item() >= 0):
        return []
    # A square, whatever its operand.
    if is_a(node, Mul) and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]:
        return []
    if is_a(node, Pow) and (exponent := _numbers(input_value(node, 1))) is not None:
        return [] if (exponent % 2 == 0).all() else None
    if not (moves_values(node) or facts(node).keeps_sign):
        return None
    slots = (0,) if moves_values(node) else data_slots(node)
    operands = [input_value(node, slot) for slot in slots]
    return [value for value in operands if value is not None]


def _has_no_sign(constant: ir.Value) -> bool:
    tensor = constant.const_value
    # Weights of a large model would be read from disk for it.
    if tensor is None or tensor.size > _LARGEST:
        return False
    array = tensor.numpy()
    return array.dtype.kind in _KINDS and bool((array >= 0).all())


def _numbers(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant of numbers; damaged files have others in their place."""
    array = constant_array(value)
    return array if array is not None and array.dtype.kind in _KINDS else None

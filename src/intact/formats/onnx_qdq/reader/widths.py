"""Finds the range of codes where QuantizeLinear does not say it.

It follows from the weights, or from what the user says.

MQBench's exports of opset 13 have the attributes ``quant_min`` and ``quant_max``, but the tool that
simplifies them before they are saved leaves out what ONNX does not know: a file of 4 or 7 bits then
looks like one of 8. Float weights in front of a QuantizeLinear still show their width where scales
are those of extremes: the largest code of each channel is the last of the range, or one beyond,
which training clips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import onnx_ir as ir

from intact._text import first_names
from intact.errors import ConfigError, DataError
from intact.formats.onnx_qdq.reader.parameters import (
    Parameters,
    is_dequantize,
    is_quantize,
    read_parameters,
    unreadable,
)
from intact.graph import constant_array, is_constant
from intact.numerics.affine import quantize
from intact.ops.operators import Transpose
from intact.plan import Note, NoteKind, Overrides, TensorEnd
from intact.targets import full_range

RANGE = ("quant_min", "quant_max")
_BYTE = 8
_EVIDENCE = 4
"""Channels that end at the last code of a width before that width is believed."""


class Weight(msgspec.Struct, frozen=True, eq=False):
    """A float weight that is quantized without a range.

    Attributes:
        node: The QuantizeLinear.
        signed: Whether its type is.
        least: The smallest code.
        most: The largest code of each channel, by magnitude if signed.
    """

    node: ir.Node
    signed: bool
    least: int
    most: np.ndarray

    @property
    def narrowest(self) -> int:
        """The least width of 2 to 8 bits that holds its codes but for one beyond the last."""
        return next((b for b in range(2, _BYTE) if self._fits(b)), _BYTE)

    @property
    def channels(self) -> int:
        """How many channels end where that width does; 0 if others end before."""
        high = full_range(self.narrowest, signed=self.signed, narrow=False)[1]
        # Dead channels end anywhere, and are no evidence.
        live = self.most[self.most > 0]
        return live.size if (live >= high).all() else 0

    def _fits(self, bits: int) -> bool:
        low, high = full_range(bits, signed=self.signed, narrow=False)
        return low <= self.least and int(self.most.max()) <= high + 1


def has_silent(model: ir.Model) -> bool:
    """Check whether a model may have quantizers of float weights that do not say their range."""
    return any(
        is_quantize(node)
        and not any(key in node.attributes for key in RANGE)
        and is_constant(node.inputs[0])
        for node in model.graph
    )


def silent_weights(graph: ir.Graph) -> list[Weight]:
    """List the float weights that a QuantizeLinear of 8 bits quantizes without saying a range."""
    found = []
    for node in graph:
        array = constant_array(node.inputs[0]) if _is_silent(node) else None
        if array is not None and array.size:
            parameters = read_parameters(node)
            codes = _codes(node, array, parameters)
            axis = parameters.axis
            axes = None if axis is None else tuple(k for k in range(codes.ndim) if k != axis)
            sizes = np.abs(codes) if parameters.container.low < 0 else codes
            most = np.atleast_1d(sizes.max(axes))
            found.append(Weight(node, parameters.container.low < 0, int(codes.min()), most))
    return found


def shown_widths(weights: list[Weight]) -> Mapping[ir.Node, int]:
    """Return the widths of fewer than 8 bits that weights show, by their QuantizeLinear."""
    evidence: dict[int, int] = {}
    for each in weights:
        evidence[each.narrowest] = evidence.get(each.narrowest, 0) + each.channels
    return {
        each.node: each.narrowest
        for each in weights
        if each.narrowest < _BYTE and each.channels and evidence[each.narrowest] >= _EVIDENCE
    }


def say_ranges(graph: ir.Graph, asked: Overrides) -> Iterator[Note]:
    """Let pairs say the range of their codes, in place: as asked, or as their weights show it.

    Yields:
        What was made of them, and what the file leaves open.

    Raises:
        ModelError: A zero point is outside the range that was asked for; the node is named.
    """
    weights = silent_weights(graph)
    shown = shown_widths(weights)
    by_width: dict[int, list[str]] = {}
    is_open = any(each.narrowest < _BYTE for each in weights)
    for node in list(graph):
        if not _is_silent(node):
            continue
        is_weight = is_constant(node.inputs[0])
        bits = _asked(node, asked, is_weight=is_weight) or shown.get(node)
        if bits is not None and bits < _BYTE:
            _say(node, bits)
            by_width.setdefault(bits, []).append(str(node.name))
    for bits, names in sorted(by_width.items()):
        where = first_names(list(map(repr, names)))
        yield Note(
            NoteKind.WIDTH, "", f"{len(names)} quantizer(s) are read as {bits} bits: {where}"
        )
    # Nothing is open for who has given both widths.
    if is_open and not (asked.weight_bits and asked.activation_bits):
        yield Note(NoteKind.WIDTH, "", _left_open(weights, shown), _REMEDY)


_REMEDY = (
    "if it was trained with fewer bits, give them with --weight-bits and --activation-bits, and "
    "with --bits NODE=8 what had 8"
)


def _left_open(weights: list[Weight], shown: Mapping[ir.Node, int]) -> str:
    """Say what the file does not: newer versions of MQBench leave it out."""
    narrow = [each for each in weights if each.narrowest < _BYTE and each.node not in shown]
    text = "the file does not say the ranges of its quantizers: activations are read as 8 bits"
    if narrow:
        most = max(int(each.most.max()) for each in narrow)
        text += f", and so are {len(narrow)} weight(s), though their codes end at {most}"
    return text


def _is_silent(node: ir.Node) -> bool:
    """Check whether a node is a QuantizeLinear to 8 bits that says no range."""
    if not is_quantize(node) or any(key in node.attributes for key in RANGE):
        return False
    return read_parameters(node).container.data_type.bitwidth == _BYTE


def _codes(node: ir.Node, array: np.ndarray, parameters: Parameters) -> np.ndarray:
    try:
        return quantize(
            array,
            parameters.scale,
            parameters.zero_point,
            parameters.quant_min,
            parameters.quant_max,
            axis=parameters.axis,
        ).astype(np.int64)
    except (ConfigError, DataError) as error:
        raise unreadable(node, str(error)) from error


def _asked(node: ir.Node, asked: Overrides, *, is_weight: bool) -> int | None:
    """Return the width that a user wants: that of a reader, of the producer, or of all."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    ends = [TensorEnd.input(str(reader.name), slot) for reader, slot in _readers(node)]
    if maker is not None and not is_weight:
        ends.insert(0, TensorEnd.output(str(maker.name)))
    # What is asked for a node goes before what is asked for all.
    widths = msgspec.structs.replace(asked, weight_bits=None, activation_bits=None)
    for end in ends:
        found = widths.bits_at(end, is_weight=is_weight, has_weight=True)
        if found is not None:
            return found
    return asked.weight_bits if is_weight else asked.activation_bits


def _readers(quantize_node: ir.Node) -> Iterator[tuple[ir.Node, int]]:
    """Yield what reads the numbers of a pair, also behind a Transpose."""
    waiting = [result for node in _dequantizers(quantize_node) for result in node.outputs]
    while waiting:
        for use in waiting.pop().uses():
            if use.node.op_type == Transpose.name:
                waiting += use.node.outputs
            else:
                yield use.node, use.idx


def _dequantizers(node: ir.Node) -> list[ir.Node]:
    return [use.node for use in node.outputs[0].uses() if is_dequantize(use.node)]


def _say(node: ir.Node, bits: int) -> None:
    parameters = read_parameters(node)
    low, high = full_range(bits, signed=parameters.container.low < 0, narrow=False)
    zero_point = parameters.zero_point
    if ((zero_point < low) | (zero_point > high)).any():
        reason = f"its zero point is outside {low}..{high}, the codes of {bits} bits"
        raise unreadable(node, reason, "give this quantizer its own width with --bits NODE=8")
    for each in (node, *_dequantizers(node)):
        for key, bound in zip(RANGE, (low, high), strict=True):
            each.attributes[key] = ir.AttrInt64(key, bound)

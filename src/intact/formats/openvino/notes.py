"""What a user should know about a model with FakeQuantize: what runs in float, what rounds apart.

Measured with openvino 2026.4.1, by the precisions of the compiled model.
"""

from __future__ import annotations

from intact.config import Rounding
from intact.formats.openvino.fake_quantize import is_plain, quantizer
from intact.graph import Role, input_role
from intact.plan import Note, NoteKind, QuantPoint

_ROUNDINGS = (Rounding.HALF_EVEN, Rounding.NEAREST)
"""What FakeQuantize does on a CPU, under both its names."""

_INTEGER_LEVELS = frozenset({15, 16, 255, 256})
"""Of activations; with others OpenVINO computes in float."""


def export_notes(points: list[QuantPoint]) -> list[Note]:
    """Say what OpenVINO does otherwise than the plan, and what it does in float.

    Args:
        points: The quantisation points of a plan, all of which can be expressed.
    """
    texts = (_rounding(points), _half_unsigned(points), _floats(points), _biases(points))
    return [Note(NoteKind.EXPORT, "", text) for text in texts if text]


def _rounding(points: list[QuantPoint]) -> str:
    odd = [
        point
        for point in points
        if not (point.is_constant or point.is_passed_on) and point.config.rounding not in _ROUNDINGS
    ]
    if not odd:
        return ""
    return (
        f"FakeQuantize rounds ties to even, the plan {odd[0].config.rounding}: ties of "
        f"{len(odd)} activation(s) come out differently (first: {odd[0].end})"
    )


def _half_unsigned(points: list[QuantPoint]) -> str:
    found = [point for point in points if _is_half_unsigned(point)]
    if not found:
        return ""
    return (
        f"{len(found)} weight(s) have no sign: OpenVINO computes with integers there in its own "
        f"model.xml, and in float in the ONNX model (first: {found[0].end})"
    )


def _floats(points: list[QuantPoint]) -> str:
    found = [point for point in points if not _is_integer(point)]
    if not found:
        return ""
    return (
        f"OpenVINO computes in float around {len(found)} tensor(s): it has integer kernels for "
        "activations of 8 and of 4 bits with one scale, and for weights of up to 8 bits, 7 "
        f"without a sign (first: {found[0].end})"
    )


def _biases(points: list[QuantPoint]) -> str:
    found = [point for point in points if is_plain(point)]
    if not found:
        return ""
    return (
        f"{len(found)} integer bias(es) are written as the floats they stand for "
        f"(first: {found[0].end})"
    )


def _is_integer(point: QuantPoint) -> bool:
    """Tell whether OpenVINO computes with the codes of a point, in its own files at least."""
    config = point.config
    if not point.is_constant:
        return quantizer(point).levels in _INTEGER_LEVELS and config.granularity.axis is None
    if not _is_weight(point):
        return True
    return config.bits <= 8 and (config.quant_min < 0 or _is_half_unsigned(point))


def _is_half_unsigned(point: QuantPoint) -> bool:
    """Tell whether a weight's codes without a sign fit int8, less their zero point too.

    OpenVINO subtracts it from the integers in its own files, and computes in float where they stand
    behind a FakeQuantize.
    """
    return _is_weight(point) and point.config.quant_min >= 0 and point.config.quant_max <= 127


def _is_weight(point: QuantPoint) -> bool:
    return point.is_constant and any(
        input_role(node, slot) is Role.WEIGHT for node, slot in point.readers
    )

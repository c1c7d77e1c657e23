"""Reading the scales that a float ONNX model carries itself.

``GraphProto.quantization_annotation`` names, for a tensor, the initializers that hold its
``SCALE_TENSOR`` and ``ZERO_POINT_TENSOR`` (onnx.proto). As in QuantizeLinear the type of the zero
point is that of the integers, and there is none for uint8 with zero point 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import IntactError, ModelError
from intact.plan.given_scales import GivenScale, ScaleTable

_ANNOTATION = "quant_parameter_tensor_names"
"""Key under which onnx-ir keeps the annotation in a value's ``meta``."""
_INTEGERS = {
    getattr(ir.DataType, f"{sign}INT{bits}"): (bits, not sign)
    for sign in ("", "U")
    for bits in (4, 8, 16)
}


def scales_of_model(model: ir.Model) -> ScaleTable | None:
    """Return the scales that a model's annotations give; None where it has none.

    Args:
        model: As `load_model` gives it: normalizing removes the tensors that hold the scales,
            since no node reads them.

    Raises:
        ModelError: An annotation names no constant, or one that holds no scale.
    """
    source = "the model's quantization_annotation"
    entries = [
        ("graph", str(value.name), _given(model.graph, value, value.meta[_ANNOTATION]))
        for value in _values(model.graph)
        if "SCALE_TENSOR" in value.meta.get(_ANNOTATION, ())
    ]
    return ScaleTable.of(source, entries) if entries else None


def tensor_names(model: ir.Model) -> set[str]:
    """Return the names of all tensors of the main graph, for `ScaleTable.refuse_unknown`."""
    return {value.name for value in _values(model.graph) if value.name}


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    computed = (value for node in graph for value in node.outputs)
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values(), *computed))


def _given(graph: ir.Graph, value: ir.Value, names: Mapping[str, str]) -> GivenScale:
    try:
        scale = _constant(graph, names["SCALE_TENSOR"])
        scales = scale.numpy().astype(np.float32)
        if "ZERO_POINT_TENSOR" not in names:
            return GivenScale(scales, np.zeros(scales.shape, np.int64), 8, signed=False)
        zero_point = _constant(graph, names["ZERO_POINT_TENSOR"])
        if zero_point.dtype not in _INTEGERS:
            raise ModelError(f"the zero point has type {zero_point.dtype}")
        bits, signed = _INTEGERS[zero_point.dtype]
        return GivenScale(scales, zero_point.numpy().astype(np.int64), bits, signed)
    except IntactError as error:
        raise ModelError(f"quantization_annotation of {value.name!r}: {error}") from error


def _constant(graph: ir.Graph, name: str) -> ir.TensorProtocol:
    value = graph.initializers.get(name)
    if value is None or value.const_value is None:
        raise ModelError(f"{name!r} is no constant of the model")
    return value.const_value

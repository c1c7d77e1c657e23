"""Reads scales that are given: a table of any format, or what a float ONNX model carries.

``GraphProto.quantization_annotation`` names, for a tensor, the initializers that hold its
``SCALE_TENSOR`` and ``ZERO_POINT_TENSOR`` (onnx.proto). As in QuantizeLinear the type of the zero
point is that of the integers, and there is none for uint8 with zero point 0.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.errors import DataError, IntactError, ModelError
from intact.formats.base.format import ScaleReader
from intact.formats.registry import described
from intact.graph import Graph
from intact.graph.files.regular import open_file
from intact.plan.given_scales import GivenScale, ScaleTable

_MOST_BYTES = 1 << 26
"""Half a million encodings of channels, a model of some thousand layers; the costliest file of
this size, one line of numbers, takes 0.8 GB to read."""


def read_scales(path: str | Path, graph: Graph | None = None) -> ScaleTable:
    """Read a table of scales: of Tengine, TensorRT, ncnn, encodings, or of a format of others.

    Args:
        path: The file.
        graph: The model that it is for; a table of ncnn names its layers, and is refused without.

    Raises:
        DataError: It is missing, unreadable, too large, or wrong in a line or key that is named.
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            # One byte beyond the limit tells a file that is too large, and of a pipe too.
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", remedy="check --scales") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
    if len(data) > _MOST_BYTES:
        raise DataError(
            f"{path}: larger than {_MOST_BYTES >> 20} MiB", remedy="this is no table of scales"
        )
    data = data.removeprefix(codecs.BOM_UTF8)  # some editors write it
    return _reader(data, path).parse(data, str(path), graph)


def _reader(data: bytes, path: Path) -> ScaleReader:
    """Return the reader that recognizes a table; those that guess are asked last."""
    readers = [each for _, row in described() if row.reader for each in row.reader.scales()]
    for reader in sorted(readers, key=lambda each: each.is_guess):
        if reader.recognizes(data):
            return reader
    raise DataError(f"{path}: no table of scales", remedy="give one of a format that intact reads")


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
    # Once each: an initializer may be an input as well.
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

"""Tengine's model files as float models, and what quantized ones say of their tensors.

Source: see `layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import DataError, ModelError
from intact.formats.tengine.tmfile.decode import is_tmfile, open_tmfile
from intact.formats.tengine.tmfile.file import FileTensor, Quantization, TmFile
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.reading.assemble import float_model
from intact.plan.given_scales import GivenScale, ScaleTable

__all__ = ["Int8Model", "is_tmfile", "read_int8", "read_tmfile"]

_BITS = {Element.INT8: 8, Element.UINT8: 8}


@dataclass(frozen=True, eq=False)
class Int8Model:
    """What a quantized file holds.

    Attributes:
        model: What it computes, in float: constants are what their codes stand for.
        scales: Of activations and weights, by the names of the model's tensors.
        codes: The integers of its constants, by name; biases are int32.
    """

    model: ir.Model
    scales: ScaleTable
    codes: Mapping[str, npt.NDArray[Any]]


def read_tmfile(source: str | Path | bytes) -> ir.Model:
    """Read a Tengine model as a float ONNX model.

    Tensors and nodes are called as in the file, so that Tengine's tables of scales fit; what one
    operator of Tengine takes several of ONNX for is named after it (``conv1/relu``). A batch of
    one is left open if nothing in the model mixes samples. Constants of quantized files are what
    their codes stand for.

    Args:
        source: A path, or the bytes of the file.

    Raises:
        ModelError: The file is damaged or of another version, or some of its operators cannot be
            read: those are named, with the reason.
    """
    return float_model(open_tmfile(source))


def read_int8(source: str | Path | bytes) -> Int8Model:
    """Read a quantized Tengine model: a float model, and the scales that were given to it.

    Raises:
        ModelError: As `read_tmfile`; or the model is not quantized, or a scale is impossible.
    """
    file = open_tmfile(source)
    if not file.is_quantized:
        raise ModelError(
            f"{file.source}: the model is not quantized", remedy="quantize it: it is read as float"
        )
    model = float_model(file)
    names = {str(value.name) for value in _values(model)}
    try:
        entries = [
            (f"tensor {number}", tensor.name, _given(tensor, tensor.quantization))
            for number, tensor in enumerate(file.tensors)
            if tensor.quantization is not None and tensor.element in _BITS and tensor.name in names
        ]
        scales = ScaleTable.of(file.source, entries)
    except DataError as error:
        raise ModelError(f"{file.source}: {error}") from error
    return Int8Model(model, scales, _codes(file))


def _values(model: ir.Model) -> Iterator[ir.Value]:
    graph = model.graph
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _given(tensor: FileTensor, scales: Quantization) -> GivenScale:
    """Return the scales of a tensor; weights of 0 may have the scale 0, which then means nothing.

    Raises:
        DataError: A scale is impossible.
    """
    scale = scales.scale
    if tensor.data is not None and not scale.all():
        rows = tensor.data.reshape(scale.size, -1) != 0
        scale = np.where((scale == 0) & ~rows.any(axis=1), np.float32(1), scale)
    is_single = scale.size == 1
    return GivenScale.of(
        float(scale[0]) if is_single else scale.tolist(),
        int(scales.zero_point[0]) if is_single else scales.zero_point.tolist(),
        bits=_BITS[tensor.element],
        signed=tensor.element is Element.INT8,
        axis=None if is_single else 0,
    )


def _codes(file: TmFile) -> dict[str, npt.NDArray[Any]]:
    return {
        tensor.name: tensor.data
        for tensor in file.tensors
        if tensor.data is not None and np.issubdtype(tensor.data.dtype, np.integer)
    }

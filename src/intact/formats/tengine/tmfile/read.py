"""Reads a ``.tmfile`` as a float model, with the scales and codes of a quantized one.

Source: see `file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import DataError, ModelError, Unsupported
from intact.formats.base.foreign import (
    IR_VERSION,
    clip_text,
    list_unsupported,
    settle_shapes,
    with_open_batch,
)
from intact.formats.tengine.tmfile import moves, pointwise, pools, products
from intact.formats.tengine.tmfile.codec import is_tmfile, open_tmfile
from intact.formats.tengine.tmfile.file import (
    Element,
    FileNode,
    FileTensor,
    Layout,
    Quantization,
    TmFile,
)
from intact.formats.tengine.tmfile.onnx_builder import (
    OPSET,
    READERS,
    OnnxBuilder,
)
from intact.graph.passes import library
from intact.plan.given_scales import GivenScale, ScaleTable

_INPUT_ELEMENTS = (Element.FLOAT32, Element.FLOAT16, Element.INT8, Element.UINT8)

_MODULES = (moves, pointwise, pools, products)
"""Their readers are registered when they are imported."""


def float_model(file: TmFile) -> ir.Model:
    """Return what a file computes, in float.

    Raises:
        ModelError: Some nodes cannot be read, all of which are named with the reason; or the file
            contradicts itself.
    """
    if file.layout is Layout.CHANNELS_LAST:
        raise ModelError(
            f"{file.source}: its images have their channels last, as those of TensorFlow",
            remedy="convert the model to ONNX, or read the TFLite file itself",
        )
    if not file.outputs:
        raise ModelError(f"{file.source}: it has no outputs", remedy="convert the model again")
    return with_open_batch(lambda batch: _model(_build(file, batch=batch)))


def _build(file: TmFile, *, batch: bool) -> OnnxBuilder:
    builder = OnnxBuilder(file, batch=batch)
    unsupported: list[tuple[str, str, str]] = []
    written: set[int] = set()
    for number, node in enumerate(file.nodes):
        # A value of ONNX has one producer, and nodes that read it could mean either.
        again = written.intersection(node.outputs)
        written.update(node.outputs)
        try:
            if again or len(set(node.outputs)) != len(node.outputs):
                raise Unsupported("it writes a tensor that another node writes")
            # All nodes are tried, so that one message names everything that is missing.
            _read(builder, node)
        except Unsupported as error:
            unsupported.append((node.operator, repr(node.name or f"node {number}"), str(error)))
    if unsupported:
        raise ModelError(
            f"{file.source}: cannot read {clip_text(list_unsupported(unsupported))}",
            remedy="cut the model before those nodes, or give the model it was converted from",
        )
    return builder


def _read(builder: OnnxBuilder, node: FileNode) -> None:
    if node.operator == "InputOp":
        for index in node.outputs:
            tensor = builder.tensor(index)
            if tensor.element not in _INPUT_ELEMENTS or not tensor.shape or min(tensor.shape) < 1:
                raise Unsupported(f"its input is {tensor.element.name} {list(tensor.shape)}")
            builder.feed(index, tensor.shape)
        return
    # Constants are added where they are read, in the shape that is needed there.
    if node.operator == "Const":
        return
    if node.operator not in READERS:
        raise Unsupported("the operator is not known")
    if not node.outputs:
        raise Unsupported("it has no output")
    READERS[node.operator](builder, node)


def _model(builder: OnnxBuilder) -> ir.Model:
    file = builder.file
    graph = builder.graph(list(_outputs(builder)), opset=OPSET, name="main_graph")
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name="Tengine")
    # Files keep nodes that nothing reads, whose shapes need not fit.
    library.remove_unused(model)
    settle_shapes(model, builder.shapes, file.source, batch=builder.batch)
    return model


def _outputs(builder: OnnxBuilder) -> Iterable[ir.Value]:
    """Yield what the output nodes write; of an input of the model, a copy."""
    seen: set[ir.Value] = set()
    for number in builder.file.outputs:
        node = builder.file.nodes[number]
        for index in node.outputs:
            try:
                value = builder.activation(index)
            except Unsupported as error:
                raise ModelError(
                    f"{builder.file.source}: its output {clip_text(repr(builder.name(index)))} "
                    "is no activation",
                    remedy="convert the model again",
                ) from error
            if value.producer() is None:
                value = builder.compute(
                    node, "Identity", [value], builder.shapes[value], part="output"
                )
            # Two output nodes may give one tensor, and a graph of ONNX lists it once.
            if value not in seen:
                seen.add(value)
                yield value


__all__ = ["Int8Model", "is_tmfile", "read_int8", "read_tmfile"]

_BITS = {Element.INT8: 8, Element.UINT8: 8}


@dataclass(frozen=True, eq=False)
class Int8Model:
    """What a quantized file holds.

    Attributes:
        model: What it computes, in float: constants are what their codes stand for.
        scales: Scales of activations and weights, by the names of the model's tensors.
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

"""Plans as ``.param``, ``.bin`` and calibration table of ncnn.

The model is written for one sample at a time, as ncnn computes it: the batch is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.errors import ExportError, Unsupported
from intact.formats.ncnn.draft import Draft, Layer, Write
from intact.formats.ncnn.layers import elementwise, moving, pooling, products
from intact.formats.ncnn.layers.products import Product, Scales, reciprocals
from intact.formats.ncnn.model import (
    LARGEST_CODE,
    WINOGRAD_LIMIT,
    NcnnModel,
    WrittenProduct,
    not_expressible,
    notes_of,
)
from intact.formats.ncnn.shapes import known_lengths, lengths, sample
from intact.formats.ncnn.table import TableEntry, table_text
from intact.graph import input_value, is_constant, shape_or_index_values
from intact.plan import QuantizedGraph, refuse_unready
from intact.program.lower.attributes import bounds_of
from intact.program.lower.chains import Points
from intact.program.operations import Bounds

_MAGIC = 7767517
_PRODUCTS = {
    "Conv": products.convolution,
    "ConvTranspose": products.transposed_convolution,
    "Gemm": products.dense,
    "MatMul": products.dense,
}
_WRITERS: Mapping[str, Write] = {**elementwise.TABLE, **pooling.TABLE, **moving.TABLE}
_REMEDY = (
    "quantize for --target ncnn with its 8-bit activations, or keep what it quantizes otherwise "
    "float with --keep-float; what it has no layer for in float either must leave the model"
)


def write_ncnn(plan: QuantizedGraph) -> NcnnModel:
    """Return a calibrated plan as a model of ncnn; equal plans give equal bytes.

    Raises:
        ExportError: What ncnn has no layer for, or computes in float while the plan does not; all
            is listed.
        PlanError: An end has no scale yet.
    """
    refuse_unready(plan)
    writer = _Writer(plan)
    writer.write()
    if writer.refused:
        listed = [f"{place}: {reason}" for place, reason in writer.refused.items()]
        raise ExportError(f"ncnn cannot hold {'; '.join(listed)}", remedy=_REMEDY, listed=listed)
    return writer.model()


@dataclass
class _Writer:
    """Adds the layers of one plan.

    Attributes:
        refused: Why it cannot be written, by place.
        written: The products, by node.
        entries: Rows of the table.
        wide: Convolutions whose sums may leave what Winograd's algorithm holds.
    """

    plan: QuantizedGraph
    draft: Draft = field(default_factory=Draft)
    refused: dict[str, str] = field(default_factory=dict)
    written: dict[str, WrittenProduct] = field(default_factory=dict)
    entries: list[TableEntry] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._points = Points.of(self.plan)
        self._fused: set[ir.Node] = set()

    def write(self) -> None:
        """Add every layer; collect what cannot be."""
        graph = self.plan.graph
        for point in (*self._points.at_output.values(), *self._points.at_input.values()):
            reason = not_expressible(point, frozenset(_PRODUCTS))
            if reason:
                self.refused[str(point.end)] = reason
        for value in graph.inputs:
            with self._listing(str(value.name)):
                self._input(value)
        shapes = shape_or_index_values(graph)
        for node in graph.nodes:
            if node in self._fused or all(str(value.name) in shapes for value in node.outputs):
                continue
            with self._listing(str(node.name)):
                self._node(node)
        for value in graph.outputs:
            if is_constant(value):
                self.refused[repr(str(value.name))] = "an output that is a constant"

    def model(self) -> NcnnModel:
        """Return what was drafted."""
        graph = self.plan.graph
        outputs = {str(value.name): self.draft.output(value) for value in graph.outputs}
        layers = self.draft.split(outputs.values())
        tops = {blob for layer in layers for blob in layer.tops}
        lines = [str(_MAGIC), f"{len(layers)} {len(tops)}", *(layer.line() for layer in layers)]
        named = {str(v.name): self.draft.blob(v) for v in graph.values if not is_constant(v)}
        inputs = {str(value.name): self.draft.blob(value) for value in graph.inputs}
        return NcnnModel(
            param="".join(f"{line}\n" for line in lines),
            weights=b"".join(layer.data for layer in layers),
            table=table_text(self.entries),
            blobs={name: blob for name, blob in named.items() if blob in tops},
            inputs=inputs,
            outputs=outputs,
            products=self.written,
            notes=tuple(notes_of(inputs | outputs, self.wide)),
        )

    @contextmanager
    def _listing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Unsupported as reason:
            self.refused.setdefault(repr(name), str(reason))

    def _input(self, value: ir.Value) -> None:
        if value.dtype is not ir.DataType.FLOAT:
            raise Unsupported("an input that is not float32")
        is_open = None in known_lengths(value)
        shape = {} if is_open else lengths(sample(value))  # if open, the caller's holds
        self.draft.emit("Input", str(value.name), [], [self.draft.blob(value)], shape)

    def _node(self, node: ir.Node) -> None:
        if node.domain != "":
            raise Unsupported(f"ncnn has no layer for {node.op_type} of domain {node.domain!r}")
        if node.op_type == "MatMul" and not is_constant(input_value(node, 1)):
            moving.product_of_activations(self.draft, node)
        elif node.op_type in _PRODUCTS:
            self._product(node)
        elif node.op_type in _WRITERS:
            _WRITERS[node.op_type](self.draft, node)
        else:
            raise Unsupported(f"ncnn has no layer for {node.op_type}")

    def _product(self, node: ir.Node) -> None:
        scales = self._scales(node)
        result, bounds = node.outputs[0], Bounds()
        follower = self._activation(node)
        if follower is not None:
            result, bounds = follower[0].outputs[0], follower[1]
            self._fused.add(follower[0])
        layer = _PRODUCTS[node.op_type](self.draft, Product(node, result, bounds, scales))
        blob, is_int8 = self.draft.blob(result), scales is not None
        self.written[str(node.name)] = WrittenProduct(layer.name, blob, bounds, is_int8)
        if scales is not None:
            self._record(node, layer, scales)

    def _scales(self, node: ir.Node) -> Scales | None:
        data, weight = (self._points.at_input.get((str(node.name), slot)) for slot in (0, 1))
        if data is None and weight is None:
            return None
        if data is None or weight is None:
            raise Unsupported("its operands are not both quantized where it reads them")
        return Scales(data, weight)

    def _activation(self, node: ir.Node) -> tuple[ir.Node, Bounds] | None:
        """Return the Relu or Clip that alone reads a product, with its bounds.

        A Clip is not fused into a layer with groups: ncnn's kernels for 3x3 windows know a Relu
        only, and others would be taken.
        """
        value = node.outputs[0]
        readers = self.plan.graph.consumers(value)
        if len(readers) != 1 or value.is_graph_output() or readers[0][1] != 0:
            return None
        try:
            bounds = bounds_of(readers[0][0])
        except Unsupported:
            return None
        if bounds is None or not bounds.low <= bounds.high:
            return None
        if bounds != Bounds(0.0) and (node.attributes.get_int("group", 1) or 1) > 1:
            return None
        return readers[0][0], bounds

    def _record(self, node: ir.Node, layer: Layer, scales: Scales) -> None:
        """Add a layer's row of the table; note what Winograd's algorithm may wrap."""
        codes = scales.weight.constant_codes()
        outputs = layer.outputs
        factors = reciprocals(scales.weight, outputs)
        self.entries.append(TableEntry(layer.name, factors, float(reciprocals(scales.data, 1)[0])))
        window = [layer.parameters.get(key) for key in (1, 11, 2, 12, 3, 13)]
        if layer.kind == "Convolution" and window == [3, 3, 1, 1, 1, 1]:
            sums = np.abs(codes.astype(np.int64)).reshape(outputs, -1).sum(axis=1)
            if int(sums.max(initial=0)) * LARGEST_CODE > WINOGRAD_LIMIT:
                self.wide.append(str(node.name))

"""A plan as ONNX with FakeQuantize, which OpenVINO reads and runs with integers.

A FakeQuantize in domain ``org.openvinotoolkit`` sits at each quantisation point of the plan.
Weights are stored as the floats that their codes stand for: clamped to their range, and rounded to
those codes again by any quantiser; biases are floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.errors import ExportError
from intact.formats.openvino.fake_quantize import (
    DOMAIN,
    OP_TYPE,
    is_plain,
    quantizer,
    refusal,
)
from intact.formats.openvino.functions import inline_functions
from intact.formats.openvino.notes import export_notes
from intact.graph import save_model
from intact.graph.edit import Editor
from intact.plan import (
    Note,
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantization_points,
    refuse_unready,
)

ONNX_FILE = "model.fq.onnx"
"""What the ONNX model is called in a result's folder."""

_COMPUTED_AT_ONCE = 1 << 24
"""Bytes of a constant beyond which its floats are computed one constant at a time."""


@dataclass
class OpenVinoModel:
    """What was written.

    Attributes:
        model: The ONNX model.
        codes: For each quantised activation, the name of its FakeQuantize's output.
        notes: What a user should know about this export.
        ir_files: OpenVINO's own files by name; none where it is not installed.
    """

    model: ir.Model
    codes: dict[TensorEnd, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    ir_files: Mapping[str, bytes] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the model, and its data where that is large, into a folder."""
        save_model(self.model, folder / ONNX_FILE)
        for name, content in self.ir_files.items():
            (folder / name).write_bytes(content)

    def nbytes(self) -> int:
        """Return the bytes that are deployed: the IR's, or the ONNX model's where there is none."""
        if self.ir_files:
            return sum(len(content) for content in self.ir_files.values())
        return len(ir.to_proto(self.model).SerializeToString())


def write_openvino(plan: QuantizedGraph) -> OpenVinoModel:
    """Write a plan as ONNX with FakeQuantize; plan and float model are not changed.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: FakeQuantize cannot express some ends; all of them are listed.
    """
    refuse_unready(plan)
    points = list(quantization_points(plan))
    listed = [f"{point.end}: {reason}" for point in points if (reason := refusal(point))]
    if listed:
        raise ExportError(
            f"FakeQuantize cannot express {'; '.join(listed)}",
            remedy="keep these nodes float",
            listed=listed,
        )
    writer = _Writer(Editor(plan.graph.model))
    for point in points:
        if point.is_constant:
            writer.constant(point)
        else:
            writer.activation(point)
    writer.result.notes += export_notes(points)
    writer.result.model = writer.finish()
    return writer.result


class _Writer:
    """Adds the quantisers of one model."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.result = OpenVinoModel(editor.model)
        self._constants: dict[tuple[str, int], ir.Value] = {}
        self._ends: dict[tuple[int, bool], tuple[ir.Value, ir.Value]] = {}

    def activation(self, point: QuantPoint) -> None:
        """Put a quantiser behind the producer, or before those who read its result."""
        value = self.editor.value(str(point.value.name))
        base = str(value.name) if point.at_output else f"{value.name}_{point.end.node}"
        result = self._quantized(point, value, base)
        readers = [(str(node.name), slot) for node, slot in point.readers]
        self.editor.redirect(value, result, readers)
        if point.at_output:
            self.editor.take_over_output(value, result)
            self.editor.rebind(str(point.value.name), result)
        self.result.codes[point.end] = str(result.name)

    def constant(self, point: QuantPoint) -> None:
        """Store a constant as numbers on its grid, shared by equal readers."""
        key = (str(point.value.name), id(point.config.dominator))
        if key not in self._constants:
            stored = self.editor.initializer(f"{point.value.name}_on_grid", _on_grid(point))
            plain = is_plain(point)
            self._constants[key] = (
                stored if plain else self._quantized(point, stored, str(point.value.name))
            )
        value = self.editor.value(str(point.value.name))
        readers = [(str(node.name), slot) for node, slot in point.readers]
        self.editor.redirect(value, self._constants[key], readers)

    def finish(self) -> ir.Model:
        """Return the model, sorted, without what nothing reads and what no runtime does."""
        model = self.editor.finish()
        inline_functions(model)
        for node in model.graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
        for value in (*model.graph.inputs, *model.graph.initializers.values()):
            value.metadata_props.clear()
        if any(node.domain == DOMAIN for node in model.graph):
            model.opset_imports[DOMAIN] = 1
        return model

    def _quantized(self, point: QuantPoint, value: ir.Value, base: str) -> ir.Value:
        """Add the FakeQuantize of a point and return its output."""
        low, high = self._stored_ends(point)
        return self.editor.node(
            OP_TYPE,
            [value, low, high, low, high],
            f"{base}_fake_quantized",
            {"levels": quantizer(point).levels},
            shape=value.shape,
            domain=DOMAIN,
        )

    def _stored_ends(self, point: QuantPoint) -> tuple[ir.Value, ir.Value]:
        """Return the ends of a point's dominator, stored once."""
        key = (id(point.config.dominator), point.is_constant)
        if key not in self._ends:
            numbers = quantizer(point)
            name = str(point.value.name)
            low = self.editor.initializer(f"{name}_low", ir.tensor(numbers.low))
            high = self.editor.initializer(f"{name}_high", ir.tensor(numbers.high))
            self._ends[key] = (low, high)
        return self._ends[key]


def _on_grid(point: QuantPoint) -> ir.TensorProtocol:
    """Return the floats that a constant's codes stand for; of a large one when they are written."""
    source = point.value.const_value

    def floats() -> ir.TensorProtocol:
        codes = point.constant_codes()
        return ir.tensor(np.asarray(point.config.dequantize(codes), np.float32))

    if source is None or source.nbytes <= _COMPUTED_AT_ONCE:
        return floats()
    return ir.LazyTensor(floats, ir.DataType.FLOAT, ir.Shape(source.shape.numpy()))

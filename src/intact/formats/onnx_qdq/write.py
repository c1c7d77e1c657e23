"""Writes a plan as ONNX with QuantizeLinear and DequantizeLinear.

Pairs sit exactly at the plan's quantization points, so ONNX Runtime fuses
``DequantizeLinear -> op -> QuantizeLinear`` into its integer kernels. Weights and biases are
stored as integers, or as floats for runtimes that quantize weights themselves. Codes of 4 bits or
fewer are stored two a byte, behind a Cast to 8 bits: the runtime has integer kernels for bytes
only, and computes the Cast of a constant once, when it loads the model. An activation that
saturation performs anyway (a Relu before a range that starts at 0, a Clip(0, 6) before one that
ends at 6) is left out, since the runtime would run it in float.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intact.config import QuantState, Rounding, TensorQuantConfig
from intact.errors import ExportError
from intact.formats.base.clamps import drop_clamps
from intact.formats.base.format import Executed
from intact.formats.base.maker import sign
from intact.formats.base.storage import (
    GatheredCodes,
    StoredWeights,
    stored_codes,
    stored_on_grid,
    stored_readers,
)
from intact.formats.onnx_qdq.opsets import container_of, needed_opset, opset_of_caches, raise_opset
from intact.formats.onnx_qdq.reader.parameters import Container, container_for, is_quantize
from intact.formats.onnx_qdq.shared_codes import share_codes
from intact.formats.onnx_qdq.shield import keep_as_planned
from intact.graph import save_model
from intact.graph.edit import Editor
from intact.graph.files.save import file_bytes, message_of
from intact.graph.ops import clamp_bounds
from intact.graph.origins import bare
from intact.graph.tied_tables import is_looked_up
from intact.ops import functions
from intact.ops.operators import (
    AveragePool,
    Cast,
    Clip,
    DequantizeLinear,
    QuantizeLinear,
    is_a,
)
from intact.plan import (
    Note,
    NoteKind,
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantization_points,
    refuse_unready,
)
from intact.plan.dynamic import dynamic_points
from intact.plan.overflows import overflow_notes, wrap_sums
from intact.plan.stored_weights import is_cached
from intact.program.unsupported import UnsupportedNodes

if TYPE_CHECKING:
    from intact.formats.onnx_qdq.blocks import BlockWriter, StoredBlocks
    from intact.formats.onnx_qdq.dynamic import DynamicCodes, DynamicLayers


def is_saturation(plan: QuantizedGraph, node: ir.Node, config: TensorQuantConfig) -> bool:
    """Check whether quantizing without the node gives the same integers.

    True for a Relu or Clip that is fused to its producer, whose result is not quantized on its
    own, and whose bounds land on the ends of the integer range: what lies beyond a bound saturates
    to the same code.

    Args:
        plan: The plan.
        node: The producer of the quantized value.
        config: The config of its output.
    """
    bounds = clamp_bounds(node)
    if bounds is None or not _is_fused(plan, node):
        return False
    axis = config.granularity.axis
    scales = 1 if config.scale is None else config.scale.size
    shape = () if axis is None else (1,) * axis + (scales,)
    # Asked of the quantizer itself: a bound that lands half a step inside the range is work that
    # saturation does not do.
    low, high = (config.quantize(np.full(shape, bound, np.float32)) for bound in bounds)
    return bool((low == config.quant_min).all() and (high == config.quant_max).all())


def _is_fused(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Check whether a node computes inside the one before it.

    Between two pairs it does not: without it they would touch, and ONNX Runtime makes one of them.
    """
    value = node.inputs[0]
    producer = None if value is None else plan.producer_config(value)
    states = {plan.input_config(node, 0).state, None if producer is None else producer.state}
    return states == {QuantState.OVERLAPPED}


QDQ_FILE = "model.int8.onnx"
"""What the model is called in a result's folder."""

_ROUNDINGS = (Rounding.HALF_EVEN, Rounding.NEAREST)
"""What QuantizeLinear does, under both its names."""


@dataclass
class QdqModel:
    """What was written.

    Attributes:
        model: The ONNX model.
        codes: For each quantized activation, the name of the value that carries its integers.
        stored: For each weight that a float node has as integers, the constant that holds them.
        gathered: For each such table, where its codes are looked up.
        blocks: For each weight in blocks, how it is stored.
        dynamic: For each input that is quantized while running, what shows the layer's integers.
        notes: What a user should know about this export.
        executed: What the runtime makes of it, once that was asked.
    """

    model: ir.Model
    codes: dict[TensorEnd, str] = field(default_factory=dict)
    stored: dict[TensorEnd, str] = field(default_factory=dict)
    gathered: dict[TensorEnd, GatheredCodes] = field(default_factory=dict)
    blocks: dict[TensorEnd, StoredBlocks] = field(default_factory=dict)
    dynamic: dict[TensorEnd, DynamicCodes] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    executed: Executed | None = None

    @functools.cached_property
    def message(self) -> bytes | None:
        """The bytes of the file, made once for the first run and for saving; None if many."""
        return message_of(self.model)

    def save(self, folder: Path) -> None:
        """Write the model, and its data where that is large, into a folder."""
        if self.message is None:
            save_model(self.model, folder / QDQ_FILE)
        else:
            (folder / QDQ_FILE).write_bytes(self.message)

    def nbytes(self) -> int:
        """Return the bytes of the model."""
        return len(self.message) if self.message else file_bytes(self.model)


def write_qdq(plan: QuantizedGraph, *, float_weights: bool = False) -> QdqModel:
    """Write a plan as QDQ ONNX; plan and float model are not changed.

    Args:
        plan: A calibrated plan.
        float_weights: Store constants as the floats that their integers stand for, each with a
            QuantizeLinear that gives exactly these integers back; but for weights in blocks.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: QDQ cannot express some ends; all of them are listed.
    """
    refuse_unready(plan)
    # Caches have no pairs: their codes are the model's own inputs and outputs.
    points = [point for point in quantization_points(plan) if not is_cached(point.config)]
    _refuse_inexpressible(points)
    editor = Editor(raise_opset(plan.graph.model, needed_opset(plan, points)))
    # Before pairs are put in, which name the values as the plan does.
    wrap_sums(editor, plan)
    writer = _Writer(editor, plan, _layers(editor, plan), float_weights=float_weights)
    for point in points:
        if point.is_constant:
            writer.constant(point)
        else:
            writer.activation(point)
    writer.add_dynamic()
    if opset_of_caches(plan):
        from intact.formats.onnx_qdq.caches import write_caches  # which few plans need

        writer.result.notes += write_caches(editor, plan)
    if any(is_a(node, AveragePool, functions.hard_swish) for node in plan.graph.nodes):
        from intact.formats.onnx_qdq.compose import compose  # with much else

        compose(plan, writer.editor)
    # A model that was read is given back as its runtime had it: neither shields nor other clamps
    # were in it.
    if plan.keeps_runtime:
        drop_clamps(writer.editor.model.graph, is_quantize)
    else:
        writer.drop_saturations(plan, points)
        keep_as_planned(plan, writer.editor)
    writer.result.notes += writer.clip_notes() + _rounding_notes(points) + overflow_notes(plan)
    if not float_weights:
        writer.result.notes += _packed_notes(points)
        writer.result.notes += share_codes(writer.editor, plan, writer.result.stored)
        writer.result.notes += writer.block_notes()
    writer.result.model = bare(writer.editor.finish())
    if plan.float16 is not None:
        from intact.plan.float16 import as_written  # which few plans need

        as_written(writer.result.model, plan)
    sign(writer.result.model, plan)
    return writer.result


def _layers(editor: Editor, plan: QuantizedGraph) -> DynamicLayers | None:
    """Return what writes layers of dynamic activations; None where there are none."""
    if next(dynamic_points(plan), None) is None:
        return None
    from intact.formats.onnx_qdq.dynamic import DynamicLayers  # with much else

    return DynamicLayers(editor, plan)


def _refuse_inexpressible(points: list[QuantPoint]) -> None:
    unsupported = UnsupportedNodes("QDQ cannot express", "keep these nodes float")
    for point in points:
        config, span = point.config, f"{point.config.quant_min}..{point.config.quant_max}"
        container = container_for(config, is_constant=point.is_constant)
        per_channel = config.granularity.axis is not None and not point.is_constant
        if config.grid.block is not None:
            # Their ranges and types are those of MatMulNBits, not of QuantizeLinear.
            continue  # in operators of their own
        if config.grid.exponential:
            unsupported.add(str(point.end), "logarithmic levels")
        elif container is None:
            unsupported.add(str(point.end), span)
        elif per_channel and not container.holds_exactly(config):  # a Clip has one pair of bounds
            unsupported.add(str(point.end), f"{span} with one scale a channel")
    unsupported.raise_any()


def _rounding_notes(points: list[QuantPoint]) -> list[Note]:
    """Say where QuantizeLinear rounds otherwise than the plan; constants are rounded already."""
    odd = [
        point
        for point in points
        if not (point.is_constant or point.is_passed_on) and point.config.rounding not in _ROUNDINGS
    ]
    if not odd:
        return []
    message = (
        f"QuantizeLinear rounds ties to even, the plan {odd[0].config.rounding}: ties of "
        f"{len(odd)} activation(s) come out differently (first: {odd[0].end})"
    )
    return [Note(NoteKind.EXPORT, "", message)]


def _packed_notes(points: list[QuantPoint]) -> list[Note]:
    """Say which constants are stored two codes a byte, what that saves and what it needs."""
    constants = (each for each in points if each.is_constant and each.config.grid.block is None)
    packed = [point for point in constants if container_of(point).is_packed]
    if not packed:
        return []
    container = container_of(packed[0])
    sizes = {
        # Once for each copy in the file: readers of one constant with one scale share it.
        (str(p.value.name), id(p.config.dominator)): p.value.const_value.size
        for p in packed
        if p.value.const_value is not None
    }
    count = sum(sizes.values())
    message = (
        f"{len(sizes)} constant(s) take {(count + 1) // 2:,} bytes as "
        f"{container.data_type.name.lower()} instead of {count:,} as "
        f"{container.in_bytes.data_type.name.lower()}; ONNX Runtime widens "
        "them when it loads the model, which needs version 1.23, and computes as fast as with 8 "
        "bits"
    )
    return [Note(NoteKind.EXPORT, packed[0].end.node, message)]


class _Writer:
    """Adds the pairs of one model."""

    def __init__(
        self,
        editor: Editor,
        plan: QuantizedGraph,
        layers: DynamicLayers | None,
        *,
        float_weights: bool,
    ) -> None:
        self.editor = editor
        self._plan = plan
        self._float_weights = float_weights
        self._layers = layers
        self.result = QdqModel(editor.model)
        self._constants: dict[tuple[str, int], ir.Value] = {}
        self._clipped: dict[tuple[int, int, str], list[str]] = {}
        self._parameters: dict[int, tuple[ir.Value, ir.Value]] = {}
        self._blocks: BlockWriter | None = None

    def activation(self, point: QuantPoint) -> None:
        """Add Clip (where the range is narrower than its type), Quantize and Dequantize."""
        value = self.editor.value(str(point.value.name))
        container = container_of(point)
        # A value that readers quantize in several ways has a pair for each of them, so that the
        # name has the reader's.
        base = str(value.name) if point.at_output else f"{value.name}_{point.end.node}"
        scale, zero_point = self._scale_and_zero(point, container)
        source = value
        if not (container.holds_exactly(point.config) or point.is_passed_on):
            source = self._clip(point, value, base)
        axis = _axis_attribute(point)
        codes = self.editor.node(
            QuantizeLinear,
            [source, scale, zero_point],
            f"{base}_quantized",
            axis,
            dtype=container.data_type,
            shape=value.shape,
        )
        result = self.editor.node(
            DequantizeLinear,
            [codes, scale, zero_point],
            f"{base}_dequantized",
            axis,
            shape=value.shape,
        )
        self.editor.redirect(
            value, result, [(str(node.name), slot) for node, slot in point.readers]
        )
        if point.at_output:
            self.editor.replace_output(value, result)
            # Whoever asks for the value later gets its dequantized form: a reader with a scale of
            # its own quantizes these numbers again.
            self.editor.rebind(str(point.value.name), result)
        self.result.codes[point.end] = str(codes.name)

    def constant(self, point: QuantPoint) -> None:
        """Store a constant with a DequantizeLinear, shared by equal readers."""
        if point.config.grid.block is not None:
            self._store(point, list(point.readers))
            return
        stored, others = stored_readers(self._plan, point)
        if stored:
            self._store(point, stored)
        if self._layers is not None:
            others = self._layers.take(point, others)
        if others:
            self._dequantize(point, [(str(node.name), slot) for node, slot in others])

    def add_dynamic(self) -> None:
        """Write the layers of activations that are quantized while running."""
        if self._layers is not None:
            self._layers.add()
            self.result.dynamic = self._layers.written

    def _store(self, point: QuantPoint, readers: list[tuple[ir.Node, int]]) -> None:
        """Store a weight of float nodes; one in blocks has integers in any case."""
        if point.config.grid.block is not None:
            from intact.formats.onnx_qdq.blocks import BlockWriter  # which few plans need

            self._blocks = self._blocks or BlockWriter(self.editor, self._plan)
            self._blocks.write(point, readers)
            self.result.blocks = self._blocks.stored
            return
        if self._float_weights:
            name = f"{point.value.name}_on_grid"
            floats = self.editor.initializer(name, stored_on_grid(point))
            ends = [(str(node.name), slot) for node, slot in readers]
            self.editor.redirect(self.editor.value(str(point.value.name)), floats, ends)
            return
        container = container_of(point)
        codes = self.editor.initializer(
            f"{point.value.name}_quantized",
            stored_codes(point, container.numpy, container.data_type),
        )
        added = StoredWeights(self.editor, point, codes)
        for node, slot in readers:
            end = TensorEnd.input(str(node.name), slot)
            self.result.stored[end] = str(codes.name)
            if is_looked_up(node, slot):
                self.result.gathered[end] = added.look_up(str(node.name))
            else:
                added.read(str(node.name), slot)

    def block_notes(self) -> list[Note]:
        """Say what is to be known of weights in blocks."""
        return [] if self._blocks is None else self._blocks.notes()

    def _dequantize(self, point: QuantPoint, readers: list[tuple[str, int]]) -> None:
        """Let nodes read a constant through a DequantizeLinear."""
        key = (str(point.value.name), id(point.config.dominator))
        if key not in self._constants:
            container = container_of(point)
            # Kernels read bytes; a model of float weights has no stored codes that would need to be
            # widened.
            read = container if self._float_weights else container.in_bytes
            scale, zero_point = self._scale_and_zero(point, read)
            codes = self._codes(point, container, scale, zero_point)
            self._constants[key] = self.editor.node(
                DequantizeLinear,
                [codes, scale, zero_point],
                f"{point.value.name}_dequantized",
                _axis_attribute(point),
                shape=codes.shape,
            )
        value = self.editor.value(str(point.value.name))
        self.editor.redirect(value, self._constants[key], readers)

    def _codes(
        self, point: QuantPoint, container: Container, scale: ir.Value, zero_point: ir.Value
    ) -> ir.Value:
        """Return the integers of a constant: stored, or made of floats by a QuantizeLinear."""
        name = f"{point.value.name}_quantized"
        if not self._float_weights:
            codes = self.editor.initializer(
                name, stored_codes(point, container.numpy, container.data_type)
            )
            return self._widened(codes, container) if container.is_packed else codes
        floats = self.editor.initializer(f"{point.value.name}_on_grid", stored_on_grid(point))
        return self.editor.node(
            QuantizeLinear,
            [floats, scale, zero_point],
            name,
            _axis_attribute(point),
            dtype=container.data_type,
            shape=floats.shape,
        )

    def _widened(self, codes: ir.Value, container: Container) -> ir.Value:
        """Make bytes of packed codes."""
        kind = container.in_bytes.data_type
        options: dict[str, int | float | str] = {"to": int(kind)}
        return self.editor.node(Cast, [codes], f"{codes.name}_in_bytes", options, kind, codes.shape)

    def drop_saturations(self, plan: QuantizedGraph, points: list[QuantPoint]) -> None:
        """Take out fused activations whose work the saturation of their quantizer does."""
        for point in points:
            node = point.value.producer()
            if node is None or not point.at_output or not is_saturation(plan, node, point.config):
                continue
            twin = self.editor.nodes_by_name[str(node.name)]
            source = twin.inputs[0]
            if source is not None:
                # Only its quantizer read it: a fused clamp has no other reader.
                twin.outputs[0].replace_all_uses_with(source)
                self.editor.model.graph.remove(twin, safe=True)

    def clip_notes(self) -> list[Note]:
        """Say where a Clip had to do the saturation: one note for each range."""
        return [
            Note(
                NoteKind.EXPORT,
                nodes[0],
                f"{low}..{high} is narrower than {name.lower()} ({len(nodes)} activation(s)): a "
                "Clip does the saturation, and ONNX Runtime computes in float there",
                "a range that fills its type avoids it",
            )
            for (low, high, name), nodes in self._clipped.items()
        ]

    def _scale_and_zero(self, point: QuantPoint, container: Container) -> tuple[ir.Value, ir.Value]:
        """Return the parameters of a point's dominator, stored once."""
        config = point.config.dominator
        # One initializer for all that share a scale: the runtime compares names, not numbers, when
        # it fuses.
        if id(config) not in self._parameters:
            params = point.config.params
            if params is None:
                raise ExportError(f"{point.end} has no scale")
            name = str(point.value.name)
            scale = self.editor.initializer(f"{name}_scale", np.asarray(params.scale))
            zero = np.asarray(params.zero_point).astype(container.numpy)
            zero_point = self.editor.initializer(f"{name}_zero_point", zero)
            self._parameters[id(config)] = (scale, zero_point)
        return self._parameters[id(config)]

    def _clip(self, point: QuantPoint, value: ir.Value, base: str) -> ir.Value:
        low, high = (
            self.editor.initializer(f"{base}_{name}", np.float32(bound))
            for name, bound in zip(("low", "high"), point.config.value_range(), strict=True)
        )
        span = (point.config.quant_min, point.config.quant_max, container_of(point).data_type.name)
        self._clipped.setdefault(span, []).append(point.end.node)
        return self.editor.node(Clip, [value, low, high], f"{base}_clipped", shape=value.shape)


def _axis_attribute(point: QuantPoint) -> dict[str, int | float | str]:
    axis = point.config.granularity.axis
    return {} if axis is None else {"axis": axis}

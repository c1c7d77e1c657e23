"""Writes a plan as ONNX with FakeQuantize, which OpenVINO runs with integers.

A FakeQuantize in domain ``org.openvinotoolkit`` sits at each quantization point of the plan.
Weights are stored as the floats that their codes stand for: clamped to their range, and rounded to
those codes again by any quantizer; biases are floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from intact.config import Rounding
from intact.errors import ExportError
from intact.formats.base.clamps import drop_clamps
from intact.formats.base.format import Executed
from intact.formats.base.maker import sign
from intact.formats.base.storage import StoredWeights, stored_on_grid, stored_readers
from intact.formats.openvino.blocks import BlockWriter
from intact.formats.openvino.dialect import (
    DOMAIN,
    OP_TYPE,
    add_biases,
    is_plain,
    quantizer,
    translate,
    unsupported_reason,
)
from intact.formats.openvino.shields import FACTORS, SUMS, keep_results
from intact.graph import Role, input_role, save_model
from intact.graph.edit import Editor
from intact.graph.files.save import file_bytes
from intact.graph.origins import bare
from intact.graph.tied_tables import is_looked_up
from intact.graph.traversal import nodes_of
from intact.plan import (
    Note,
    NoteKind,
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantization_points,
    refuse_unready,
)
from intact.program.unsupported import UnsupportedNodes

_ROUNDINGS = (Rounding.HALF_EVEN, Rounding.NEAREST)
"""What FakeQuantize does on a CPU, under both its names."""

_INTEGER_LEVELS = frozenset({15, 16, 255, 256})
"""How many codes activations may have; with others OpenVINO computes in float."""


def export_notes(points: list[QuantPoint]) -> list[Note]:
    """Say what OpenVINO does otherwise than the plan, and what it does in float.

    Args:
        points: The quantization points of a plan, all of which can be expressed.
    """
    texts = (
        _rounding(points),
        _half_unsigned(points),
        _floats(points),
        _biases(points),
        _tiny(points),
    )
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


def _tiny(points: list[QuantPoint]) -> str:
    """Say where a step is a denormal number, which OpenVINO takes for 0 (measured: 2026.4.1)."""
    tiny = np.finfo(np.float32).tiny
    found = [
        point
        for point in points
        if point.config.scale is not None and (point.config.scale < tiny).any()
    ]
    if not found:
        return ""
    return (
        f"steps of {len(found)} tensor(s) are below the smallest normal float32 "
        f"(first: {found[0].end}), and OpenVINO takes denormal numbers for 0: its outputs differ"
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
    """Check whether OpenVINO computes with the codes of a point, in its own files at least."""
    config = point.config
    if not point.is_constant:
        return quantizer(point).levels in _INTEGER_LEVELS and config.granularity.axis is None
    if not _is_weight(point):
        return True
    return config.bits <= 8 and (config.quant_min < 0 or _is_half_unsigned(point))


def _is_half_unsigned(point: QuantPoint) -> bool:
    """Check whether a weight's codes without a sign fit int8, less their zero point too.

    OpenVINO subtracts it from the integers in its own files, and computes in float where they stand
    behind a FakeQuantize.
    """
    return _is_weight(point) and point.config.quant_min >= 0 and point.config.quant_max <= 127


def _is_weight(point: QuantPoint) -> bool:
    return point.is_constant and any(
        input_role(node, slot) is Role.WEIGHT for node, slot in point.readers
    )


_MOST_NODES = 1 << 16
"""What calls may become. Functions that call the next one twice double with each of them."""

_Sizes = dict[ir.OperatorIdentifier, int]


def inline_functions(model: ir.Model) -> None:
    """Replace every call of a model's own functions by the function's nodes, in place.

    Raises:
        ExportError: Functions call each other in a circle, or too often.
    """
    # else those that they call are inlined in them
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    if not model.functions:
        return
    sizes: _Sizes = {}
    for identifier in model.functions:
        _measure(identifier, model.functions, sizes)
    if _size(nodes_of(model.graph), sizes) > _MOST_NODES:
        raise _cannot_inline(f"they become more than {_MOST_NODES} nodes")
    common.InlinePass()(model)


def _measure(
    first: ir.OperatorIdentifier,
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
    sizes: _Sizes,
) -> None:
    """Find of how many nodes a function and those that it calls consist, without recursion."""
    waiting, opened = [first], set[ir.OperatorIdentifier]()
    while waiting:
        identifier = waiting[-1]
        if identifier in sizes:
            waiting.pop()
            continue
        nodes = list(nodes_of(functions[identifier]))
        called = {node.op_identifier() for node in nodes} & functions.keys()
        missing = [each for each in called if each not in sizes]
        if not missing:
            # Limited, because functions that double would make numbers of thousands of digits.
            sizes[identifier] = min(_size(nodes, sizes), _MOST_NODES + 1)
        # It was opened before and has no size yet: what it calls leads back to it.
        elif identifier in opened:
            raise _cannot_inline("they call each other in a circle")
        opened.add(identifier)
        waiting += missing


def _size(nodes: Iterable[ir.Node], sizes: _Sizes) -> int:
    return sum(sizes.get(node.op_identifier(), 1) for node in nodes)


def _cannot_inline(reason: str) -> ExportError:
    return ExportError(
        f"the model's own functions cannot be put where they are called: {reason}",
        remedy="export the float model without functions",
    )


ONNX_FILE = "model.fq.onnx"
"""What the ONNX model is called in a result's folder."""

_BYTE = 8
"""Bits of the widest codes of tables."""

_SPATIAL = 2
"""The first axis behind the channels."""

_BLOCKS = (
    f"OpenVINO quantizes activations beside compressed weights unasked: model.xml asks it not to, "
    f"for {ONNX_FILE} set DYNAMIC_QUANTIZATION_GROUP_SIZE to 0"
)


@dataclass
class OpenVinoModel:
    """What was written.

    Attributes:
        model: The ONNX model.
        codes: For each quantized activation, the name of its FakeQuantize's output.
        notes: What a user should know about this export.
        has_blocks: Whether weights are stored in blocks.
        ir_files: OpenVINO's own files by name; none where it is not installed.
        executed: What OpenVINO makes of the plan; None before it was loaded.
    """

    model: ir.Model
    codes: dict[TensorEnd, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    has_blocks: bool = False
    ir_files: Mapping[str, bytes] = field(default_factory=dict)
    executed: Executed | None = None

    def save(self, folder: Path) -> None:
        """Write the model, and its data where that is large, into a folder."""
        save_model(self.model, folder / ONNX_FILE)
        for name, content in self.ir_files.items():
            (folder / name).write_bytes(content)

    @property
    def deployed_file(self) -> str:
        """The file whose bytes are counted: OpenVINO's own, where it was there to write one."""
        return next((name for name in self.ir_files if name.endswith(".xml")), ONNX_FILE)

    def nbytes(self) -> int:
        """Return the bytes that are deployed: the IR's, or the ONNX model's where there is none."""
        if self.ir_files:
            return sum(len(content) for content in self.ir_files.values())
        return file_bytes(self.model)


def write_openvino(plan: QuantizedGraph) -> OpenVinoModel:
    """Write a plan as ONNX with FakeQuantize; plan and float model are not changed.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: FakeQuantize cannot express some ends; all of them are listed.
    """
    refuse_unready(plan)
    points = list(quantization_points(plan))
    unsupported = UnsupportedNodes("FakeQuantize cannot express", "keep these nodes float")
    for point in points:
        reason = unsupported_reason(point)
        if reason:
            unsupported.add(str(point.end), reason)
    unsupported.raise_any()
    writer = _Writer(Editor(plan.graph.model), plan)
    for point in points:
        if point.is_constant:
            writer.constant(point)
        else:
            writer.activation(point)
    unread = UnsupportedNodes(
        "OpenVINO cannot run", "change the float model, or keep them out of it"
    )
    writer.result.notes += translate(writer.editor, unread)
    unread.raise_any()
    # In this order: results are kept by whether a convolution has a bias, and `add_biases` takes
    # some away from it.
    keep_results(writer.editor, plan)
    add_biases(writer.editor)
    whole = [point for point in points if point.config.grid.block is None]
    writer.result.has_blocks = len(whole) < len(points)
    writer.result.notes += export_notes(whole)
    if writer.result.has_blocks:
        writer.result.notes.append(Note(NoteKind.EXPORT, "", _BLOCKS))
    writer.result.model = writer.finish()
    sign(writer.result.model, plan)
    return writer.result


class _Writer:
    """Adds the quantizers of one model."""

    def __init__(self, editor: Editor, plan: QuantizedGraph) -> None:
        self.editor = editor
        self._plan = plan
        self.result = OpenVinoModel(editor.model)
        self._blocks = BlockWriter(editor, plan)
        self._constants: dict[tuple[str, int, bool], ir.Value] = {}
        self._ends: dict[tuple[int, bool], tuple[ir.Value, ir.Value]] = {}

    def activation(self, point: QuantPoint) -> None:
        """Put a quantizer behind the producer, or before those who read its result."""
        value = self.editor.value(str(point.value.name))
        base = str(value.name) if point.at_output else f"{value.name}_{point.end.node}"
        result = self._quantized(point, value, base)
        readers = [(str(node.name), slot) for node, slot in point.readers]
        self.editor.redirect(value, result, readers)
        if point.at_output:
            self.editor.replace_output(value, result)
            self.editor.rebind(str(point.value.name), result)
        self.result.codes[point.end] = str(result.name)

    def constant(self, point: QuantPoint) -> None:
        """Store a constant: for float nodes as codes, for others as numbers on their grid.

        OpenVINO takes only constants as weights of recurrent operators, and computes those from
        codes when it loads the model.
        """
        if point.config.grid.block is not None:
            self._blocks.write(point)
            return
        stored, others = stored_readers(self._plan, point)
        if point.config.bits <= _BYTE:
            self._codes(point, stored)
        else:
            self._numbers(point, stored, plain=True)
        bare, others = _divided(point, others)
        self._folded(point, bare)
        self._numbers(point, others, plain=is_plain(point))

    def _codes(self, point: QuantPoint, readers: list[tuple[ir.Node, int]]) -> None:
        """Store a constant of float nodes as its codes."""
        if not readers:
            return
        dtype = np.int8 if point.config.quant_min < 0 else np.uint8
        codes = point.constant_codes().astype(dtype)
        stored = self.editor.initializer(f"{point.value.name}_quantized", codes)
        added = StoredWeights(self.editor, point, stored, is_apart=True)
        for node, slot in readers:
            if is_looked_up(node, slot):
                added.look_up(str(node.name))
            else:
                added.read(str(node.name), slot)

    def _numbers(
        self, point: QuantPoint, readers: list[tuple[ir.Node, int]], *, plain: bool
    ) -> None:
        """Store a constant as numbers on its grid, shared by equal readers."""
        if not readers:
            return
        key = (str(point.value.name), id(point.config.dominator), plain)
        if key not in self._constants:
            stored = self.editor.initializer(f"{point.value.name}_on_grid", stored_on_grid(point))
            self._constants[key] = (
                stored if plain else self._quantized(point, stored, str(point.value.name))
            )
        value = self.editor.value(str(point.value.name))
        ends = [(str(node.name), slot) for node, slot in readers]
        self.editor.redirect(value, self._constants[key], ends)

    def _folded(self, point: QuantPoint, readers: list[tuple[ir.Node, int]]) -> None:
        """Store a constant as the numbers that OpenVINO makes of its codes in its own files."""
        params = point.config.params
        if not readers or params is None:
            return
        ends = quantizer(point)
        # In float32 and in this order, as OpenVINO computes them: other last bits would move ties.
        scale = (ends.high - ends.low) / np.float32(ends.levels - 1)
        steps = point.constant_codes().astype(np.int64) - params.zero_point
        numbers = np.asarray(steps.astype(np.float32) * scale, np.float32)
        stored = self.editor.initializer(f"{point.value.name}_folded", numbers)
        places = [(str(node.name), slot) for node, slot in readers]
        self.editor.redirect(self.editor.value(str(point.value.name)), stored, places)

    def finish(self) -> ir.Model:
        """Return the model, sorted, without what nothing reads and what no runtime does."""
        drop_clamps(self.editor.model.graph, lambda node: node.op_type == OP_TYPE)
        model = self.editor.finish()
        # OpenVINO's reader knows no functions of a model's own.
        inline_functions(model)
        bare(model)
        if self._plan.float16 is not None:
            from intact.plan.float16 import as_written  # which few plans need

            as_written(model, self._plan)
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
        # Apart for constants, whose stored range may be wider than that of activations.
        key = (id(point.config.dominator), point.is_constant)
        if key not in self._ends:
            numbers = quantizer(point)
            name = str(point.value.name)
            low = self.editor.initializer(f"{name}_low", numbers.low)
            high = self.editor.initializer(f"{name}_high", numbers.high)
            self._ends[key] = (low, high)
        return self._ends[key]


def _divided(
    point: QuantPoint, readers: list[tuple[ir.Node, int]]
) -> tuple[list[tuple[ir.Node, int]], list[tuple[ir.Node, int]]]:
    """Divide readers into those that take a constant without its quantizer, and the others.

    OpenVINO goes wrong where one number a channel, behind a quantizer, is added or multiplied by
    (-0.2 to 15 dB, measured with openvino 2026.4.1), and adds a single one with other bits than in
    its own files. There it has numbers, which it moves into the quantizer behind.
    """
    if is_plain(point) or point.config.granularity.axis is not None:
        return [], readers
    bare = [(node, slot) for node, slot in readers if _is_folded(point.value, node)]
    return bare, [each for each in readers if each not in bare]


def _is_folded(constant: ir.Value, reader: ir.Node) -> bool:
    """Check for one number that is added, and for those that differ along the first two axes."""
    result, array = reader.outputs[0].shape, constant.const_value
    if reader.op_type not in SUMS | FACTORS or result is None or array is None:
        return False
    lengths = tuple(array.shape.numpy())
    aligned = (1,) * (len(result) - len(lengths)) + lengths
    is_by_channel = all(length == 1 for length in aligned[_SPATIAL:])
    return is_by_channel and (array.size > 1 or reader.op_type in SUMS)

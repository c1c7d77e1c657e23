r"""Writes and reads Tengine's tables of scales, as its quantization tool does [tengine].

``table_<method>.scale`` has a line ``"%s %f %d\n"`` for each activation: name, scale, zero point.
``scale_weight.txt`` and ``scale_bias.txt`` have for each weight and bias its name, a space, and
``"%8.8f "`` for each channel. The scales of activations are those of each tensor's own range: who
reads the table passes them from operators that work in place to their inputs. A zero point has no
decimal point, the scale of a channel has one; by that a reader knows the lines apart. Tengine
computes with the float32 numbers nearest to these decimals: a target with ``scale_precision =
"decimal6"`` has just them, for others a note names the loss.

A table is one of int8, with zero points 0, or one of uint8, whose zero points are not all 0. Codes
of both kinds, and int8 codes with zero points, are written as the uint8 codes of the same numbers.
Weights are int8, symmetric.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import DataError, IntactError
from intact.formats.tengine.tmfile.file import is_inside
from intact.formats.tengine.tmfile.scales import dead_channel_notes, zero_scales
from intact.graph import Graph, Role, constant_array, input_role, input_value, is_constant
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import six_decimals
from intact.ops.operators import ConvTranspose, is_a
from intact.plan import (
    Note,
    NoteKind,
    QuantizedGraph,
    quantization_points,
    refuse_unready,
)
from intact.plan.given_scales import GivenScale, ScaleTable, refuse_too_many
from intact.plan.own_scales import own_params, scales_of
from intact.program.unsupported import UnsupportedNodes

WEIGHTS_FILE, BIASES_FILE = "scale_weight.txt", "scale_bias.txt"

_BITS = 8

_LOWEST = 1 << (_BITS - 1)
"""Difference of a uint8 code and the int8 code of the same number."""


def table_name(plan: QuantizedGraph) -> str:
    """Return the file name of the table of activations: it has the tool's name of the method."""
    method = plan.provenance.method or "minmax"
    variants = {own: name for name, own in plan.target.calibration.variants.items()}
    return f"table_{variants.get(method, method)}.scale"


def write_tables(plan: QuantizedGraph) -> tuple[dict[str, bytes], tuple[Note, ...]]:
    """Return the three tables by file name; equal plans give equal bytes.

    The table of activations holds each tensor's own scale, as the plan keeps it.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: What the tables cannot hold: tensors that are quantized in several ways, by
            channel, on other than 8 linear bits, or whose name has a space; all are listed.
    """
    activations, constants = _writable(plan)
    own = {name: own_params(plan, value) for name, value in _values(plan)}
    lines = [_Row(name, each[0], own[name]) for name, each in activations.items() if each]
    notes = (*_notes(plan, activations, lines), *dead_channel_notes(plan))
    tables = {table_name(plan): _table(lines)}
    for file, role in ((WEIGHTS_FILE, Role.WEIGHT), (BIASES_FILE, Role.BIAS)):
        rows = {constant.name: constant for constant in constants if constant.role is role}
        tables[file] = "".join(constant.text() for constant in rows.values())
    return {name: text.encode() for name, text in tables.items()}, notes


def write_effective_table(plan: QuantizedGraph) -> tuple[bytes, tuple[Note, ...]]:
    """Return a table of the activations' scales with which the plan computes.

    Raises:
        PlanError: As `write_tables` raises it.
        ExportError: As `write_tables` raises it.
    """
    activations, _ = _writable(plan)
    values = dict(_values(plan))
    lines = [
        _Row(name, each[0], _effective(plan, values[name], each[0]))
        for name, each in activations.items()
        if each
    ]
    return _table(lines).encode(), tuple(_notes(plan, activations, lines))


def _effective(
    plan: QuantizedGraph, value: ir.Value, config: TensorQuantConfig
) -> QuantParams | None:
    """Return the scale of a tensor; its own inside a fusion where none is passed on."""
    producer = plan.producer_config(value)
    # The plan has no scale inside a fusion, but the tool's model has the tensor, and a line for it.
    is_hidden = producer is not None and producer.state is QuantState.OVERLAPPED
    if is_hidden and not plan.target.topology.in_place:
        return own_params(plan, value)
    return config.params


_Activations: TypeAlias = dict[str, list[TensorQuantConfig]]


class _Constant(NamedTuple):
    """A weight or a bias, with the scales that are written: float64 ``[channels]``."""

    name: str
    role: Role
    config: TensorQuantConfig
    scales: npt.NDArray[np.float64]

    def text(self) -> str:
        return f"{self.name} " + "".join(f"{scale:8.8f} " for scale in self.scales) + "\n"


def _writable(plan: QuantizedGraph) -> tuple[_Activations, list[_Constant]]:
    """Return what the tables hold, if they can."""
    refuse_unready(plan)
    activations = _activations(plan)
    constants = list(_constants(plan))
    unsupported = UnsupportedNodes(
        "Tengine's tables cannot hold",
        "use target tengine or tengine-u8 with 8 bits, and names without spaces",
    )
    for name, reason in _unsupported(activations, constants):
        unsupported.add(repr(name), reason)
    unsupported.raise_any()
    return activations, constants


class _Row(NamedTuple):
    """A line of a table of activations: a scale, on the grid of a config."""

    name: str
    config: TensorQuantConfig
    params: QuantParams | None

    @property
    def zero_point(self) -> int:
        return 0 if self.params is None else int(self.params.zero_point)

    @property
    def is_unsigned(self) -> bool:
        """Whether the tensor has other codes than int8 without a zero point."""
        return self.config.quant_min >= 0 or self.zero_point != 0

    def text(self, shift: int) -> str:
        scale = 1.0 if self.params is None else float(self.params.scale)
        moved = shift if self.config.quant_min < 0 else 0
        return f"{self.name} {scale:f} {self.zero_point + moved}\n"


def _table(rows: list[_Row]) -> str:
    # One table is of one kind: a reader tells it by its zero points, all of them.
    shift = _LOWEST if any(row.is_unsigned for row in rows) else 0
    return "".join(row.text(shift) for row in rows)


def _activations(plan: QuantizedGraph) -> _Activations:
    """Return the scales in effect of each float activation, in the graph's order."""
    return {name: scales_of(plan, value) for name, value in _values(plan)}


def _values(plan: QuantizedGraph) -> Iterator[tuple[str, ir.Value]]:
    for value in plan.graph.values:
        is_number = value.dtype is ir.DataType.FLOAT and not is_constant(value)
        if is_number and value.name and not is_inside(value):
            yield str(value.name), value


def _constants(plan: QuantizedGraph) -> Iterator[_Constant]:
    zeros = zero_scales(plan)
    for point in quantization_points(plan):
        if point.is_constant and point.readers:
            node, slot = point.readers[0]
            role = input_role(node, slot)
            if role in (Role.WEIGHT, Role.BIAS):
                scales = np.atleast_1d(np.asarray(point.config.scale, np.float64))
                # What the tool writes for channels of zeros, where the target asks for its
                # treatment.
                scales = np.where(zeros.get(str(node.name), False), 0.0, scales)
                if is_a(node, ConvTranspose):
                    scales = _deconvolution_scales(plan, node, scales, role)
                yield _Constant(str(point.value.name), role, point.config, scales)


def _deconvolution_scales(
    plan: QuantizedGraph, node: ir.Node, scales: npt.NDArray[np.float64], role: Role
) -> npt.NDArray[np.float64]:
    """Return the scales that the tool writes of a Deconvolution: it takes the first axis for
    the channels, ``weight_tensor->dims[0]``, which are those of the input.
    """
    weight = constant_array(input_value(node, 1))
    data = plan.input_config(node, 0).params
    if weight is None or data is None:
        return scales
    largest = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), initial=0)
    # In float32, so that the decimals are the tool's to the last one.
    found = largest.astype(np.float32) / np.float32(127)
    if role is Role.BIAS:
        found = found * np.float32(data.scale)
    return np.asarray(found, np.float64)


def _unsupported(
    activations: _Activations,
    constants: list[_Constant],
) -> Iterator[tuple[str, str]]:
    """Yield names of tensors that the tables cannot hold, and the reason."""
    for name, configs in activations.items():
        if len(configs) > 1:
            yield name, "it is quantized in several ways"
        for config in configs[:1]:
            if config.granularity.axis is not None:
                yield name, "it has a scale for each channel"
            yield from _unsupported_grid(name, config)
    first: dict[str, _Constant] = {}
    for constant in constants:
        if constant.role is Role.WEIGHT:
            yield from _unsupported_grid(constant.name, constant.config)
        other = first.setdefault(constant.name, constant)
        if not np.array_equal(other.scales, constant.scales):
            yield constant.name, "it is quantized in several ways"
    for name in (*activations, *first):
        if any(character.isspace() for character in name):
            yield name, "its name has a space, up to which Tengine reads it"


def _unsupported_grid(name: str, config: TensorQuantConfig) -> Iterator[tuple[str, str]]:
    if config.grid.exponential:
        yield name, "its levels are logarithmic"
    elif config.bits != _BITS:
        yield name, f"it has {config.bits} bits"


def _notes(plan: QuantizedGraph, activations: _Activations, rows: list[_Row]) -> Iterator[Note]:
    scales = [row.params.scale for row in rows if row.params is not None]
    rounded = [scale for scale in scales if not np.array_equal(six_decimals(scale), scale)]
    if rounded:
        yield _note(
            f"{len(rounded)} scale(s) are other numbers in the table's six decimals, with which "
            "Tengine computes",
            "use target tengine, which calibrates with these",
        )
    if any(row.is_unsigned for row in rows) and not any(row.zero_point for row in rows):
        yield _note(
            "all zero points are 0, so that the table does not show that its codes are uint8: "
            "read as calibration it is a table of int8",
            "calibrate on samples again instead",
        )
    turned = [str(n.name) for n in plan.graph.nodes if is_a(n, ConvTranspose)]
    if turned:
        yield _note(
            f"{WEIGHTS_FILE} and {BIASES_FILE} have a scale for each input channel of "
            f"{turned[0]!r} ({len(turned)} node(s)), as Tengine's tool writes them; no kernel "
            "computes with these"
        )
    bare = [name for name, configs in activations.items() if not configs]
    if bare:
        yield _note(
            f"{len(bare)} tensor(s) stay float and have no line in the table (first: {bare[0]!r}); "
            "Tengine runs nothing in float between integers"
        )


def _note(message: str, remedy: str = "") -> Note:
    return Note(NoteKind.EXPORT, "", message, remedy)


_SCALE = re.compile(r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)")

_CHANNEL = re.compile(r"[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|nan|inf)")

_ZERO_POINT = re.compile(r"[-+]?\d{1,9}")


class _Line(NamedTuple):
    place: str
    name: str
    scales: list[float]
    zero_point: int | None
    """None in a line of weights."""


_OF_INPUTS = (
    "a Deconvolution's weights and biases have a scale for each input channel there, with which no "
    "kernel computes: their scales follow from the weight"
)


def parse_table(data: bytes, source: str, graph: Graph | None = None) -> ScaleTable:
    """Read a table of activations, of weights, or both in one file.

    Channels whose scale is 0 hold zeros alone, which any scale holds: they get 1.

    Args:
        data: The file's bytes.
        source: What to call it in messages.
        graph: The model, whose Deconvolutions' constants are left out where their scales are those
            of input channels, as the tool writes them.

    Raises:
        DataError: With the number of the line that is wrong.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: not a text file", remedy="give a table as Tengine's quantization tool wrote"
        ) from error
    refuse_too_many(source, text.count("\n"))
    lines = [_parse_line(line, f"line {k}", source) for k, line in _lines(text)]
    unsigned = any(line.zero_point for line in lines)
    inputs = {} if graph is None else _input_channels(graph)
    # Scales of outputs, written by hand, are taken; with as many inputs as outputs they are
    # believed to be the tool's.
    used = [line for line in lines if inputs.get(line.name) != len(line.scales)]
    left_out = len(lines) - len(used)
    entries = [_scale_entry(line, source, unsigned=unsigned) for line in used]
    return ScaleTable.of(source, entries, {_OF_INPUTS: left_out} if left_out else None)


def _input_channels(graph: Graph) -> dict[str, int]:
    """Return how many input channels Deconvolutions have, by name of weight and bias."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        weight = constant_array(input_value(node, 1)) if is_a(node, ConvTranspose) else None
        if weight is not None:
            found |= {str(value.name): len(weight) for value in node.inputs[1:] if value}
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and content; ``splitlines`` would also cut at odd characters in a name."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _parse_line(line: str, place: str, source: str) -> _Line:
    last = line.rsplit(None, 2)  # from the right: names may hold spaces
    if len(last) == 3 and _SCALE.fullmatch(last[1]) and _ZERO_POINT.fullmatch(last[2]):
        return _Line(place, last[0], [float(last[1])], int(last[2]))
    words = line.split(" ")
    # From the right: a name may end in what looks like a number, but a scale of a channel has a
    # point.
    first = len(words)
    while first > 1 and (not words[first - 1] or _CHANNEL.fullmatch(words[first - 1])):
        first -= 1
    channels = [float(word) for word in words[first:] if word]
    if not channels:
        raise DataError(
            f"{source}: {place}: neither 'name scale zero_point' nor 'name scale scale ...': "
            f"{line[:60]!r}",
            remedy="give a table as Tengine's quantization tool wrote",
        )
    return _Line(place, " ".join(words[:first]), channels, None)


def _scale_entry(line: _Line, source: str, *, unsigned: bool) -> tuple[str, str, GivenScale]:
    try:
        if line.zero_point is None:
            return line.place, line.name, GivenScale.of([scale or 1.0 for scale in line.scales])
        scale = GivenScale.of(line.scales[0], line.zero_point, signed=not unsigned)
        return line.place, line.name, scale
    except IntactError as error:
        raise DataError(f"{source}: {line.place}: {line.name!r}: {error}") from error

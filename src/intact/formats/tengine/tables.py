r"""Tengine's tables of scales, which its quantization tool writes and reads [tengine].

``table_<method>.scale`` has a line ``"%s %f %d\n"`` for each activation: name, scale, zero point.
``scale_weight.txt`` and ``scale_bias.txt`` have for each weight and bias its name, a space, and
``"%8.8f "`` for each channel. A zero point has no decimal point, the scale of a channel has one;
by that a reader knows the lines apart. Tengine computes with the float32 numbers nearest to these
decimals: a target with ``scale_precision = "decimal6"`` has just them, for others a note names the
loss.

A table is one of int8, with zero points 0, or one of uint8, whose zero points are not all 0. Codes
of both kinds, and int8 codes with zero points, are written as the uint8 codes of the same numbers.
Weights are int8, symmetric.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.errors import DataError, IntactError
from intact.graph import Role, input_role, is_constant
from intact.numerics.conversion import six_decimals
from intact.plan import (
    Note,
    NoteKind,
    QuantizedGraph,
    quantization_points,
    quantizes,
    refuse_unready,
)
from intact.plan.given_scales import GivenScale, ScaleTable, refuse_too_many
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

    Raises:
        PlanError: An end has no scale yet.
        ExportError: What the tables cannot hold: tensors that are quantized in several ways, by
            channel, on other than 8 linear bits, or whose name has a space; all are listed.
    """
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
    scales = [config for configs in activations.values() for config in configs[:1]]
    notes = tuple(_notes(activations, scales))
    shift = _LOWEST if any(map(_is_unsigned, scales)) else 0
    lines = [_line(name, configs[0], shift) for name, configs in activations.items() if configs]
    tables = {table_name(plan): "".join(lines)}
    for file, role in ((WEIGHTS_FILE, Role.WEIGHT), (BIASES_FILE, Role.BIAS)):
        rows = {name: config for name, its_role, config in constants if its_role is role}
        tables[file] = "".join(_channels(name, config) for name, config in rows.items())
    return {name: text.encode() for name, text in tables.items()}, notes


def _activations(plan: QuantizedGraph) -> dict[str, list[TensorQuantConfig]]:
    """Return how each float activation is quantized, in the graph's order.

    A tensor inside a fusion has the scale of the fusion's result.
    """
    found: dict[str, list[TensorQuantConfig]] = {}
    for value in plan.graph.values:
        if value.dtype is ir.DataType.FLOAT and not is_constant(value) and value.name:
            found[str(value.name)] = _configs(plan, value)
    return found


def _configs(plan: QuantizedGraph, value: ir.Value) -> list[TensorQuantConfig]:
    """Return the scales under which codes of a value exist, each once."""
    producer = plan.producer_config(value)
    ends = [] if producer is None else [producer]
    ends += [config for _, _, config in plan.consumer_configs(value)]
    roots = {id(c.dominator): c.dominator for c in ends if quantizes(c) or _is_governed(c)}
    return list(roots.values())


def _is_governed(config: TensorQuantConfig) -> bool:
    return config.dominator is not config


def _constants(plan: QuantizedGraph) -> Iterator[tuple[str, Role, TensorQuantConfig]]:
    for point in quantization_points(plan):
        if point.is_constant and point.readers:
            role = input_role(*point.readers[0])
            if role in (Role.WEIGHT, Role.BIAS):
                yield str(point.value.name), role, point.config


def _unsupported(
    activations: dict[str, list[TensorQuantConfig]],
    constants: list[tuple[str, Role, TensorQuantConfig]],
) -> Iterator[tuple[str, str]]:
    """Yield names of tensors that the tables cannot hold, and the reason."""
    for name, configs in activations.items():
        if len(configs) > 1:
            yield name, "it is quantized in several ways"
        for config in configs[:1]:
            if config.granularity.axis is not None:
                yield name, "it has a scale for each channel"
            yield from _unsupported_grid(name, config)
    first: dict[str, TensorQuantConfig] = {}
    for name, role, config in constants:
        if role is Role.WEIGHT:
            yield from _unsupported_grid(name, config)
        other = first.setdefault(name, config)
        if other is not config and not np.array_equal(_scales(other), _scales(config)):
            yield name, "it is quantized in several ways"
    for name in (*activations, *first):
        if any(character.isspace() for character in name):
            yield name, "its name has a space, up to which Tengine reads it"


def _unsupported_grid(name: str, config: TensorQuantConfig) -> Iterator[tuple[str, str]]:
    if config.grid.exponential:
        yield name, "its levels are logarithmic"
    elif config.bits != _BITS:
        yield name, f"it has {config.bits} bits"


def _scales(config: TensorQuantConfig) -> npt.NDArray[np.float64]:
    return np.atleast_1d(np.asarray(config.scale, np.float64))


def _notes(
    activations: dict[str, list[TensorQuantConfig]],
    scales: list[TensorQuantConfig],
) -> Iterator[Note]:
    rounded = [
        config
        for config in scales
        if config.scale is not None and not np.array_equal(six_decimals(config.scale), config.scale)
    ]
    if rounded:
        yield _note(
            f"{len(rounded)} scale(s) are other numbers in the table's six decimals, with which "
            "Tengine computes",
            "use target tengine, which calibrates with these",
        )
    if any(map(_is_unsigned, scales)) and not any(_zero_point(config) for config in scales):
        yield _note(
            "all zero points are 0, so that the table does not show that its codes are uint8: "
            "read as calibration it is a table of int8",
            "calibrate on samples again instead",
        )
    bare = [name for name, configs in activations.items() if not configs]
    if bare:
        yield _note(
            f"{len(bare)} tensor(s) stay float and have no line in the table (first: {bare[0]!r}); "
            "Tengine runs nothing in float between integers"
        )


def _note(message: str, remedy: str = "") -> Note:
    return Note(NoteKind.EXPORT, "", message, remedy)


def _line(name: str, config: TensorQuantConfig, shift: int) -> str:
    params = config.params
    scale = 1.0 if params is None else float(params.scale)
    moved = shift if config.quant_min < 0 else 0
    return f"{name} {scale:f} {_zero_point(config) + moved}\n"


def _is_unsigned(config: TensorQuantConfig) -> bool:
    """Whether a tensor has other codes than int8 without a zero point."""
    return config.quant_min >= 0 or _zero_point(config) != 0


def _zero_point(config: TensorQuantConfig) -> int:
    return 0 if config.params is None else int(config.params.zero_point)


def _channels(name: str, config: TensorQuantConfig) -> str:
    return f"{name} " + "".join(f"{scale:8.8f} " for scale in _scales(config)) + "\n"


_SCALE = re.compile(r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)")

_CHANNEL = re.compile(r"[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|nan|inf)")

_ZERO_POINT = re.compile(r"[-+]?\d{1,9}")


class _Line(NamedTuple):
    place: str
    name: str
    scales: list[float]
    zero_point: int | None
    """None in a line of weights."""


def parse_table(data: bytes, source: str) -> ScaleTable:
    """Read a table of activations, of weights, or both in one file.

    Args:
        data: The file's bytes.
        source: What to call it in messages.

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
    lines = [_parsed(line, f"line {k}", source) for k, line in _lines(text)]
    unsigned = any(line.zero_point for line in lines)
    return ScaleTable.of(source, [_entry(line, source, unsigned=unsigned) for line in lines])


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and content; ``splitlines`` would also cut at odd characters in a name."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _parsed(line: str, place: str, source: str) -> _Line:
    last = line.rsplit(None, 2)  # from the right: names may hold spaces
    if len(last) == 3 and _SCALE.fullmatch(last[1]) and _ZERO_POINT.fullmatch(last[2]):
        return _Line(place, last[0], [float(last[1])], int(last[2]))
    words = line.split(" ")
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


def _entry(line: _Line, source: str, *, unsigned: bool) -> tuple[str, str, GivenScale]:
    try:
        if line.zero_point is None:
            return line.place, line.name, GivenScale.of(line.scales)
        scale = GivenScale.of(line.scales[0], line.zero_point, signed=not unsigned)
        return line.place, line.name, scale
    except IntactError as error:
        raise DataError(f"{source}: {line.place}: {line.name!r}: {error}") from error

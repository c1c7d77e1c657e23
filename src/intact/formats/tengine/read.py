r"""Reading Tengine's tables of scales.

``table_minmax.scale`` (and those of the KL and ACIQ searches) has a line ``"%s %f %d\n"`` for each
activation: name, scale, zero point. ``scale_weight.txt`` and ``scale_bias.txt`` have a line for
each constant: name, then ``"%8.8f "`` for each channel. The two are told apart line by line: a zero
point has no decimal point, the scale of a channel has one. Tengine quantizes with the number that
it reads back from the text, so what counts is the float32 nearest to those decimals.

Activations are int8 with zero point 0. A table in which some zero point is not 0 comes from
Tengine's uint8 tool: all its activations are uint8. Weights are int8, symmetric.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from intact.errors import DataError, IntactError
from intact.plan.given_scales import GivenScale, ScaleTable, refuse_too_many

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

"""Reads TensorRT's tables of ranges: scales that take the place of calibrating.

A calibration cache holds scales as the bits of a float32. Tensors that TensorRT named itself
(``(Unnamed Layer* 3) [Constant]_output``) are none of the model's and are left out and counted, as
are those whose scale is 0: they held nothing but zeros.

Ranges are ``amax``, or ``[low, high]`` around 0; the scale is what TensorRT makes of them, the
larger magnitude divided by 127. MQBench itself multiplies scales by 128 where its activations
start at -128; TensorRT divides by 127 all the same, and so does this.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator

import msgspec

from intact.errors import DataError, IntactError
from intact.formats.base.format import ScaleReader
from intact.formats.tensorrt.write import LARGEST_CODE
from intact.plan.given_scales import GivenScale, ScaleTable, refuse_too_many

_CACHE_START = b"TRT-"
_HEADER = re.compile(r"TRT-\d{1,9}-\w{1,64}")
# Greedy up to the last colon: names of tensors hold colons themselves ("conv:0").
_LINE = re.compile(r"(?P<name>.+): ?(?P<scale>[0-9a-fA-F]{1,8})")
_OWN_NAMES = ("(Unnamed Layer*", "(Unnamed ITensor*")
_REMEDY = "give the file that TensorRT's calibrator wrote"
_UNNAMED = "tensors that TensorRT named itself"
_ZERO = "scales of 0"


class _Ranges(msgspec.Struct):
    blob_range: dict[str, float | list[float]]


class _RangesFile(msgspec.Struct):
    tensorrt: _Ranges


class _Probe(msgspec.Struct):
    tensorrt: msgspec.Raw = msgspec.Raw()


def parse_cache(data: bytes, source: str) -> ScaleTable:
    """Read a calibration cache.

    Args:
        data: The file's bytes.
        source: What to call it in messages.

    Raises:
        DataError: With the number of the line that is wrong.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: not a text file", remedy=_REMEDY) from error
    # Counted before lines are made: a hostile file may be nothing but line ends.
    refuse_too_many(source, text.count("\n"))
    lines = list(_lines(text))
    if not lines or not _HEADER.fullmatch(lines[0][1]):
        first = lines[0][1][:60] if lines else ""
        raise DataError(
            f"{source}: its first line is {first!r}, not TRT-<version>-<calibrator>",
            remedy=_REMEDY,
        )
    found: list[tuple[str, str, GivenScale]] = []
    left_out: Counter[str] = Counter()
    for number, line in lines[1:]:
        place = f"line {number}"
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataError(
                f"{source}: {place}: not 'tensor: scale' with the scale as 8 hexadecimal digits: "
                f"{line[:60]!r}",
                remedy=_REMEDY,
            )
        name, bits = match["name"], int(match["scale"], 16)
        if name.startswith(_OWN_NAMES):
            left_out[_UNNAMED] += 1
        # As bits and not as a number: -0.0 is no scale of zeros, and is refused.
        elif not bits:
            left_out[_ZERO] += 1
        else:
            (scale,) = struct.unpack(">f", bits.to_bytes(4, "big"))
            found.append((place, name, _given(scale, name, place, source)))
    return ScaleTable.of(source, found, left_out)


def parse_ranges(data: bytes, source: str) -> ScaleTable:
    """Read ranges as MQBench writes them for TensorRT.

    Args:
        data: The file's bytes, JSON.
        source: What to call it in messages.

    Raises:
        DataError: With the tensor whose range is wrong.
    """
    try:
        ranges = msgspec.json.decode(data, type=_RangesFile).tensorrt.blob_range
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{source}: cannot be read as ranges ({error})",
            remedy='give {"tensorrt": {"blob_range": {tensor: amax}}}',
        ) from error
    refuse_too_many(source, len(ranges))
    found: list[tuple[str, str, GivenScale]] = []
    left_out: Counter[str] = Counter()
    for name, limits in ranges.items():
        place = f"blob_range[{name!r}]"
        amax = _amax(limits, place, source)
        if amax == 0:
            left_out[_ZERO] += 1
        else:
            found.append((place, name, _given(amax / LARGEST_CODE, name, place, source)))
    return ScaleTable.of(source, found, left_out)


def holds_ranges(data: bytes) -> bool:
    """Check whether a JSON document is one of ranges, and not of encodings."""
    try:
        # Only that key is decoded: the file may be large, and of another format.
        return bool(msgspec.json.decode(data, type=_Probe).tensorrt)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and content; ``splitlines`` would also cut at odd characters in a name."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _amax(limits: float | list[float], place: str, source: str) -> float:
    # A single number is the magnitude on both sides.
    if not isinstance(limits, list):
        return limits
    if len(limits) != 2 or not limits[0] <= 0 <= limits[1]:
        raise DataError(
            f"{source}: {place}: {limits[:3]} is no range around 0", remedy="give [low, high]"
        )
    return max(-limits[0], limits[1])


def _given(scale: float, name: str, place: str, source: str) -> GivenScale:
    try:
        return GivenScale.of(scale)
    except IntactError as error:
        raise DataError(f"{source}: {place}: {name!r}: {error}") from error


SCALE_READERS = (
    ScaleReader(
        lambda data: data.startswith(_CACHE_START),
        lambda data, source, _: parse_cache(data, source),
    ),
    ScaleReader(holds_ranges, lambda data, source, _: parse_ranges(data, source)),
)

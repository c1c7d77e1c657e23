"""Reads encodings: JSON tables of scales that AIMET writes and Qualcomm's converters read.

Three forms, by the major number of ``version`` (AIMET's Encoding Format Specification; a file
without a version has the first form, as SNPE's ``--quantization_overrides`` allows):

- 0.x: ``activation_encodings`` and ``param_encodings``, each ``{tensor: [encoding, ...]}`` with one
  encoding, or one a channel: ``bitwidth``, ``scale``, ``offset``, ``min``, ``max``, ``dtype``,
  ``is_symmetric``.
- 1.x: both are lists of encodings with ``name``, ``enc_type``, ``dtype``, ``bw``, ``is_sym`` and
  lists ``scale`` and ``offset``.
- 2.x: one list ``encodings`` in the terms of ONNX's QuantizeLinear: ``name``, ``output_dtype``,
  ``y_scale``, ``y_zero_point``, ``axis``.

Offsets of 0.x and 1.x are those of unsigned integers whatever the symmetry, and not positive:
``real = (q + offset) * scale`` with ``q`` in ``0..2^bits-1``. A strictly symmetric encoding
(``-127`` at 8 bits) leaves ``q = 0`` unused, and is here what it describes, zero point 0 of signed
integers. Where SNPE's form gives only ``min`` and ``max``, ``scale = (max - min) / (2^bits - 1)``
and ``offset = round(min / scale)``, in float64.

Floating-point types, blocks with scales of their own and fractional zero points are left out and
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from intact.errors import DataError, IntactError, Unsupported
from intact.formats.base.format import ScaleReader
from intact.plan.given_scales import GivenScale, ScaleTable, refuse_too_many

_Entry: TypeAlias = tuple[str, str | None, msgspec.Raw]
"""Place in the file, tensor name where the file has it outside the entry, the entry."""
_SECTIONS = ("activation_encodings", "param_encodings", "encodings")
_REMEDY = "give encodings of version 0.6.1, 1.0.0 or 2.0.0"
_ENC_TYPES = "give PER_TENSOR or PER_CHANNEL"


class _File(msgspec.Struct):
    version: str = "0.6.1"
    activation_encodings: dict[str, msgspec.Raw] | list[msgspec.Raw] | None = None
    param_encodings: dict[str, msgspec.Raw] | list[msgspec.Raw] | None = None
    encodings: list[msgspec.Raw] | None = None


class _Encoding0(msgspec.Struct):
    bitwidth: int
    dtype: str = "int"
    is_symmetric: bool | str = False
    scale: float | None = None
    offset: float | None = None
    min: float | None = None
    max: float | None = None


class _Encoding1(msgspec.Struct):
    name: str
    dtype: str
    bw: int
    enc_type: str
    is_sym: bool = False
    scale: list[float] = []
    offset: list[float] = []
    zero_point_shift: list[float] = []


class _Encoding2(msgspec.Struct):
    name: str
    output_dtype: str
    y_scale: Any = None
    y_zero_point: Any = None
    axis: int | None = None
    block_size: int | None = None


def parse_encodings(data: bytes, source: str) -> ScaleTable:
    """Read encodings of any of the three forms.

    Args:
        data: The file's bytes.
        source: What to call it in messages.

    Raises:
        DataError: With the key that is wrong.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{source}: cannot be read as encodings ({error})", remedy=_REMEDY
        ) from error
    parse = _FORMS.get(file.version.partition(".")[0])
    if parse is None:
        raise DataError(f"{source}: encodings of version {file.version!r}", remedy=_REMEDY)
    refuse_too_many(source, sum(len(getattr(file, section) or ()) for section in _SECTIONS))
    found: list[tuple[str, str, GivenScale]] = []
    left_out: Counter[str] = Counter()
    for place, name, raw in _entries(file):
        try:
            found.append((place, *parse(name, raw)))
        except Unsupported as reason:
            left_out[str(reason)] += 1
        except (IntactError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{source}: {place}: {error}") from error
    return ScaleTable.of(source, found, left_out)


def _entries(file: _File) -> Iterator[_Entry]:
    for section in _SECTIONS:
        entries = getattr(file, section) or ()
        if isinstance(entries, dict):
            yield from ((f"{section}[{name!r}]", name, raw) for name, raw in entries.items())
        else:
            yield from ((f"{section}[{k}]", None, raw) for k, raw in enumerate(entries))


def _parse_0(name: str | None, raw: msgspec.Raw) -> tuple[str, GivenScale]:
    if name is None:
        raise DataError("version 0 has encodings by tensor name, this is a list")
    encodings = msgspec.json.decode(raw, type=list[_Encoding0])
    if not encodings:
        raise Unsupported("empty")
    _refuse_float(encodings[0].dtype)
    bits = encodings[0].bitwidth
    # A tensor has one width here; channels of several would need a grid each.
    if any((each.bitwidth, each.dtype) != (bits, encodings[0].dtype) for each in encodings):
        raise DataError("its channels differ in bitwidth or dtype", remedy="give all the same")
    pairs = [_scale_and_offset(each) for each in encodings]
    signed = _is_true(encodings[0].is_symmetric)
    scale = [pair[0] for pair in pairs] if len(pairs) > 1 else pairs[0][0]
    return name, _given(scale, [pair[1] for pair in pairs], bits, signed=signed)


def _scale_and_offset(encoding: _Encoding0) -> tuple[float, float]:
    """Return both as they stand there, or from the range."""
    if encoding.scale is not None and encoding.offset is not None:
        return encoding.scale, encoding.offset
    low, high, bits = encoding.min, encoding.max, encoding.bitwidth
    if low is None or high is None or not low <= 0 <= high or low == high or not 2 <= bits <= 32:
        raise DataError(
            f"neither scale and offset, nor a range around 0 (min {low}, max {high})",
            remedy="give scale and offset",
        )
    levels = (1 << bits) - 1
    # Of a symmetric range 0 is the middle code, and the farther end fills its half.
    if _is_true(encoding.is_symmetric) and low < 0:
        return max(-low / (levels // 2 + 1), high / (levels // 2)), -(levels // 2 + 1)
    scale = (high - low) / levels
    return scale, round(low / scale) if scale else 0  # GivenScale refuses a scale of 0


def _parse_1(name: str | None, raw: msgspec.Raw) -> tuple[str, GivenScale]:
    _refuse_name(name)
    encoding = msgspec.json.decode(raw, type=_Encoding1)
    _refuse_float(encoding.dtype)
    if encoding.enc_type not in {"PER_TENSOR", "PER_CHANNEL"}:
        if encoding.enc_type not in {"PER_BLOCK", "LPBQ"}:
            raise DataError(f"enc_type is {encoding.enc_type!r}", remedy=_ENC_TYPES)
        raise Unsupported("per-block scales")
    if any(encoding.zero_point_shift):
        raise Unsupported("fractional zero points")
    per_tensor = encoding.enc_type == "PER_TENSOR" and len(encoding.scale) == 1
    scale = encoding.scale[0] if per_tensor else encoding.scale
    given = _given(scale, encoding.offset, encoding.bw, signed=encoding.is_sym)
    return encoding.name, given


def _given(
    scale: float | list[float], offsets: list[float], bits: int, *, signed: bool
) -> GivenScale:
    """Return the scale of an encoding whose offsets are those of unsigned integers."""
    if not 2 <= bits <= 32:  # before it is an exponent
        raise DataError(f"the width is {bits} bits", remedy="give 2 to 32")
    half = 1 << (bits - 1)
    zero_points = [-_whole(offset) for offset in offsets]
    if signed:
        # A strictly symmetric encoding counts from its own lowest code, one above the type's.
        zero_points = [half if zero == half - 1 else zero for zero in zero_points]
        zero_points = [zero - half for zero in zero_points]
    zeros = zero_points if isinstance(scale, list) or len(zero_points) != 1 else zero_points[0]
    return GivenScale.of(scale, zeros, bits=bits, signed=signed)


def _parse_2(name: str | None, raw: msgspec.Raw) -> tuple[str, GivenScale]:
    _refuse_name(name)
    encoding = msgspec.json.decode(raw, type=_Encoding2)
    kind = encoding.output_dtype
    _refuse_float(kind)
    if encoding.block_size is not None or isinstance(encoding.y_scale, dict):
        raise Unsupported("per-block scales")
    digits = kind.removeprefix("u").removeprefix("int")
    if not kind.removeprefix("u").startswith("int") or not digits.isdecimal():
        raise DataError(f"output_dtype is {kind!r}", remedy="give int8 or uint8, for instance")
    scale = msgspec.convert(encoding.y_scale, float | list[float])
    zeros = msgspec.convert(encoding.y_zero_point or 0, float | list[float])
    whole = [_whole(each) for each in zeros] if isinstance(zeros, list) else _whole(zeros)
    # Not parsed whatever its length: that of a hostile file has thousands of digits.
    bits = int(digits) if len(digits) < 3 else 0
    signed = not kind.startswith("u")
    return encoding.name, GivenScale.of(scale, whole, bits=bits, signed=signed, axis=encoding.axis)


_FORMS: dict[str, Callable[[str | None, msgspec.Raw], tuple[str, GivenScale]]] = {
    "0": _parse_0,
    "1": _parse_1,
    "2": _parse_2,
}


def _refuse_name(name: str | None) -> None:
    if name is not None:
        raise DataError("this version has a list of encodings, this is an object")


def _refuse_float(dtype: str) -> None:
    if dtype.lower().startswith("float"):
        raise Unsupported("floating-point types")


def _whole(number: float) -> int:
    """Return a zero point; AIMET writes whole ones as floats in places."""
    if not float(number).is_integer():
        raise Unsupported("fractional zero points")
    return int(number)


def _is_true(flag: bool | str) -> bool:
    return flag is True or str(flag).lower() == "true"


SCALE_READERS = (
    ScaleReader(
        lambda data: data.lstrip()[:1] == b"{",
        lambda data, source, _: parse_encodings(data, source),
        is_guess=True,
    ),
)

"""Operations on pairs of elements, and on single ones that are no table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intact.errors import Unsupported
from intact.formats.c.kinds import fixed_point, right_shift, zero_point
from intact.formats.c.layer import Layer, Write, encoding_of
from intact.formats.c.layers.products import output_scale
from intact.formats.c.moves import broadcast_strides, contiguous, grid
from intact.program import Encoding
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import Binary, Elementwise, Requantize
from intact.targets import Arithmetic, ScalePrecision
from intact.targets import Requantize as Method

_SUMS = (Binary.ADD, Binary.SUB, Binary.SQUARED_DIFFERENCE)
_EXTREMES = (Binary.MINIMUM, Binary.MAXIMUM)

_FURTHEST = 20
"""Bits that two power-of-two scales may lie apart, so that squared differences fit 64 bits."""

_WIDEST_SHIFT = 23
"""Bits that a difference of two 8-bit codes can go to the left inside 32."""


def write_elementwise(layer: Layer) -> None:
    """Write a sum, difference, product, squared difference, minimum or maximum."""
    operation = layer.step.operation
    if not isinstance(operation, Elementwise) or operation.kind is Binary.DIV:
        raise Unsupported("there is no integer division", "leave it out of the part on chip")
    first, second, output = layer.input(0), layer.input(1), layer.output
    encodings = [encoding_of(tensor) for tensor in (first, second, output)]
    low, high = code_bounds(layer.step.arithmetic, encodings[2], operation.bounds)
    params = layer.params(
        "elementwise",
        {
            **grid_fields(layer.shape(first), layer.shape(second), layer.shape(output)),
            **_scales(layer, operation.kind, encodings),
            "activation_min": low,
            "activation_max": high,
        },
    )
    kind = None if operation.kind in _EXTREMES else layer.kind()
    pointers = [layer.pointer(tensor) for tensor in (first, second, output)]
    layer.call_elementwise(operation.kind.value, kind, params, *pointers)


def grid_fields(
    first: Sequence[int], second: Sequence[int], output: Sequence[int]
) -> dict[str, int | Sequence[int]]:
    """Return the fields of a grid over two operands and their result."""
    strides = [broadcast_strides(first, output), broadcast_strides(second, output)]
    cells = grid(output, [*strides, contiguous(output)])
    return {
        "rows": cells.rows,
        "axes": len(cells.lengths),
        "lengths": cells.lengths,
        "first_strides": cells.strides[0],
        "second_strides": cells.strides[1],
        "length": cells.length,
        "first_step": cells.steps[0],
        "second_step": cells.steps[1],
    }


def _scales(layer: Layer, kind: Binary, encodings: Sequence[Encoding]) -> dict[str, int]:
    first, second, output = encodings
    if kind in _EXTREMES:
        if not first.same_as(output) or not second.same_as(output):
            raise Unsupported("its operands have other scales than the result", "tie the scales")
        return {}
    offsets = {
        "first_offset": -zero_point(first),
        "second_offset": -zero_point(second),
        "output_offset": zero_point(output),
    }
    if kind in _SUMS:
        return offsets | _sum_scales(layer, kind, encodings)
    real = real_multiplier(layer.step.arithmetic, [first.scale, second.scale], output)
    return offsets | output_scale(layer, layer.kind(), real)


def _sum_scales(layer: Layer, kind: Binary, encodings: Sequence[Encoding]) -> dict[str, int]:
    """Return the fields that bring two operands to one scale, and the result to its own."""
    sides, unit = (
        _aligned(encodings[:2])
        if layer.kind().shifts
        else _shifted(layer.step.arithmetic, encodings[:2])
    )
    if kind is Binary.SQUARED_DIFFERENCE:
        unit = unit**2
    real = unit / np.float64(encodings[2].scale.item())
    return sides | output_scale(layer, layer.kind(), real)


def _shifted(arithmetic: Arithmetic, sides: Sequence[Encoding]) -> tuple[dict[str, int], float]:
    """Return shares of twice the larger scale, which is the common one (TFLite's ADD)."""
    if arithmetic.requantize is Method.FIXED_POINT_SINGLE:
        raise Unsupported("it adds with one rounding", "use a target with fixed_point_double")
    if arithmetic.addition_shift > _WIDEST_SHIFT:
        raise Unsupported(f"its operands go left by {arithmetic.addition_shift} bits", "use fewer")
    narrow = arithmetic.multiplier_precision is ScalePrecision.FLOAT32
    real = np.float32 if narrow else np.float64
    scales = [real(side.scale.item()) for side in sides]
    twice = real(2) * max(scales)
    (first, first_shift), (second, second_shift) = (
        fixed_point(arithmetic, scale / twice) for scale in scales
    )
    fields = {
        "first_multiplier": int(first),
        "first_shift": int(first_shift),
        "second_multiplier": int(second),
        "second_shift": int(second_shift),
        "left_shift": arithmetic.addition_shift,
    }
    return fields, float(twice) * 2.0**-arithmetic.addition_shift


def _aligned(sides: Sequence[Encoding]) -> tuple[dict[str, int], float]:
    """Return shifts to the finer of two power-of-two scales, and that scale."""
    exponents = [-int(right_shift(side.scale).item()) for side in sides]
    finer = min(exponents)
    first, second = (exponent - finer for exponent in exponents)
    if max(first, second) > _FURTHEST:
        raise Unsupported(f"its operands' scales lie {max(first, second)} bits apart", "tie them")
    return {"first_shift": first, "second_shift": second}, 2.0**finer


def write_requantize(layer: Layer) -> None:
    """Write a conversion of codes to another scale."""
    arithmetic, source = layer.step.arithmetic, encoding_of(layer.input())
    output = encoding_of(layer.output)
    real = real_multiplier(arithmetic, [source.scale], output)
    params = layer.params(
        "requantize",
        {
            "length": layer.size(layer.output),
            "input_offset": -zero_point(source),
            **output_scale(layer, layer.kind(), real),
            "output_offset": zero_point(output),
            "activation_min": output.quant_min,
            "activation_max": output.quant_max,
        },
    )
    pointers = layer.pointer(layer.input()), layer.pointer(layer.output)
    layer.call("requantize_codes", params, *pointers, kind=layer.kind())


WRITERS: dict[type, Write] = {
    Elementwise: write_elementwise,
    Requantize: write_requantize,
}

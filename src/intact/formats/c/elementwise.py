"""Writes sums, products, functions and softmax as calls of C kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.c.layer import WRITERS, Layer, encoding_of
from intact.formats.c.moves import broadcast_strides, contiguous, grid
from intact.formats.c.products import output_scale
from intact.formats.c.requantization import fixed_point, right_shift, zero_point
from intact.numerics.fixed_point import (
    INT32_MAX,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from intact.numerics.fixed_point_functions import exp_on_negative_values
from intact.program import Encoding
from intact.program.arithmetic.fixed_functions import fraction_bits
from intact.program.arithmetic.functions import function_of_codes
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import Binary, Elementwise, Function, PRelu, Requantize, Softmax
from intact.targets import Arithmetic, FixedPoint, Functions, Multiplier, Product

_SUMS = (Binary.ADD, Binary.SUB, Binary.SQUARED_DIFFERENCE)

_EXTREMES = (Binary.MINIMUM, Binary.MAXIMUM)

_FURTHEST = 20
"""Bits that two power-of-two scales may lie apart, so that squared differences fit 64 bits."""

_WIDEST_SHIFT = 23
"""Bits that a difference of two 8-bit codes can go to the left inside 32."""


@WRITERS.register(Elementwise)
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
    # Extremes compare codes of one scale, and scale nothing.
    kind = None if operation.kind in _EXTREMES else layer.requantization()
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
    return offsets | output_scale(layer, layer.requantization(), real)


def _sum_scales(layer: Layer, kind: Binary, encodings: Sequence[Encoding]) -> dict[str, int]:
    """Return the fields that bring two operands to one scale, and the result to its own."""
    sides, unit = (
        _aligned(encodings[:2])
        if layer.requantization().shifts
        else _shifted(layer.step.arithmetic, encodings[:2])
    )
    if kind is Binary.SQUARED_DIFFERENCE:
        # The square of a difference is on the square of its scale.
        unit = unit**2
    real = unit / np.float64(encodings[2].scale.item())
    return sides | output_scale(layer, layer.requantization(), real)


def _shifted(arithmetic: Arithmetic, sides: Sequence[Encoding]) -> tuple[dict[str, int], float]:
    """Return shares of twice the larger scale, which is the common one (TFLite's ADD)."""
    way = arithmetic.requantize
    if not isinstance(way, FixedPoint) or way.product is Product.SINGLE:
        raise Unsupported("it adds with one rounding", "use fixed_point with product = double")
    if way.addition_shift > _WIDEST_SHIFT:
        raise Unsupported(f"its operands go left by {way.addition_shift} bits", "use fewer")
    narrow = arithmetic.multiplier is Multiplier.FLOAT32
    # In the runtime's own precision, which decides the last bits of the multipliers.
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
        "left_shift": way.addition_shift,
    }
    return fields, float(twice) * 2.0**-way.addition_shift


def _aligned(sides: Sequence[Encoding]) -> tuple[dict[str, int], float]:
    """Return shifts to the finer of two power-of-two scales, and that scale."""
    exponents = [-int(right_shift(side.scale).item()) for side in sides]
    finer = min(exponents)
    first, second = (exponent - finer for exponent in exponents)
    if max(first, second) > _FURTHEST:
        raise Unsupported(f"its operands' scales lie {max(first, second)} bits apart", "tie them")
    return {"first_shift": first, "second_shift": second}, 2.0**finer


@WRITERS.register(Requantize)
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
            **output_scale(layer, layer.requantization(), real),
            "output_offset": zero_point(output),
            "activation_min": output.quant_min,
            "activation_max": output.quant_max,
        },
    )
    pointers = layer.pointer(layer.input()), layer.pointer(layer.output)
    layer.call("requantize_codes", params, *pointers, kind=layer.requantization())


_DIFFERENCE_BITS = 5
"""Integer bits of a difference to the largest code: ``exp(-2**5)`` is nothing."""

_LONGEST_ROW = {False: 8191, True: 4095}
"""Elements whose exponentials sum up in 32 bits with 19 behind the point; a logarithm takes their
sum with a sign.
"""


@WRITERS.register(Function)
def write_function(layer: Layer) -> None:
    """Write a function of one code as a table of 256."""
    data, output, operation = layer.input(), layer.output, layer.step.operation
    if not isinstance(operation, Function):
        return
    encodings = encoding_of(data), encoding_of(output)
    # A table needs none, but is refused like all else where a target requantizes in floats.
    layer.requantization()
    every_code = np.arange(-128, 128)
    table = function_of_codes(operation, layer.step.arithmetic, every_code, *encodings)
    name = layer.array(table.astype(np.int8), "_table", "codes of the function of -128 to 127")
    pointers = layer.pointer(layer.input()), layer.pointer(layer.output)
    layer.call("lookup", name, *pointers, layer.size(layer.output))


@WRITERS.register(PRelu)
def write_prelu(layer: Layer) -> None:
    """Write a PRelu with constant slopes."""
    data, slope, output = layer.input(0), layer.input(1), layer.output
    encodings = [encoding_of(tensor) for tensor in (data, slope, output)]
    arithmetic, kind = layer.step.arithmetic, layer.requantization()
    # Two multipliers: what is not negative is only rescaled, the rest takes the slope's scale as
    # well.
    above = real_multiplier(arithmetic, [encodings[0].scale], encodings[2])
    scales = [encoding.scale for encoding in encodings[:2]]
    below = real_multiplier(arithmetic, scales, encodings[2])
    fields = {
        "first_offset": -zero_point(encodings[0]),
        "second_offset": -zero_point(encodings[1]),
        "output_offset": zero_point(encodings[2]),
        "activation_min": encodings[2].quant_min,
        "activation_max": encodings[2].quant_max,
    }
    for prefix, real in (("output", above), ("second", below)):
        # A multiplier of a power of two is 1 and its shift: the kernel saves the product.
        if kind.shifts:
            fields[f"{prefix}_shift"] = int(right_shift(real).item())
            continue
        multiplier, shift = fixed_point(arithmetic, real)
        fields |= {
            f"{prefix}_multiplier": int(multiplier.item()),
            f"{prefix}_shift": int(shift.item()),
        }
    shapes = [layer.shape(tensor) for tensor in (data, slope, output)]
    params = layer.params("elementwise", {**grid_fields(*shapes), **fields})
    pointers = [layer.pointer(tensor) for tensor in (data, slope, output)]
    layer.call_elementwise("prelu", kind, params, *pointers)


@WRITERS.register(Softmax)
def write_softmax(layer: Layer) -> None:
    """Write a softmax, or its logarithm, in fixed point."""
    operation = layer.step.operation
    if not isinstance(operation, Softmax):
        raise Unsupported("it is no softmax", "")
    source, output = encoding_of(layer.input()), encoding_of(layer.output)
    if layer.step.arithmetic.functions is not Functions.FIXED_POINT:
        raise Unsupported(
            "its exponentials are floats", "use a target with functions = fixed_point"
        )
    scale, offset = float(output.scale.item()), zero_point(output)
    fraction = fraction_bits(scale)
    # The scale that TFLite prescribes; its kernel has the shift of that scale built in.
    if operation.log and (scale, offset) != (2.0**-4, 127):
        raise Unsupported(
            f"its result is not on a scale of {2.0**-4} with zero point 127",
            "fix its output scale so",
        )
    if fraction is None:
        raise Unsupported("the scale of its result is no power of two up to 1", "fix it so")
    shape = layer.shape(layer.input())
    axis = operation.axis % len(shape)
    longest = _LONGEST_ROW[operation.log]
    if shape[axis] > longest:
        raise Unsupported(f"its rows have {shape[axis]} elements", f"C holds {longest}")
    differences, reach = _differences(source)
    params = layer.params(
        "softmax",
        {
            "outer": math.prod(shape[:axis]),
            "length": shape[axis],
            "inner": math.prod(shape[axis + 1 :]),
            "reach": reach,
            "fraction": fraction,
            "output_offset": offset,
            "activation_min": output.quant_min,
            "activation_max": output.quant_max,
        },
    )
    exponentials = exp_on_negative_values(differences, _DIFFERENCE_BITS)
    # Beyond the reach differences count as 0, whose exponential is 1.
    exponentials[reach:] = 0
    note = "exp(-d * scale) for differences d of 0 to 255, fractions of 2^31"
    arguments = [params, layer.array(exponentials.astype(np.int32), "_exponentials", note)]
    if operation.log:
        note = "-d * scale for differences d of 0 to 255, 26 bits behind the point"
        arguments.append(layer.array(differences.astype(np.int32), "_differences", note))
    pointers = layer.pointer(layer.input()), layer.pointer(layer.output)
    layer.call("log_softmax" if operation.log else "softmax", *arguments, *pointers)


def _differences(source: Encoding) -> tuple[npt.NDArray[np.int64], int]:
    """Return differences ``0, -1 ... -255`` in Q5, and how many of them are near enough to count.

    Scaled as TFLite's ``PreprocessSoftmaxScaling`` has it; beyond the radius of its
    ``CalculateInputRadius`` they are 0.
    """
    whole = 31 - _DIFFERENCE_BITS
    real = min(np.float64(source.scale.item()) * 2.0**whole, float(INT32_MAX))
    multiplier, shift = quantize_multiplier(real)
    # Beyond it a difference does not fit Q5.26 and would wrap.
    radius = int(((1 << _DIFFERENCE_BITS) - 1) * 2.0 ** (whole - int(shift)))
    steps = np.arange(256, dtype=np.int64)
    near = np.where(steps <= radius, -steps, 0)
    return multiply_by_quantized_multiplier(near, multiplier, shift), min(radius + 1, 256)

"""Functions: those of one code as tables, softmax with a table of its exponentials."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.c.kinds import fixed_point, right_shift, zero_point
from intact.formats.c.layer import Layer, Write, encoding_of
from intact.formats.c.layers.elementwise import grid_fields
from intact.numerics.fixed_point import (
    INT32_MAX,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from intact.numerics.fixed_point_functions import exp_on_negative_values
from intact.program import Encoding
from intact.program.arithmetic.fixed_functions import fraction_bits
from intact.program.arithmetic.functions import function_of_codes
from intact.program.arithmetic.requantize import real_multiplier
from intact.program.operations import Function, PRelu, Softmax
from intact.targets import Functions

_DIFFERENCE_BITS = 5
"""Integer bits of a difference to the largest code: ``exp(-2**5)`` is nothing."""

_LONGEST_ROW = 4095
"""Elements whose exponentials sum up in 32 bits with 19 behind the point."""


def write_function(layer: Layer) -> None:
    """Write a function of one code as a table of 256."""
    data, output, operation = layer.input(), layer.output, layer.step.operation
    if not isinstance(operation, Function):
        return
    encodings = encoding_of(data), encoding_of(output)
    layer.kind()
    every_code = np.arange(-128, 128)
    table = function_of_codes(operation, layer.step.arithmetic, every_code, *encodings)
    name = layer.array(table.astype(np.int8), "_table", "codes of the function of -128 to 127")
    pointers = layer.pointer(layer.input()), layer.pointer(layer.output)
    layer.call("lookup", name, *pointers, layer.size(layer.output))


def write_prelu(layer: Layer) -> None:
    """Write a PRelu with constant slopes."""
    data, slope, output = layer.input(0), layer.input(1), layer.output
    encodings = [encoding_of(tensor) for tensor in (data, slope, output)]
    arithmetic, kind = layer.step.arithmetic, layer.kind()
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
    if operation.log and (scale, offset) != (2.0**-4, 127):
        raise Unsupported(
            f"its result is not on a scale of {2.0**-4} with zero point 127",
            "fix its output scale so",
        )
    if fraction is None:
        raise Unsupported("the scale of its result is no power of two up to 1", "fix it so")
    shape = layer.shape(layer.input())
    axis = operation.axis % len(shape)
    if shape[axis] > _LONGEST_ROW:
        raise Unsupported(f"its rows have {shape[axis]} elements", f"C holds {_LONGEST_ROW}")
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
    radius = int(((1 << _DIFFERENCE_BITS) - 1) * 2.0 ** (whole - int(shift)))
    steps = np.arange(256, dtype=np.int64)
    near = np.where(steps <= radius, -steps, 0)
    return multiply_by_quantized_multiplier(near, multiplier, shift), min(radius + 1, 256)


WRITERS: dict[type, Write] = {
    Function: write_function,
    PRelu: write_prelu,
    Softmax: write_softmax,
}

"""Makes the integer engine's kernels for functions of one operand: Sigmoid, Tanh, Gelu, PRelu.

Of 8 or 16 bits there are few codes, so a function is computed once for each of them, when the step
is prepared, and is a table look-up from then on.
"""

from __future__ import annotations

import numpy as np

from intact.engines.integer.kernel import (
    KERNELS,
    Compute,
    Kernel,
    Overflows,
    kernel_of,
    operation_of,
    per_tensor,
)
from intact.engines.integer.pointwise.conversions import every_code, look_up, table_bits
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.functions import function_of_codes
from intact.program.arithmetic.reals import to_codes, to_reals
from intact.program.arithmetic.requantize import Requantizer, real_multiplier, real_type
from intact.program.operations import Function, PRelu
from intact.targets import Arithmetic, Float


@KERNELS.register(Function)
def prepare_function(step: Step, _: Overflows) -> Kernel:
    """Make the kernel of a :class:`Function`."""
    operation = operation_of(step, Function)
    data, output = per_tensor(step, step.inputs[0]), per_tensor(step, step.outputs[0])

    def evaluate(codes: Array) -> Array:
        wide = codes.astype(np.int64)
        return function_of_codes(operation, step.arithmetic, wide, data, output)

    if not table_bits(data):
        return kernel_of(step, evaluate)
    table = evaluate(every_code(data))
    return kernel_of(step, lambda codes: look_up(table, codes))


@KERNELS.register(PRelu)
def prepare_prelu(step: Step, _: Overflows) -> Kernel:
    """Make the kernel of a :class:`PRelu`: products with the slope below 0, else the data."""
    arithmetic = step.arithmetic
    data, output = per_tensor(step, step.inputs[0]), per_tensor(step, step.outputs[0])
    slopes = per_tensor(step, step.inputs[1])
    if isinstance(arithmetic.requantize, Float):
        return kernel_of(step, _prelu_in_float(arithmetic, data, slopes, output))
    above = Requantizer(arithmetic, real_multiplier(arithmetic, [data.scale], output), output)
    factors = [data.scale, slopes.scale]
    below = Requantizer(arithmetic, real_multiplier(arithmetic, factors, output), output)

    def compute(codes: Array, slope: Array) -> Array:
        steps = codes.astype(np.int64) - int(data.zero_point)
        slope_steps = slope.astype(np.int64) - int(slopes.zero_point)
        return np.where(steps < 0, below(steps * slope_steps), above(steps))

    return kernel_of(step, compute)


def _prelu_in_float(
    arithmetic: Arithmetic, data: Encoding, slopes: Encoding, output: Encoding
) -> Compute:
    kind = real_type(arithmetic)

    def compute(codes: Array, slope: Array) -> Array:
        real = to_reals(codes, data, kind)
        sloped = np.where(real < 0, real * to_reals(slope, slopes, kind), real)
        return to_codes(sloped, arithmetic, output)

    return compute

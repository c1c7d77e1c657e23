"""Kernels of two operands: each code pair of 8-bit operands is computed once, then looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from intact.program import Array, Encoding, Step
from intact.program.arithmetic.ends import effective, ends_codes, has_ends
from intact.program.arithmetic.reals import Reals, real_type, to_codes, to_reals
from intact.program.arithmetic.requantize import Requantizer, code_bounds, real_multiplier
from intact.program.operations import Binary, Bounds, Elementwise
from intact.run.integer.kernel import Kernel, Overflows, Prepare
from intact.run.integer.operands import Compute, encoding_of, kernel_of, operation_of
from intact.run.integer.pointwise.additions import addition, squared_difference
from intact.run.integer.pointwise.conversions import recoder
from intact.run.integer.pointwise.tables import every_code, look_up_pairs, table_bits
from intact.targets import Arithmetic, Requantize

_FLOATS = (Requantize.FLOAT32, Requantize.FLOAT64)

_ON_REALS: dict[Binary, Callable[[Reals, Reals], Reals]] = {
    Binary.ADD: np.add,
    Binary.SUB: np.subtract,
    Binary.MUL: np.multiply,
    Binary.DIV: np.divide,
    Binary.SQUARED_DIFFERENCE: lambda first, second: np.square(first - second),
    Binary.MINIMUM: np.minimum,
    Binary.MAXIMUM: np.maximum,
}


@dataclass(frozen=True)
class _Operation:
    """What is computed between codes of which encodings, and how."""

    kind: Binary
    arithmetic: Arithmetic
    first: Encoding
    second: Encoding
    output: Encoding
    bounds: Bounds
    repeats_first: bool

    @property
    def per_channel(self) -> bool:
        """Whether one of the three has scales by channel."""
        return any(e.axis is not None for e in (self.first, self.second, self.output))


def _elementwise(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Elementwise)
    first, second = (encoding_of(step, tensor) for tensor in step.inputs)
    output = encoding_of(step, step.outputs[0])
    kind, bounds = operation.kind, operation.bounds
    ends = (first, second, output, bounds)
    compute = _compute(_Operation(kind, step.arithmetic, *ends, _repeats_first(step)))
    if not table_bits(first) == table_bits(second) == 8 or output.axis is not None:
        return kernel_of(step, compute)
    table = compute(every_code(first)[:, None], every_code(second)[None, :])
    return kernel_of(step, lambda left, right: look_up_pairs(table, left, right))


def _repeats_first(step: Step) -> bool:
    """Tell whether the first operand is repeated along the model's last axis that is not 1 long."""
    output = step.outputs[0]
    rank = len(output.shape)
    shapes = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in step.inputs if tensor]
    order = range(rank) if output.permutation is None else np.argsort(output.permutation)
    for axis in reversed(order):
        lengths = shapes[0][axis], shapes[1][axis]
        if lengths != (1, 1):
            return bool(lengths[0] == 1)
    return False


def _compute(operation: _Operation) -> Compute:
    """Return the function from two arrays of codes that broadcast to codes of the output."""
    kind = operation.kind
    in_turn = kind is Binary.MUL and operation.arithmetic.scales_in_turn
    if operation.per_channel or kind is Binary.DIV or in_turn:
        return _on_reals(operation)
    if kind in (Binary.MINIMUM, Binary.MAXIMUM):
        return _extreme(operation)
    if kind is Binary.MUL:
        return (_scaled_product if has_ends(operation.arithmetic) else _product)(operation)
    arguments = (operation.first, operation.second, operation.output, operation.bounds)
    if kind in (Binary.ADD, Binary.SUB):
        sign = 1 if kind is Binary.ADD else -1
        repeats = operation.repeats_first
        added = addition(operation.arithmetic, *arguments, sign=sign, repeats_first=repeats)
        return added or _on_reals(operation)
    return squared_difference(operation.arithmetic, *arguments) or _on_reals(operation)


def _on_reals(operation: _Operation) -> Compute:
    """Return what dequantises, computes in floats and quantises: an operator that is not fused."""
    kind = real_type(operation.arithmetic)
    function = _ON_REALS[operation.kind]
    operands = [effective(operation.arithmetic, e) for e in (operation.first, operation.second)]

    def compute(first: Array, second: Array) -> Array:
        left = to_reals(first, operands[0], kind)
        right = to_reals(second, operands[1], kind)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            reals = np.asarray(function(left, right))
        return to_codes(reals, operation.arithmetic, operation.output, operation.bounds)

    return compute


def _scaled_product(operation: _Operation) -> Compute:
    """Multiply the first operand by both scales, then by the second (OpenVINO).

    Measured with openvino 2026.4.1: 0 of 20 * 65536 code pairs differ.
    """
    arithmetic, operands = operation.arithmetic, (operation.first, operation.second)
    scales = [np.float32(effective(arithmetic, each).scale.item()) for each in operands]
    zeros = [each.zero_point.item() for each in operands]
    limits = code_bounds(arithmetic, operation.output, operation.bounds)
    factor = scales[0] * scales[1]

    def compute(first: Array, second: Array) -> Array:
        scaled = (first.astype(np.int64) - zeros[0]).astype(np.float32) * factor
        product = scaled * (second.astype(np.int64) - zeros[1]).astype(np.float32)
        return ends_codes(product, arithmetic, operation.output, limits)

    return compute


def _product(operation: _Operation) -> Compute:
    scales = [operation.first.scale, operation.second.scale]
    multiplier = real_multiplier(operation.arithmetic, scales, operation.output)
    requantize = Requantizer(operation.arithmetic, multiplier, operation.output, operation.bounds)
    zeros = operation.first.zero_point.item(), operation.second.zero_point.item()

    def compute(first: Array, second: Array) -> Array:
        product = (first.astype(np.int64) - zeros[0]) * (second.astype(np.int64) - zeros[1])
        return requantize(product)

    return compute


def _extreme(operation: _Operation) -> Compute:
    """Return the smaller or larger of two codes, once both are the output's.

    Bringing a code to another scale keeps the order, so that it may come first.
    """
    left, right = (
        recoder(operation.arithmetic, source, operation.output)
        for source in (operation.first, operation.second)
    )
    low, high = code_bounds(operation.arithmetic, operation.output, operation.bounds)
    choose = np.minimum if operation.kind is Binary.MINIMUM else np.maximum

    def compute(first: Array, second: Array) -> Array:
        chosen = choose(left(first), right(second))
        clamped: Array = np.clip(chosen, low, high)
        return clamped

    return compute


KERNELS: dict[type, Prepare] = {Elementwise: _elementwise}

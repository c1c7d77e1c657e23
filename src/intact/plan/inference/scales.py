"""The scale of an operator's result before it is requantised, from the scales of its inputs.

Source: the TVM document (HAGO), "Scale Inference", where a convolution's is the product of those of
data and weight; facts, "HAGO, Scale inference": otherwise that of the inputs, which must agree.
Added to that: means, whose sums have a scale of their own, and operators whose result is no
integer of any one scale (a sigmoid, a quotient).

Scales are float64: the product of two float32 scales is exact in it, anything else rounds once an
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import OPS, moves_values
from intact.targets.means import averaged_elements

Scale: TypeAlias = npt.NDArray[np.float64]
"""Positive, float64; ``[]``, or of a shape that broadcasts against the tensor."""

ScaleInference: TypeAlias = Callable[[ir.Node, Sequence[Scale]], Scale | None]
"""A node and the scales of its factors (data inputs, then the weight; biases and parameters
are left out) give the scale of its result; None where that is no integer of one scale."""

SCALE_INFERENCES: dict[str, ScaleInference] = {}
"""The function of each operator type. An operator without one has results of no one scale."""


def infers_scale(*op_types: str) -> Callable[[ScaleInference], ScaleInference]:
    """Register a function for some operator types; a later registration replaces an earlier one.

    >>> @infers_scale("MyShiftLeft")
    ... def doubled(node, scales):
    ...     return scales[0] * 2
    >>> SCALE_INFERENCES.pop("MyShiftLeft") is doubled
    True
    """

    def register(function: ScaleInference) -> ScaleInference:
        SCALE_INFERENCES.update(dict.fromkeys(op_types, function))
        return function

    return register


def infer_scale(node: ir.Node, scales: Sequence[Scale | None]) -> Scale | None:
    """Return the scale of a node's result before it is requantised.

    Args:
        node: A quantised node.
        scales: Of its factors; None where one is float.

    Returns:
        None where the result is no integer of one scale.
    """
    function = SCALE_INFERENCES.get(node.op_type) if node.domain == "" else None
    known = [scale for scale in scales if scale is not None]
    if function is None or not known or len(known) < len(scales):
        return None
    return function(node, known)


@infers_scale("Conv", "ConvTranspose", "MatMul", "Mul")
def product_of_scales(_: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """Integers are multiplied: so are their scales."""
    product = scales[0]
    for scale in scales[1:]:
        product = np.asarray(product * scale, np.float64)
    return product


@infers_scale("Gemm")
def scale_of_dense(node: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """As a product, where no factors stand before it (graph/passes/plain_gemm.py folds them)."""
    factors = (node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0))
    return product_of_scales(node, scales) if factors == (1.0, 1.0) else None


@infers_scale("Add", "Sub", "Sum", "Max", "Min", "Concat", "Where")
def common_scale(_: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """Integers that are added, compared or put side by side must mean the same a step."""
    agree = all(np.array_equal(scale, scales[0]) for scale in scales[1:])
    return scales[0] if agree else None


@infers_scale("Relu", "Clip", "Abs", "Neg", "ReduceSum", "CumSum")
def own_scale(_: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """Integers stay on the grid of the input.

    The bounds of a Clip need not be integers of it.
    """
    return scales[0]


@infers_scale(*(op_type for op_type, spec in OPS.items() if spec.moves_values))
def moved_scale(node: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """Integers are handed on; where they have several scales, an axis may have gone elsewhere."""
    if not moves_values(node):
        return None
    return scales[0] if scales[0].ndim == 0 else None


@infers_scale("AveragePool", "GlobalAveragePool", "ReduceMean")
def scale_of_mean(node: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """A mean of n elements is their sum in steps of an n-th of the input's."""
    count = averaged_elements(node)
    return None if count is None else np.asarray(scales[0] / count, np.float64)

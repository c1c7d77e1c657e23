"""Computes mean and variance of activations from folded BatchNormalizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from intact.graph import Graph
from intact.graph.ops import clamp_bounds, function_options
from intact.improve.layers import Doubles
from intact.numerics.clipped_normal import clipped_moments
from intact.ops.operators import CLAMPS, Concat

Moments = tuple[Doubles, Doubles]
"""Mean and variance of each channel, ``[channels]``."""


def expected_moments(graph: Graph) -> Mapping[ir.Value, Moments]:
    """Return what is known of tensors.

    A layer's result is normal, with mean ``beta`` and deviation ``|gamma|``. Operators behind it
    take their input as normal, and the operands of sums as independent.

    Source: [dfq], section 4.2.1.
    """
    found: dict[ir.Value, Moments] = {}
    for node in graph.nodes:
        norm = graph.batch_norms.get(str(node.name))
        if norm is not None:
            gamma = norm.gamma.astype(np.float64)
            found[node.outputs[0]] = norm.beta.astype(np.float64), gamma**2
            continue
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        moments = None if rule is None else rule(graph, node, found)
        if moments is not None:
            found[node.outputs[0]] = moments
    return found


Found = Mapping[ir.Value, Moments]


def _first(node: ir.Node, found: Found) -> Moments | None:
    value = node.inputs[0]
    return None if value is None else found.get(value)


def _pass_on(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    return _first(node, found)


def _clamp(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    known, bounds = _first(node, found), clamp_bounds(node)
    return None if known is None or bounds is None else clipped_moments(*known, *bounds)


def _leaky(graph: Graph, node: ir.Node, found: Found) -> Moments | None:
    known = _first(node, found)
    slope: Doubles | float
    if node.op_type == "PRelu":
        array = graph.constant(node.inputs[1])
        if array is None or known is None or array.size not in (1, known[0].size):
            return None
        slope = array.astype(np.float64).reshape(-1)
    else:
        slope = float(function_options(node)[0])
    if known is None:
        return None
    mean, variance = known
    above, spread = clipped_moments(mean, variance, 0.0)
    first = above + slope * (mean - above)
    squares = spread + above**2
    second = squares + slope**2 * (variance + mean**2 - squares)
    # The difference of two near numbers may come out below 0.
    return first, np.maximum(second - first**2, 0.0)


def _average(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    known = _first(node, found)
    # A mean over positions hardly varies: how much is not known, and taken as nothing.
    return None if known is None else (known[0], np.zeros_like(known[1]))


def _flatten(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    known, shape = _first(node, found), node.outputs[0].shape
    # Where other axes than the batch are left, elements and no longer channels have the moments.
    is_plain = known is not None and shape is not None and tuple(shape)[1:] == (known[0].size,)
    return known if is_plain else None


def _add(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    parts = [found.get(value) for value in node.inputs if value is not None]
    known = [each for each in parts if each is not None]
    if len(known) != len(parts) or len({each[0].size for each in known}) != 1:
        return None
    return np.sum([mean for mean, _ in known], axis=0), np.sum([v for _, v in known], axis=0)


def _concatenate(_: Graph, node: ir.Node, found: Found) -> Moments | None:
    parts = [found.get(value) for value in node.inputs if value is not None]
    known = [each for each in parts if each is not None]
    # Channels follow one another only where they are what is joined.
    if len(known) != len(parts) or Concat.of(node).axis != 1:
        return None
    return np.concatenate([mean for mean, _ in known]), np.concatenate([v for _, v in known])


_RULES: Mapping[str, Callable[[Graph, ir.Node, Found], Moments | None]] = {
    "Identity": _pass_on,
    **dict.fromkeys(CLAMPS, _clamp),
    "LeakyRelu": _leaky,
    "PRelu": _leaky,
    "AveragePool": _average,
    "GlobalAveragePool": _average,
    "Flatten": _flatten,
    "Reshape": _flatten,
    "Squeeze": _flatten,
    "Add": _add,
    "Sum": _add,
    "Concat": _concatenate,
}

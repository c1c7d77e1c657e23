"""Compares layers with weights in blocks with the engine, each from the runtime's own inputs.

What such a layer computes is in floats on both sides, whose sums may be taken in another order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.formats.base.float_layers import FloatComparison
from intact.graph import constant_array, input_value
from intact.graph.tied_tables import is_looked_up
from intact.numerics.dynamic import DynamicQuantizer
from intact.ops.operators import Gemm, is_a
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd, quantization_points
from intact.plan.dynamic import dynamic_quantizer, is_dynamic


class BlockLayers:
    """Compares what layers with weights in blocks give.

    Args:
        plan: The plan.
        ports: Names of the inputs and outputs of what was written, which are seen anyway.

    Attributes:
        watched: Names of the values between that the runtime has to show.
    """

    def __init__(self, plan: QuantizedGraph, ports: Collection[str]) -> None:
        self._layers = [
            _Layer.of(plan, node, slot, point)
            for point in quantization_points(plan)
            if point.is_constant and point.config.grid.block is not None
            for node, slot in point.readers
        ]
        names = [name for each in self._layers for name in (each.source, each.result)]
        self.watched = tuple(name for name in dict.fromkeys(names) if name not in ports)

    @property
    def layers(self) -> list[FloatComparison]:
        """What was found, in the order of the plan."""
        return [each.found for each in self._layers]

    def add(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Compare one batch, with inputs, outputs and what is watched by name."""
        for each in self._layers:
            data = values[each.source]
            each.found.add(values[each.result], each.expected(data), partial(each.terms, data))


class _Layer(msgspec.Struct, frozen=True):
    """One layer, and what it reads and gives in the written model."""

    node: ir.Node
    point: QuantPoint
    source: str
    result: str
    is_table: bool
    quantizer: DynamicQuantizer | None
    found: FloatComparison

    @staticmethod
    def of(plan: QuantizedGraph, node: ir.Node, slot: int, point: QuantPoint) -> _Layer:
        # A table is read at slot 0 and its indices at slot 1; a product has its data at slot 0.
        at = 1 if is_looked_up(node, slot) else 0
        source, quantizer = node.inputs[at], None
        if at == 0 and is_dynamic(plan, node, 0):
            grid = plan.input_config(node, 0).grid
            quantizer = dynamic_quantizer(grid, plan.arithmetic_of(node))
        what = f"{node.op_type} with weights in blocks"
        found = FloatComparison(str(TensorEnd.output(str(node.name))), what)
        names = "" if source is None else str(source.name), str(node.outputs[0].name)
        return _Layer(node, point, *names, at == 1, quantizer, found)

    def terms(self, data: npt.NDArray[Any]) -> float:
        """Return the largest sum of the magnitudes of the terms of a result."""
        if self.is_table:
            # A row that is looked up is no sum: nothing cancels, and the result explains itself.
            return 0.0
        sums = _product(self.node, np.abs(data), _magnitudes(self.point), biased=False)
        return float(sums.max(initial=0.0))

    def expected(self, data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Compute the layer from what the runtime gave it."""
        weight = self.point.config.dequantize(self.point.constant_codes())
        if self.is_table:
            return np.take(weight, data, 0)
        # The runtime quantizes its input while running, by the same rule; only then are the sums
        # the same.
        if self.quantizer is not None:
            data = self.quantizer.fake_quantize(data)
        return _product(self.node, data, weight)


def _magnitudes(point: QuantPoint) -> npt.NDArray[np.float32]:
    """Return the magnitudes of a weight's numbers, each with that of its zero point.

    Kernels multiply codes without sign, and subtract what the zero point gives.
    """
    config, codes = point.config, point.constant_codes()
    # What the lowest code stands for is how far the zero point moves each term.
    zeros = np.zeros(codes.shape, np.int32) + config.quant_min
    apart = np.abs(config.dequantize(codes)) + np.abs(config.dequantize(zeros))
    return np.asarray(apart, np.float32)


def _product(
    node: ir.Node,
    data: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    *,
    biased: bool = True,
) -> npt.NDArray[np.float32]:
    if not is_a(node, Gemm):
        return data @ weight
    product = data @ (weight.T if Gemm.of(node).transB else weight)
    bias = constant_array(input_value(node, 2)) if biased else None
    return product if bias is None else product + bias

"""Layers with weights in blocks, each from the runtime's own inputs, against floats.

What such a layer computes is in floats on both sides, whose sums may be taken in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import PlanError
from intact.formats.base.float_layers import FloatComparison
from intact.formats.base.storage import is_looked_up
from intact.formats.onnx_qdq.write import QDQ_FILE, QdqModel
from intact.graph import constant_array, input_value
from intact.ops.operators import Gemm
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd, quantization_points

_Arrays = Mapping[TensorEnd, npt.NDArray[Any]]


class BlockLayers:
    """Compares what layers with weights in blocks give.

    Args:
        plan: The plan.
        exported: What was written from it.

    Attributes:
        watched: Names of the values that the runtime has to show, by the ends of the plan.
        ports: Those that are inputs or outputs of the model.
    """

    def __init__(self, plan: QuantizedGraph, exported: QdqModel) -> None:
        self._layers: list[tuple[ir.Node, QuantPoint, FloatComparison]] = []
        self.watched: dict[TensorEnd, str] = {}
        self.ports: dict[TensorEnd, str] = {}
        graph = exported.model.graph
        ports = {str(value.name) for value in (*graph.inputs, *graph.outputs)}
        for point in quantization_points(plan):
            for node, slot in point.readers:
                if TensorEnd.input(str(node.name), slot) not in exported.blocks:
                    continue
                data = 1 if is_looked_up(node, slot) else 0
                ends = (TensorEnd.input(str(node.name), data), TensorEnd.output(str(node.name)))
                for end, value in zip(ends, (node.inputs[data], node.outputs[0]), strict=True):
                    name = "" if value is None else str(value.name)
                    (self.ports if name in ports else self.watched)[end] = name
                found = FloatComparison(str(ends[1]), f"{node.op_type} with weights in blocks")
                self._layers.append((node, point, found))

    @property
    def layers(self) -> list[FloatComparison]:
        """What was found, in the order of the plan."""
        return [found for _, _, found in self._layers]

    def add(self, shown: _Arrays) -> None:
        """Compare one batch."""
        for node, point, found in self._layers:
            weight = point.config.dequantize(point.constant_codes())
            looks_up = node.op_type == "Gather"
            data = shown[TensorEnd.input(str(node.name), 1 if looks_up else 0)]
            expected = np.take(weight, data, 0) if looks_up else _product(node, data, weight)
            found.add(shown[TensorEnd.output(str(node.name))], expected)


def _product(
    node: ir.Node, data: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    if node.op_type != "Gemm":
        return data @ weight
    product = data @ (weight.T if Gemm.of(node).transB else weight)
    bias = constant_array(input_value(node, 2))
    return product if bias is None else product + bias


def constant_of(exported: QdqModel, name: str) -> npt.NDArray[Any]:
    """Return a constant of a written model.

    Raises:
        PlanError: There is none of that name.
    """
    stored = exported.model.graph.initializers.get(name)
    if stored is None or stored.const_value is None:
        raise PlanError(
            f"{QDQ_FILE}: not the model of this plan, it has no constant {name!r}",
            remedy="quantize again",
        )
    return stored.const_value.numpy()

"""Quantisation points: what the states and dominators mean for the data that flows.

Executors and formats do not interpret configs on their own; they read these points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import MEANING, StateMeaning, TensorQuantConfig
from intact.errors import PlanError
from intact.plan.ends import Direction, TensorEnd
from intact.plan.quantized_graph import QuantizedGraph, quantizes


@dataclass(frozen=True)
class QuantPoint:
    """A place where data is quantised.

    Attributes:
        value: The value that is quantised.
        config: How; scale and offset are read through its dominator.
        end: The end whose config quantises: it names the point.
        readers: The (node, slot) pairs that read the quantised data.
        at_output: The producer hands out quantised data, so every reader and a graph output
            sees it; otherwise only ``readers`` do.
    """

    value: ir.Value
    config: TensorQuantConfig
    end: TensorEnd
    readers: tuple[tuple[ir.Node, int], ...]
    at_output: bool

    @property
    def is_constant(self) -> bool:
        """Tell whether the data is a weight, a bias or another constant of the model."""
        return self.value.const_value is not None

    def constant_codes(self) -> npt.NDArray[np.integer[Any]]:
        """Return the integers of a constant, as every executor and format must use them.

        Raises:
            PlanError: The value is not a constant.
        """
        tensor = self.value.const_value
        if tensor is None:
            raise PlanError(f"{self.end}: {self.value.name} is not a constant of the model")
        # A bias needs more bits than a float32 quotient has.
        dtype = np.float64 if self.config.bits > 16 else np.float32
        return self.config.quantize(tensor.numpy().astype(dtype))

    @property
    def is_passed_on(self) -> bool:
        """Tell whether the data is already on the grid: a node that only moves values."""
        return bool(self.config.detail.get("moved"))


def quantization_points(plan: QuantizedGraph) -> Iterator[QuantPoint]:
    """Yield the points of a plan, by value in topological order, outputs before inputs.

    The plan may still lack scales (to ask which tensors a calibration must observe).
    """
    seen: set[int] = set()
    for node in plan.graph.nodes:
        for value in (*node.inputs, *node.outputs):
            if value is not None and id(value) not in seen:
                seen.add(id(value))
                yield from _points_of(plan, value)


def refuse_unready(plan: QuantizedGraph) -> None:
    """Refuse a plan in which an end has no scale yet.

    Raises:
        PlanError: Naming the first such end and its state.
    """
    for end, config in plan.configs.items():
        if MEANING[config.state] is StateMeaning.REFUSED:
            raise PlanError(
                f"{end} is {config.state.name}: it has no scale yet",
                remedy="calibrate the plan first",
            )


def _points_of(plan: QuantizedGraph, value: ir.Value) -> Iterator[QuantPoint]:
    producer = plan.producer_config(value)
    if producer is not None and quantizes(producer):
        node = value.producer()
        end = TensorEnd(str(node.name if node else ""), Direction.OUTPUT, value.index() or 0)
        yield QuantPoint(value, producer, end, plan.graph.consumers(value), at_output=True)
    groups: dict[int, list[tuple[ir.Node, int, TensorQuantConfig]]] = {}
    for node, slot, config in plan.consumer_configs(value):
        groups.setdefault(id(config.dominator), []).append((node, slot, config))
    for group in groups.values():
        active = [(node, slot, config) for node, slot, config in group if quantizes(config)]
        if active:
            node, slot, config = active[0]
            readers = tuple((n, s) for n, s, c in group if quantizes(c) or _is_governed(c))
            yield QuantPoint(
                value, config, TensorEnd.input(str(node.name), slot), readers, at_output=False
            )


def _is_governed(config: TensorQuantConfig) -> bool:
    return MEANING[config.state] is StateMeaning.GOVERNED

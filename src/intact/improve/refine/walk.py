"""Node-by-node execution of a plan, in float and quantized at the same time.

A refinement may change the plan at each node, for example a weight's scale. Later nodes then run on
the activations of the changed plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.data.stream import Samples
from intact.engines.integer.islands import model_of_nodes
from intact.engines.session import make_session, run_session
from intact.graph import is_constant
from intact.graph.graph import values_read_inside
from intact.plan import QuantizedGraph
from intact.program.lower.chains import Points
from intact.program.operations import FloatNodes

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = dict[ir.Value, Array]
Run: TypeAlias = Callable[[Arrays], list[Array]]
"""Computes a node's outputs from its inputs and its quantized constants."""

_BATCH = 10


@dataclass(frozen=True)
class Stop:
    """A node of the walk, before its quantized results are computed.

    Attributes:
        node: The node.
        run: Computes the node.
        in_float: Its inputs in the float model, for each batch.
        quantized: Its inputs in the quantized model, with the constants of the current plan.
        results: Its outputs in the float model, for each batch, in the order of its outputs.
    """

    node: ir.Node
    run: Run
    in_float: list[Arrays]
    quantized: list[Arrays]
    results: list[list[Array]]


class Walk:
    """Runs both models over some samples; activations are kept as long as a node reads them.

    Args:
        plan: A plan with scales; read again at each node.
        samples: The data; the first ``most`` samples are used. Their progress counts nodes.
        most: Maximum number of samples.
        threads: Threads inside one operator; 0 lets the runtime choose.
    """

    def __init__(
        self, plan: QuantizedGraph, samples: Samples, *, most: int, threads: int = 0
    ) -> None:
        self._plan, self._threads = plan, threads
        self.points = Points.of(plan)
        limit = most if samples.limit is None else min(most, samples.limit)
        limited = replace(samples, limit=limit, progress=None)
        self._progress = samples.progress
        size = limited.batch_size(min(_BATCH, limit))
        inputs = {str(value.name): value for value in plan.graph.inputs}
        whole = limited.fixed_batch is not None  # such a model cannot run fewer
        self._in_float: list[Arrays] = [
            {inputs[n]: array if whole else array[:count] for n, array in feeds.items()}
            for feeds, count in limited.batches(size)
        ]
        self._quantized: list[Arrays] = [dict(values) for values in self._in_float]
        self._readers = Counter(
            value for node in plan.graph.nodes for value in _read(node) if not is_constant(value)
        )

    def __iter__(self) -> Iterator[Stop]:
        """Yield each node; the quantized model continues with the plan as changed by the caller."""
        nodes = list(self._plan.graph.nodes)
        for done, node in enumerate(nodes):
            if self._progress is not None:
                self._progress(done, len(nodes))
            constants = self._constants(node)
            run = self._runner(node, constants)
            floats = {v: v.const_value.numpy() for v in constants if v.const_value is not None}
            in_float = [_chosen(node, values) | floats for values in self._in_float]
            quantized = [self._inputs(node, values) | constants for values in self._quantized]
            results = [run(arrays) for arrays in in_float]
            yield Stop(node, run, in_float, quantized, results)
            for values, arrays in zip(self._in_float, results, strict=True):
                values.update(zip(_outputs(node), arrays, strict=True))
            constants = self._constants(node)
            for values, before in zip(self._quantized, quantized, strict=True):
                for value, array in zip(_outputs(node), run(before | constants), strict=True):
                    values[value] = self._at_output(value, array)
            self._forget(node)

    def _runner(self, node: ir.Node, constants: Arrays) -> Run:
        read = [value for value in _read(node) if not is_constant(value) or value in constants]
        outputs = _outputs(node)
        functions = tuple(self._plan.graph.model.functions.values())
        operation = FloatNodes((node,), tuple(read), tuple(outputs), functions)
        session = make_session(model_of_nodes(str(node.name), operation), threads=self._threads)
        names = [str(value.name) for value in outputs]

        def run(arrays: Arrays) -> list[Array]:
            feeds = {str(value.name): np.asarray(arrays[value], order="C") for value in read}
            return run_session(session, feeds, names)

        return run

    def _constants(self, node: ir.Node) -> Arrays:
        """Dequantize the quantized constants of a node."""
        found: Arrays = {}
        for slot, value in enumerate(node.inputs):
            point = self.points.at_input.get((str(node.name), slot))
            if value is not None and point is not None and point.is_constant:
                found[value] = point.config.dequantize(point.constant_codes())
        return found

    def _inputs(self, node: ir.Node, values: Arrays) -> Arrays:
        """Collect a node's inputs in the quantized model."""
        found = _chosen(node, values)
        for slot, value in enumerate(node.inputs):
            point = self.points.at_input.get((str(node.name), slot))
            if value is not None and point is not None and not point.is_constant:
                found[value] = point.config.fake_quantize(values[value])
        return found

    def _at_output(self, value: ir.Value, array: Array) -> Array:
        point = self.points.at_output.get(value)
        return array if point is None else point.config.fake_quantize(array)

    def _forget(self, node: ir.Node) -> None:
        self._readers.subtract(value for value in _read(node) if not is_constant(value))
        for value in (*_read(node), *_outputs(node)):
            if self._readers[value] <= 0:
                for values in (*self._in_float, *self._quantized):
                    values.pop(value, None)


def _read(node: ir.Node) -> list[ir.Value]:
    """List the values of the graph that a node reads, without duplicates."""
    inside = (value for value in values_read_inside(node) if value.graph is node.graph)
    values = (value for value in (*node.inputs, *inside) if value is not None)
    return list(dict.fromkeys(values))


def _chosen(node: ir.Node, values: Arrays) -> Arrays:
    """Select the values that a node reads."""
    return {value: values[value] for value in _read(node) if not is_constant(value)}


def _outputs(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.outputs if value.name]

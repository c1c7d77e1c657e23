"""From the notes of a draft to the configs and decisions of a plan."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import ConfigError, ModelError
from intact.formats.binary import clipped
from intact.formats.tflite.reading.canvas import Operand
from intact.formats.tflite.reading.draft import Draft
from intact.formats.tflite.reading.parameters import Parameters
from intact.graph import (
    Graph,
    Role,
    input_role,
    is_constant,
    moves_values,
    shape_or_index_values,
)
from intact.plan import Decision, QuantizedGraph, TensorEnd
from intact.plan.schemes import unquantized
from intact.targets import Target


def configure(graph: Graph, target: Target, draft: Draft) -> QuantizedGraph:
    """Return the plan of a float graph that was read.

    Raises:
        ModelError: Nothing in it is quantised.
    """
    if not draft.writes and not any(each.parameters for each in draft.reads.values()):
        raise ModelError(
            f"{draft.file.source}: the model is not quantised",
            remedy="quantize the model that it was converted from",
        )
    try:
        return _Configurer(graph, target, draft).run()
    except ConfigError as error:
        raise ModelError(f"{draft.file.source}: {clipped(str(error))}") from error


class _Configurer:
    """Makes configs in topological order, so that those who follow find whom they follow."""

    def __init__(self, graph: Graph, target: Target, draft: Draft) -> None:
        self._plan = QuantizedGraph(graph, target, {}, {})
        self._graph = graph
        self._reads, self._writes = draft.reads, draft.writes
        self._shapes = shape_or_index_values(graph)
        self._known: dict[tuple[ir.Value, Hashable], TensorQuantConfig] = {}

    def run(self) -> QuantizedGraph:
        """Configure every end of every node."""
        for node in self._graph.nodes:
            for slot, value in enumerate(node.inputs):
                if value is not None:
                    end = TensorEnd.input(str(node.name), slot)
                    self._plan.configs[end] = self._input(node, slot, value, end)
            for slot, value in enumerate(node.outputs):
                end = TensorEnd.output(str(node.name), slot)
                self._plan.configs[end] = self._output(node, value)
        self._overlap_chains()
        for node in self._graph.nodes:
            self._plan.decisions[str(node.name)] = self._decision(node)
        return self._plan

    def _input(
        self, node: ir.Node, slot: int, value: ir.Value, end: TensorEnd
    ) -> TensorQuantConfig:
        operand = self._reads.get((node, slot))
        if input_role(node, slot) is Role.SHAPE or str(value.name) in self._shapes:
            return unquantized(QuantState.SOI)
        if operand is None or operand.parameters is None:
            return unquantized(QuantState.FP32)
        producer = self._plan.producer_config(value)
        if producer is not None:
            config = operand.parameters.config(QuantState.OVERLAPPED)
            producer.dominator.dominate(config)
            return config
        return self._at_reader(node, slot, operand, operand.parameters, end)

    def _at_reader(
        self,
        node: ir.Node,
        slot: int,
        operand: Operand,
        parameters: Parameters,
        end: TensorEnd,
    ) -> TensorQuantConfig:
        """Return the config of a constant or a graph input; readers alike share one scale."""
        state = QuantState.ACTIVATED
        if is_constant(operand.value):
            is_bias = input_role(node, slot) is Role.BIAS
            state = QuantState.PASSIVE_BAKED if is_bias else QuantState.BAKED
        config = parameters.config(state)
        root = self._known.setdefault((operand.value, parameters.key), config)
        if root is not config:
            root.dominate(config)
            return config
        if operand.codes is not None:
            self._plan.baked[end] = operand.codes
        return config

    def _output(self, node: ir.Node, value: ir.Value) -> TensorQuantConfig:
        parameters = self._writes.get(value)
        if parameters is None:
            is_shape = str(value.name) in self._shapes
            return unquantized(QuantState.SOI if is_shape else QuantState.FP32)
        config = parameters.config(QuantState.ACTIVATED)
        source = self._reads.get((node, 0))
        if moves_values(node) and source is not None and parameters.equals(source.parameters):
            self._plan.input_config(node, 0).dominator.dominate(config)
        return config

    def _overlap_chains(self) -> None:
        """Let the ends inside a chain of nodes be governed by its last output."""
        for node in reversed(self._graph.nodes):
            value = node.outputs[0]
            if value in self._writes or value.is_graph_output() or len(node.outputs) > 1:
                continue
            readers = self._graph.consumers(value)
            if not readers or any(reader in self._reads for reader in readers):
                continue  # a float that others of the file read
            last = self._plan.output_config(readers[0][0]).dominator
            if last.params is None or {id(reader) for reader, _ in readers} != {id(readers[0][0])}:
                continue
            ends = [TensorEnd.output(str(node.name))]
            ends += [TensorEnd.input(str(reader.name), slot) for reader, slot in readers]
            for end in ends:
                inner = TensorQuantConfig.on_grid(last.grid, observer=last.observer)
                inner.transition(QuantState.OVERLAPPED)
                last.dominate(inner)
                self._plan.configs[end] = inner

    def _decision(self, node: ir.Node) -> Decision:
        if all(str(value.name) in self._shapes for value in node.outputs):
            return Decision(False, "computes shapes or indices only")
        name = str(node.name)
        for slot, value in enumerate(node.inputs):
            config = self._plan.configs.get(TensorEnd.input(name, slot))
            if config is None or input_role(node, slot) not in (Role.DATA, Role.WEIGHT):
                continue
            if config.state is QuantState.FP32 and value is not None:
                return Decision(False, f"the model leaves its input {value.name!r} float")
        if self._plan.output_config(node).state is QuantState.FP32:
            return Decision(False, "the model leaves its output float")
        return Decision(True, "quantised by the model that was read")

"""Reads ``.tflite`` files of other converters as plans that keep scales and integers.

Source: the TFLite schema and LiteRT's documentation of its quantization specification.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import ConfigError, ModelError, Unsupported
from intact.formats.base.foreign import IR_VERSION, clip_text, settle_shapes
from intact.formats.tflite.reader.builder import DATA_TYPES, ModelBuilder
from intact.formats.tflite.reader.common import is_hybrid
from intact.formats.tflite.reader.decode import open_tflite
from intact.formats.tflite.reader.file import (
    Parameters,
    TfliteFile,
    constant_of,
    parameters_of,
)
from intact.formats.tflite.reader.operators import build_model
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.reader.tensors import (
    Array,
    ChannelLayout,
    Operand,
    channels_first,
    inverse,
)
from intact.graph import (
    Graph,
    Role,
    input_role,
    is_constant,
    moves_values,
)
from intact.graph.aliases import set_aliases
from intact.graph.passes import library
from intact.graph.states import State, set_states
from intact.plan import Decision, Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.bounds import follow_data
from intact.plan.schemes import unquantized
from intact.plan.topology import finds_places
from intact.targets import Target

_NARROW = 8
"""Bits of activations that the kernels of most files have."""


def assemble(builder: ModelBuilder) -> Graph:
    """Return the float graph.

    Raises:
        ModelError: Shapes of the file contradict each other.
    """
    outputs = _outputs(builder)
    # Behind the outputs, whose copies need names as well.
    builder.name_rest()
    graph = builder.graph.graph(outputs, opset=builder.opset, name="main_graph")
    # A description is text of the file, of any length.
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name=builder.file.description[:200])
    library.remove_unused(model)
    set_aliases(model, _second_names(builder, outputs))
    set_states(model, _states(builder, outputs))
    # Last: by now nothing is left in the graph that no output needs, and whose shape might
    # contradict.
    settle_shapes(model, builder.shapes, builder.file.source, batch=builder.batch)
    return Graph(model)


def _states(builder: ModelBuilder, outputs: Sequence[ir.Value]) -> list[State]:
    """Return the states, which are the last inputs and outputs.

    Raises:
        ModelError: A first value is damaged.
    """
    file, count = builder.file, len(builder.file.states)
    if not count:
        return []
    ports = zip(file.states, builder.graph.inputs[-count:], outputs[-count:], strict=True)
    found = []
    for state, before, after in ports:
        try:
            parameters = parameters_of(state.first)
            first: Array = constant_of(state.first)
            # First values are constants too, and may share their bytes.
            builder.charge(first.size)
        except Unsupported as reason:
            raise ModelError(f"{file.source}: a first value: {clip_text(str(reason))}") from reason
        numbers: Array = first if parameters is None else parameters.numbers(first)
        found.append(State(str(before.name), str(after.name), numbers.astype(np.float32)))
    return found


def _second_names(builder: ModelBuilder, outputs: Sequence[ir.Value]) -> dict[str, str]:
    """Return the names of inputs and outputs by the names of their tensors, where these differ."""
    file = builder.file
    ports = [
        *zip(file.inputs, builder.graph.inputs, strict=True),
        *zip(file.outputs, outputs, strict=True),
    ]
    found: dict[str, str] = {}
    for index, value in ports:
        name = file.tensors[index].name
        if name and name not in builder.graph.names:
            found.setdefault(name, str(value.name))
    return found


def _outputs(builder: ModelBuilder) -> list[ir.Value]:
    """Return the values of the graph's outputs; a second use of one is a copy."""
    names: dict[int, list[str]] = {}  # that the signature has for one tensor, the last first
    for name, index in builder.file.signature.outputs.items():
        if name not in builder.graph.names:
            names.setdefault(index, []).insert(0, name)
    outputs: dict[ir.Value, None] = {}
    for index in builder.file.outputs:
        source = builder.alias.get(index, index)
        operand = builder.operand(source)
        value = operand.value
        # An output needs a node of its own, which an input or an output that was listed before is
        # not.
        if value.producer() is None or value in outputs:
            copy = builder.copied(operand)
            value = copy.value
            called = names.get(index) or [f"{operand.value.name}/output"]
            value.name = builder.graph.names.fresh(called.pop())
            builder.shapes[value] = operand.shape
        element = builder.tensor(index).element
        value.type = ir.TensorType(DATA_TYPES.get(element, ir.DataType.FLOAT))
        outputs[value] = None
    return list(outputs)


def configure(graph: Graph, target: Target, builder: ModelBuilder) -> QuantizedGraph:
    """Return the plan of a float graph that was read.

    Raises:
        ModelError: Nothing in it is quantized.
    """
    # A float file would make a plan in which nothing is decided.
    if not builder.writes and not any(each.parameters for each in builder.reads.values()):
        raise ModelError(
            f"{builder.file.source}: the model is not quantized",
            remedy="quantize the model that it was converted from",
        )
    try:
        return _Configurer(graph, target, builder).run()
    except ConfigError as error:
        raise ModelError(f"{builder.file.source}: {clip_text(str(error))}") from error


class _Configurer:
    """Makes configs in topological order, so that those who follow find whom they follow."""

    def __init__(self, graph: Graph, target: Target, builder: ModelBuilder) -> None:
        self._plan = QuantizedGraph(graph, target, {}, {})
        self._graph = graph
        self._reads, self._writes = builder.reads, builder.writes
        self._shapes = graph.shape_or_index_values
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
        follow_data(self._plan)
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
        # What a node makes is quantized where it is made; whoever reads it follows.
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
        # Readers that see one constant through several scales cannot share a config.
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
        # A move keeps its input's scale: tied, they stay one when scales are changed later.
        if moves_values(node) and source is not None and parameters.equals(source.parameters):
            self._plan.input_config(node, 0).dominator.dominate(config)
        return config

    def _overlap_chains(self) -> None:
        """Let the ends inside a chain of nodes be governed by its last output."""
        # Backwards, so that the end of a chain is governed before those in front of it ask.
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
        finds = finds_places(node, self._shapes, self._plan.target)
        if not finds and all(str(value.name) in self._shapes for value in node.outputs):
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
        return Decision(True, "quantized by the model that was read")


__all__ = [
    "TensorPlace",
    "TfliteModel",
    "read_tflite",
    "read_tflite_model",
]


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor of the file is in the plan.

    Attributes:
        name: As in the file.
        value: The float graph's value.
        element: Type in the file, in lower case: ``int8``, ``float32`` ...
        permutation: Axis ``k`` of the file's tensor is axis ``permutation[k]`` of the value; None
            where they lie alike.
    """

    name: str
    value: str
    element: str
    permutation: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class TfliteModel:
    """A file that was read.

    Attributes:
        plan: What it computes.
        tensors: The activations that its plan has, by their number in the file.
        inputs: Numbers of the file's inputs, in the order of the graph's.
        outputs: Numbers of the file's outputs, in the order of the graph's.
        file: What the plan was made of.
    """

    plan: QuantizedGraph
    tensors: Mapping[int, TensorPlace]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    file: TfliteFile


def read_tflite(source: str | Path | bytes, target: Target) -> QuantizedGraph:
    """Read a quantized TFLite model.

    The float model of the plan is in ONNX, with channels first inside; its inputs and outputs have
    the layout of the file, and are called as in its signature (as its tensors where it has none).
    An input or output that is int8 in the file is float here
    and quantized with the file's scale. The batch of one that files have is left open if nothing
    in the model mixes samples.

    Args:
        source: A path, or the bytes of the file.
        target: The hardware that the plan is for; what the model says stays, wherever it differs.

    Returns:
        A calibrated plan. Ends that the model quantizes are ACTIVATED (constants BAKED or
        PASSIVE_BAKED, with their integers), with ``detail["fixed"]``; between the nodes that one
        operator stands for they are OVERLAPPED; all others are FP32 or SOI.

    Raises:
        ModelError: The file is damaged or not quantized, or some of its operators cannot be read:
            all of those are listed, with the reason.
    """
    return read_tflite_model(source, target).plan


def read_tflite_model(source: str | Path | bytes, target: Target) -> TfliteModel:
    """Read a quantized TFLite model, and where each tensor of the file is in the plan.

    Raises:
        ModelError: See `read_tflite`.
    """
    file = open_tflite(source)
    builder = build_model(file, wide=target.activation.bits > _NARROW)
    graph = assemble(builder)
    plan = configure(graph, target, builder)
    plan.provenance = plan.provenance.read(file.description[:200], "tflite")
    plan = plan.with_notes(_notes(builder))
    return TfliteModel(plan, _places(builder), file.inputs, file.outputs, file)


_HYBRID = (
    "operators of the file take floats and weights of codes: LiteRT rounds such floats to 8 bits "
    "at run time, which is not followed, so that its outputs differ a little"
)
_FEED = "left out of the data, such inputs have their first value"
_CALIBRATE = "with calibration data they are planned in integers, their weights as they are"


def _notes(builder: ModelBuilder) -> tuple[Note, ...]:
    found = []
    count = sum(is_hybrid(builder, op) for op in builder.file.operators)
    if count:
        found.append(Note(NoteKind.CALIBRATION, "", f"{count} {_HYBRID}", _CALIBRATE))
    if states := builder.file.states:
        first = f"input {states[0].name!r} takes what output {states[0].next_name!r} gave"
        message = (
            f"{len(states)} variable(s) of the file are inputs and outputs: {clip_text(first)}"
        )
        found.append(Note(NoteKind.CALIBRATION, "", message, _FEED))
    return tuple(found)


def _places(builder: ModelBuilder) -> dict[int, TensorPlace]:
    places = {}
    for index, tensor in enumerate(builder.file.tensors):
        activation = builder.activation(index)
        if activation is None or not activation.values:
            continue
        layout, value = next(iter(activation.values.items()))
        order = None
        if layout is ChannelLayout.FIRST and tensor.rank > 2:
            order = inverse(channels_first(tensor.rank))
        element = Element(tensor.element).name.lower()
        places[index] = TensorPlace(tensor.name, str(value.name), element, order)
    return places

"""Builds a ``.tmfile``: tensors and nodes for the steps of a program.

A file holds each value of the model once, with its axes in the model's order and with one scale.
The steps of a program without nodes of the model (quantizing, requantizing, transposes around
spatial operations) bring a value into another form, so that nothing is written for them: the file
keeps what they lead to as the tensor of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import Element, FileNode, FileTensor, Kind, Layout, TmFile
from intact.formats.tengine.tmfile.scales import Array, Constant, Scales, zero_scales
from intact.graph.names import Names
from intact.ops.operators import Relu, is_a
from intact.plan import QuantizedGraph, quantization_points
from intact.program import Program, Step, Tensor
from intact.program.forms import encoding_of
from intact.program.handlers import Handlers
from intact.program.operations import Bounds
from intact.program.unsupported import UnsupportedNodes

Writer: TypeAlias = "Callable[[Any, Step, TmFileBuilder], None]"
WRITERS: Handlers[Writer] = Handlers("intact writes no {} for Tengine")
"""Functions by the operation that they write."""

Shape = tuple[int, ...]
Operand: TypeAlias = str | FileTensor
"""The name of an activation, or a constant."""
Options = Mapping[str, Any]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class _Entry:
    """A node of the file; its tensors are looked up and numbered in the end.

    Attributes:
        position: Where the node of the model stands that it is for.
    """

    position: int
    name: str
    operator: str
    inputs: tuple[Operand, ...]
    outputs: tuple[FileTensor, ...]
    options: Options


class TmFileBuilder:
    """Collects tensors and nodes; after an `Unsupported` only to find further reasons.

    Args:
        program: What is written, as `lower_nodes` makes it.
        plan: What it was lowered from: it has the names of tensors inside fused operations, and
            the operators of ONNX where one operation stands for several nodes of Tengine.
        quantized: Write codes; otherwise float32.

    Attributes:
        scales: Scales of all tensors, and the type of activations.
    """

    def __init__(self, program: Program, plan: QuantizedGraph, *, quantized: bool) -> None:
        self._program = program
        self._nodes = {str(node.name): node for node in plan.graph.nodes}
        self._positions = {name: position for position, name in enumerate(self._nodes)}
        self._points = {p.end: p for p in quantization_points(plan) if p.is_constant}
        self._dead = zero_scales(plan)
        self._shapes = _shapes(program)
        self.scales = Scales(program, quantized=quantized)
        self._entries: list[_Entry] = []
        self._activations: dict[str, FileTensor] = {}
        self._constants: dict[tuple[str, bytes], FileTensor] = {}
        self._tensor_names = Names(value.name for value in plan.graph.values)

    # ---- what a step reads -------------------------------------------------------------------

    def operator(self, step: Step) -> str:
        """Return the ONNX operator of a step's first node."""
        return self._nodes[step.nodes[0]].op_type

    def last_operator(self, step: Step) -> str:
        """Return the ONNX operator of a step's last node: one fused behind the first, if any."""
        return self._nodes[step.nodes[-1]].op_type

    def position(self, step: Step) -> int:
        """Return where a step's first node stands in the model."""
        return self._positions[step.nodes[0]]

    def value(self, step: Step, slot: int = 0) -> str:
        """Return the name of an activation that a step reads.

        Raises:
            Unsupported: The input is absent, a constant or no value of the model.
        """
        tensor = step.inputs[slot]
        if tensor is None:
            raise Unsupported(f"input {slot} is absent")
        if tensor.is_constant:
            raise Unsupported(f"its input {tensor.value!r} is a constant")
        # The step before has no value of the model: the lowering made it, and no node is written
        # for it.
        if not tensor.value:
            raise self.not_written(step)
        return tensor.value

    def not_written(self, step: Step) -> Unsupported:
        """Return the refusal of a step that has no writer; Tengine may well have the operator."""
        return Unsupported(f"intact writes no {self.operator(step)} for Tengine")

    def shape(self, value: str) -> Shape:
        """Return the lengths of a value in the model's order of axes.

        Raises:
            Unsupported: One is not known.
        """
        shape = self._shapes.get(value)
        if shape is None:
            raise Unsupported(f"the lengths of {value!r} are not known")
        return shape

    def image_shape(self, step: Step) -> Shape:
        """Return the lengths ``[N, C, H, W]`` of a step's first input.

        Raises:
            Unsupported: It has another number of axes.
        """
        shape = self.shape(self.value(step))
        if len(shape) != 4:
            raise Unsupported(f"its input has {len(shape)} dimensions; Tengine's has 4")
        return shape

    def result_shape(self, step: Step) -> Shape:
        """Return the lengths of a step's first output."""
        return self.shape(step.outputs[0].value)

    def refuse_rescaling(self, step: Step) -> None:
        """Refuse to move codes from one scale to another: Tengine copies them.

        Raises:
            Unsupported: An output has another scale than the first input.
        """
        for tensor in step.outputs:
            self._refuse_rescaling(self.value(step), tensor.value)

    def refuse_elements(self, *elements: Element) -> None:
        """Refuse types for which Tengine has no kernel.

        Raises:
            Unsupported: Activations have such a type.
        """
        if self.scales.element in elements:
            raise Unsupported(f"Tengine has no kernel for it in {self.scales.element.name}")

    # ---- constants ---------------------------------------------------------------------------

    def constant(self, step: Step, slot: int) -> Constant:
        """Return a constant that a step reads: codes where the plan quantizes it, otherwise floats.

        A step between a dequantization and a quantization reads the floats of its codes; Tengine's
        kernel does the same, so that the file holds the codes.

        Raises:
            Unsupported: The input is absent or computed.
        """
        tensor = step.inputs[slot] if slot < len(step.inputs) else None
        if tensor is None or tensor.data is None:
            raise Unsupported(f"input {slot} is no constant")
        data, encoding = tensor.data, tensor.encoding
        point = None if tensor.end is None else self._points.get(tensor.end)
        if encoding is None and point is not None:
            codes = tensor.as_stored(point.constant_codes())
            if codes.shape == data.shape:
                data, encoding = codes, encoding_of(point)
        dead = self._dead.get(step.nodes[0])
        return Constant(tensor.value, slot, data, tensor.as_in_model(data), encoding, dead)

    def store(self, constant: Constant, array: Array, *, by_channel: bool = False) -> FileTensor:
        """Return the file's tensor for a constant; steps that store it alike share one.

        Args:
            constant: Which.
            array: Its data as Tengine stores it.
            by_channel: It may have a scale for each index of the first axis.

        Raises:
            Unsupported: The plan leaves it float, or gives it what Tengine does not have.
        """
        element, quantization = self.scales.of_constant(constant, array, by_channel=by_channel)
        # A bias of two layers has two scales, those of input times weight, and is two tensors then.
        scales = b"" if quantization is None else quantization.scale.tobytes()
        # By scales and shape, not by numbers: constants of equal numbers under two names keep both
        # names.
        key = (constant.name, b"".join((str(array.shape).encode(), bytes([element]), scales)))
        if key not in self._constants:
            taken = any(name == constant.name for name, _ in self._constants)
            name = self._tensor_names.fresh(constant.name) if taken else constant.name
            self._constants[key] = FileTensor(
                name, array.shape, Kind.CONSTANT, element, array, quantization
            )
        return self._constants[key]

    # ---- nodes -------------------------------------------------------------------------------

    def add_inputs(self, unsupported: UnsupportedNodes) -> None:
        """Add the inputs of the model, or the reasons why there are none."""
        for name, tensor in self._program.inputs.items():
            with unsupported.collect(repr(name)):
                written = self._activation(name, tensor, Kind.INPUT)
                self._entries.append(_Entry(-1, name, "InputOp", (), (written,), {}))

    def add(
        self,
        step: Step,
        operator: str,
        inputs: Sequence[Operand],
        options: Options | None = None,
        *,
        clamps: bool = True,
    ) -> None:
        """Add the node of a step and, where it clamps its result, one that does so.

        What lies between the two has the scale of the result, which gives the codes of the fused
        operation.

        Args:
            step: Which; the node has the name of its first node.
            operator: Name in Tengine.
            inputs: Names of activations, and constants from `store`.
            options: What the operator has.
            clamps: Add a second node for the bounds; otherwise the options hold them.
        """
        first = self._nodes[step.nodes[0]]
        if not clamps or len(step.nodes) == 1:
            self._add(step.nodes[0], operator, inputs, step.outputs, options)
            return
        between = replace(step.outputs[0], value=str(first.outputs[0].name))
        # Clamping codes of one scale gives the codes of the fused operation; another scale would
        # round in between.
        self.scales.share(between.value, step.outputs[0].value)
        self._shapes.setdefault(between.value, self.result_shape(step))
        self._add(step.nodes[0], operator, inputs, (between,), options)
        clamp, clamp_options = self.clamp(step)
        self._add(step.nodes[-1], clamp, (between.value,), step.outputs, clamp_options)

    def clamp(self, step: Step) -> tuple[str, Options]:
        """Return operator and options of the node that clamps to a step's bounds.

        Raises:
            Unsupported: The bounds are no interval.
        """
        bounds: Bounds = getattr(step.operation, "bounds", Bounds())
        if is_a(self._nodes[step.nodes[-1]], Relu) and bounds == Bounds(0):
            return "ReLu", {"negative_slope": 0.0}
        if not bounds.low <= bounds.high:
            raise Unsupported(f"it clips to {bounds.low} .. {bounds.high}")
        # As in ONNX, where an absent bound is the largest float32.
        low, high = max(bounds.low, -_LARGEST), min(bounds.high, _LARGEST)
        return "Clip", {"min": low, "max": high}

    def add_copies(self, unsupported: UnsupportedNodes) -> None:
        """Add a copy for each Identity, which is no step, or the reasons why there are none."""
        producers = {str(v.name): n for n, node in self._nodes.items() for v in node.outputs}
        for name, (source, tensor) in self._copies().items():
            node = producers[name]
            with unsupported.collect(repr(node)):
                self.scales.share(name, source)
                self._shapes.setdefault(name, self.shape(source))
                self._refuse_rescaling(source, name)
                # A Dropout passes its input on: Tengine drops nothing when it runs.
                self._add(node, "Dropout", (source,), (replace(tensor, value=name),))

    def _copies(self) -> dict[str, tuple[str, Tensor]]:
        """Return values that are others by another name or scale: those, and their tensors."""
        values = {tensor.name: tensor.value for tensor in self._program.inputs.values()}
        found: dict[str, tuple[str, Tensor]] = {}
        for step in self._program.steps:
            for tensor in step.outputs:
                values[tensor.name] = tensor.value
                source = values.get(step.activations[0].name) if step.activations else None
                if source and not step.nodes and source != tensor.value:
                    found[tensor.value] = (source, tensor)
        for name, tensor in self._program.outputs.items():
            # An output by another name than its value's is a copy: a file has no names of outputs
            # but those of tensors.
            if tensor.value != name:
                found[name] = (tensor.value, tensor)
        return found

    def finish(self) -> TmFile:
        """Return the file: nodes in the model's order, each behind the constants that it reads.

        Raises:
            Unsupported: An output of the model is not that of a node, or a node has others.
        """
        nodes = _FileOrder(self._nodes, self._activations)
        # Copies were added last, but stand where their nodes stand in the model.
        for entry in sorted(self._entries, key=lambda entry: entry.position):
            nodes.add(entry)
        outputs: dict[int, list[int]] = {}
        for name in self._program.outputs:
            tensor = self._activations.get(name)
            if tensor is None:
                raise Unsupported(f"output {name!r} is computed by no node")
            writer, number = nodes.writers[tensor], nodes.numbers[tensor]
            outputs.setdefault(writer, []).append(number)
        for writer, numbers in outputs.items():
            # The file names output nodes: all that such a node writes is an output.
            if nodes.nodes[writer].outputs != tuple(numbers):
                raise Unsupported(
                    f"node {nodes.nodes[writer].name!r} has outputs that are none of the model's, "
                    "or in another order"
                )
        return TmFile(
            "",
            Layout.CHANNELS_FIRST,
            tuple(nodes.numbers),
            tuple(nodes.nodes),
            tuple(nodes.writers[self._activations[name]] for name in self._program.inputs),
            tuple(outputs),
        )

    # ---- pieces ------------------------------------------------------------------------------

    def _add(
        self,
        node: str,
        operator: str,
        inputs: Sequence[Operand],
        outputs: Iterable[Tensor],
        options: Options | None = None,
    ) -> None:
        written = [self._activation(each.value, each, Kind.VARIABLE) for each in outputs]
        entry = _Entry(
            self._positions[node], node, operator, tuple(inputs), tuple(written), options or {}
        )
        self._entries.append(entry)

    def _activation(self, value: str, tensor: Tensor, kind: Kind) -> FileTensor:
        if tensor.encoding is None and tensor.plain != np.float32:
            raise Unsupported(f"{value!r} is {tensor.plain}, not float32")
        scale = self.scales.of_activation(value)
        written = FileTensor(
            value, self.shape(value), kind, self.scales.element, quantization=scale
        )
        self._activations[value] = written
        return written

    def _refuse_rescaling(self, source: str, value: str) -> None:
        before, after = self.scales.of_activation(source), self.scales.of_activation(value)
        if before is not None and after is not None and not before.equals(after):
            raise Unsupported(
                f"{value!r} has another scale than {source!r}, and Tengine copies codes there"
            )


class _FileOrder:
    """Puts nodes and tensors into the order of the file, and numbers them."""

    def __init__(self, names: Iterable[str], activations: Mapping[str, FileTensor]) -> None:
        self._activations = activations
        self.nodes: list[FileNode] = []
        self.numbers: dict[FileTensor, int] = {}
        self.writers: dict[FileTensor, int] = {}
        self._names = Names(names)

    def add(self, entry: _Entry) -> None:
        inputs = tuple(
            self._activations[each] if isinstance(each, str) else each for each in entry.inputs
        )
        for tensor in inputs:
            # A constant's node stands right before its first reader, so that nodes are in the order
            # in which they run.
            if tensor.kind is Kind.CONSTANT and tensor not in self.numbers:
                self._append(self._names.fresh(tensor.name), "Const", (), (tensor,), {})
        is_input = entry.operator == "InputOp"
        # An input has no node in ONNX, so that one may have its name already.
        name = self._names.fresh(entry.name) if is_input else entry.name
        self._append(name, entry.operator, inputs, entry.outputs, entry.options)

    def _append(
        self,
        name: str,
        operator: str,
        inputs: tuple[FileTensor, ...],
        outputs: tuple[FileTensor, ...],
        options: Options,
    ) -> None:
        for tensor in outputs:
            # Tengine's tool counts on it that a tensor has a larger number than what it is computed
            # from.
            self.numbers[tensor] = len(self.numbers)
            self.writers[tensor] = len(self.nodes)
        read, written = (tuple(self.numbers[t] for t in each) for each in (inputs, outputs))
        self.nodes.append(FileNode(name, operator, read, written, options))


def _shapes(program: Program) -> dict[str, Shape]:
    """Return the lengths of all values for which they are known, in the model's order of axes."""
    found: dict[str, Shape] = {}
    for tensor in program.tensors():
        lengths = tuple(length for length in tensor.shape if length is not None)
        if tensor.is_constant or len(lengths) < len(tensor.shape):
            continue
        if tensor.permutation is not None:
            lengths = tuple(lengths[axis] for axis in np.argsort(tensor.permutation))
        found.setdefault(tensor.value, lengths)
    return found

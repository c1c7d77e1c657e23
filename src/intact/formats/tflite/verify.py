"""Compares a ``.tflite`` file in LiteRT with the integer engine.

The reference kernels show every tensor, so each layer is computed from the runtime's own integers.
The others fuse and overwrite what lies between operators: each step of the plan is written as a
model of its own instead, and fed with the engine's integers. A fault of the file itself then shows
in the final outputs.

LiteRT keeps what a resource variable holds and offers no way to set it. With its variables as
inputs and outputs, a file computes the same with the same kernels, and every run starts from the
state that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from intact.engines.integer.engine import IntegerEngine
from intact.errors import DataError, ExportError
from intact.formats.base.comparison import (
    LayerComparison,
    comparisons,
    stored_feeds,
)
from intact.formats.base.float_layers import FloatComparison
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, EngineBeside, compare
from intact.formats.tflite.blocks import BlockLayer, in_blocks, stored_layers
from intact.formats.tflite.deployed import (
    OTHER_PLAN,
    DeployedFile,
    FileTensorRef,
    floats_around_codes,
    integers_of,
    is_integer,
    written_file,
)
from intact.formats.tflite.read import TfliteModel
from intact.formats.tflite.reader.file import TfliteFile
from intact.formats.tflite.reader.schema import IDENTIFIER
from intact.formats.tflite.run import Kernels, Port, TfliteRuntime, litert_version
from intact.formats.tflite.write import program_to_tflite
from intact.plan import QuantizedGraph
from intact.program import Program, Step, Tensor
from intact.program.deployed import deployed_program
from intact.program.lower import lower
from intact.program.operations import DynamicQuantize, FloatNodes
from intact.program.passes.integer_io import integer_io


def one_op_programs(program: Program) -> Iterator[tuple[Step, Program]]:
    """Yield each step with a program of only that step, in order.

    The small program's inputs and outputs are the step's own, by the names of its tensors and with
    their encodings, so that it computes from codes to codes. A runtime that hides what lies
    between fused operators can be asked for every one of them this way.
    """
    quantizers: dict[str, Step] = {}
    for step in program.steps:
        if isinstance(step.operation, DynamicQuantize):
            quantizers[step.outputs[0].name] = step
            continue
        # A layer of dynamic activations quantizes its floats itself.
        before = next((q for t in step.activations if (q := quantizers.get(t.name))), None)
        steps = (step,) if before is None else (before, step)
        inputs = {tensor.name: tensor for tensor in steps[0].activations}
        outputs = {tensor.name: tensor for tensor in step.outputs}
        yield step, replace(program, inputs=inputs, outputs=outputs, steps=steps, in_float={})


class StepByStep:
    """Each step as a model of its own, fed with the engine's integers.

    Attributes:
        engine: The integer engine.
        end_to_end: None: a fault of the file itself shows in the final outputs.
        not_compared: Tensors whose step LiteRT does not run alone, with the reason.
    """

    def __init__(self, program: Program, kernels: Kernels, threads: int) -> None:
        self.engine = IntegerEngine(program, threads=threads)
        self.end_to_end: list[LayerComparison] = []
        self.not_compared: dict[str, str] = {}
        self._cut: list[tuple[Program, TfliteRuntime]] = []
        self._in_blocks: dict[str, BlockLayer] = {}
        for step, small in one_op_programs(program):
            # It reads constants alone: a file of it would have no inputs to feed.
            if not step.activations or isinstance(step.operation, FloatNodes):
                continue
            try:
                one = TfliteRuntime(program_to_tflite(small), kernels=kernels, threads=threads)
            except ExportError as error:
                # What runs inside of a model may be refused as one of its own.
                self.not_compared |= {tensor.name: str(error) for tensor in step.outputs}
            else:
                self._cut.append((small, one))
                if (weight := in_blocks(step)) is not None:
                    self._in_blocks[step.outputs[0].name] = BlockLayer(step, weight)
        every = [tensor for small, _ in self._cut for tensor in small.outputs.values()]
        made = [tensor for tensor in every if tensor.name not in self._in_blocks]
        self._layers = comparisons(program, made)
        self._observed = {
            name for small, _ in self._cut for name in (*small.inputs, *small.outputs)
        }

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor alone."""
        return list(self._layers.values())

    @property
    def float_layers(self) -> list[FloatComparison]:
        """Layers of floats with weights in blocks."""
        return [each.found for each in self._in_blocks.values()]

    def add(self, feeds: Arrays, _shown: Arrays) -> Arrays:
        """Compare one batch and return the engine's outputs."""
        # The engine once for the whole batch: each small model is fed what the step before should
        # have given.
        own = self.engine.run(feeds, self._observed)
        for small, runtime in self._cut:
            # Not `ascontiguousarray`, which gives scalars an axis.
            given = {name: np.asarray(own.tensors[name], order="C") for name in small.inputs}
            results, _ = runtime.run(given)
            for name, array in results.items():
                if name in self._in_blocks:
                    data = next(iter(given.values()))
                    self._in_blocks[name].add(array, own.tensors[name], data)
                else:
                    self._layers[name].add(array, own.tensors[name])
        return own.outputs


_CODES = ("int8", "uint8", "int16")


def verify_tflite(
    plan: QuantizedGraph,
    content: bytes,
    batches: Iterable[Feeds],
    kernels: Kernels = Kernels.REF,
    *,
    threads: int = 1,
) -> Verification:
    """Compare a written ``.tflite`` in LiteRT with the integers that its plan says.

    Args:
        plan: The plan that was written.
        content: The file.
        batches: Inputs by name, with axes as the model has them: floats, or codes for an integer
            input of the file.
        kernels: Which of LiteRT's kernels run.
        threads: Threads inside one operator.

    Raises:
        ExportError: LiteRT rejects the file, or fails on it.
        DataError: The file does not take what the plan does, or gives other shapes.
        MissingExtraError: ai-edge-litert is not installed.
    """
    runtime = TfliteRuntime(content, kernels=kernels, threads=threads)
    lowered, program, file = written_file(plan, runtime)
    given = (stored_feeds(program, feeds, lowered.inputs) for feeds in batches)
    found = _verify(plan, program, file, given, kernels, threads)
    if plan.target.blocks is not None:
        # Tables are looked up by float operations.
        written = deployed_program(plan, float_operations=True)
        found.layers = [*stored_layers(written, content), *found.layers]
    return found


def verify_read_tflite(
    model: TfliteModel,
    content: bytes,
    batches: Iterable[Feeds],
    kernels: Kernels = Kernels.REF,
    *,
    threads: int = 1,
) -> Verification:
    """Compare a ``.tflite`` that others made, and that was read, with LiteRT, tensor by tensor.

    Args:
        model: What was read.
        content: The file that it was read from.
        batches: Inputs by name, as :func:`verify_tflite` takes them.
        kernels: Which of LiteRT's kernels run.
        threads: Threads inside one operator.

    Raises:
        ExportError: LiteRT rejects the file, or fails on it.
        DataError: The plan was read from another file.
        MissingExtraError: ai-edge-litert is not installed.
    """
    runtime = TfliteRuntime(content, kernels=kernels, threads=threads)
    program = lower(model.plan)  # its ends lie as those of the file
    inputs = _matched(program.inputs, runtime.inputs, model, model.inputs)
    outputs = _matched(program.outputs, runtime.outputs, model, model.outputs)
    integers = {name for name, other in inputs.items() if is_integer(runtime.inputs[other])}
    integers |= {name for name, other in outputs.items() if is_integer(runtime.outputs[other])}
    lowered, program = program.inputs, integer_io(program, integers)
    file = DeployedFile(
        runtime,
        {name: FileTensorRef(other) for name, other in inputs.items()},
        {name: FileTensorRef(other) for name, other in outputs.items()},
        dict(_shown_of_read(model, program)),
    )
    given = (stored_feeds(program, feeds, lowered) for feeds in batches)
    found = _verify(model.plan, program, file, given, kernels, threads)
    found.not_compared |= _left_out(model, file)
    return found


def _verify(
    plan: QuantizedGraph,
    program: Program,
    file: DeployedFile,
    batches: Iterable[Arrays],
    kernels: Kernels,
    threads: int,
) -> Verification:
    shown: list[str] = []
    reference: EngineBeside | StepByStep
    if kernels is Kernels.REF:
        given, results = floats_around_codes(program)
        made = [*integers_of(program), *results]
        shown = [tensor.name for tensor in (*made, *given) if tensor.name in file.shown]
        compared = (tensor for tensor in made if tensor.name in file.shown)
        read = (tensor for tensor in given if tensor.name in file.shown)
        reference = EngineBeside(program, compared, read, threads=threads)
        hidden = {
            tensor.name: "the file has no such tensor"
            for tensor in made
            if tensor.name not in file.shown
        }
    else:
        reference = StepByStep(program, kernels, threads)
        hidden = reference.not_compared
    name = f"{litert_version()}, {kernels} kernels"
    found = compare(
        plan, name, lambda feeds: file.run(feeds, shown), reference, batches, program.outputs
    )
    found.not_compared = hidden
    if isinstance(reference, StepByStep):
        found.float_layers = reference.float_layers
    return found


def _matched(
    named: Mapping[str, Tensor],
    ports: Mapping[str, Port],
    model: TfliteModel,
    numbers: tuple[int, ...],
) -> dict[str, str]:
    """Return how the runtime calls an input or output, by the plan's name; by their tensors."""
    by_tensor = {port.tensor: name for name, port in ports.items()}
    tensors = [model.tensors[number].name if number in model.tensors else "" for number in numbers]
    if len(named) != len(tensors) or not set(tensors) <= set(by_tensor):
        raise DataError("the plan was read from another file", remedy=OTHER_PLAN)
    return {name: by_tensor[tensor] for name, tensor in zip(named, tensors, strict=True)}


def _shown_of_read(model: TfliteModel, program: Program) -> Iterator[tuple[str, FileTensorRef]]:
    """Yield the tensors of steps that are tensors of the file, each once."""
    by_value: dict[str, Tensor] = {}
    for tensor in integers_of(program):
        by_value.setdefault(tensor.value, tensor)
    for number, place in model.tensors.items():
        found = by_value.get(place.value)
        if found is None or found.encoding is None or found.encoding.dtype != place.element:
            continue
        # Once each: several tensors of a file may be one value here.
        del by_value[place.value]
        yield found.name, FileTensorRef.of(number, found, place.permutation)


def _left_out(model: TfliteModel, file: DeployedFile) -> dict[str, str]:
    """Return the integers between operators of a file that a program does without."""
    compared = {place.key for place in file.shown.values()} | {*model.inputs}
    return {
        place.name: "the plan's steps do without it"
        for number, place in model.tensors.items()
        if number not in compared and place.element in _CODES
    }


def stateless(content: bytes, file: TfliteFile) -> bytes:
    """Return the bytes of a file as it was read; of one without states as they are.

    Args:
        content: The file.
        file: What was read from it.
    """
    if not file.states:
        return content
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph = model.subgraphs[0]
    graph.operators = [graph.operators[op.index] for op in file.operators]
    for stored, op in zip(graph.operators, file.operators, strict=True):
        stored.inputs = list(op.inputs)
    graph.inputs, graph.outputs = list(file.inputs), list(file.outputs)
    for tensor, read in zip(graph.tensors, file.tensors, strict=True):
        # A variable that keeps its first value was read as a constant, which needs its data here.
        if read.data is not None and not _has_data(model.buffers[tensor.buffer]):
            tensor.buffer = len(model.buffers)
            model.buffers.append(schema.BufferT())
            model.buffers[-1].data = np.frombuffer(read.data, np.uint8)
    # The others only gave variables their first values.
    model.subgraphs = [graph]
    model.signatureDefs = [
        _signed(signature, file, schema)
        for signature in model.signatureDefs or ()
        if signature.subgraphIndex == 0
    ]
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def _has_data(buffer: Any) -> bool:
    return bool(buffer.offset and buffer.offset > 1) or (
        buffer.data is not None and len(buffer.data) > 0
    )


def _signed(signature: Any, file: TfliteFile, schema: Any) -> Any:
    """Return a signature with the states among its inputs and outputs."""

    def named(name: str, number: int) -> Any:
        table = schema.TensorMapT()
        table.name, table.tensorIndex = name, number
        return table

    signature.inputs = [named(*each) for each in file.signature.inputs.items()]
    signature.outputs = [named(*each) for each in file.signature.outputs.items()]
    return signature

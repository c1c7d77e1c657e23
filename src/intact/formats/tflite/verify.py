"""A ``.tflite`` file in LiteRT against the integer engine.

The reference kernels show every tensor, so each layer is computed from the runtime's own integers.
The others fuse and overwrite what lies between operators: each step of the plan is written as a
model of its own instead, and fed with the engine's integers. A fault of the file itself then shows
in the final outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from intact.engines.integer.engine import IntegerEngine
from intact.errors import DataError, ExportError
from intact.formats.base.comparison import (
    LayerComparison,
    activations,
    comparisons,
    stored_feeds,
)
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, EngineBeside, compare
from intact.formats.tflite.read import TfliteModel
from intact.formats.tflite.run import Kernels, Port, TfliteRuntime, litert_version
from intact.formats.tflite.write import program_to_tflite
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Step, Tensor
from intact.program.deployed import deployed_program
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.program.passes.reordering import inverse


def one_op_programs(program: Program) -> Iterator[tuple[Step, Program]]:
    """Yield each step with a program of only that step, in order.

    The small program's inputs and outputs are the step's own, by the names of its tensors and with
    their encodings, so that it computes from codes to codes. A runtime that hides what lies
    between fused operators can be asked for every one of them this way.
    """
    for step in program.steps:
        inputs = {tensor.name: tensor for tensor in step.activations}
        outputs = {tensor.name: tensor for tensor in step.outputs}
        yield step, replace(program, inputs=inputs, outputs=outputs, steps=(step,), in_float={})


@dataclass(frozen=True)
class FileTensorRef:
    """The tensor of the file that a tensor of the program is, with the order of its axes.

    Attributes:
        key: Its name or number there.
        order: Axis ``k`` of what the program stores is axis ``order[k]`` in the file; None where
            they lie alike.
    """

    key: str | int
    order: tuple[int, ...] | None = None

    @staticmethod
    def of(key: str | int, tensor: Tensor, in_file: tuple[int, ...] | None) -> FileTensorRef:
        """Make the reference of a tensor whose axis ``k`` is the model's ``in_file[k]`` there."""
        as_it_is = tuple(range(len(tensor.shape)))
        there = inverse(in_file or as_it_is)
        order = tuple(there[axis] for axis in tensor.permutation or as_it_is)
        return FileTensorRef(key, None if order == as_it_is else order)

    def as_stored(self, array: Array) -> Array:
        """Return an array of the file as the program stores it."""
        return array if self.order is None else array.transpose(self.order)

    def as_in_file(self, array: Array) -> Array:
        """Return an array of the program as it is in the file."""
        moved = array if self.order is None else array.transpose(inverse(self.order))
        return np.ascontiguousarray(moved)


class DeployedFile:
    """A file that is ready to run, addressed by the names and the layout of a program.

    Args:
        runtime: The file.
        inputs: By the program's input names.
        outputs: By the program's output names.
        shown: Tensors between, by the program's names, that both hold.
    """

    def __init__(
        self,
        runtime: TfliteRuntime,
        inputs: Mapping[str, FileTensorRef],
        outputs: Mapping[str, FileTensorRef],
        shown: Mapping[str, FileTensorRef],
    ) -> None:
        self.shown = shown
        self._runtime, self._inputs, self._outputs = runtime, inputs, outputs

    def run(self, feeds: Arrays, observe: Iterable[str] = ()) -> tuple[Arrays, Arrays]:
        """Return the outputs, and some of the shown tensors, as the program stores them."""
        given = {
            str(self._inputs[name].key): self._inputs[name].as_in_file(array)
            for name, array in feeds.items()
        }
        wanted = {name: self.shown[name] for name in observe}
        results, seen = self._runtime.run(given, [place.key for place in wanted.values()])
        outputs = {n: each.as_stored(results[str(each.key)]) for n, each in self._outputs.items()}
        return outputs, {name: each.as_stored(seen[each.key]) for name, each in wanted.items()}


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
        for step, small in one_op_programs(program):
            if not step.activations:
                continue
            try:
                one = TfliteRuntime(program_to_tflite(small), kernels=kernels, threads=threads)
            except ExportError as error:
                self.not_compared |= {tensor.name: str(error) for tensor in step.outputs}
            else:
                self._cut.append((small, one))
        made = [tensor for small, _ in self._cut for tensor in small.outputs.values()]
        self._layers = comparisons(program, made)
        self._observed = {
            name for small, _ in self._cut for name in (*small.inputs, *small.outputs)
        }

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor alone."""
        return list(self._layers.values())

    def add(self, feeds: Arrays, _shown: Arrays) -> Arrays:
        """Compare one batch and return the engine's outputs."""
        own = self.engine.run(feeds, self._observed)
        for small, runtime in self._cut:
            given = {name: np.ascontiguousarray(own.tensors[name]) for name in small.inputs}
            results, _ = runtime.run(given)
            for name, array in results.items():
                self._layers[name].add(array, own.tensors[name])
        return own.outputs


_CODES = ("int8", "uint8", "int16")

_OTHER_PLAN = "compare a file with the plan that it was written from"


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
    ports = runtime.inputs | runtime.outputs
    integers = {name for name, port in ports.items() if _is_integer(port)}
    lowered = deployed_program(plan)
    program = integer_io(lowered, integers)
    with_floats = deployed_program(plan, float_operations=True)
    written = integer_io(with_floats, integers)
    _check_same_names("inputs", program.inputs, runtime.inputs)
    _check_same_names("outputs", program.outputs, runtime.outputs)
    file = DeployedFile(
        runtime,
        {
            n: FileTensorRef.of(n, t, with_floats.inputs[n].permutation)
            for n, t in lowered.inputs.items()
        },
        {
            n: FileTensorRef.of(n, t, written.outputs[n].permutation)
            for n, t in program.outputs.items()
        },
        dict(_shown_of_written(program, written, set(runtime.tensor_names()))),
    )
    given = (stored_feeds(program, feeds, lowered.inputs) for feeds in batches)
    return _verify(plan, program, file, given, kernels, threads)


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
        batches: As of :func:`verify_tflite`.
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
    integers = {name for name, other in inputs.items() if _is_integer(runtime.inputs[other])}
    integers |= {name for name, other in outputs.items() if _is_integer(runtime.outputs[other])}
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
        made = list(_integers(program))
        shown = [tensor.name for tensor in made if tensor.name in file.shown]
        compared = (tensor for tensor in made if tensor.name in file.shown)
        reference = EngineBeside(program, compared, threads=threads)
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
    return found


def _is_integer(port: Port) -> bool:
    return port.dtype.kind in "iu"


def _integers(program: Program) -> Iterator[Tensor]:
    return (tensor for tensor in activations(program) if tensor.encoding is not None)


def _check_same_names(side: str, named: Mapping[str, Tensor], ports: Mapping[str, Port]) -> None:
    if set(named) != set(ports):
        raise DataError(
            f"the {side} of the file are {', '.join(ports)}, of its plan {', '.join(named)}",
            remedy=_OTHER_PLAN,
        )


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
        raise DataError("the plan was read from another file", remedy=_OTHER_PLAN)
    return {name: by_tensor[tensor] for name, tensor in zip(named, tensors, strict=True)}


def _shown_of_written(
    program: Program, written: Program, names: set[str]
) -> Iterator[tuple[str, FileTensorRef]]:
    """Yield the tensors that a program shares with the one that was written, with their places.

    Float operations that the file holds can change how the axes of integers beside them lie, and
    which form of a value is named first.
    """
    theirs = [tensor for tensor in _integers(written) if tensor.name in names]
    for tensor in _integers(program):
        for other in theirs:
            alike = (other.value, other.end) == (tensor.value, tensor.end)
            if alike and _same_levels(tensor, other):
                theirs.remove(other)
                yield tensor.name, FileTensorRef.of(other.name, tensor, other.permutation)
                break


def _same_levels(tensor: Tensor, other: Tensor) -> bool:
    first, second = tensor.encoding, other.encoding
    return (
        first is not None
        and second is not None
        and (first.axis is not None or first.same_as(second))
        and len(tensor.shape) == len(other.shape)
    )


def _shown_of_read(model: TfliteModel, program: Program) -> Iterator[tuple[str, FileTensorRef]]:
    """Yield the tensors of steps that are tensors of the file, each once."""
    by_value: dict[str, Tensor] = {}
    for tensor in _integers(program):
        by_value.setdefault(tensor.value, tensor)
    for number, place in model.tensors.items():
        found = by_value.get(place.value)
        if found is None or found.encoding is None or found.encoding.dtype != place.element:
            continue
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

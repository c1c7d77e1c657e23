"""Runs a written ``.tflite`` in LiteRT by the names and layouts of its program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from intact.errors import DataError
from intact.formats.base.comparison import activations, numbers_of, stored_feeds
from intact.formats.base.format import Feeds
from intact.formats.tflite.run import Arrays, Kernels, Port, TfliteRuntime
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Tensor
from intact.program.deployed import deployed_program
from intact.program.operations import DynamicFullyConnected, DynamicQuantize
from intact.program.passes.integer_io import integer_io
from intact.program.passes.reordering import inverse

OTHER_PLAN = "compare a file with the plan that it was written from"


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
        # Through the model's order, which both know: neither knows the other's.
        there = inverse(in_file or as_it_is)
        order = tuple(there[axis] for axis in tensor.permutation or as_it_is)
        return FileTensorRef(key, None if order == as_it_is else order)

    def as_stored(self, array: Array) -> Array:
        """Return an array of the file as the program stores it."""
        return array if self.order is None else array.transpose(self.order)

    def as_in_file(self, array: Array) -> Array:
        """Return an array of the program as it is in the file."""
        moved = array if self.order is None else array.transpose(inverse(self.order))
        return np.asarray(moved, order="C")


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
            str(self._inputs[name].key): self._typed(name, self._inputs[name].as_in_file(array))
            for name, array in feeds.items()
        }
        wanted = {name: self.shown[name] for name in observe}
        results, seen = self._runtime.run(given, [place.key for place in wanted.values()])
        outputs = {n: each.as_stored(results[str(each.key)]) for n, each in self._outputs.items()}
        return outputs, {name: each.as_stored(seen[each.key]) for name, each in wanted.items()}

    def _typed(self, name: str, array: Array) -> Array:
        """Return whole numbers as int32 where the file has them so."""
        port = self._runtime.inputs.get(str(self._inputs[name].key))
        # A program made for Micro holds int64 as int32: Micro has no kernels of int64.
        if port is None or array.dtype != np.int64 or port.dtype != np.int32:
            return array
        return array.astype(np.int32)


def run_tflite(
    plan: QuantizedGraph,
    content: bytes,
    feeds: Feeds,
    kernels: Kernels = Kernels.REF,
    *,
    threads: int = 1,
) -> Arrays:
    """Run a written ``.tflite`` in LiteRT; the outputs by name, as numbers.

    Args:
        plan: The plan that was written.
        content: The file.
        feeds: Inputs by name, with axes as the model has them.
        kernels: Which of LiteRT's kernels run.
        threads: Threads inside one operator.

    Raises:
        ExportError: LiteRT rejects the file, or fails on it.
        DataError: The file does not take what the plan does.
        MissingExtraError: ai-edge-litert is not installed.
    """
    return open_tflite(plan, TfliteRuntime(content, kernels=kernels, threads=threads))(feeds)


def open_tflite(plan: QuantizedGraph, runtime: TfliteRuntime) -> Callable[[Feeds], Arrays]:
    """Return what runs batches of a written file; as `run_tflite`."""
    lowered, program, file = written_file(plan, runtime)

    def run(feeds: Feeds) -> Arrays:
        outputs, _ = file.run(stored_feeds(program, feeds, lowered.inputs))
        return numbers_of(outputs, program.outputs)

    return run


def written_file(
    plan: QuantizedGraph, runtime: TfliteRuntime
) -> tuple[Program, Program, DeployedFile]:
    """Address a written file by a program's names; with the program before and after its ends."""
    ports = runtime.inputs | runtime.outputs
    # The file itself says which ends are codes, since it may have been written with float ends.
    integers = {name for name, port in ports.items() if is_integer(port)}
    lowered = deployed_program(plan)
    program = integer_io(lowered, integers)
    # The file was written with float operations, which can change how the axes of its ends lie.
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
        dict(
            (
                *_shown_of_written(program, written, set(runtime.tensor_names())),
                *_floats_of_written(program, written, set(runtime.tensor_names())),
            )
        ),
    )
    return lowered, program, file


def is_integer(port: Port) -> bool:
    """Whether an input or output holds codes."""
    return port.dtype.kind in "iu"


def integers_of(program: Program) -> Iterator[Tensor]:
    """Yield the tensors of codes that steps compute, in order."""
    return (tensor for tensor in activations(program) if tensor.encoding is not None)


def _check_same_names(side: str, named: Mapping[str, Tensor], ports: Mapping[str, Port]) -> None:
    if set(named) != set(ports):
        raise DataError(
            f"the {side} of the file are {', '.join(ports)}, of its plan {', '.join(named)}",
            remedy=OTHER_PLAN,
        )


def _shown_of_written(
    program: Program, written: Program, names: set[str]
) -> Iterator[tuple[str, FileTensorRef]]:
    """Yield the tensors that a program shares with the one that was written, with their places.

    Float operations that the file holds can change how the axes of integers beside them lie, and
    which form of a value is named first.
    """
    theirs = [tensor for tensor in integers_of(written) if tensor.name in names]
    for tensor in integers_of(program):
        for other in theirs:
            # By value and end, as names depend on the steps around them.
            alike = (other.value, other.end) == (tensor.value, tensor.end)
            if alike and _same_levels(tensor, other):
                # Each is taken once: several forms of a value may have equal levels.
                theirs.remove(other)
                yield tensor.name, FileTensorRef.of(other.name, tensor, other.permutation)
                break


def floats_around_codes(program: Program) -> tuple[list[Tensor], list[Tensor]]:
    """List the floats that layers quantize while they run, and their results.

    What lies between, such layers show nobody.
    """
    given = [
        tensor
        for step in program.steps
        if isinstance(step.operation, DynamicQuantize)
        for tensor in step.activations
    ]
    made = [
        tensor
        for step in program.steps
        if isinstance(step.operation, DynamicFullyConnected)
        for tensor in step.outputs
    ]
    return given, made


def _floats_of_written(
    program: Program, written: Program, names: set[str]
) -> Iterator[tuple[str, FileTensorRef]]:
    """Yield the floats around such layers that a program shares with the one that was written."""
    for ours, theirs in zip(
        floats_around_codes(program), floats_around_codes(written), strict=True
    ):
        by_value = {tensor.value: tensor for tensor in theirs if tensor.name in names}
        for tensor in ours:
            other = by_value.get(tensor.value)
            if other is not None and tensor.value and not tensor.is_constant:
                yield tensor.name, FileTensorRef.of(other.name, tensor, other.permutation)


def _same_levels(tensor: Tensor, other: Tensor) -> bool:
    first, second = tensor.encoding, other.encoding
    return (
        first is not None
        and second is not None
        and (first.axis is not None or first.same_as(second))
        and len(tensor.shape) == len(other.shape)
    )

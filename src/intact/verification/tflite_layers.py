"""How the layers of a ``.tflite`` are compared: all tensors of one run, or step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from intact.errors import ExportError
from intact.formats.tflite.runtime import Kernels, TfliteRuntime
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Program, Tensor
from intact.program.passes.cut import one_op_programs
from intact.program.passes.reordering import inverse
from intact.run.integer.engine import IntegerEngine
from intact.verification.beside import EngineBeside
from intact.verification.comparison import LayerComparison, activations, comparisons

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Place:
    """Where a tensor of the program is in the file.

    Attributes:
        key: Its name or number there.
        order: Axis ``k`` of what the program stores is axis ``order[k]`` in the file; None where
            they lie alike.
    """

    key: str | int
    order: tuple[int, ...] | None = None

    @staticmethod
    def of(key: str | int, tensor: Tensor, in_file: tuple[int, ...] | None) -> Place:
        """Return the place of a tensor whose axis ``k`` is the model's ``in_file[k]`` there."""
        as_it_is = tuple(range(len(tensor.shape)))
        there = inverse(in_file or as_it_is)
        order = tuple(there[axis] for axis in tensor.permutation or as_it_is)
        return Place(key, None if order == as_it_is else order)

    def as_stored(self, array: Array) -> Array:
        """Return an array of the file as the program stores it."""
        return array if self.order is None else array.transpose(self.order)

    def as_in_file(self, array: Array) -> Array:
        """Return an array of the program as it is in the file."""
        moved = array if self.order is None else array.transpose(inverse(self.order))
        return np.ascontiguousarray(moved)


class DeployedFile:
    """A file made ready to run, spoken to in the names and the layout of a program.

    Args:
        runtime: The file.
        inputs: By the program's input names.
        outputs: By the program's output names.
        shown: Tensors between, by the program's names, that both hold.
    """

    def __init__(
        self,
        runtime: TfliteRuntime,
        inputs: Mapping[str, Place],
        outputs: Mapping[str, Place],
        shown: Mapping[str, Place],
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


class Layers(Protocol):
    """What a comparison of layers gives."""

    engine: IntegerEngine
    not_compared: dict[str, str]

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor alone."""

    @property
    def end_to_end(self) -> list[LayerComparison]:
        """Each side fed by its own."""

    def add(self, feeds: Arrays) -> tuple[Arrays, Arrays]:
        """Compare one batch; return the outputs of the runtime and the engine's."""


class AllTensors:
    """Every tensor of one run of the file, each layer computed from the runtime's own."""

    def __init__(self, program: Program, file: DeployedFile, threads: int) -> None:
        self._file = file
        made = [tensor for tensor in activations(program) if tensor.encoding is not None]
        shown = [tensor for tensor in made if tensor.name in file.shown]
        self._beside = EngineBeside(program, shown, threads=threads)
        self.engine = self._beside.engine
        self.not_compared = {
            tensor.name: "the file has no such tensor"
            for tensor in made
            if tensor.name not in file.shown
        }

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor alone."""
        return self._beside.layers

    @property
    def end_to_end(self) -> list[LayerComparison]:
        """Each side fed by its own."""
        return self._beside.end_to_end

    def add(self, feeds: Arrays) -> tuple[Arrays, Arrays]:
        """Compare one batch; return the outputs of the runtime and the engine's."""
        outputs, seen = self._file.run(feeds, [layer.tensor for layer in self.layers])
        return outputs, self._beside.add(feeds, seen)


class StepByStep:
    """Each step as a model of its own, fed with the engine's integers."""

    def __init__(
        self, program: Program, file: DeployedFile, kernels: Kernels, threads: int
    ) -> None:
        self._file = file
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

    def add(self, feeds: Arrays) -> tuple[Arrays, Arrays]:
        """Compare one batch; return the outputs of the runtime and the engine's."""
        own = self.engine.run(feeds, self._observed)
        for small, runtime in self._cut:
            given = {name: np.ascontiguousarray(own.tensors[name]) for name in small.inputs}
            results, _ = runtime.run(given)
            for name, array in results.items():
                self._layers[name].add(array, own.tensors[name])
        outputs, _ = self._file.run(feeds)
        return outputs, own.outputs

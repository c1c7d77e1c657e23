"""How the layers of a ``.tflite`` are compared: all tensors of one run, or step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from intact.errors import ExportError
from intact.formats.tflite.runtime import Kernels, TfliteRuntime
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Program, Tensor
from intact.program.cut import one_op_programs
from intact.run.integer.engine import IntegerEngine
from intact.verification.beside import EngineBeside
from intact.verification.comparison import LayerComparison, comparisons

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Shown:
    """A tensor that program and file both hold.

    Attributes:
        tensor: The program's.
        key: Its name or number in the file.
        order: Axis ``k`` of what the program stores is axis ``order[k]`` in the file; None where
            they lie alike.
    """

    tensor: Tensor
    key: str | int
    order: tuple[int, ...] | None = None


class DeployedFile:
    """A file made ready to run, spoken to in the names of a program.

    Args:
        runtime: The file.
        inputs: The file's input names by the program's.
        outputs: Likewise.
    """

    def __init__(
        self, runtime: TfliteRuntime, inputs: Mapping[str, str], outputs: Mapping[str, str]
    ) -> None:
        self.runtime = runtime
        self._inputs, self._outputs = inputs, outputs

    def run(self, feeds: Arrays, shown: Sequence[Shown] = ()) -> tuple[Arrays, Arrays]:
        """Return the outputs, and the shown tensors as the program stores them, by its names."""
        given = {self._inputs[name]: array for name, array in feeds.items()}
        results, seen = self.runtime.run(given, [each.key for each in shown])
        outputs = {name: results[other] for name, other in self._outputs.items()}
        stored = {
            each.tensor.name: seen[each.key]
            if each.order is None
            else seen[each.key].transpose(each.order)
            for each in shown
        }
        return outputs, stored


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

    def __init__(
        self, program: Program, file: DeployedFile, shown: Sequence[Shown], threads: int
    ) -> None:
        self._file, self._shown = file, shown
        self._beside = EngineBeside(program, [each.tensor for each in shown], threads=threads)
        self.engine = self._beside.engine
        held = {each.tensor.name for each in shown}
        self.not_compared = {
            tensor.name: "the file has no such tensor"
            for step in program.steps
            for tensor in step.outputs
            if tensor.encoding is not None and tensor.name not in held
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
        outputs, seen = self._file.run(feeds, self._shown)
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

"""A ``.tflite`` file in LiteRT against the integer engine.

The reference kernels show every tensor, so each layer is computed from the runtime's own integers.
The others fuse and overwrite what lies between operators: each step is cut into a model of its own
instead and fed with the engine's integers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from intact.errors import DataError, ExportError
from intact.formats.tflite.runtime import Kernels, TfliteRuntime, litert_version
from intact.formats.tflite.write import program_to_tflite
from intact.plan import QuantizedGraph
from intact.program import Array, Program
from intact.program.cut import one_op_programs
from intact.program.integer_io import integer_io
from intact.program.layout import Layout
from intact.program.lower import lower
from intact.run.cpu import detect_cpu
from intact.run.integer.engine import IntegerEngine
from intact.run.session import Feeds
from intact.verification.beside import EngineBeside
from intact.verification.comparison import (
    LayerComparison,
    OutputComparer,
    activations,
    comparisons,
)
from intact.verification.feeding import stored_feeds
from intact.verification.report import Verification, overflow_reports, sqnr_by_name


def verify_tflite(
    plan: QuantizedGraph,
    content: bytes,
    batches: Iterable[Feeds],
    kernels: Kernels = Kernels.REF,
    *,
    threads: int = 1,
) -> Verification:
    """Compare a written (or read) ``.tflite`` in LiteRT with the integers that its plan says.

    Args:
        plan: The plan that was written, or that was read from the file.
        content: The file.
        batches: Inputs by name, with axes as the model has them; floats, or codes for an integer
            input of the file.
        kernels: Which of LiteRT's kernels run.
        threads: Threads inside one operator.

    Raises:
        ExportError: LiteRT refuses the file, or fails on it.
        DataError: The file does not take what the plan does, or gives other shapes.
        MissingExtraError: ai-edge-litert is not installed.
    """
    runtime = TfliteRuntime(content, kernels=kernels, threads=threads)
    program = _program_of(plan, runtime)
    compared: _AllTensors | _StepByStep
    if kernels is Kernels.REF:
        compared = _AllTensors(program, runtime, threads)
    else:
        compared = _StepByStep(program, runtime, kernels, threads)
    outputs = OutputComparer()
    samples = 0
    for feeds in batches:
        deployed, computed = compared.add(stored_feeds(program, feeds))
        for name, tensor in program.outputs.items():
            outputs.add(name, deployed[name], computed[name], tensor)
        samples += len(next(iter(feeds.values())))
    return Verification(
        target=plan.target.name,
        runtime=f"{litert_version()}, {kernels} kernels",
        cpu=detect_cpu(),
        samples=samples,
        layers=compared.layers,
        end_to_end=compared.end_to_end,
        outputs=outputs.found(),
        outputs_sqnr_db=sqnr_by_name(outputs.found()),
        in_float=dict(program.in_float),
        not_compared=compared.not_compared,
        overflows=overflow_reports(compared.engine),
    )


def _program_of(plan: QuantizedGraph, runtime: TfliteRuntime) -> Program:
    """Return the plan as steps between what the file takes and gives."""
    program = lower(plan, layout=Layout.CHANNELS_LAST)
    if any(
        port.dtype.kind in "iu" for port in (*runtime.inputs.values(), *runtime.outputs.values())
    ):
        program = integer_io(program)
    for side, named, ports in (
        ("inputs", program.inputs, runtime.inputs),
        ("outputs", program.outputs, runtime.outputs),
    ):
        if set(named) != set(ports):
            raise DataError(
                f"the {side} of the file are {', '.join(ports)}, of its plan {', '.join(named)}",
                remedy="compare a file with the plan that it was written from",
            )
    return program


class _AllTensors:
    """Every tensor of the file, each layer computed from the runtime's own."""

    def __init__(self, program: Program, runtime: TfliteRuntime, threads: int) -> None:
        self._runtime = runtime
        shown = set(runtime.tensor_names())
        integers = [tensor for tensor in activations(program) if tensor.encoding is not None]
        self._seen = [tensor for tensor in integers if tensor.name in shown]
        self.not_compared = {
            tensor.name: "the file has no such tensor"
            for tensor in integers
            if tensor.name not in shown
        }
        self._beside = EngineBeside(program, self._seen, threads=threads)
        self.engine = self._beside.engine

    @property
    def layers(self) -> list[LayerComparison]:
        return self._beside.layers

    @property
    def end_to_end(self) -> list[LayerComparison]:
        return self._beside.end_to_end

    def add(self, feeds: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Compare one batch; return the outputs of the runtime and the engine's."""
        outputs, seen = self._runtime.run(feeds, [tensor.name for tensor in self._seen])
        return outputs, self._beside.add(feeds, seen)


class _StepByStep:
    """Each step as a model of its own, fed with the engine's integers."""

    def __init__(
        self, program: Program, runtime: TfliteRuntime, kernels: Kernels, threads: int
    ) -> None:
        self._runtime = runtime
        self.engine = IntegerEngine(program, threads=threads)
        self.end_to_end: list[LayerComparison] = []
        self.not_compared: dict[str, str] = {}
        self._cut: list[tuple[Program, TfliteRuntime]] = []
        for step, small in one_op_programs(program):
            try:
                one = TfliteRuntime(program_to_tflite(small), kernels=kernels, threads=threads)
            except ExportError as error:
                self.not_compared |= {tensor.name: str(error) for tensor in step.outputs}
            else:
                self._cut.append((small, one))
        self._layers = comparisons(
            program, [tensor for small, _ in self._cut for tensor in small.outputs.values()]
        )
        self._observed = {name for small, _ in self._cut for name in _ends(small)}

    @property
    def layers(self) -> list[LayerComparison]:
        return list(self._layers.values())

    def add(self, feeds: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Compare one batch; return the outputs of the runtime and the engine's."""
        own = self.engine.run(feeds, self._observed)
        for small, runtime in self._cut:
            given = {name: np.ascontiguousarray(own.tensors[name]) for name in small.inputs}
            results, _ = runtime.run(given)
            for name, array in results.items():
                self._layers[name].add(array, own.tensors[name])
        outputs, _ = self._runtime.run(feeds)
        return outputs, own.outputs


def _ends(program: Program) -> list[str]:
    return [*program.inputs, *program.outputs]

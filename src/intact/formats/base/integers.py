"""A plan as integer operations, in ONNX Runtime or TVM, against the integer engine.

Both are written from one graph of integers, whose values hold the program's tensors: all of them
are handed out by a second model, so that each layer is computed from the runtime's own integers.
The model as it was written is run too, and its outputs are compared. No difference is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from intact.engines.cpu import detect_cpu
from intact.engines.exact_sums import saturates_pairs
from intact.engines.session import Feeds
from intact.formats.base.beside import EngineBeside
from intact.formats.base.comparison import OutputComparer, stored_feeds
from intact.formats.base.report import (
    Verification,
    overflow_reports,
    saturation,
    sqnr_by_name,
)
from intact.formats.onnx_integer.run import OnnxIntegerRuntime
from intact.formats.onnx_integer.write import integer_model
from intact.formats.tvm.run import TvmRuntime
from intact.formats.tvm.write import TvmModule, of_one_sample, relax_module
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Tensor
from intact.program.realize import IntegerGraph, Place, integer_program, realize

_Run: TypeAlias = Callable[[Mapping[str, Array]], dict[str, Array]]


@dataclass(frozen=True)
class _Runtime:
    """What ran.

    Attributes:
        name: With its version.
        written: The model as it was written.
        watched: The same, whose values are handed out too.
        shown: Tensors by the values that hold them.
        by_default: The written model as apps run it, where that sums products otherwise.
    """

    name: str
    written: _Run
    watched: _Run
    shown: Mapping[str, tuple[Tensor, Place]]
    by_default: tuple[_Run, ir.Model] | None = None


def verify_onnx_integer(
    plan: QuantizedGraph,
    content: bytes,
    batches: Iterable[Feeds],
    *,
    float_ends: bool = False,
    threads: int = 0,
) -> Verification:
    """Compare an integer ONNX model in ONNX Runtime with the integers that its plan says.

    Args:
        plan: The plan.
        content: What was written from it.
        batches: Inputs by name: floats, or codes for inputs that are integers.
        float_ends: It takes and gives floats.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
    """
    program = integer_program(plan, float_ends=float_ends)
    graph = realize(program)
    shown = _shown(graph)
    exact = not plan.target.saturates_pairs
    shown_model = integer_model(graph, program, tuple(shown))
    watched = OnnxIntegerRuntime(shown_model, threads=threads, exact=exact)
    written = OnnxIntegerRuntime(content, threads=threads, exact=exact)
    by_default = None
    if exact and saturates_pairs():
        default = OnnxIntegerRuntime(content, threads=threads, exact=False)
        by_default = default.run, ir.from_proto(onnx.load_from_string(content))
    runtime = _Runtime(written.name, written.run, watched.run, shown, by_default)
    return _verify(plan, program, runtime, batches, threads)


def verify_tvm(
    plan: QuantizedGraph,
    module: TvmModule,
    batches: Iterable[Feeds],
    *,
    float_ends: bool = False,
    threads: int = 0,
) -> Verification:
    """Compare a Relax module, compiled for this processor, with the integers that its plan says.

    Args:
        plan: The plan.
        module: What was written from it; its text is compiled.
        batches: As of :func:`verify_onnx_integer`.
        float_ends: It takes and gives floats.
        threads: Of the engine's float islands; 0 lets their runtime choose.

    Raises:
        MissingExtraError: apache-tvm is not installed.
        ExportError: TVM refuses the module, or it fails.
        DataError: The module gives other shapes than the plan.
    """
    program = integer_program(plan, float_ends=float_ends)
    graph = realize(of_one_sample(program))
    shown = _shown(graph)
    written, watched = TvmRuntime(module), TvmRuntime(relax_module(graph, tuple(shown)))
    outputs = {
        name: None if tensor.is_constant else _batch_axis(tensor)
        for name, tensor in program.outputs.items()
    }
    axes = {name: place.order.index(_batch_axis(t)) for name, (t, place) in shown.items()}
    runtime = _Runtime(
        written.name,
        _each_sample(program, written.run, outputs),
        _each_sample(program, watched.run, outputs | axes),
        shown,
    )
    return _verify(plan, program, runtime, batches, threads)


def _verify(
    plan: QuantizedGraph,
    program: Program,
    runtime: _Runtime,
    batches: Iterable[Feeds],
    threads: int,
) -> Verification:
    shown = runtime.shown
    tensors = [tensor for tensor, _ in shown.values()]
    beside, outputs = EngineBeside(program, tensors, threads=threads), OutputComparer()
    as_apps = OutputComparer()
    samples = 0
    for feeds in batches:
        given = stored_feeds(program, feeds)
        deployed, seen = runtime.written(given), runtime.watched(given)
        stored = {t.name: place.as_stored(seen[name]) for name, (t, place) in shown.items()}
        computed = beside.add(given, stored)
        for name, tensor in program.outputs.items():
            outputs.add(name, deployed[name], computed[name], tensor)
        if runtime.by_default is not None:
            for name, array in runtime.by_default[0](given).items():
                as_apps.add(name, array, computed[name], program.outputs[name])
        samples += len(next(iter(given.values())))
    return Verification(
        target=plan.target.name,
        runtime=runtime.name,
        cpu=detect_cpu(),
        samples=samples,
        layers=beside.layers,
        end_to_end=beside.end_to_end,
        outputs=outputs.found(),
        outputs_sqnr_db=sqnr_by_name(outputs.found()),
        classes=outputs.classes(),
        in_float=dict(program.in_float),
        overflows=overflow_reports(*beside.engines),
        processor=None
        if runtime.by_default is None
        else saturation(runtime.by_default[1], as_apps.found()),
    )


def _shown(graph: IntegerGraph) -> dict[str, tuple[Tensor, Place]]:
    """Return the tensors of codes that nodes make, each value once, by the value's name."""
    made = {node.output.name for node in graph.nodes}
    found: dict[str, tuple[Tensor, Place]] = {}
    for tensor, place in graph.tensors:
        if tensor.encoding is not None and place.value in made:
            found.setdefault(place.value, (tensor, place))
    return found


def _batch_axis(tensor: Tensor) -> int:
    """Return along which axis samples lie; the first where no length is open."""
    return tensor.shape.index(None) if None in tensor.shape else 0


def _each_sample(program: Program, run: _Run, axes: Mapping[str, int | None]) -> _Run:
    """Return what runs a batch sample by sample; as it is where the model says how long it is.

    Args:
        program: Of the plan.
        run: Runs one sample.
        axes: Along which axis samples are joined, by name; None where all are the same.
    """
    lengths = {name: tensor.shape for name, tensor in program.inputs.items()}
    if not any(None in shape for shape in lengths.values()):
        return run

    def each(feeds: Mapping[str, Array]) -> dict[str, Array]:
        count = max(len(feeds[name]) for name, shape in lengths.items() if None in shape)
        samples = [
            run(
                {
                    name: feeds[name][at : at + 1] if None in shape else feeds[name]
                    for name, shape in lengths.items()
                }
            )
            for at in range(count)
        ]
        return {
            name: samples[0][name]
            if axis is None
            else np.concatenate([sample[name] for sample in samples], axis=axis)
            for name, axis in axes.items()
        }

    return each

"""Builds a Relax module for this machine, runs it, and compares it with the integer engine.

No difference is allowed. A second module gives every value too, so that each layer is computed from
the runtime's own integers. The outputs are those of the module as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np

from intact._extras import require
from intact.errors import ExportError
from intact.formats.base.comparison import stored_feeds
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, EngineBeside, compare
from intact.formats.tvm.write import TvmModule, of_one_sample, relax_module
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Tensor
from intact.program.realize import integer_program, realize

TARGET = {"kind": "llvm"}
"""Any processor: "native" is no name of one."""
PACKAGES = ("tvm",)


class TvmRuntime:
    """A module built with TVM.

    Args:
        module: What was written; its text is compiled, so that it must be our own.

    Raises:
        MissingExtraError: apache-tvm is not installed.
        ExportError: TVM refuses the module.
    """

    def __init__(self, module: TvmModule) -> None:
        require("running a TVM module", PACKAGES, "tvm")
        self.name = f"TVM {metadata.version('apache-tvm')}, llvm"
        self._module = module
        try:
            self._main = _compiled(module)
        except Exception as error:  # TVM raises a dozen unrelated classes
            raise ExportError(
                f"{self.name} refuses the written module: {_first_line(error)}"
            ) from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run arrays of one module call: one sample, or the model's own batch.

        Raises:
            ExportError: The module fails on these inputs.
        """
        from tvm import runtime

        try:
            given = [runtime.tensor(np.ascontiguousarray(feeds[n])) for n in self._module.inputs]
            results = self._main(*given)
        except Exception as error:  # see above
            raise ExportError(f"{self.name} fails on this input: {_first_line(error)}") from error
        names = self._module.outputs
        return {name: result.numpy() for name, result in zip(names, results, strict=True)}


def _compiled(module: TvmModule) -> Any:
    import tvm
    from tvm import relax
    from tvm.script import from_source

    parsed = from_source(module.text)
    bound = relax.transform.BindParams("main", dict(module.arrays))(parsed)
    # A Target of a dictionary, as version 0.27 takes neither a text nor the name "native".
    executable = tvm.compile(bound, target=tvm.target.Target(TARGET))
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def _first_line(error: Exception) -> str:
    # TVM's messages begin with its own trace, and end with the reason.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


_Run: TypeAlias = Callable[[Mapping[str, Array]], Arrays]


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
        batches: Inputs by name: floats, or codes for inputs that are integers.
        float_ends: It takes and gives floats.
        threads: Threads of the engine's float islands; 0 lets their runtime choose.

    Raises:
        MissingExtraError: apache-tvm is not installed.
        ExportError: TVM refuses the module, or it fails.
        DataError: The module gives other shapes than the plan.
    """
    program = integer_program(plan, float_ends=float_ends)
    graph = realize(of_one_sample(program))
    shown = graph.shown()
    written, watched = TvmRuntime(module), TvmRuntime(relax_module(graph, tuple(shown)))
    outputs = {
        # A constant is the same for every sample, and has no axis of them to join along.
        name: None if tensor.is_constant else _batch_axis(tensor)
        for name, tensor in program.outputs.items()
    }
    axes = {name: place.order.index(_batch_axis(t)) for name, (t, place) in shown.items()}
    run_written = _each_sample(program, written.run, outputs)
    run_watched = _each_sample(program, watched.run, outputs | axes)

    def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
        values = run_watched(feeds)
        stored = {t.name: place.as_stored(values[name]) for name, (t, place) in shown.items()}
        return run_written(feeds), stored

    reference = EngineBeside(program, (tensor for tensor, _ in shown.values()), threads=threads)
    given = (stored_feeds(program, feeds) for feeds in batches)
    return compare(plan, written.name, run, reference, given, program.outputs)


def _batch_axis(tensor: Tensor) -> int:
    """Return the axis along which samples lie; the first where no length is open."""
    return tensor.shape.index(None) if None in tensor.shape else 0


def _each_sample(program: Program, run: _Run, axes: Mapping[str, int | None]) -> _Run:
    """Make a function that runs a batch sample by sample, unless the model's batch is fixed.

    Args:
        program: What the plan was lowered to.
        run: Runs one sample.
        axes: Along which axis samples are joined, by name; None where all are the same.
    """
    lengths = {name: tensor.shape for name, tensor in program.inputs.items()}
    # The module has the model's own batch then.
    if not any(None in shape for shape in lengths.values()):
        return run

    def each(feeds: Mapping[str, Array]) -> Arrays:
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

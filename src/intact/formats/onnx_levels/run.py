"""Runs a model of levels in ONNX Runtime, against the simulation of its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from intact.engines.executor import simulated_run
from intact.engines.integer.engine import IntegerEngine
from intact.engines.session import make_session, run_session
from intact.engines.simulate import Simulator
from intact.errors import ExportError, ModelError
from intact.formats.base.comparison import LayerComparison
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, compare
from intact.formats.onnx_levels.write import LevelsModel
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph, TensorEnd


class LevelsRuntime:
    """A compiled model.

    Args:
        exported: What was written.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses it.
    """

    def __init__(self, exported: LevelsModel, *, threads: int = 0) -> None:
        try:
            self._session = make_session(exported.model, threads=threads)
        except ModelError as error:
            raise ExportError(error.with_flags) from error
        self._outputs = [str(value.name) for value in exported.model.graph.outputs]

    def run(self, feeds: Feeds) -> Feeds:
        """Run one batch; return the outputs by name.

        Raises:
            ExportError: The runtime fails on these inputs.
        """
        try:
            arrays = run_session(self._session, dict(feeds), self._outputs)
        except ModelError as error:
            raise ExportError(error.with_flags) from error
        return dict(zip(self._outputs, arrays, strict=True))


_Levels = dict[TensorEnd, npt.NDArray[np.float32]]

_BY_SIMULATION = (
    "the file computes in float on the plan's levels, which the simulation does too: what is "
    "compared are the codes of the levels"
)


def verify_levels(
    plan: QuantizedGraph, exported: LevelsModel, batches: Iterable[Feeds], *, threads: int = 0
) -> Verification:
    """Compare a written model in ONNX Runtime with the simulation.

    Args:
        plan: The plan.
        exported: What was written from it, or read back.
        batches: Inputs by name; every activation of a batch is held, several times.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ModelError: The runtime refuses the model.
        DataError: The model gives other shapes than the plan.
    """
    reference = _Reference(plan, threads)
    ends = [end for end in exported.levels if end in reference.ends]
    editor = Editor(exported.model)
    outputs = [str(value.name) for value in editor.model.graph.outputs]
    shown = [exported.levels[end] for end in ends]
    editor.model.graph.outputs.extend(
        # One name may stand for several ends, and be an output already.
        editor.value(name)
        for name in dict.fromkeys(shown)
        if name not in outputs
    )
    session = make_session(editor.finish(), threads=threads)

    def run(feeds: Feeds) -> tuple[Arrays, _Levels]:
        arrays = run_session(session, dict(feeds), [*outputs, *shown])
        between = arrays[len(outputs) :]
        return dict(zip(outputs, arrays, strict=False)), dict(zip(ends, between, strict=True))

    found = compare(plan, f"ONNX Runtime {ort.__version__}", run, reference, batches)
    # There is no integer engine for logarithmic levels: what was compared is the simulation.
    found.simulation = found.layers
    found.layers = []
    found.no_engine = _BY_SIMULATION
    return found


class _Reference:
    """The simulation, each layer computed from the runtime's own levels, and from end to end.

    Attributes:
        ends: The quantized activations that it has.
        end_to_end: None.
        engine: None.
    """

    def __init__(self, plan: QuantizedGraph, threads: int) -> None:
        self._plan = plan
        # Two simulations: one is fed with the runtime's levels, the outputs are those of the other,
        # from end to end.
        self._taught = Simulator(plan, threads=threads, teacher_forced=True)
        self._alone = simulated_run(plan, threads=threads)
        self.ends = tuple(self._taught.points)
        self._found = {end: LayerComparison(str(end)) for end in self.ends}
        self.end_to_end: list[LayerComparison] = []
        self.engine: IntegerEngine | None = None

    @property
    def layers(self) -> list[LayerComparison]:
        """Each activation, in graph order."""
        return list(self._found.values())

    def add(self, feeds: Feeds, shown: Mapping[TensorEnd, npt.NDArray[np.float32]]) -> Arrays:
        """Compare one batch and return the expected outputs."""
        taught = {name: shown[end] for end, name in self._taught.teacher_inputs.items()}
        _, simulated = self._taught.run(dict(feeds) | taught, observe=self.ends)
        for end, array in simulated.items():
            config = self._plan.configs[end]
            # As codes, because floats of one level may differ in their last bit.
            have, want = (config.quantize(each).astype(np.int64) for each in (shown[end], array))
            self._found[end].add(have, want)
        return dict(self._alone(dict(feeds)))

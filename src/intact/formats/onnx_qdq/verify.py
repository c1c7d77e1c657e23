"""A written QDQ model in ONNX Runtime against the integer engine, and against the simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.engines.cpu import detect_cpu
from intact.engines.exact_sums import saturates_pairs
from intact.engines.integer.engine import IntegerEngine
from intact.engines.limits import limits_of_simulation
from intact.engines.session import Feeds
from intact.engines.simulate import Simulator
from intact.errors import ConfigError, PlanError
from intact.formats.base.beside import EngineBeside
from intact.formats.base.comparison import LayerComparison, OutputComparer, activations
from intact.formats.base.report import (
    Verification,
    overflow_reports,
    saturation,
    sqnr_by_name,
)
from intact.formats.onnx_qdq.run import QdqRuntime, float_leftovers
from intact.formats.onnx_qdq.write import QdqModel
from intact.plan import QuantizedGraph, TensorEnd, quantization_points
from intact.program import Array, Program, Tensor
from intact.program.lower import lower


class SimulationBeside:
    """The simulation, each layer computed from the runtime's own integers.

    Attributes:
        ends: The quantized activations that it has.
    """

    def __init__(self, plan: QuantizedGraph, threads: int) -> None:
        self._plan = plan
        self._simulator = Simulator(plan, threads=threads, teacher_forced=True)
        self.ends = tuple(self._simulator.points)
        self._found = {end: LayerComparison(str(end)) for end in self.ends}

    @property
    def layers(self) -> list[LayerComparison]:
        """Each activation, in graph order."""
        return list(self._found.values())

    def add(self, feeds: Feeds, integers: Mapping[TensorEnd, npt.NDArray[Any]]) -> None:
        """Compare one batch of the runtime's integers."""
        values = {
            name: self._plan.configs[end].dequantize(integers[end].astype(np.int64))
            for end, name in self._simulator.teacher_inputs.items()
        }
        _, simulated = self._simulator.run(feeds | values, observe=self.ends)
        for end, array in simulated.items():
            codes = self._plan.configs[end].quantize(array).astype(np.int64)
            self._found[end].add(integers[end].astype(np.int64), codes)


class FreeSimulation:
    """The simulation in the place of an engine that cannot compute the plan: its outputs only.

    Attributes:
        layers: None: they are compared by `SimulationBeside`.
        end_to_end: None.
        engines: None.
    """

    def __init__(self, plan: QuantizedGraph, threads: int) -> None:
        self._simulator = Simulator(plan, threads=threads)
        self.layers: list[LayerComparison] = []
        self.end_to_end: list[LayerComparison] = []
        self.engines: tuple[IntegerEngine, ...] = ()

    def add(
        self, feeds: Mapping[str, npt.NDArray[Any]], _deployed: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs of one batch; nothing is compared with what was deployed."""
        return self._simulator.run(dict(feeds))[0]


_MOVED = "it only moves integers, which are compared where they are made"

_IN_FLOAT = "it is computed in float"


def verify_qdq(
    plan: QuantizedGraph, exported: QdqModel, batches: Iterable[Feeds], *, threads: int = 0
) -> Verification:
    """Compare a written model in ONNX Runtime with the integers that its plan says.

    Args:
        plan: The plan.
        exported: What was written from it.
        batches: Inputs by name; every activation of a batch is held, several times.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
    """
    program = lower(plan)
    tensors = _tensors_by_end(program, exported)
    beside, no_engine = _beside(plan, program, tensors.values(), threads)
    simulation = SimulationBeside(plan, threads)
    exact = not plan.target.saturates_pairs
    as_used = QdqRuntime(exported.model, threads=threads, exact=exact)
    codes = {e: exported.codes[e] for e in exported.codes if e in tensors or e in simulation.ends}
    watched = QdqRuntime(exported.model, codes, threads=threads, exact=exact)
    default = None
    if exact and saturates_pairs():
        default = QdqRuntime(exported.model, threads=threads, exact=False)
    outputs, by_default = OutputComparer(), OutputComparer()
    samples = 0
    for feeds in batches:
        deployed, _ = as_used.run(feeds)
        _, seen = watched.run(feeds)
        integers = {end: _plain(array) for end, array in seen.items()}
        stored = {tensor.name: tensor.as_stored(integers[end]) for end, tensor in tensors.items()}
        computed = beside.add(feeds, stored)
        simulation.add(feeds, integers)
        for name, array in deployed.items():
            outputs.add(name, array, computed[name])
        for name, array in (default.run(feeds)[0] if default else {}).items():
            by_default.add(name, array, computed[name])
        samples += len(next(iter(feeds.values())))
    return Verification(
        target=plan.target.name,
        runtime=as_used.name,
        cpu=detect_cpu(),
        samples=samples,
        layers=beside.layers,
        end_to_end=beside.end_to_end,
        simulation=simulation.layers,
        outputs=outputs.found(),
        outputs_sqnr_db=sqnr_by_name(outputs.found()),
        classes=outputs.classes(),
        float_nodes=float_leftovers(
            exported.model, [n for n, d in plan.decisions.items() if d.quantized]
        ),
        in_float=dict(program.in_float),
        not_compared={
            str(point.end): _MOVED if point.is_passed_on else _IN_FLOAT
            for point in quantization_points(plan)
            if point.end in exported.codes and point.end not in tensors
        },
        overflows=overflow_reports(*beside.engines),
        no_engine=no_engine,
        not_simulated=limits_of_simulation(plan),
        processor=None if default is None else saturation(exported.model, by_default.found()),
    )


def _tensors_by_end(program: Program, exported: QdqModel) -> dict[TensorEnd, Tensor]:
    """Return the tensor of each quantization point that both sides hold, in the steps' order."""
    found: dict[TensorEnd, Tensor] = {}
    for tensor in activations(program):
        if tensor.encoding is not None and tensor.end in exported.codes:
            found.setdefault(tensor.end, tensor)
    return found


def _plain(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return codes of a type that NumPy lacks (int4, uint4) in one that it has."""
    return codes if codes.dtype.kind in "iu" else codes.astype(np.int64)


def _beside(
    plan: QuantizedGraph, program: Program, tensors: Iterable[Tensor], threads: int
) -> tuple[EngineBeside | FreeSimulation, str]:
    """Return the engine, or the simulation with the reason why there is no engine.

    A plan that was read can have scales that its target's arithmetic has no way to compute with.
    """
    try:
        return EngineBeside(program, tensors, threads=threads), ""
    except (ConfigError, PlanError) as error:
        return FreeSimulation(plan, threads), str(error)

"""The float simulation beside a runtime: how far it is from what was deployed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.plan import QuantizedGraph, TensorEnd
from intact.program import Array
from intact.run.integer.engine import IntegerEngine
from intact.run.session import Feeds
from intact.run.simulate import Simulator
from intact.verification.comparison import LayerComparison


class SimulationBeside:
    """The simulation, each layer computed from the runtime's own integers.

    Attributes:
        ends: The quantised activations that it has.
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

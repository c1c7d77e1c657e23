"""Does the deployed model compute what the plan says? Layer by layer, and end to end.

Layer by layer means teacher-forced: each layer of the simulation reads the runtime's own
integers, so a difference is that layer's and no other's. End to end is reported apart, because
a rare difference of one step grows through the layers behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intact.formats.onnx_qdq.runtime import RUNTIME, QdqRuntime, float_leftovers
from intact.formats.onnx_qdq.write import QdqModel
from intact.numerics.metrics import sqnr_db
from intact.plan import QuantizedGraph, TensorEnd
from intact.run.cpu import Cpu, detect_cpu
from intact.run.limits import limits_of_simulation
from intact.run.session import Feeds
from intact.run.simulate import Simulator


@dataclass
class LayerComparison:
    """One quantised activation, compared between runtime and simulation.

    Attributes:
        end: Where it is.
        values: How many integers were compared.
        mismatches: How many differ.
        largest: The largest difference, in quantisation steps.
    """

    end: str
    values: int = 0
    mismatches: int = 0
    largest: int = 0

    def add(self, runtime: npt.NDArray[np.int64], simulated: npt.NDArray[np.int64]) -> None:
        """Compare one batch of integers."""
        difference = np.abs(runtime - simulated)
        self.values += difference.size
        self.mismatches += int(np.count_nonzero(difference))
        self.largest = max(self.largest, int(difference.max(initial=0)))


@dataclass
class Verification:
    """The outcome.

    Attributes:
        target: Name of the plan's target.
        runtime: Runtime and version, which need not be the target's own.
        cpu: The processor it ran on.
        samples: Samples run.
        layers: Teacher-forced comparisons, in graph order.
        end_to_end: The same activations, each side fed by its own layers.
        outputs_sqnr_db: Simulated against deployed outputs, dB; infinite when identical.
        float_nodes: Nodes planned for integers that the runtime runs in float, with op type.
        not_simulated: What the float32 simulation does not reproduce of the target's arithmetic.
    """

    target: str
    runtime: str
    cpu: Cpu
    samples: int
    layers: list[LayerComparison]
    end_to_end: list[LayerComparison]
    outputs_sqnr_db: dict[str, float]
    float_nodes: dict[str, str]
    not_simulated: tuple[str, ...]


def verify_qdq(
    plan: QuantizedGraph, exported: QdqModel, batches: Iterable[Feeds], *, threads: int = 0
) -> Verification:
    """Compare a written model in ONNX Runtime with the simulation of its plan.

    Args:
        plan: The plan.
        exported: What was written from it.
        batches: Inputs by name.
        threads: Threads inside one operator; 0 lets the runtime choose.
    """
    teacher = Simulator(plan, threads=threads, teacher_forced=True)
    free = Simulator(plan, threads=threads)
    codes = {end: exported.codes[end] for end in free.points}
    runtime = QdqRuntime(exported.model, codes, threads=threads)
    layers = {end: LayerComparison(str(end)) for end in free.points}
    end_to_end = {end: LayerComparison(str(end)) for end in free.points}
    outputs: dict[str, list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]] = {}
    samples = 0
    for feeds in batches:
        deployed, integers = runtime.run(feeds)
        values = {
            end: plan.configs[end].dequantize(array.astype(np.int64))
            for end, array in integers.items()
        }
        forced = feeds | {teacher.teacher_inputs[end]: array for end, array in values.items()}
        _, taught = teacher.run(forced, observe=tuple(codes))
        simulated, own = free.run(feeds, observe=tuple(codes))
        for end, array in integers.items():
            wide = array.astype(np.int64)
            layers[end].add(wide, _codes(plan, end, taught[end]))
            end_to_end[end].add(wide, _codes(plan, end, own[end]))
        for name, array in deployed.items():
            outputs.setdefault(name, []).append((simulated[name].ravel(), array.ravel()))
        samples += len(next(iter(feeds.values())))
    return Verification(
        target=plan.target.name,
        runtime=RUNTIME,
        cpu=detect_cpu(),
        samples=samples,
        layers=list(layers.values()),
        end_to_end=list(end_to_end.values()),
        outputs_sqnr_db={
            name: _output_sqnr_db(
                np.concatenate([d for _, d in pairs]), np.concatenate([s for s, _ in pairs])
            )
            for name, pairs in outputs.items()
        },
        float_nodes=float_leftovers(
            exported.model, [n for n, d in plan.decisions.items() if d.quantized]
        ),
        not_simulated=limits_of_simulation(plan),
    )


def _output_sqnr_db(deployed: npt.NDArray[np.float32], simulated: npt.NDArray[np.float32]) -> float:
    return sqnr_db(deployed, simulated) if deployed.size else np.inf  # nothing differs in nothing


def _codes(
    plan: QuantizedGraph, end: TensorEnd, values: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """Return the integers of values that lie on a config's grid."""
    return plan.configs[end].quantize(values).astype(np.int64)

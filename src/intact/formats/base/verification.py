"""Runs every verification: what a runtime computes, beside what the plan says.

Layer by layer means teacher-forced: each step of the engine reads the runtime's own integers, so a
difference is that layer's and no other's. End to end is counted apart, because a rare difference
of one step grows through the layers behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy.typing as npt
import onnx_ir as ir

from intact.data.batching import sample_count
from intact.engines.cpu import detect_cpu
from intact.engines.executor import simulated_run
from intact.engines.integer.engine import IntegerEngine
from intact.errors import DataError
from intact.formats.base.comparison import (
    LayerComparison,
    OutputComparer,
    as_held,
    comparisons,
    stored_feeds,
)
from intact.formats.base.format import Feeds
from intact.formats.base.processor import saturation
from intact.formats.base.report import Verification, overflow_reports, sqnr_by_name
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Tensor
from intact.program.deployed import deployed_program
from intact.program.passes.integer_io import integer_io

Shown = TypeVar("Shown")
"""What a runtime shows of the tensors between, in a form that its reference understands."""
_Shown_contra = TypeVar("_Shown_contra", contravariant=True)

Arrays: TypeAlias = dict[str, Array]
Run: TypeAlias = Callable[[Feeds], tuple[Arrays, Shown]]
"""Runs a batch: the outputs by name, and what is shown."""


class Reference(Protocol[_Shown_contra]):
    """The side that a runtime is compared with."""

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor, computed from the runtime's own inputs of that layer."""

    @property
    def end_to_end(self) -> list[LayerComparison]:
        """The same tensors, computed from the reference's own."""

    @property
    def engine(self) -> IntegerEngine | None:
        """The engine, for what it counted; None where something else computes."""

    def add(self, feeds: Feeds, shown: _Shown_contra) -> Arrays:
        """Compare one batch and return the expected outputs by name."""


def compare(
    plan: QuantizedGraph,
    runtime: str,
    run: Run[Shown],
    reference: Reference[Shown],
    batches: Iterable[Feeds],
    outputs: Mapping[str, Tensor] | None = None,
    by_default: ByDefault | None = None,
) -> Verification:
    """Compare a runtime with a reference, batch by batch.

    Args:
        plan: The plan that was deployed.
        runtime: Name and version of the runtime.
        run: Runs a batch in it.
        reference: What is expected.
        batches: Inputs by name, as runtime and reference both take them.
        outputs: What codes of outputs stand for, for their SQNR; None where outputs are numbers.
        by_default: The model as apps run it, where that is not as the target describes.

    Raises:
        DataError: The runtime gives other outputs, or other shapes, than its plan.
        ExportError: The runtime fails.
    """
    comparer, as_apps = OutputComparer(), OutputComparer()
    samples = 0
    for feeds in batches:
        deployed, shown = run(feeds)
        expected = reference.add(feeds, shown)
        # As sets: runtimes may give their outputs in another order.
        if set(deployed) != set(expected):
            raise DataError(
                f"the deployed model gives {', '.join(deployed)}, its plan {', '.join(expected)}",
                remedy="compare a model with the plan that it was written from",
            )
        for name, array in expected.items():
            comparer.add(name, deployed[name], array, (outputs or {}).get(name))
        for name, array in ({} if by_default is None else by_default.run(feeds)).items():
            as_apps.add(name, array, expected[name], (outputs or {}).get(name))
        samples += sample_count(feeds)
    engine, found = reference.engine, comparer.found()
    return Verification(
        target=plan.target.name,
        runtime=runtime,
        cpu=detect_cpu(),
        samples=samples,
        layers=reference.layers,
        end_to_end=reference.end_to_end,
        outputs=found,
        outputs_sqnr_db=sqnr_by_name(found),
        classes=comparer.classes(),
        in_float={} if engine is None else dict(engine.program.in_float),
        overflows=[] if engine is None else overflow_reports(engine),
        processor=None
        if by_default is None
        else saturation(by_default.model, as_apps.found(), plan.target),
    )


@dataclass(frozen=True)
class ByDefault:
    """A model as apps run it, on a processor whose kernels saturate pairs of products.

    Attributes:
        run: Runs a batch; the outputs by name.
        model: The model.
    """

    run: Callable[[Feeds], Arrays]
    model: ir.Model


class EngineBeside:
    """The integer engine, fed with what a runtime computed.

    Args:
        program: What was deployed, lowered.
        tensors: The tensors that the runtime shows; none where it shows its outputs alone.
        given: Floats that the runtime shows as well: they are what steps read, and are not
            compared, as a runtime is free to compute floats in another order.
        threads: Threads of float islands; 0 lets their runtime choose.

    Attributes:
        engine: The engine.
    """

    def __init__(
        self,
        program: Program,
        tensors: Iterable[Tensor] = (),
        given: Iterable[Tensor] = (),
        *,
        threads: int = 0,
    ) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._given = {tensor.name: tensor for tensor in given if tensor.name not in self._tensors}
        self.engine = IntegerEngine(program, threads=threads)
        self._layers = comparisons(program, list(self._tensors.values()))
        self._end_to_end = comparisons(program, list(self._tensors.values()))

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor, computed from the runtime's own."""
        return list(self._layers.values())

    @property
    def end_to_end(self) -> list[LayerComparison]:
        """The same tensors, computed from the engine's own."""
        return list(self._end_to_end.values())

    def add(self, feeds: Mapping[str, npt.NDArray[Any]], shown: Mapping[str, Array]) -> Arrays:
        """Compare one batch and return the engine's outputs, end to end.

        Args:
            feeds: The program's inputs.
            shown: What the runtime computed, by the names of the program's tensors, as those are
                stored.
        """
        known = self._tensors | self._given
        forced = {name: as_held(array, known[name]) for name, array in shown.items()}
        compared = [name for name in forced if name in self._tensors]
        # Equal layers so far prove nothing of this batch, so that its own differences are counted.
        before = sum(each.mismatches for each in self.layers)
        taught = self.engine.run(
            feeds, compared, forced, lambda name, array: self._layers[name].add(shown[name], array)
        )
        if not self._given and sum(each.mismatches for each in self.layers) == before:
            # Fed by itself, the engine computes from the same numbers: they are what it gave.
            for name in compared:
                self._end_to_end[name].add(shown[name], shown[name])
            return taught.outputs
        return self.engine.run(
            feeds, compared, seen=lambda name, array: self._end_to_end[name].add(shown[name], array)
        ).outputs


class OutputsOfSimulation:
    """The float simulation in the place of an engine: its outputs are compared, no layers.

    Attributes:
        layers: None.
        end_to_end: None.
        engine: None.
    """

    def __init__(self, plan: QuantizedGraph, *, threads: int = 0) -> None:
        self._run = simulated_run(plan, threads=threads)
        self.layers: list[LayerComparison] = []
        self.end_to_end: list[LayerComparison] = []
        self.engine: IntegerEngine | None = None

    def add(self, feeds: Feeds, _shown: object) -> Arrays:
        """Return the expected outputs of one batch."""
        return dict(self._run(dict(feeds)))


def integer_ends(
    plan: QuantizedGraph, batches: Iterable[Feeds]
) -> tuple[EngineBeside, Iterator[Feeds]]:
    """Prepare the verification of what takes and gives codes, and shows its outputs only.

    Args:
        plan: The plan that was deployed.
        batches: Inputs by name, with axes as the model has them: floats, or codes.

    Returns:
        The engine, and the batches as its program takes them.
    """
    lowered = deployed_program(plan)
    program = integer_io(lowered)
    given = (stored_feeds(program, feeds, lowered.inputs) for feeds in batches)
    return EngineBeside(program), given

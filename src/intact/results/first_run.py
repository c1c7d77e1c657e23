"""Runs whatever was written once, in its own runtime, before it is called a result.

A format writes what its runtime should take. Whether it does, the runtime knows: a file that it
refuses, or that computes something else, is an error here and not a surprise on the device. One
sample is enough to tell, and costs a session. That session also tells what the runtime makes of
the plan: which nodes it computes otherwise than planned. What it gives is compared with the float
model, which is as good as it can get; where quantization alone may be to blame, with the
simulation; and where that differs too, layer by layer with the integers of the plan, which finds
the first at fault.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intact._text import first_names
from intact.calibrate.original import Arrays
from intact.data.batching import Batch
from intact.engines.cpu import on_this_processor
from intact.engines.session import Optimization, make_session, run_session
from intact.errors import DataError, ExportError, IntactError, MissingExtraError, ModelError
from intact.formats.base.format import CHANGED, IN_FLOAT, Deployed, Runtime, execution_at_load
from intact.formats.registry import FORMATS
from intact.graph import OPS, Graph, OpKind
from intact.graph.passes.random_ops import random_values
from intact.limits import SAME_DB
from intact.numerics.metrics import sqnr_db
from intact.plan import Direction, Note, NoteKind, QuantizedGraph, TensorEnd, quantizes

if TYPE_CHECKING:
    from intact.calibrate.statistics import Statistics
    from intact.formats.base.report import Verification
    from intact.results.result import Result

_NOT_FINITE = "are not finite"
_STEPS = 1.0
"""Differences of one quantization step are rounding."""


def run_once(
    result: Result,
    sample: Batch | None = None,
    in_float: Arrays | None = None,
    *,
    threads: int = 0,
) -> None:
    """Run each format of a result whose runtime is installed; at least, let the runtime load it.

    Args:
        result: What was written.
        sample: Inputs by name, of one calibration sample; drawn from what the plan knows if None.
        in_float: What the float model gives for the sample; it is run if None.
        threads: How many the runtimes have; 0 takes all cores.

    Raises:
        ExportError: A runtime refuses what was written, or computes something else; with the first
            layer at fault.
    """
    runtimes = {name: FORMATS[name].runtime for name in result.exports}
    runnable = {
        name: runtime
        for name, runtime in runtimes.items()
        if runtime is not None and runtime.can_run(result.exports[name])
    }
    if not runnable:
        return
    feeds = draw_sample(result.plan, result.statistics) if sample is None else sample
    with ThreadPoolExecutor(1) as pool:  # beside the runtime: both open a session
        floats: Future[Arrays] = Future()
        if in_float is not None:
            floats.set_result(in_float)
        elif feeds:
            floats = pool.submit(_float_outputs, result.plan.graph, feeds, threads)
        for name, runtime in runnable.items():
            deployed = Deployed(result.plan, result.exports[name], None, threads)
            with contextlib.suppress(MissingExtraError):  # a compiler, say
                run = _Run(name, runtime, deployed, feeds or {})
                # Without a sample the load is still worth its time: it is where most runtimes
                # refuse a model.
                own = run.compare(floats) if feeds else run.load()
                notes = [*run.notes()]
                if own and (result.loss is None or not result.loss.infinite):
                    notes.append(Note(NoteKind.EXPORT, "", f"{name}: {own}, as the plan has it"))
                result.plan = result.plan.with_notes(tuple(notes))


def draw_sample(plan: QuantizedGraph, statistics: Statistics | None) -> Batch | None:
    """Draw a sample; None where the plan does not tell what inputs are like."""
    from intact.calibrate.synthetic import drawn_samples

    with contextlib.suppress(DataError):
        samples = drawn_samples(plan, statistics, 1)
        return next(samples.batches(samples.batch_size(1)))[0]
    return None


def _float_outputs(graph: Graph, feeds: Batch, threads: int) -> Arrays:
    """Run the float model; not optimized, because one run is over before that pays."""
    session = make_session(graph.model, threads=threads, optimization=Optimization.NONE)
    names = [str(value.name) for value in graph.outputs]
    return dict(zip(names, run_session(session, dict(feeds), names), strict=True))


class _Run(msgspec.Struct, frozen=True):
    """One run of what was written.

    Attributes:
        name: The format's name.
        runtime: Runs it.
        deployed: What was written.
        feeds: The inputs.
    """

    name: str
    runtime: Runtime
    deployed: Deployed
    feeds: Batch

    def load(self) -> str:
        """Let the runtime load it, without inputs; nothing is seen of its outputs.

        Raises:
            ExportError: It refuses it.
        """
        try:
            self.runtime.load(self.deployed)
        except ExportError as error:
            raise self._refused(error) from error
        return ""

    def compare(self, in_float: Future[Arrays]) -> str:
        """Run it, and compare it as far as there is need to.

        Returns:
            Which output is not finite where the float model's is, if the plan itself makes it so.

        Raises:
            ExportError: It does not run, or computes something else.
        """
        try:
            outputs = self.runtime.run(self.deployed, self.feeds)
        except ExportError as error:
            raise self._refused(error) from error
        # What is drawn at random differs between two runs of the same runtime.
        chance = random_values(self.deployed.plan.graph.model)
        outputs = {name: array for name, array in outputs.items() if name not in chance}
        found = ""
        with contextlib.suppress(ModelError):  # a model that was read may not run as its float
            found = _difference(outputs, in_float.result())
            if not found:
                return ""
        # Most results agree with the float model, and never compile a simulation.
        from intact.engines.simulate import Simulator

        simulator = Simulator(
            self.deployed.plan, threads=self.deployed.threads, optimization=Optimization.NONE
        )
        simulated = simulator.run(dict(self.feeds))[0]
        own, infinite = "", set[str]()
        if _NOT_FINITE in found:
            # Where the plan is so too, a tie that is rounded otherwise makes it so in more places.
            infinite = {name for name, each in simulated.items() if not np.isfinite(each).all()}
            own = found if infinite else ""
        found = _difference(outputs, simulated, infinite)
        # Asked last, because it takes a lowering and a run of the integer engine.
        if found and not self._is_of_processor(outputs):
            self._refuse_if_at_fault(found)
        return own

    def notes(self) -> Iterator[Note]:
        """Say what the runtime makes otherwise than planned, as far as it was asked."""
        executed = execution_at_load(self.deployed.exported)
        if executed is None:
            return
        for name in executed.changed:
            yield Note(NoteKind.EXPORT, name, f"{self.name}: {CHANGED}")
        for name, op_type in executed.in_float.items():
            if op_type in OPS and OPS[op_type].kind is OpKind.COMPUTE:
                yield Note(NoteKind.EXPORT, name, f"{self.name}: {IN_FLOAT}")

    def _is_of_processor(self, outputs: Arrays) -> bool:
        """Tell whether sums that saturate on this processor, and not on the target, explain it."""
        plan = self.deployed.plan
        here = on_this_processor(plan.target)
        if plan.target.saturates_pairs or not here.saturates_pairs:
            return False
        from intact.engines.integer import IntegerEngine
        from intact.program.lower import lower

        try:
            program = lower(replace(plan, target=here))
        except IntactError:
            return False
        engine = IntegerEngine(program, threads=self.deployed.threads)
        return not _difference(outputs, engine.run(dict(self.feeds)).outputs)

    def _refused(self, error: ExportError) -> ExportError:
        """Name the node that a runtime complains of."""
        message = error.with_flags
        names = (str(node.name) for node in self.deployed.plan.graph.nodes)
        named = next((name for name in names if _mentions(message, name)), "")
        place = f"{_described(self.deployed.plan, named)}: " if named else ""
        remedy = f"--keep-float {quote(named)}" if named else ""
        return ExportError(f"{self.name}: {place}{message}", remedy=remedy)

    def _refuse_if_at_fault(self, found: str) -> None:
        """Compare layer by layer; what is the plan's own loss is no fault.

        Raises:
            ExportError: A layer computes something else than the plan says.
        """
        node, fault = "", ""
        try:
            verification = self.runtime.verify(self.deployed, [dict(self.feeds)])
        except MissingExtraError:
            return
        except IntactError as error:
            found = f"{found}; {error.with_flags}"
        else:
            # No layer alone is wrong: what the outputs differ by is rounding that the layers add
            # up.
            if not _differs(verification) and _NOT_FINITE not in found:
                return
            node, fault = _first_at_fault(self.deployed.plan, verification)
        executed = execution_at_load(self.deployed.exported)
        if executed is not None and executed.changed:
            # The runtime itself says what it computes otherwise: that is the cause, whichever layer
            # shows it first.
            node, fault = "", f"{CHANGED}: {first_names(executed.changed)}"
        keeping = f"--keep-float {quote(node)}, and report it"
        raise ExportError(
            f"{self.name}: what was written computes something else than its plan, on one sample: "
            f"{found}{f'; {fault}' if fault else ''}",
            remedy=keeping if node else "report it, with the model",
        )


def _difference(outputs: Arrays, expected: Arrays, infinite: Collection[str] = ()) -> str:
    """Say which output is not finite, of another shape or value than expected; "" for none.

    Of those that are named as infinite only what is finite in both is compared.
    """
    for name, reference in expected.items():
        array = outputs.get(name)
        if array is None or reference.dtype.kind != "f":
            continue
        if array.shape != reference.shape:
            return f"output {name!r} has the shape {[*array.shape]}, not {[*reference.shape]}"
        finite = np.isfinite(reference)
        if name in infinite:
            finite &= np.isfinite(array)
        lost = int(np.count_nonzero(finite & ~np.isfinite(array)))
        if lost:
            return f"{lost} of {array.size} values of output {name!r} {_NOT_FINITE}"
        if not finite.any():
            continue
        decibels = sqnr_db(reference[finite], array[finite])
        if decibels < SAME_DB:
            return f"output {name!r} has {decibels:.1f} dB of signal to noise"
    return ""


def _differs(found: Verification) -> bool:
    """Tell whether a layer, or else an output, differs from the plan's integers beyond rounding."""
    if any(layer.largest > _STEPS for layer in found.layers):
        return True
    return any(not output.sqnr_db >= SAME_DB for output in found.outputs)  # NaN is none


def _first_at_fault(plan: QuantizedGraph, found: Verification) -> tuple[str, str]:
    """Name the first node at fault, and say so: one that differs, or else one that is not shown."""
    ends = {str(end): end for end in plan.configs}
    for layer in found.layers:
        if layer.largest > _STEPS:
            end = ends.get(layer.end)
            node = "" if end is None else _head(plan, end)
            place = _described(plan, node) if node else layer.end
            return node, f"the first layer at fault is {place}"
    shown = {ends.get(layer.end) for layer in found.layers if not layer.mismatches}
    for each in plan.graph.nodes:
        name = str(each.name)
        if plan.decisions[name].quantized and TensorEnd.output(name) not in shown:
            node = _described(plan, name)
            return name, f"the first layer that its runtime does not show is {node}"
    return "", ""


def _head(plan: QuantizedGraph, end: TensorEnd) -> str:
    """Name the node that begins what is fused: a tensor end behind it is what one compares."""
    nodes = {str(node.name): node for node in plan.graph.nodes}
    name = end.node
    while end.direction is Direction.OUTPUT:
        source = nodes[name].inputs[0] if nodes[name].inputs else None
        producer = None if source is None else source.producer()
        before = (
            None if producer is None else plan.configs.get(TensorEnd.output(str(producer.name)))
        )
        if producer is None or before is None or quantizes(before):
            break
        if not plan.decisions[str(producer.name)].quantized:
            break
        name = str(producer.name)
    return name


def _described(plan: QuantizedGraph, name: str) -> str:
    operator = next((n.op_type for n in plan.graph.nodes if n.name == name), "")
    return f"{name!r} ({operator})"


def _mentions(message: str, name: str) -> bool:
    return bool(name) and re.search(rf"(?<![\w/.]){re.escape(name)}(?![\w/])", message) is not None

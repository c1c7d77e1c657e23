"""A written model in OpenVINO against the integer engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from intact.formats.openvino.process import LIMIT
from intact.formats.openvino.runtime import ExecutedNode, openvino_version
from intact.formats.openvino.write import OpenVinoModel
from intact.plan import QuantizedGraph, quantization_points
from intact.program import Program
from intact.program.lower import lower
from intact.run.cpu import detect_cpu
from intact.run.session import Feeds
from intact.targets.arithmetic import Overflow
from intact.verification.beside import EngineBeside
from intact.verification.comparison import OutputComparer
from intact.verification.openvino_view import View, hidden_tensors, names_one, shown
from intact.verification.report import Verification, overflow_reports, sqnr_by_name

_SATURATING = "AVX2"
"""Instructions under which oneDNN's sums saturate in pairs, on any processor that has them."""

_CHANGED = "showing it would change how OpenVINO computes it"
_INSIDE = "it lies inside of one kernel of OpenVINO"
_NOT_MADE = "no step of the integer engine makes it, or OpenVINO leaves a quantiser this fine out"


def verify_openvino(
    plan: QuantizedGraph,
    exported: OpenVinoModel,
    batches: Iterable[Feeds],
    *,
    threads: int = 0,
    instructions: str | None = None,
) -> Verification:
    """Compare a written model in OpenVINO with the integers that its plan says.

    Args:
        plan: The plan.
        exported: What was written from it; OpenVINO's own files run, where there are any.
        batches: Inputs by name; every activation of a batch is held, several times.
        threads: Of the plugin; 0 takes all cores.
        instructions: The newest that oneDNN may use, in a process of its own; "" sets no limit,
            None one where the plan's target saturates in pairs and this processor does not.

    Raises:
        MissingExtraError: The package openvino is not installed.
        ExportError: OpenVINO refuses the model, or fails on it.
        DataError: The model is not that of the plan.
    """
    program = lower(plan)
    every = View.of(program, exported)
    limit = _limit(program) if instructions is None else instructions
    outputs = OutputComparer()
    samples = 0
    with shown(exported, every, limit, threads) as (models, view):
        hidden = hidden_tensors(program, view, models.executed, exported)
        beside = EngineBeside(program, view.tensors.values(), threads=threads)
        for feeds in batches:
            (deployed, _), *groups = models.run(feeds)
            seen = {name: array for _, group in groups for name, array in group.items()}
            stored = view.codes(seen, hidden)
            computed = beside.add(feeds, stored)
            for name, array in deployed.items():
                outputs.add(name, array, computed[name])
            samples += len(next(iter(feeds.values())))
        executed = models.executed[0]
    return Verification(
        target=plan.target.name,
        runtime=_runtime(limit),
        cpu=detect_cpu(),
        samples=samples,
        layers=[each for each in beside.layers if each.tensor not in hidden],
        end_to_end=[each for each in beside.end_to_end if each.tensor not in hidden],
        outputs=outputs.found(),
        outputs_sqnr_db=sqnr_by_name(outputs.found()),
        classes=outputs.classes(),
        float_nodes=_float_nodes(plan, executed),
        in_float=dict(program.in_float),
        not_compared={
            **{str(view.tensors[name].end): _CHANGED for name in hidden},
            **{str(t.end): _INSIDE for n, t in every.tensors.items() if n not in view.tensors},
            **{
                str(point.end): _NOT_MADE
                for point in quantization_points(plan)
                if point.end in exported.codes and point.end not in view.ends
            },
        },
        overflows=overflow_reports(*beside.engines),
    )


def _runtime(limit: str) -> str:
    name, limit = f"OpenVINO {openvino_version()}", limit or os.environ.get(LIMIT, "")
    return f"{name}, {LIMIT}={limit}" if limit else name


def _limit(program: Program) -> str:
    """Return the instructions under which the sums of a program saturate as they do in it."""
    kinds = {step.arithmetic.accumulator_overflow for step in program.steps}
    here = detect_cpu().saturates_pairs
    return _SATURATING if Overflow.PAIR_SATURATE in kinds and not here else ""


def _float_nodes(plan: QuantizedGraph, executed: Sequence[ExecutedNode]) -> dict[str, str]:
    """Return the nodes that are planned for integers and run in floats, with their operators.

    What no executed node computes was folded away, and stands for nothing.
    """
    found = {}
    for node in plan.graph.nodes:
        decision = plan.decisions.get(str(node.name))
        if decision is None or not decision.quantized:
            continue
        # A node whose result is an output is called like that.
        names = {str(node.name), *(str(value.name) for value in node.outputs)}
        computing = [each for each in executed if names_one(each.layers, names)]
        if computing and not any(each.in_integers for each in computing):
            found[str(node.name)] = node.op_type
    return found

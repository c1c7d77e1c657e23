"""Names channels and tokens that are hundreds of times larger than the others of their tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.noise import EXPLAINED
from intact.analyze.diagnose.weights import EQUALIZE
from intact.calibrate.assign import assign, required_tensors
from intact.calibrate.huge import group_around, huge_parts, wide_tensors, widened_places
from intact.calibrate.method import Method
from intact.config import PerBlock
from intact.errors import IntactError
from intact.plan import Overrides, QuantizedGraph
from intact.plan.build import build_plan
from intact.plan.overrides import WIDEST_CODES

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence

_HANDLED = Remedy(options={"quantize_heads": None})
"""What `quantize` does by itself."""


def check_huge(evidence: Evidence) -> list[Finding]:
    """Name the largest such channel or token, where float around all of them mends the loss."""
    plan, statistics = evidence.plan, evidence.statistics
    if statistics is None:
        return []
    names = wide_tensors(plan, statistics)
    parts = huge_parts(plan.graph, names, evidence.few)
    tensors = [part.tensor for part in parts]
    group = group_around(plan, tensors)
    if not group:
        return []
    other = _in_float(evidence, group)
    if other is None:
        return []
    before, after = evidence.few_errors, evidence.few.simulated(other)
    decibels = before.decibels
    output = min(decibels, key=lambda name: decibels[name], default="")
    if not output:
        return []
    noise, left = (float(each.outputs[output].noise.sum()) for each in (before, after))
    part = 1 - left / noise if noise > 0 else 0.0
    if not part >= EXPLAINED:
        return []
    first = max(parts, key=lambda each: each.reach / each.usual)
    maker = plan.graph.value(first.tensor).producer()
    return [
        Finding(
            f"huge_{first.kind}",
            f"{100 * part:.0f} % of the noise of output {output!r} ({decibels[output]:.1f} dB on "
            f"{len(evidence.few)} samples) is gone where {len(group)} node(s) around stay float: "
            f"{first}",
            part,
            node="" if maker is None else str(maker.name),
            tensor=first.tensor,
            remedies=(
                _HANDLED,
                EQUALIZE,
                Remedy(options={"bits": widened_places(plan.graph, tensors)}),
                Remedy(options={"keep_float": list(group)}),
            ),
        )
    ]


def _in_float(evidence: Evidence, names: tuple[str, ...]) -> QuantizedGraph | None:
    """Plan the same with nodes in float; None where that cannot be planned here."""
    plan, statistics = evidence.plan, evidence.statistics
    made = plan.provenance
    kept = [name for name, each in plan.decisions.items() if not each.quantized]
    same = Overrides(
        keep_float=(*kept, *names),
        # Wider codes would take noise away that the channel has no part in.
        widths={end: each.bits for end, each in plan.configs.items() if each.bits <= WIDEST_CODES},
        blocks={
            end.node: each.granularity.size
            for end, each in plan.configs.items()
            if isinstance(each.granularity, PerBlock)
        },
    )
    try:
        other = build_plan(plan.graph, plan.target, same)
        if statistics is None or set(required_tensors(other)) - set(statistics.tensors):
            return None
        method = Method.of(
            plan.target,
            made.method or "minmax",
            made.weight_method or None,
            dict(made.method_options),
        )
        return assign(other, statistics, method).with_exact_sums()
    except IntactError:
        return None

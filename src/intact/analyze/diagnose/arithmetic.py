"""Finds outputs that lose by integer sums: overflowing accumulators, saturating pairs.

The quantizers are judged by a simulation with exact sums, which sees neither. Bounds that need no
data tell whether a sum may be lost; only then the integer engine runs, on the samples of the
diagnosis, and counts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.weights import USUAL_BITS
from intact.calibrate.outputs import Errors, FloatRuns
from intact.config import TensorQuantConfig
from intact.engines.cpu import on_this_processor
from intact.engines.exact_sums import EXACT, saturates_pairs
from intact.engines.executor import Run
from intact.errors import IntactError
from intact.graph import data_slots, weight_slot
from intact.limits import HALF_DB, LITTLE_DB
from intact.plan import QuantizedGraph
from intact.plan.overflows import pairs_may_saturate, wrapping_sums
from intact.plan.points import has_logarithmic_levels
from intact.program import Program, Step
from intact.targets.advice import saturating_variant
from intact.targets.schema import Target

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence
    from intact.engines.integer.kernel import Overflow as Counted

OF_SUMS = ("accumulator_overflow", "pair_saturation")
"""Causes that lie in the sums of layers, and not in quantizers."""
HALF = 0.5
"""Part of an output's noise that lost sums make, from which on they are its cause."""
_ROOM = 1.5
"""Times as large as on these samples sums may be on others."""
_FEWEST_BITS = 4
"""Fewer cost more than what they mend."""
_EXACT_PAIRS = 7
"""Bits of weights with which no pair of products leaves 16 bits: 2 * 255 * 64 fits."""


class EngineErrors(msgspec.Struct, frozen=True):
    """What the integer engine computed on some samples.

    Attributes:
        errors: Errors of the outputs.
        lost: Counts of the steps whose sums may be lost, by the name of the step.
        steps: Those steps, by name.
    """

    errors: Errors
    lost: Mapping[str, Counted]
    steps: Mapping[str, Step]

    @property
    def worst(self) -> str:
        """The step that lost most sums; "" where none lost any."""
        name = max(self.lost, key=lambda each: self.lost[each].overflows, default="")
        return name if name and self.lost[name].overflows else ""

    def saturates(self, name: str) -> bool:
        """Tell whether a step adds its products in pairs that saturate."""
        return self.steps[name].arithmetic.pairs is not None


class SumFindings(msgspec.Struct, frozen=True):
    """What was found out about sums.

    Attributes:
        findings: One at most for the target, and one for this processor.
        decibels: Decibels of the outputs by the integer engine; None where it need not run.
        note: What this processor computes otherwise than the target; "" for nothing.
    """

    findings: tuple[Finding, ...] = ()
    decibels: Mapping[str, float] | None = None
    note: str = ""

    @property
    def severity(self) -> float:
        """The part of the noise that the target's sums make."""
        return max((each.severity for each in self.findings), default=0.0)


def check_sums(evidence: Evidence) -> tuple[Finding, ...]:
    """Find out whether outputs are lost by sums of products."""
    return evidence.sums.findings


def sum_findings(
    plan: QuantizedGraph,
    runs: FloatRuns,
    simulated: Errors,
    *,
    well: float,
    in_float: Collection[str] = (),
    deployed: Run | None = None,
) -> SumFindings:
    """Find out whether outputs are lost by sums of products.

    Args:
        plan: A plan with scales.
        runs: The samples.
        simulated: The errors of the plan on them, with exact sums.
        well: Signal to noise from which on an output is well, dB.
        in_float: Nodes that the runtime computes in float: their sums are not lost.
        deployed: Runs the deployed model in its runtime, as applications do; None where that cannot
            be done.
    """
    found = target_findings(plan, runs, simulated, well=well, in_float=in_float)
    return found or _findings_of_processor(plan, runs, simulated, in_float, deployed)


def target_findings(
    plan: QuantizedGraph,
    runs: FloatRuns,
    simulated: Errors,
    *,
    well: float,
    in_float: Collection[str] = (),
) -> SumFindings | None:
    """Find out whether outputs are lost by sums of products, on the target itself.

    Args:
        plan: A plan with scales.
        runs: The samples.
        simulated: The errors of the plan on them, with exact sums.
        well: Signal to noise from which on an output is well, dB.
        in_float: Nodes that the runtime computes in float.

    Returns:
        None where no sum can be lost, or the engine cannot compute the plan.
    """
    computed = computed_errors(plan, runs, in_float=in_float)
    if computed is None:
        return None
    return SumFindings(
        _finding_of_target(plan, computed, simulated, well), computed.errors.decibels
    )


def computed_errors(
    plan: QuantizedGraph, runs: FloatRuns, *, in_float: Collection[str] = ()
) -> EngineErrors | None:
    """Run the integer engine where sums may be lost.

    Args:
        plan: A plan with scales.
        runs: The samples.
        in_float: Nodes that the runtime computes in float.

    Returns:
        None where no sum can be lost, or the engine cannot compute the plan.
    """
    if has_logarithmic_levels(plan):
        return None
    wrapping = {str(sums.node.name) for sums in wrapping_sums(plan)} - set(in_float)
    # Bounds are quick; the engine takes seconds.
    if not wrapping and not pairs_may_saturate(plan):
        return None
    from intact.engines.integer import IntegerEngine  # compiled code, slow to load
    from intact.program.lower import lower

    try:
        program = _with_exact_sums(lower(plan), in_float)
        engine = IntegerEngine(program, threads=1)
        (errors,) = runs.errors(lambda feeds: engine.run(feeds).outputs)
    except IntactError:  # scales that the target cannot compute with, say: `verify` tells
        return None
    steps = {step.name: step for step in program.steps}
    return EngineErrors(errors, dict(engine.overflows), steps)


def _with_exact_sums(program: Program, in_float: Collection[str]) -> Program:
    """Return the program as it is computed where products run in floats, which hold every sum."""

    def exact_step(step: Step) -> Step:
        if set(in_float).isdisjoint(step.nodes):
            return step
        return replace(step, arithmetic=step.arithmetic.with_exact_sums())

    return replace(program, steps=tuple(map(exact_step, program.steps))) if in_float else program


def _finding_of_target(
    plan: QuantizedGraph, computed: EngineErrors, simulated: Errors, well: float
) -> tuple[Finding, ...]:
    """Say what outputs lose by the sums of the target itself."""
    decibels = computed.errors.decibels
    output = min(decibels, key=lambda name: decibels[name], default="")
    if not output or not computed.worst or decibels[output] >= well:
        return ()
    exact = simulated.decibels.get(output, 0.0)
    # The noise power that exact sums would spare, of all.
    part = 1 - 10 ** ((decibels[output] - exact) / 10)
    if not part >= HALF:
        return ()
    heard = f"output {output!r} has {decibels[output]:.1f} dB, {exact:.1f} dB with exact sums"
    if computed.saturates(computed.worst):
        return (_saturation(computed, heard, part),)
    return (_overflow(plan, computed, heard, part),)


def _overflow(plan: QuantizedGraph, computed: EngineErrors, heard: str, part: float) -> Finding:
    worst = computed.lost[computed.worst]
    bits = computed.steps[computed.worst].arithmetic.accumulator.bits
    evidence = (
        f"{worst.overflows} of {worst.sums} sums at {computed.worst!r} leave {bits} bits: the "
        f"largest is {worst.largest}, the accumulator holds {worst.limit}; {heard}"
    )
    return Finding(
        "accumulator_overflow",
        evidence,
        part,
        node=computed.worst,
        remedies=tuple(_smaller_sums(plan, computed)),
    )


def _smaller_sums(plan: QuantizedGraph, computed: EngineErrors) -> Iterator[Remedy]:
    """Yield what makes sums fit: fewer bits for the weights of the layers at risk, or float."""
    surplus = {
        name: math.ceil(math.log2(_ROOM * each.largest / each.limit))
        for name, each in computed.lost.items()
        if _ROOM * each.largest > each.limit > 0 and not computed.saturates(name)
    }
    data = [
        plan.input_config(node, slot)
        for node in plan.graph.nodes
        if str(node.name) in surplus
        for slot in data_slots(node)
    ]
    if _widest(data) > USUAL_BITS:
        yield Remedy(options={"activation_bits": USUAL_BITS, "bits": None})
    narrower = {name: _weight_bits(plan, name) - bits for name, bits in surplus.items()}
    if all(bits >= _FEWEST_BITS for bits in narrower.values()):
        yield Remedy(options={"bits": narrower})
        fewest = min(narrower.values())
        yield Remedy(options={"weight_bits": fewest, "preset": "best", "improve": None})
    yield Remedy(options={"keep_float": list(surplus)})


def _weight_bits(plan: QuantizedGraph, name: str) -> int:
    """Return the bits of a node's weight; 0 where it has none."""
    node = plan.graph.node(name)
    slot = weight_slot(node)
    return 0 if slot is None else plan.input_config(node, slot).bits


def _widest(configs: Collection[TensorQuantConfig]) -> int:
    return max((each.bits for each in configs if each.params is not None), default=0)


def _saturation(computed: EngineErrors, heard: str, part: float) -> Finding:
    evidence = f"{_saturated_pairs(computed)}; {heard}"
    narrower = Remedy(options={"weight_bits": _EXACT_PAIRS, "bits": None})
    return Finding("pair_saturation", evidence, part, node=computed.worst, remedies=(narrower,))


def _saturated_pairs(computed: EngineErrors) -> str:
    worst, steps = computed.lost[computed.worst], computed.steps
    pairs = steps[computed.worst].arithmetic.pairs
    width = "their" if pairs is None else pairs.pair_bits
    return (
        f"{worst.overflows} of {worst.sums} pairs of products at {computed.worst!r} leave {width} "
        f"bits: the largest is {worst.largest}"
    )


# ---- this processor -------------------------------------------------------------------------


def _findings_of_processor(
    plan: QuantizedGraph,
    runs: FloatRuns,
    simulated: Errors,
    in_float: Collection[str],
    deployed: Run | None,
) -> SumFindings:
    """Say what outputs lose on this processor, if its kernels saturate pairs of exact sums.

    Only what loses nearly everything is a finding: the target promises exact sums, and an
    application may ask for them. The runtime itself, which is quick, is asked what is lost; the
    integer engine then tells where nearly everything is.
    """
    here, remedies, exactly = _on_this_processor(plan)
    if here is None:
        return SumFindings()
    if deployed is not None:
        heard = _PairLoss.of(_decibels(runs, deployed), simulated, exactly)
        if heard is None or heard.left >= LITTLE_DB:
            return SumFindings(note=_note(heard, remedies))
    computed = computed_errors(replace(plan, target=here), runs, in_float=in_float)
    if computed is None or not computed.worst:
        return SumFindings()
    heard = _PairLoss.of(computed.errors.decibels, simulated, exactly)
    if heard is None or heard.left >= LITTLE_DB:
        return SumFindings(note=_note(heard, remedies))
    found = Finding(
        "pair_saturation",
        f"{heard.said}; {_saturated_pairs(computed)}",
        heard.part,
        node=computed.worst,
        remedies=remedies,
    )
    return SumFindings((found,))


def processor_finding(plan: QuantizedGraph, here: Errors, simulated: Errors) -> Finding | None:
    """Find what outputs lose on this processor, if its kernels saturate pairs of exact sums.

    Args:
        plan: A plan with scales.
        here: Errors of the outputs, as applications run what was written.
        simulated: Their errors with exact sums.
    """
    saturating, remedies, exactly = _on_this_processor(plan)
    if saturating is None:
        return None
    heard = _PairLoss.of(here.decibels, simulated, exactly)
    return heard and Finding("pair_saturation", heard.said, heard.part, remedies=remedies)


def _decibels(runs: FloatRuns, run: Run) -> Mapping[str, float]:
    """Return the signal to noise of each output; of none where the runtime cannot run it."""
    try:
        (errors,) = runs.errors(run)
    except IntactError:  # `verify` tells why
        return {}
    return errors.decibels


class _PairLoss(NamedTuple):
    """What saturating pairs cost the worst output: in words, what is left of it in dB, the part."""

    said: str
    left: float
    part: float

    @staticmethod
    def of(decibels: Mapping[str, float], simulated: Errors, exactly: str) -> _PairLoss | None:
        """Compare outputs here with those of exact sums; None where that is not worth a word."""
        output = min(decibels, key=lambda name: decibels[name], default="")
        exact = simulated.decibels.get(output, 0.0)
        if not output or not decibels[output] < exact - HALF_DB:
            return None
        said = (
            f"this processor saturates pairs of 8-bit products: output {output!r} has "
            f"{decibels[output]:.1f} dB here, {exact:.1f} dB {exactly}"
        )
        return _PairLoss(said, decibels[output], 1 - 10 ** ((decibels[output] - exact) / 10))


def _note(heard: _PairLoss | None, remedies: tuple[Remedy, ...]) -> str:
    if heard is None:
        return ""
    return f"{heard.said}; --target {remedies[0].options['target']} avoids that"


def _on_this_processor(plan: QuantizedGraph) -> tuple[Target | None, tuple[Remedy, ...], str]:
    """Return the target as this processor's kernels compute it, where they saturate pairs.

    Returns:
        The target, or None; the remedies; and how sums are exact instead.
    """
    target, variant = plan.target, saturating_variant(plan.target)
    written = plan.provenance.formats[:1] or target.formats[:1]
    # Another format has another runtime, with kernels of its own.
    if variant is None or target.saturates_pairs or written != target.formats[:1]:
        return None, (), ""
    other = Remedy(options={"target": variant.name})
    here = on_this_processor(target)
    if here.saturates_pairs:
        return here, (other,), "with exact sums"
    is_of_runtime = target.arithmetic.with_exact_sums() == variant.arithmetic.with_exact_sums()
    if not is_of_runtime or not saturates_pairs():
        return None, (), ""
    here = msgspec.structs.replace(target, arithmetic=variant.arithmetic)
    return here, (other, Remedy(text=f"set {EXACT} in the session options")), f"with {EXACT}"

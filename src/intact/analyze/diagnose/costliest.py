"""Names the layer that costs an output most, and what may stay in float for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir
from msgspec.structs import replace

from intact._text import first_names
from intact.analyze.diagnose.evidence import Evidence
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.noise import MOST_AT
from intact.analyze.diagnose.weights import BEST, USUAL_BITS
from intact.analyze.layer_costs import ONE, LayerCost, LayerCosts
from intact.graph import weight_slot
from intact.plan import QuantizedGraph

_NAMED = 3
"""Layers that evidence names."""
_SETS = 3
"""Sets of layers that are offered, the smallest first."""


def at_costliest(finding: Finding, evidence: Evidence, output: str) -> Finding:
    """Say of the layer that costs an output most what was found of a quantizer.

    Args:
        finding: What is no fault of one tensor by itself.
        evidence: With a plan.
        output: The output that loses.

    Returns:
        The same where no layer can be measured. Else its remedies are those of that layer first; or
        those of a set, where no single layer makes half of what all cost.
    """
    costs = evidence.costs
    ranked = costs.ranked(output)
    if not ranked:
        return finding
    worst = ranked[0]
    where = _shares_in_words(evidence.plan, costs, ranked, output)
    told = f"; of what layers cost alone, on {costs.samples} samples, {where}"
    own = list(_remedies(evidence.plan, costs, output))
    own += [each for each in _all_as_wide(evidence.plan) if each not in own]
    # What keeps other layers in float is dropped: it was named for a tensor that is not the
    # costliest.
    others = tuple(each for each in finding.remedies if each not in own and each != BEST)
    general = tuple(each for each in others if "keep_float" not in each.options)
    return replace(
        finding,
        evidence=finding.evidence.partition(MOST_AT)[0] + told,
        node=worst.name,
        tensor=worst.tensor,
        remedies=(*own, *general, BEST),
    )


def or_in_float(finding: Finding, evidence: Evidence, output: str) -> Finding:
    """Offer float for the layers that cost an output most, behind what mends a quantizer itself."""
    first = tuple(each for each in finding.remedies if each != BEST)
    known = [each.options for each in first]
    layers = _remedies(evidence.plan, evidence.costs, output)
    more = [each for each in layers if each.options not in known]
    return replace(finding, remedies=(*first, *more, BEST))


def narrower_than_most(evidence: Evidence, output: str) -> list[Finding]:
    """Find layers whose weights have fewer bits than most have, where these make half of the costs.

    Args:
        evidence: With a plan.
        output: The output that loses.
    """
    found = _narrow(evidence.plan)
    # Before costs, which take time.
    if found is None:
        return []
    usual, names = found
    costs = evidence.costs
    narrow = [each for each in costs.layers if each.name in names]
    share = sum(costs.share(each, output) for each in narrow)
    if share < ONE:
        return []
    level = evidence.few_errors.decibels[output]
    count = f"{len(narrow)} layers" if len(narrow) > 1 else "a layer"
    told = (
        f"{count} with weights of fewer than {usual} bits, which most have, make "
        f"{100 * share:.0f} % of what layers cost output {output!r} ({level:.1f} dB)"
    )
    return [Finding("rounding", told, share)]


def suspected_for_bits(evidence: Evidence) -> list[Finding]:
    """Name the layers whose weights have fewer bits than most have, where an output loses.

    It is a guess, to be kept only where wider weights are measured to regain something: what was
    chosen for the sake of these weights, such as scales that clip, may cost more by now than they
    do.
    """
    found = _narrow(evidence.plan)
    if found is None or evidence.is_well:
        return []
    usual, names = found
    decibels = evidence.errors.decibels
    output = min(decibels, key=lambda name: decibels[name])
    count = f"{len(names)} layers have" if len(names) > 1 else "a layer has"
    told = (
        f"{count} weights of fewer than {usual} bits, which most have ({first_names([*names])}), "
        f"and output {output!r} {decibels[output]:.1f} dB of signal to quantization noise"
    )
    costs = {each.name: each.noise.get(output, 0.0) for each in evidence.costs.layers}
    worst = max(names, key=lambda name: costs.get(name, 0.0))
    options = {"bits": {f"{name}.weight": usual for name in names}}
    return [Finding("rounding", told, ONE, node=worst, remedies=(Remedy(options=options),))]


def _narrow(plan: QuantizedGraph) -> tuple[int, tuple[str, ...]] | None:
    """Return the usual bits of weights, and the nodes with fewer; None where all are alike.

    Of weights that are all alike, what rounding costs is no fault of some.
    """
    quantized = (node for node in plan.graph.nodes if plan.is_quantized(node))
    bits = {str(node.name): each for node in quantized if (each := _bits(plan, node))}
    usual = sorted(bits.values())[len(bits) // 2] if bits else 0
    narrow = tuple(name for name, each in bits.items() if each < usual)
    return (usual, narrow) if narrow else None


def _shares_in_words(
    plan: QuantizedGraph, costs: LayerCosts, ranked: Sequence[LayerCost], output: str
) -> str:
    worst = ranked[0]
    share = 100 * costs.share(worst, output)
    bits = _bits_of(plan, worst)
    width = f", {bits}-bit weight" if bits else ""
    place = f"{worst.name!r} ({worst.op_type}{width})"
    if share >= 100 * ONE:
        return f"{place} makes {share:.0f} %"
    # The first set is the costliest layer alone.
    half = next(iter(list(costs.sets(output))[1:]), None)
    count = "more than half of them make half" if half is None else f"{len(half)} make half"
    names = first_names([each.name for each in ranked[:_NAMED]])
    return f"no single one makes half: {count}, {place} {share:.0f} % (most: {names})"


def _remedies(plan: QuantizedGraph, costs: LayerCosts, output: str) -> Iterator[Remedy]:
    """Yield what spares the costliest layers: wider weights where all are narrow, or else float."""
    for layers in list(costs.sets(output))[:_SETS]:
        narrow = [each for each in layers if 0 < _bits_of(plan, each) < USUAL_BITS]
        # Wider weights cost less time than float, and any target with 8 bits has them.
        if len(narrow) == len(layers):  # which holds whatever the bits of the node are
            yield Remedy(options={"bits": {f"{e.name}.weight": USUAL_BITS for e in narrow}})
        else:
            yield Remedy(options={"keep_float": [name for e in layers for name in e.nodes[:1]]})


def _all_as_wide(plan: QuantizedGraph) -> Iterator[Remedy]:
    """Yield what gives the layers with fewer bits than most have as many: at once, if several."""
    usual, names = _narrow(plan) or (0, ())
    if len(names) > 1:
        yield Remedy(options={"bits": {f"{name}.weight": usual for name in names}})


def _bits_of(plan: QuantizedGraph, layer: LayerCost) -> int:
    return _bits(plan, plan.graph.node(layer.name))


def _bits(plan: QuantizedGraph, node: ir.Node) -> int:
    """Return the bits of a node's weight; 0 where it has none."""
    slot = weight_slot(node)
    return 0 if slot is None else plan.input_config(node, slot).bits

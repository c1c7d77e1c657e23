"""Findings on BatchNormalizations: scales that cost bits, and channels that are dead.

The figures are those of `intact.plan.batch_norms`, which `inspect` shows too.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.graph import facts
from intact.plan import QuantizedGraph
from intact.plan.batch_norms import BatchNormScale, Place, batch_norm_scales, normalized_data

_BIT = 4.0
"""Times the noise power that one bit less makes."""


def batch_norm_findings(plan: QuantizedGraph) -> list[Finding]:
    """Find BatchNormalizations whose scales cost a bit or more, and dead channels.

    Returns:
        One finding for each: ``dead_channel`` where dead channels have the largest scale, else
        ``batch_norm_scale``. The severity is at most a half: what later layers make of the noise
        is not known here.
    """
    return [
        _finding(each, plan)
        for each in batch_norm_scales(plan.graph, plan)
        if each.cost > _BIT and plan.is_quantized(plan.graph.node(each.node))
    ]


def _finding(each: BatchNormScale, plan: QuantizedGraph) -> Finding:
    is_dead = each.index in each.dead
    evidence = (
        f"BatchNormalization ({each.place}) multiplies channel {each.index} by {each.scale:.3g} "
        f"(gamma {each.gamma:.3g}, variance {each.variance:.3g}, mean {each.mean:.3g}), the least "
        f"by {each.least:.3g}: {each.cost:.2g} times the rounding noise of alike channels"
    )
    if each.dead:
        relu = f", behind a {each.after}" if each.after else ""
        evidence += f"; {len(each.dead)} of {each.channels} channels are constant{relu}"
    node = plan.graph.node(each.node)
    remedies = [Remedy(options={"keep_float": _parts(node, each.place)})]
    if each.place is not Place.APART:
        remedies.insert(0, Remedy(options={"improve": ["equalize"]}))
    if each.place is Place.IN_FRONT:
        text = "quantize for a target with a weight scale for each channel"
        remedies.append(Remedy(text=text))
    remedies.append(Remedy(text=_advice(each)))
    data = normalized_data(node, each.place)
    return Finding(
        "dead_channel" if is_dead else "batch_norm_scale",
        evidence,
        0.5 * each.cost / (1 + each.cost),
        node=each.node,
        tensor=str((node.outputs[0] if data is None else data).name),
        remedies=tuple(remedies),
    )


def _parts(node: ir.Node, place: Place) -> list[str]:
    """Name the nodes that a BatchNormalization became."""
    data = node.inputs[0]
    product = None if data is None else data.producer()
    names = [str(node.name)]
    if place is Place.APART and facts(node).adds and product is not None:
        names.insert(0, str(product.name))
    return names


def _advice(each: BatchNormScale) -> str:
    """Return what can be done in training."""
    parts = ["make the layer in front smaller"]
    if each.after:
        parts += [
            "put the BatchNormalization in front of the activation",
            "use LeakyRelu in the place of Relu",
        ]
    return f"train again: {', or '.join(parts)}"

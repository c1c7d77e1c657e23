"""What a runtime makes of a result: layers that it computes in float, int8 slower than float."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.weights import USUAL_BITS
from intact.data.batching import Batch
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.errors import ExportError, IntactError
from intact.flow.runtime_signs import (
    FASTEST,
    SPEED,
    Slower,
    always_slower,
    blocks_of_both,
    deployed_alone,
    runner_of,
)
from intact.formats.base.format import Deployed
from intact.formats.registry import FORMATS
from intact.graph import OPS, OpKind, data_slots, weight_slot
from intact.ops.operators import QUANTIZERS
from intact.plan import QuantizedGraph
from intact.results.result import Result

_BATCH = 8
_MUCH = 0.1
"""Part of the time that is worth a remedy."""
_PROFILED = 5
"""Runs whose kernels are timed."""


def products_in_float(result: Result, *, threads: int = 0) -> dict[str, str]:
    """Return the layers that are planned for integers and computed in float, with operators.

    Those of the first format; none where its runtime is not installed or does not tell.
    """
    name, exported = next(iter(result.exports.items()))
    runtime = FORMATS[name].runtime
    if runtime is None or not runtime.can_run(exported):
        return {}
    with contextlib.suppress(IntactError):  # a model that the runtime refuses: `verify` says it
        found = runtime.executed(Deployed(result.plan, exported, None, threads))
        in_float = {} if found is None else found.in_float
        return {name: op_type for name, op_type in in_float.items() if _multiplies(op_type)}
    return {}


def runtime_findings(
    result: Result, samples: Samples, in_float: Mapping[str, str]
) -> list[Finding]:
    """Find out whether the runtime makes less of a result than was planned.

    Args:
        result: The result.
        samples: Prepared as it wants them; the first few are run.
        in_float: As of `products_in_float`.

    Raises:
        DataError: The samples do not fit the model.
    """
    found = [_fallback(result.plan, in_float)] if in_float else []
    if deployed_alone(result) is None:
        return found
    feeds, _ = next(iter(samples.batches(samples.batch_size(_BATCH))))
    with contextlib.suppress(IntactError):  # a model that the runtime refuses: `verify` says it
        slower = time_if_slower(result, feeds)
        if slower is not None:
            found.append(_slowness(result, feeds, slower, in_float))
    return found


def _multiplies(op_type: str) -> bool:
    spec = OPS.get(op_type)
    return spec is not None and spec.kind is OpKind.COMPUTE


def _products(plan: QuantizedGraph) -> list[str]:
    """Name the layers that are planned for integers."""
    return [
        str(node.name)
        for node in plan.graph.nodes
        if plan.is_quantized(node) and _multiplies(node.op_type)
    ]


# ---- computed in float ------------------------------------------------------------------------


def _fallback(plan: QuantizedGraph, in_float: Mapping[str, str]) -> Finding:
    total = len(_products(plan))
    first, op_type = next(iter(in_float.items()))
    activations, weights = _widest(plan, in_float)
    wide = [
        f"{bits} bits in {what}"
        for what, bits in (("activations", activations), ("weights", weights))
        if bits > USUAL_BITS
    ]
    evidence = (
        f"the runtime computes {len(in_float)} of {total} layers in float that the plan has in "
        f"integers, the first is {first!r} ({op_type}){'; it has ' if wide else ''}"
        f"{' and '.join(wide)}"
    )
    part = len(in_float) / max(total, len(in_float), 1)
    return Finding(
        "float_fallback",
        evidence,
        SPEED * part,
        node=first,
        remedies=tuple(_for_fallback(plan, in_float)),
        unit="times",
    )


def _for_fallback(plan: QuantizedGraph, in_float: Mapping[str, str]) -> Iterator[Remedy]:
    """Yield bits that the runtime has kernels for; or float without quantizers around it."""
    activations, weights = _widest(plan, in_float)
    widths = {"activation_bits": activations, "weight_bits": weights}
    options = {name: USUAL_BITS for name, bits in widths.items() if bits > USUAL_BITS}
    if options:
        yield Remedy(options={**options, "bits": None})
    if len(in_float) < len(_products(plan)):
        yield Remedy(options={"keep_float": list(in_float)})
    yield Remedy(
        text="deploy the float model: this runtime has no integer kernels for these layers"
    )


def _widest(plan: QuantizedGraph, nodes: Mapping[str, str]) -> tuple[int, int]:
    """Return the most bits of the activations and of the weights of nodes."""
    activations = weights = 0
    for node in plan.graph.nodes:
        if str(node.name) not in nodes:
            continue
        own = weight_slot(node)
        for slot in data_slots(node):
            if slot != own:
                activations = max(activations, plan.input_config(node, slot).bits)
        if own is not None:
            weights = max(weights, plan.input_config(node, own).bits)
    return activations, weights


# ---- slower than float ------------------------------------------------------------------------


def time_if_slower(result: Result, feeds: Batch) -> Slower | None:
    """Time both models in turn until the quantized one is not slower once.

    It runs as applications run it by default, but with one thread.

    Returns:
        None where it is not slower in each round, or where the models are too small to be timed.
    """
    return always_slower(_timed(result, feeds))


def speedup(result: Result, feeds: Batch) -> float:
    """Return how many times as fast as the float model the quantized one is, on one thread."""
    blocks = list(_timed(result, feeds))
    first, second = (min(min(each[at]) for each in blocks) for at in (0, 1))
    return first / second


def _timed(result: Result, feeds: Batch) -> Iterator[tuple[list[float], ...]]:
    """Yield blocks of times of both models, in float first; the first run of each is not timed."""
    model, run = FloatModel(result.plan.graph, threads=1), runner_of(result)
    if run is None:
        raise ExportError("no runtime here runs both models", remedy="measure on the hardware")
    model.run(feeds), run(feeds)
    yield from blocks_of_both(lambda: model.run(feeds), lambda: run(feeds))


def _slowness(result: Result, feeds: Batch, slower: Slower, in_float: Mapping[str, str]) -> Finding:
    deployed, runtime = deployed_alone(result), FORMATS[next(iter(result.exports))].runtime
    kernels = []
    if deployed is not None and runtime is not None and runtime.is_profiled:
        kernels = runtime.profile(deployed, feeds, _PROFILED)
    total = sum(each.seconds for each in kernels)
    moved = sum(each.seconds for each in kernels if each.op_type in QUANTIZERS)
    moved = moved / total if total else 0.0
    evidence = (
        f"{slower.told(feeds)}, slower in each of {slower.rounds} rounds; {100 * moved:.0f} % of "
        "it are quantizers"
    )
    narrower = _for_fallback(result.plan, in_float) if in_float else ()
    remedies = (*(each for each in narrower if each.options), Remedy(options=FASTEST))
    lost = min(slower.lost, _MUCH) if in_float else slower.lost  # float kernels are why
    severity = SPEED * lost
    return Finding("slower_than_float", evidence, severity, remedies=remedies, unit="times")

"""Writes the summary that a report opens with, in the words of the terminal."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact._text import level, size_row, widths
from intact.analyze.comparison import widths as widths_of
from intact.analyze.report import figures

if TYPE_CHECKING:
    from intact.analyze.evaluation.figures import Evaluation
    from intact.analyze.layers import ModelErrors
    from intact.results.result import Result


def summary_of(result: Result) -> figures.Summary:
    """Return a result in a few figures."""
    plan, provenance, found = result.plan, result.plan.provenance, result.figures()
    found_by = provenance.source or (f"search: {provenance.search}" if provenance.search else "")
    weight_bits, activation_bits = widths_of(plan)
    return figures.Summary(
        _model_name(result),
        found.target,
        plan.target.description,
        found.formats,
        result.deployed_file,
        (found.float_bytes, found.quantized_bytes),
        found.nodes,
        found.quantized_nodes,
        weight_bits,
        activation_bits,
        found.samples,
        provenance.method,
        provenance.weight_method,
        found_by,
    )


def caption_of(evaluated: Evaluation | None, errors: ModelErrors | None, *, is_drawn: bool) -> str:
    """Say what the figures were measured on; nothing where nothing was measured."""
    if evaluated is not None:
        return evaluated.figures().title
    if errors is None:
        return ""
    return f"{errors.samples} {'drawn ' if is_drawn else ''}samples, simulated"


def boxes_of(
    result: Result, evaluated: Evaluation | None, errors: ModelErrors | None
) -> Iterator[figures.Box]:
    """Yield the figures that matter most, each with what it is to be compared with."""
    found = result.figures()
    rows = [size_row(found.float_bytes, found.quantized_bytes)]
    if evaluated is not None:
        rows = list(evaluated.rows())
    for name, before, after, change in rows:
        compared = [f"float {before}" if before else "", change]
        yield figures.Box(name, after, "; ".join(filter(None, compared)))
    if evaluated is not None and evaluated.agreement is not None:
        yield figures.Box("agreement", f"{evaluated.agreement:.2f} %", "same best class as float")
    if evaluated is not None and evaluated.equal is not None:
        share = f"{evaluated.equal.percent:.2f} %"
        yield figures.Box("equal numbers", share, f"of {evaluated.output}, as float has them")
    levels = _levels(evaluated, errors)
    if levels:
        worst = min(levels, key=lambda name: levels[name])
        of = f"{worst}, the worst of {len(levels)} outputs" if len(levels) > 1 else worst
        yield figures.Box("output error", level(levels[worst]), f"signal to noise of {of}")
    weights, activations = widths_of(result.plan)
    parts = [("weights", weights), ("activations", activations)]
    told = "; ".join(f"{name}: {widths(counts)}" for name, counts in parts if counts)
    yield figures.Box("integer nodes", found.counted.removesuffix(" nodes"), told)


def _levels(evaluated: Evaluation | None, errors: ModelErrors | None) -> Mapping[str, float]:
    """Return the error of each output that has one, dB: on all samples where they were run."""
    if evaluated is not None:
        found = {name: each.sqnr_db for name, each in evaluated.outputs.items()}
        found = found or {evaluated.output: evaluated.sqnr_db}
    else:
        outputs = () if errors is None else errors.outputs
        found = {each.name: each.error.sqnr_db for each in outputs}
    return {name: each for name, each in found.items() if not math.isnan(each)}


def options_of_recipe(result: Result) -> Mapping[str, Any]:
    """Read the recipe of a result; nothing where it was changed to what cannot be read."""
    try:
        return tomllib.loads(result.recipe)
    except tomllib.TOMLDecodeError:
        return {}


def _model_name(result: Result) -> str:
    # Only the name of the file: where it lies on the machine of whoever made the result is nobody's
    # concern.
    model = options_of_recipe(result).get("model")
    if isinstance(model, str) and Path(model).stem:
        return Path(model).stem
    named = result.plan.graph.model.graph.name
    return named or ("model" if result.folder is None else result.folder.resolve().name)

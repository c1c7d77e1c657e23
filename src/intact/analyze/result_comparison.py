"""Carries out ``intact compare``: loads several results, runs them, and puts them side by side.

What differs between the plans is computed in `comparison`, and written as tables in
`comparison_text`. Here the rest is measured: the errors of layers, accuracy on the same samples,
latency and cost, with remarks where results are not comparable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact import __version__
from intact._files import write_whole
from intact.analyze import comparison_text
from intact.analyze.comparison import (
    ComparedResult,
    Comparison,
    RunFigures,
    compare_plans,
    widths,
)
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.analyze.evaluation.figures import Evaluation
from intact.analyze.layers import ModelErrors, model_errors
from intact.analyze.report.comparison import comparison_page
from intact.analyze.report.files import check_file
from intact.analyze.report.layout import require_layout
from intact.calibrate.synthetic import drawn_samples
from intact.data.progress import begin
from intact.data.signature import input_specs
from intact.data.stream import AGAIN, Samples
from intact.errors import IntactError, UsageError
from intact.formats.registry import expressible
from intact.limits import INSPECTED
from intact.numerics.metrics import AccuracyDifference, accuracy_difference, in_top_k
from intact.recipe.reports import CompareOptions
from intact.results.folder import results_in
from intact.results.result import Result
from intact.results.samples import open_for_result
from intact.results.sources import load_result
from intact.search.cost.kinds import plan_costs

_Right = npt.NDArray[np.bool_]
"""Which samples a model classifies right, ``[samples]``."""


def compare(options: CompareOptions) -> Comparison:
    """Compare results.

    Raises:
        UsageError: There are fewer than two.
        MissingExtraError: A page is asked for, and the extra ``report`` is not installed.
        IntactError: A folder is wrong, or the data fits none of the results.
    """
    if isinstance(options.data, Iterator):
        raise UsageError("samples are read several times, an iterator gives once", remedy=AGAIN)
    if options.output is not None:
        require_layout()
        check_file(Path(options.output), "--output")
    begin(options.progress, "reading the results")
    named = load_results(options.results)
    if len(named) < 2:
        raise UsageError(
            f"{len(named)} result to compare",
            remedy="name the folders of two or more results, in Python as one list",
        )
    results = list(named.values())
    begin(options.progress, "comparing decisions")
    nodes = compare_plans([result.plan for result in results])
    rows = [_described(name, result) for name, result in named.items()]
    if _runs_models(options):
        rows = _with_changes(list(_runs(options, rows, results)))
    remarks = tuple(_remarks(results, rows, options))
    is_drawn = options.data is None and _runs_models(options)
    found = Comparison(tuple(rows), nodes, remarks, is_drawn)
    if options.output is not None:
        begin(options.progress, "writing")
        write_whole(Path(options.output), _page(found, results))
    return found


def _runs_models(options: CompareOptions) -> bool:
    """Tell whether the comparison needs samples, or is one of plans alone."""
    return options.errors or options.data is not None or options.latency


def _page(found: Comparison, results: Sequence[Result]) -> bytes:
    """Return a comparison as a page."""
    tables = {
        "figures": comparison_text.figures(found),
        "decisions": comparison_text.decisions(found),
        "scales": comparison_text.scales(found),
        "layers": comparison_text.layers(found),
    }
    plans = [result.plan for result in results]
    return comparison_page(found, plans, tables, version=__version__)


def load_results(given: Sequence[Any] | Mapping[str, Any]) -> dict[str, Result]:
    """Read results, and name each by what tells its folder from the others.

    Args:
        given: Results or folders; a folder with a result for each target stands for all of these.
            Results by name keep their names.

    Raises:
        PlanError: A folder is no result.
    """
    if isinstance(given, Mapping):
        return {str(name): load_result(each) for name, each in given.items()}
    sources: list[Result | Path] = []
    for each in given:
        inside = [] if isinstance(each, Result) else results_in(Path(each))
        sources += inside or [each if isinstance(each, Result) else Path(each)]
    results = [load_result(each) for each in sources]
    return dict(zip(_names(sources, results), results, strict=True))


def _names(sources: Sequence[Result | Path], results: Sequence[Result]) -> list[str]:
    """Name results by the ends of their paths, those in memory by their targets."""
    paths = [_place(source, result) for source, result in zip(sources, results, strict=True)]
    parts = [path.parts or path.resolve().parts[-1:] for path in paths]
    depth = 1
    most = max(map(len, parts), default=1)
    # Names are as short as they can be while they differ: columns of a table are narrow.
    while depth < most and len({each[-depth:] for each in parts}) < len(set(parts)):
        depth += 1
    names = ["/".join(each[-depth:]).replace("//", "/") for each in parts]
    seen: Counter[str] = Counter()
    for at, name in enumerate(names):
        seen[name] += 1
        # The same result may be given twice, or several of one target in memory.
        names[at] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def _place(source: Result | Path, result: Result) -> Path:
    if not isinstance(source, Result):
        return source
    return source.folder or Path(result.plan.target.name)


def _described(name: str, result: Result) -> ComparedResult:
    """Describe a result without running it."""
    plan = result.plan
    weights, activations = widths(plan)
    figures = result.figures()
    return ComparedResult(
        name=name,
        target=figures.target,
        formats=figures.formats,
        model=plan.graph.hash,
        made_with=", ".join(figures.made_with),
        nodes=figures.nodes,
        quantized=figures.quantized_nodes,
        weight_bits=weights,
        activation_bits=activations,
        float_bytes=figures.float_bytes,
        bytes=figures.quantized_bytes,
        cost=_costs(result),
    )


def _costs(result: Result) -> dict[str, float]:
    """Compute the costs; shapes that depend on the sample are those of one that is drawn."""
    packs = expressible(result.exports).packs
    found = plan_costs(result.plan, packs=packs)
    if "bitops" in found:
        return found
    try:
        samples = result.draw_samples(1)
        feeds = next(iter(samples.batches(samples.batch_size(1))))[0]
        return plan_costs(result.plan, feeds, packs=packs)
    except IntactError:
        return found


class _Run(msgspec.Struct, frozen=True):
    """A result that was run, and which samples it classifies right."""

    row: ComparedResult
    right: _Right | None


def _runs(
    options: CompareOptions, rows: Sequence[ComparedResult], results: Sequence[Result]
) -> Iterator[_Run]:
    """Run each result; what stops one of them is noted, if others can be run.

    Raises:
        IntactError: None of them can be run.
    """
    failed: list[IntactError] = []
    for row, result in zip(rows, results, strict=True):
        try:
            yield _run(options, row, result, results)
        except IntactError as error:
            failed.append(error)
            if len(failed) == len(results):
                # The first is as good as any: where no result can be run, the cause is mostly the
                # data.
                raise failed[0] from None
            yield _Run(msgspec.structs.replace(row, why_no_errors=error.with_flags), None)


def _run(
    options: CompareOptions, row: ComparedResult, result: Result, results: Sequence[Result]
) -> _Run:
    """Measure what running a result shows."""
    right: list[_Right] = []
    errors: ModelErrors | None = None
    measured: RunFigures | None = None
    samples = _samples(options, result, results)
    if options.errors:
        begin(options.progress, f"errors of layers ({row.name})")
        errors = model_errors(result.plan, samples, threads=options.threads)
    if options.data is not None or options.latency:
        begin(options.progress, f"evaluating ({row.name})")
        found = evaluate_result(
            result,
            samples,
            batch=options.batch,
            threads=options.threads,
            timed=options.latency,
            scored=lambda scores, labels: right.append(in_top_k(scores, labels, 1)),
        )
        measured = _measured(found, options)
    row = msgspec.structs.replace(row, errors=errors, measured=measured)
    return _Run(row, right[0] if right else None)


def _samples(options: CompareOptions, result: Result, results: Sequence[Result]) -> Samples:
    """Open the data; or draw inputs, the same for all results that take the same."""
    if options.data is not None:
        return open_for_result(
            options, options.data, result, limit=options.samples, labels=options.labels
        )
    source = next((each for each in results if _takes_inputs_of(result, each)), result)
    return drawn_samples(result.plan, source.statistics, INSPECTED)


def _takes_inputs_of(result: Result, other: Result) -> bool:
    """Tell whether inputs drawn from the statistics of one result are such as another takes."""
    steps = (each.plan.provenance.preprocess for each in (result, other))
    if other.statistics is None or len(set(steps)) > 1:
        return False
    specs = input_specs(result.plan.graph)
    return (
        specs == input_specs(other.plan.graph) and specs.keys() <= other.statistics.tensors.keys()
    )


def _measured(found: Evaluation, options: CompareOptions) -> RunFigures:
    outputs = {name: each.sqnr_db for name, each in found.outputs.items()}
    is_drawn = options.data is None
    return RunFigures(
        samples=found.samples,
        runtime=found.runtime,
        top1=None if found.accuracy is None else found.accuracy.top1,
        change=None,
        # Drawn inputs belong to no class: which is best says nothing.
        agreement=None if is_drawn else found.agreement,
        sqnr_db=outputs or {found.output: found.sqnr_db},
        latency_ms=found.latency_ms,
        latency_batch=found.latency_batch,
        why_no_latency=found.why_no_latency,
    )


def _with_changes(runs: Sequence[_Run]) -> list[ComparedResult]:
    """Add how much more accurate each result is than the first, on the same samples."""
    first = runs[0].right
    found = [runs[0].row]
    for run in runs[1:]:
        change, measured = None, run.row.measured
        # The interval is of pairs, sample by sample: another number of samples has no pairs.
        if first is not None and run.right is not None and len(run.right) == len(first):
            parts = accuracy_difference(first, run.right)
            change = AccuracyDifference(*(100 * part for part in parts))
        if measured is not None:
            measured = msgspec.structs.replace(measured, change=change)
        found.append(msgspec.structs.replace(run.row, measured=measured))
    return found


def _remarks(
    results: Sequence[Result], rows: Sequence[ComparedResult], options: CompareOptions
) -> Iterator[str]:
    """Yield what cannot be compared, or only with care."""
    graphs = {result.plan.graph.hash: result.plan.graph for result in results}
    if len(graphs) > 1:
        counts = [
            f"{one.name} and {other.name} share {_shared(a, b)} of {_all(a, b)} nodes"
            for (one, a), (other, b) in combinations(zip(rows, results, strict=True), 2)
            if one.model != other.model
        ]
        more = f" and {len(counts) - 3} more" if len(counts) > 3 else ""
        yield (
            f"the float models differ ({'; '.join(counts[:3])}{more}, by name and operator): the "
            "errors of each are against its own float model"
        )
    if len({row.target for row in rows}) > 1:
        yield (
            "the targets differ: so may codes and granularity at equal loss, and bit-operations "
            "and latency are those of different hardware"
        )
    if _runs_models(options):
        yield from _remarks_on_runs(results, rows, options)
    for row in rows:
        if row.why_no_errors:
            yield f"{row.name} was not run: {row.why_no_errors}"
        if row.measured is not None and row.measured.why_no_latency:
            yield f"no latency of {row.name}: {row.measured.why_no_latency}"


def _remarks_on_runs(
    results: Sequence[Result], rows: Sequence[ComparedResult], options: CompareOptions
) -> Iterator[str]:
    for row, result in zip(rows, results, strict=True):
        if result.plan.keeps_runtime:
            yield (
                f"{row.name} was quantized by others: its errors are against what remains of it "
                "without its codes"
            )
        if result.plan.provenance.trained:
            yield f"{row.name} was trained: its errors are against the trained weights in float"
    if options.data is None:
        if any(not _takes_inputs_of(result, results[0]) for result in results):
            yield "the drawn inputs are not the same for all results"
        yield "inputs are drawn from what calibration saw: give --data for figures to rely on"
    elif len({result.plan.provenance.preprocess for result in results}) > 1:
        yield "the results were calibrated with different preprocessing: each gets its own"


def _shared(first: Result, second: Result) -> int:
    one, other = _keys(first), _keys(second)
    return len(one & other)


def _all(first: Result, second: Result) -> int:
    return len(_keys(first) | _keys(second))


def _keys(result: Result) -> set[tuple[str, str]]:
    return {(str(node.name), node.op_type) for node in result.plan.graph.nodes}


__all__ = ["compare", "load_results"]

"""Carries out ``intact report``: gathers what is known of a result, and writes its page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from intact import __version__
from intact._files import write_whole
from intact.analyze.diagnose.evidence import DIAGNOSED
from intact.analyze.diagnose.findings import CAUSES, Finding
from intact.analyze.evaluation.run import evaluated_at_once
from intact.analyze.layer_costs import LayerCosts
from intact.analyze.layers import ModelErrors, model_errors
from intact.analyze.report import figures
from intact.analyze.report.files import check_tables, write_tables
from intact.analyze.report.layout import require_layout
from intact.analyze.report.logs import search_of, training_of
from intact.analyze.report.network import decibels, floats_of, network_of, note_text
from intact.analyze.report.page import page_of
from intact.analyze.report.pictures import Answers, pictures_of
from intact.analyze.report.summary import boxes_of, caption_of, options_of_recipe, summary_of
from intact.analyze.verdict import Measured, Verdict, verdict
from intact.calibrate.choice import elements_of
from intact.data.progress import begin
from intact.data.stream import AGAIN, Samples
from intact.errors import DataError, IntactError, UsageError, nearest
from intact.formats.base.comparison import Totals
from intact.formats.base.report import Verification
from intact.formats.registry import ONNX_QDQ
from intact.limits import (
    DRAWN,
    INSPECTED,
    REPORTED_ELEMENTS,
    VERIFIED,
)
from intact.recipe.declare import Options, options_of
from intact.recipe.file import COMMAND, RECIPE
from intact.recipe.reports import (
    REPORT_PARTS,
    DiagnoseOptions,
    ReportOptions,
)
from intact.recipe.runs import VerifyAllOptions
from intact.results.folder import REPORT
from intact.results.preprocessing import steps_for
from intact.results.result import Result
from intact.results.samples import open_for_result
from intact.results.sources import begin_reading, load_result

if TYPE_CHECKING:
    from intact.analyze.evaluation.figures import Evaluation

_PROFILED, _PROFILED_MS = 10, 1000.0
"""Runs whose kernels are timed, and how long they may take; two in any case."""
_AGAIN = "again"
"""Folder that the command on the page writes to."""

T = TypeVar("T")
O = TypeVar("O", bound=Options)  # noqa: E741


def report(options: ReportOptions) -> figures.Report:
    """Gather a report, and write its page; raises as `report_with_page`."""
    return report_with_page(options)[0]


def report_with_page(options: ReportOptions) -> tuple[figures.Report, bytes]:
    """Gather a report, and write its page, if there is a place for it.

    Returns:
        The report, and its page.

    Raises:
        MissingExtraError: The package that lays out graphs is not installed.
        IntactError: The folder, the data or an option is wrong, or the page cannot be written.
    """
    # What can be refused is refused before minutes of measuring.
    require_layout()
    _refuse_unknown(options.leave_out)
    check_tables(options)
    if isinstance(options.data, Iterator):
        raise UsageError("samples are read several times, an iterator gives once", remedy=AGAIN)
    begin_reading(options.result, options.progress)
    result = load_result(options.result)
    path = _path(options, result)
    parts = _Parts(options, result)
    # First, because the costs of layers that it measures serve the errors too.
    findings = parts.of("diagnosis", parts.findings)
    errors = parts.of("errors", parts.errors)
    found = gather(options, result, parts, findings, errors)
    begin(options.progress, "writing")
    page = page_of(found)
    if path is not None:
        write_whole(path, page)
    tables = write_tables(options, result.plan, errors)
    return msgspec.structs.replace(found, written=tables), page


def gather(
    options: ReportOptions,
    result: Result,
    parts: _Parts,
    findings: tuple[figures.Finding, ...] | None,
    errors: ModelErrors | None,
) -> figures.Report:
    """Gather what a report says.

    Args:
        options: As a call gave them.
        result: The result.
        parts: Measures what is wanted, and notes what cannot be measured.
        findings: What a diagnosis found; None where that is left out.
        errors: Its layers' errors.

    Raises:
        IntactError: The data is wrong.
    """
    evaluated = parts.of("accuracy", parts.evaluated)
    verified = parts.of("verification", parts.verified)
    begin(options.progress, "drawing")
    plan = result.plan
    network = network_of(plan, result.statistics, errors, findings or (), parts.times)
    log = None if options.log is None else Path(options.log)
    return figures.Report(
        summary_of(result),
        network,
        caption=caption_of(evaluated, errors, is_drawn=options.data is None),
        boxes=tuple(boxes_of(result, evaluated, errors)),
        intact=__version__,
        floats=floats_of(network),
        notes=tuple(note_text(note) for note in plan.notes if not note.node),
        samples=0 if errors is None else errors.samples,
        verdict=_verdict(parts, evaluated, errors, is_drawn=options.data is None),
        drawn=options.data is None,
        outputs=() if errors is None else tuple(_outputs(errors)),
        accuracy=None if evaluated is None else _accuracy(evaluated, parts.times),
        verified=verified or (),
        pictures=parts.of("pictures", parts.pictures),
        findings=findings,
        improvements=tuple(
            figures.Improvement(each.name, decibels(each.before), decibels(each.after), each.kept)
            for each in plan.provenance.improvements
        ),
        search=search_of(result, log),
        training=training_of(result),
        provenance=_provenance(result),
        command=_command(result),
        recipe=result.recipe,
        left_out=parts.left_out,
    )


def _verdict(
    parts: _Parts, evaluated: Evaluation | None, errors: ModelErrors | None, *, is_drawn: bool
) -> Verdict | None:
    """Judge the result by what was measured; None where nothing was."""
    if evaluated is not None:
        from intact.analyze.evaluation.evaluate import measured_by

        # What is doubtful about the float model, findings say.
        measured = measured_by(evaluated, doubts=len(evaluated.warnings))
    elif errors is not None:
        levels = [each.error.sqnr_db for each in errors.outputs]
        measured = Measured(
            samples=errors.samples, decibels=min(levels, default=None), is_drawn=is_drawn
        )
    else:
        return None
    return verdict(measured.explained_by(parts.diagnosed))


def _path(options: ReportOptions, result: Result) -> Path | None:
    """Return where the page goes; None for a result in memory, where no file is named."""
    if options.output is not None:
        return Path(options.output)
    return None if result.folder is None else result.folder / REPORT


def _refuse_unknown(parts: Sequence[str]) -> None:
    for part in parts:
        if part not in REPORT_PARTS:
            raise UsageError(f"--leave-out {part!r}", remedy=nearest(part, REPORT_PARTS))


class _Parts:
    """What is measured for a report.

    Attributes:
        left_out: The parts that the report lacks, with the reason.
        times: What kernels take, ms, by node; empty where it was not measured.
        diagnosed: The findings of the diagnosis.
        answers: What the evaluation saw; None where there was none.
    """

    def __init__(self, options: ReportOptions, result: Result) -> None:
        self._options, self._result = options, result
        self.left_out: dict[str, str] = {}
        self.times: dict[str, float] = {}
        self._costs: LayerCosts | None = None
        self.diagnosed: tuple[Finding, ...] = ()
        self.answers: Answers | None = None

    def of(self, name: str, measure: Callable[[], T | None]) -> T | None:
        """Measure a part, unless it is left out; what cannot be measured is told on the page."""
        if name in self._options.leave_out:
            return None
        try:
            return measure()
        except UsageError:
            raise
        except IntactError as error:
            # A part may be missing, but not for samples that the user gave: a wrong file is an
            # error.
            if isinstance(error, DataError) and self._options.data is not None:
                raise
            self.left_out[name] = str(error)
            return None

    def errors(self) -> ModelErrors:
        """Measure the errors of the layers, on samples that are drawn where none are given."""
        options, result = self._options, self._result
        begin(options.progress, "measuring the errors of layers")
        if options.data is None:
            samples = result.draw_samples(min(DRAWN, self._most()))
        else:
            samples = open_for_result(options, options.data, result, limit=options.samples)
        most = min(INSPECTED, self._most())
        return model_errors(
            result.plan, samples, most=most, costs=self._costs, threads=options.threads
        )

    def _most(self) -> int:
        """Return how many samples are compared layer by layer, where each takes seconds."""
        statistics = self._result.statistics
        elements = 0 if statistics is None else elements_of(statistics)
        return max(REPORTED_ELEMENTS // max(elements, 1), DIAGNOSED)

    def findings(self) -> tuple[figures.Finding, ...]:
        """Diagnose."""
        from intact.analyze.diagnose.result_diagnosis import diagnose

        most = options_of(DiagnoseOptions)["samples"].default
        samples = min(self._options.samples or most, most)
        own = self._taken(DiagnoseOptions, samples=samples, layers=False)
        found = diagnose(own)
        self._costs, self.diagnosed = found.costs, found.findings
        return tuple(
            figures.Finding(
                each.cause,
                CAUSES[each.cause],
                each.evidence,
                each.node,
                each.remedy,
                each.gain,
                each.unit,
            )
            for each in found.findings
        )

    def evaluated(self) -> Evaluation | None:
        """Evaluate, where there are data."""
        options, result = self._options, self._result
        if options.data is None:
            return None
        from intact.analyze.evaluation.evaluate import evaluate_result

        samples = open_for_result(
            options, options.data, result, limit=options.samples, labels=options.labels
        )
        steps = steps_for(options, options.data, result.preprocess)
        self.answers = Answers(samples, steps, result.plan.graph)
        found = evaluate_result(
            result, samples, threads=options.threads, watch=self.answers.watch, scored=self._scored
        )
        # Other runtimes do not tell what their kernels take.
        if found.latency_ms is not None and next(iter(result.exports)) == ONNX_QDQ:
            begin(options.progress, "timing kernels")
            runs = max(2, min(_PROFILED, int(_PROFILED_MS / found.latency_ms[1])))
            self.times = _kernel_times(result, samples, runs, threads=options.threads)
        return found

    def _scored(self, _: Any, labels: npt.NDArray[np.int64]) -> None:
        """Keep the labels, with which answers are right or wrong."""
        if self.answers is not None:
            self.answers.labels = labels

    def pictures(self) -> figures.Pictures | None:
        """Show the samples, and those that are answered otherwise."""
        return pictures_of(self._options, self._result, self.answers)

    def verified(self) -> tuple[figures.Verified, ...]:
        """Run what was deployed in its runtime, and compare the integers."""
        from intact.analyze.verification.verify import verify_all

        samples = self._most() if self._most() < VERIFIED else None
        found = verify_all(self._taken(VerifyAllOptions, samples=samples))
        return tuple(map(_verified, found))

    def _taken(self, kind: type[O], **others: Any) -> O:
        """Make the options of another report of what these have in common with them."""
        common = {
            name: getattr(self._options, name)
            for name in options_of(kind)
            if hasattr(self._options, name)
        }
        return kind(**{**common, "result": self._result, **others})


def _accuracy(found: Evaluation, times: Mapping[str, float]) -> figures.Accuracy:
    """Return the figures of an evaluation, for scripts and charts."""
    accuracy = found.accuracy
    points = None if accuracy is None else accuracy.difference
    metrics = dict(found.metrics)
    if accuracy is not None and accuracy.top_k is not None:
        metrics = {f"top-{accuracy.k} %": accuracy.top_k, **metrics}
    return figures.Accuracy(
        found.samples,
        found.runtime,
        None if accuracy is None else accuracy.top1,
        None if points is None else (points.difference, points.low, points.high),
        found.agreement,
        metrics,
        found.latency_ms,
        found.latency_batch,
        found.speedup,
        sum(times.values()) if times else None,
        tuple(filter(None, (*found.warnings, found.why_no_float, found.why_no_labels))),
    )


def _kernel_times(result: Result, samples: Samples, runs: int, *, threads: int) -> dict[str, float]:
    """Time the kernels of a model that ONNX Runtime runs, on the batch that `evaluate` times.

    Returns:
        Milliseconds by the node that kernels are named after: the first of those that were fused.
    """
    from intact.formats.onnx_qdq.executed import profile_kernels

    # Kernels are compared with the latency beside them, so they run on as large a batch.
    feeds, _ = next(iter(samples.batches(samples.batch_size(evaluated_at_once(result.plan.graph)))))
    exact = not result.plan.target.saturates_pairs
    kernels = profile_kernels(result.exported.model, feeds, runs=runs, threads=threads, exact=exact)
    times: dict[str, float] = {}
    for kernel in kernels:
        times[kernel.name] = times.get(kernel.name, 0.0) + 1e3 * kernel.seconds
    return times


def _outputs(errors: ModelErrors) -> Iterator[figures.Output]:
    for each in errors.outputs:
        error = each.error
        yield figures.Output(each.name, decibels(error.sqnr_db), error.cosine, each.agreement)


def _verified(found: Verification) -> figures.Verified:
    layers = found.layers or found.outputs
    remarks = [found.no_engine, *(f"{name}: {why}" for name, why in found.in_float.items())]
    remarks += found.executed_otherwise()
    remarks += [
        f"{each.step}: {each.overflows} of {each.sums} sums leave the accumulator"
        for each in found.overflows
    ]
    if found.processor is not None:
        remarks.append(f"{found.processor.cause}; {found.processor.remedy}")
    compared = Totals.of(layers)
    return figures.Verified(
        found.format or found.target,
        found.runtime,
        f"{found.cpu.name} ({found.cpu.instruction_set})",
        found.samples,
        found.ends_compared or len(found.layers),
        found.ends,
        compared.values,
        compared.differ,
        compared.largest,
        found.agreement,
        {name: decibels(each) for name, each in found.outputs_sqnr_db.items()},
        tuple(filter(None, remarks)),
        found.refused,
    )


# ---- what the folder says --------------------------------------------------------------------


def _command(result: Result) -> str:
    """Write the command that makes the result again; "" where no file has its options."""
    command = options_of_recipe(result).get(COMMAND)
    if result.folder is None or not isinstance(command, str):
        return ""
    from intact.recipe.options import COMMANDS

    # The recipe of a result may come from anyone: the page shows no command that intact does not
    # have.
    if command not in COMMANDS:
        return ""
    recipe = str(result.folder / RECIPE)
    return shlex.join(["intact", command, "--recipe", recipe, "--output", _AGAIN])


def _provenance(result: Result) -> dict[str, Any]:
    plan = result.plan
    facts = plan.provenance.to_json()
    facts.pop("improvements", None)  # shown by themselves
    return {"model": plan.graph.hash, "target": plan.target.name, **facts}

"""Carries out ``intact verify``: for one format, or for all in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact.analyze.verification.compare import (
    compare,
    compare_observed,
    not_compared,
    takes_kernels,
)
from intact.analyze.verification.subject import Subject
from intact.data.progress import begin
from intact.data.stream import AGAIN, Samples
from intact.errors import ClusterError, DataError, IntactError, UsageError
from intact.formats.base.report import Verification
from intact.formats.registry import runnable
from intact.limits import VERIFIED
from intact.recipe.runs import VerifyAllOptions, VerifyOptions
from intact.results.execution import in_numbers
from intact.results.folder import results_in
from intact.results.preprocessing import steps_for
from intact.results.recipes import cluster_of, open_fed
from intact.results.result import Result
from intact.results.sources import (
    begin_reading,
    default_target,
    load_result,
    names_deployed,
    target_of,
)

if TYPE_CHECKING:
    from intact.calibrate.shards import SampleMap
    from intact.recipe.groups import TargetSource


def verify(options: VerifyOptions) -> Verification:
    """Verify one format of a result, or a ``.tflite`` of others.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    observed = options.observed
    if observed is not None and options.data is None:
        raise UsageError(
            "--observed needs the inputs of the device", remedy="give them with --data"
        )
    if observed is not None and options.cluster is not None:
        raise UsageError(
            "--observed compares what was recorded, on this machine", remedy="leave out --cluster"
        )
    mapped = cluster_of(options)
    begin_reading(options.result, options.progress)
    subject = _subject(options.result, options.target)
    # Recorded tensors are of all samples that the device ran.
    samples = VERIFIED if options.samples is None and observed is None else options.samples
    # A device was fed codes; a file of others says nothing of pixels.
    pixels = observed is None and subject.result is not None
    opened = _open(options, subject, samples, pixels=pixels)
    if observed is not None:
        begin(options.progress, "comparing")
        return compare_observed(subject.plan, opened, observed, threads=options.threads)
    with mapped as cluster:
        return compare(
            subject,
            opened,
            kernels=options.kernels,
            deployed=options.deployed,
            threads=options.threads,
            cluster=cluster,
        )


def verify_all(options: VerifyAllOptions) -> list[Verification]:
    """Verify each format of a result, or of each result in a folder.

    Raises:
        IntactError: A folder or the data is wrong, or nothing in it can be run.
    """
    with cluster_of(options) as cluster:
        return _verify_all(options, cluster)


def _verify_all(options: VerifyAllOptions, cluster: SampleMap | None) -> list[Verification]:
    kernels = options.kernels
    samples = VERIFIED if options.samples is None else options.samples
    begin_reading(options.result, options.progress)
    given = options.result
    inside = [] if isinstance(given, Result) else results_in(Path(given))
    subjects = [Subject.of_result(load_result(given))] if not inside else []
    found = []
    for path in inside:
        try:
            subjects.append(Subject.of_result(load_result(path)))
        except IntactError as error:
            # One damaged result must not hide what the others are.
            found.append(not_compared(path.name, str(error)))
    if kernels is not None and not any(takes_kernels(n) for s in subjects for n in s.exports):
        raise UsageError(
            "--kernels is for a .tflite, and there is none in this result", remedy="leave it out"
        )
    rows = [(subject, name) for subject in subjects for name in runnable(subject.exports)]
    if not rows and subjects:
        rows = [(subjects[0], next(iter(subjects[0].exports)))]  # refused, with the reason
    if isinstance(options.data, Iterator) and len(rows) > 1:
        raise UsageError(
            f"samples are read {len(rows)} times, and an iterator gives them once", remedy=AGAIN
        )
    errors: list[IntactError] = []
    for number, (subject, name) in enumerate(rows, 1):
        place = ""
        if len(rows) > 1:
            place = f" ({subject.plan.target.name}, {name}, {number} of {len(rows)})"
        chosen = kernels if takes_kernels(name) else None
        try:
            opened = _open(options, subject, samples)
            found.append(
                compare(
                    subject,
                    opened,
                    kernels=chosen,
                    deployed=name,
                    threads=options.threads,
                    place=place,
                    cluster=cluster,
                )
            )
        except IntactError as error:
            # What is wrong with the call is wrong for all.
            is_common = isinstance(error, UsageError | ClusterError)
            if is_common or not (inside or len(rows) > 1):
                raise
            errors.append(error)
            found.append(not_compared(subject.plan.target.name, str(error), name))
    if errors and len(errors) == len(rows) and all(isinstance(e, DataError) for e in errors):
        raise errors[0]  # the data does not fit any of them
    return found


def _open(
    options: VerifyAllOptions, subject: Subject, count: int | None, *, pixels: bool = True
) -> Samples:
    """Open the samples as a model takes them, or draw some.

    Args:
        options: The options of the call.
        subject: What is verified.
        count: How many samples at most.
        pixels: Bytes are pixels, as they are for calibration and evaluation, and no codes.
    """
    if options.data is None:
        opened = subject.draw_samples(VERIFIED if count is None else count)
    else:
        opened = open_fed(
            options.data,
            subject.plan.graph,
            options,
            subject.plan.provenance,
            preprocess=steps_for(options, options.data, subject.preprocess),
            limit=count,
            labels=options.labels,
            skip_bad=options.skip_bad,
            unread=subject.unread,
        )
    return replace(in_numbers(opened, subject.plan, pixels=pixels), progress=options.progress)


def _subject(result: Any, target: TargetSource | None) -> Subject:
    if not isinstance(result, Result) and names_deployed(result):
        return Subject.of_file(
            Path(result), target_of(default_target(result) if target is None else target)
        )
    if target is not None:
        raise UsageError("--target is for a .tflite: a result has its own", remedy="leave it out")
    return Subject.of_result(load_result(result))

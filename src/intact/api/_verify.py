"""The functions that hold what was deployed against its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy.typing as npt

from intact.calibrate.collect import Progress
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import IntactError, UsageError
from intact.flow.calibration import DataSource
from intact.flow.execution import with_codes
from intact.flow.result import Result, results_in
from intact.flow.sources import default_target, load_result, names_deployed, target_of
from intact.flow.verification import (
    Subject,
    compare,
    compare_observed,
    compare_or_say,
    not_compared,
    runnable_formats,
    takes_kernels,
)
from intact.formats.base.report import Verification
from intact.program.lower import lower
from intact.targets import Target

_VERIFIED = 64


def verify(
    result: Result | str | Path,
    data: DataSource | None = None,
    *,
    kernels: str | None = None,
    deployed: str | None = None,
    observed: str | Path | Mapping[str, npt.ArrayLike] | None = None,
    target: str | Path | Target | None = None,
    preprocess: Preprocess | None = None,
    labels: str | Path | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Compare what was deployed with the integers that its plan says, layer by layer.

    Args:
        result: A result or its folder, or a ``.tflite`` that others made.
        data: Samples, with ``labels`` for accuracies; None draws inputs from the distribution that
            calibration saw, or where nothing was calibrated evenly from the ranges of the plan.
        kernels: Of a ``.tflite``, which kernels run it: LiteRT's ``ref``, ``optimized`` or
            ``xnnpack``, or ``micro`` for TensorFlow Lite Micro; None takes the target's.
        deployed: Which format of the result; None takes the first that can be run.
        observed: Tensors that were recorded on a device (arrays by name, or an ``.npz``): these are
            compared instead of a runtime here.
        target: The hardware of a ``.tflite`` of others; None takes ``tflite``.
        preprocess: What to do with the data; None takes what calibration did.
        labels: A CSV file of labels, for a folder of images.
        samples: Use at most so many samples; None for 64, with ``observed`` for all.
        skip_bad: Leave out images that cannot be read.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    if observed is not None and data is None:
        raise UsageError(
            "--observed needs the inputs of the device", remedy="give them with --data"
        )
    subject = _subject(result, target)
    if samples is None and observed is None:
        samples = _VERIFIED
    pixels = observed is None and subject.result is not None
    reading = _Reading(data, preprocess, labels, samples, skip_bad, progress, pixels)
    opened = reading.open(subject)
    if observed is not None:
        return compare_observed(subject.plan, opened, observed, threads=threads)
    return compare(subject, opened, kernels=kernels, deployed=deployed, threads=threads)


def verify_all(
    result: Result | str | Path,
    data: DataSource | None = None,
    *,
    kernels: str | None = None,
    preprocess: Preprocess | None = None,
    labels: str | Path | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> list[Verification]:
    """Verify everything that was deployed: each format of a result, of each result in a folder.

    Where there are several, a runtime that is missing or refuses a model is no error: its entry
    says why.

    Args:
        result: A result, its folder, or the folder with one for each target that `quantize_for`
            wrote.
        data: As for `verify`; arrays or files, because they are read for each format anew.
        kernels: As for `verify`, of each ``.tflite``.
        preprocess: As for `verify`.
        labels: As for `verify`.
        samples: As for `verify`.
        skip_bad: As for `verify`.
        threads: As for `verify`.
        progress: As for `verify`, told anew for each format.

    Raises:
        IntactError: A folder or the data is wrong, or nothing in it can be run.
    """
    count = _VERIFIED if samples is None else samples
    reading = _Reading(data, preprocess, labels, count, skip_bad, progress)
    inside = [] if isinstance(result, Result) else results_in(Path(result))
    subjects = [Subject.of_result(load_result(result))] if not inside else []
    found = []
    for path in inside:
        try:
            subjects.append(Subject.of_result(load_result(path)))
        except IntactError as error:
            found.append(not_compared(path.name, str(error)))
    if kernels is not None and not any(takes_kernels(n) for s in subjects for n in s.exports):
        raise UsageError(
            "--kernels is for a .tflite, and there is none in this result", remedy="leave it out"
        )
    rows = [(subject, name) for subject in subjects for name in runnable_formats(subject)]
    if not rows and subjects:
        rows = [(subjects[0], next(iter(subjects[0].exports)))]  # refused, with the reason
    run = compare_or_say if inside or len(rows) > 1 else compare
    for subject, name in rows:
        chosen = kernels if takes_kernels(name) else None
        opened = reading.open(subject)
        found.append(run(subject, opened, kernels=chosen, deployed=name, threads=threads))
    return found


@dataclass(frozen=True)
class _Reading:
    """How samples are read for verification; the fields are those of `verify`.

    Attributes:
        pixels: Bytes are pixels, as they are for calibration and evaluation, and no codes.
    """

    data: DataSource | None
    preprocess: Preprocess | None
    labels: str | Path | None
    samples: int | None
    skip_bad: bool
    progress: Progress | None
    pixels: bool = True

    def open(self, subject: Subject) -> Samples:
        """Return the samples as a model takes them, or drawn ones."""
        if self.data is None:
            opened = subject.draw_samples(_VERIFIED if self.samples is None else self.samples)
        else:
            opened = open_samples(
                self.data,
                subject.plan.graph,
                preprocess=self.preprocess or subject.preprocess,
                limit=self.samples,
                labels=self.labels,
                skip_bad=self.skip_bad,
                unread=subject.unread,
            )
        program = lower(subject.plan)
        return replace(with_codes(opened, program, pixels=self.pixels)[0], progress=self.progress)


def _subject(result: Result | str | Path, target: str | Path | Target | None) -> Subject:
    if not isinstance(result, Result) and names_deployed(result):
        return Subject.of_file(
            Path(result), target_of(default_target(result) if target is None else target)
        )
    if target is not None:
        raise UsageError("--target is for a .tflite: a result has its own", remedy="leave it out")
    return Subject.of_result(load_result(result))

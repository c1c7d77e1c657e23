"""Finds signs that calibration samples tell little, such as an input that is constant.

Nothing is run for them but the float model on the kept samples, whose outputs the choice of a
method needs anyway. An input may well be constant (a rate, a first state, a mask of ones): it is
odd where nothing varies, or where the outputs do not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.data.batching import real_samples, sample_count
from intact.errors import CalibrationError, IntactError, UsageError
from intact.numerics.answers import CLASSES, probabilities

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence
    from intact.analyze.diagnose.findings import Finding

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_FEW = 8
"""Fewer samples are said to be few: the range of one among nine is beyond that of eight others."""
_ALIKE = 0.02
"""How much elements vary over samples, in times of what values vary at all, if these are alike."""
_IMAGE = 16
"""Rows and columns that an image has at least."""
_COLOURS = (1, 3)
_UNRELATED = 0.05
"""Correlation of neighbouring pixels that noise has at most: of photographs it is above 0.8."""
_PIXELS = 4096
"""Pixels of which a correlation is taken at least: its standard error is then below 0.016."""
_ONE_CLASS = 0.75
"""Part of the answers that are the same class, from which on samples are said to be of one."""
_NANS = (slice(0x7F81, 0x8000), slice(0xFF81, 0x10000))
"""Bins of the histogram in which NaN is counted."""
_WRONG, _POOR = 1.5, 0.1
"""Severities: of samples that cannot be right, and of those that are poor."""
MORE_SAMPLES = "calibrate on some hundred samples (--data, --samples)"
"""The remedy where samples are few."""
_ALL_CLASSES = "calibrate on some hundred samples of all classes"
_LIKE_USED = "calibrate on some hundred samples like those that the model is used for"


def check_samples(evidence: Evidence) -> tuple[Finding, ...]:
    """Judge the samples of a calibration by what its pass counted and kept."""
    known, statistics = evidence.calibrated, evidence.statistics
    if known is None or statistics is None:
        return ()
    return sample_signs(statistics, known.inputs, evidence.runs, known.different, known.classes)


def sample_signs(
    statistics: Statistics,
    inputs: Sequence[str],
    runs: FloatRuns,
    different: int | None = None,
    classes: int | None = None,
) -> tuple[Finding, ...]:
    """Judge the samples of a calibration.

    Args:
        statistics: Statistics of the inputs and of all tensors that were observed.
        inputs: Names of the inputs.
        runs: Some of the samples.
        different: How many samples are not the same as another; None where they are many.
        classes: How many classes their labels name; None where they have none.

    Returns:
        At most one finding of the cause ``calibration_samples``, the worst that fits.
    """
    seen = {name: statistics[name] for name in inputs if name in statistics.tensors}
    count = max((each.samples for each in seen.values()), default=0)
    kept = _join([_samples(feeds, sample_count(feeds), real) for feeds, real in runs.batches])
    found = (
        # Worst first: the first that fits is said, and hides what follows from it.
        _not_numbers(statistics)
        or _constant(seen, count)
        or _equal(seen, count, kept, runs)
        or _few(count, count if different is None else different)
        or _noise(kept)
        or _one_class(kept, runs, classes)
    )
    return () if found is None else (found,)


@contextmanager
def blaming(signs: Sequence[Finding]) -> Iterator[None]:
    """Let what fails on samples that cannot be right tell so first.

    Raises:
        CalibrationError: In the place of another error, which it names.
    """
    try:
        yield
    except UsageError:
        raise
    except IntactError as error:
        wrong = next((each for each in signs if each.severity >= _WRONG), None)
        if wrong is None:
            raise
        raise CalibrationError(
            f"{wrong.evidence} ({error.with_flags})", remedy=wrong.remedies[0].text
        ) from error


def _finding(evidence: str, severity: float, tensor: str = "", remedy: str = _LIKE_USED) -> Finding:
    from intact.analyze.diagnose.findings import Finding, Remedy  # with much else

    remedies = (Remedy(text=remedy),)
    return Finding("calibration_samples", evidence, severity, tensor=tensor, remedies=remedies)


def _not_numbers(statistics: Statistics) -> Finding | None:
    """Name the first tensor that has NaN."""
    for name, each in statistics.tensors.items():
        count = sum(int(each.counts[part].sum()) for part in _NANS)
        if count:
            share = 100 * count / max(int(each.counts.sum()), 1)
            return _finding(
                f"{share:.3g} % of the values of tensor {name!r} are NaN on the samples, and set "
                "no range",
                _WRONG,
                name,
                "look at the samples and the float model: `intact run --float`",
            )
    return None


def _constant(seen: Mapping[str, TensorStatistics], count: int) -> Finding | None:
    """Say that no input varies: each has one number in all of its elements."""
    if not seen or any(each.minimum < each.maximum for each in seen.values()):
        return None
    parts = [f"input {name!r} is {each.minimum:g}" for name, each in seen.items()]
    more = f" and {len(parts) - 1} others are constant too" if len(parts) > 1 else ""
    return _finding(
        f"{parts[0]} in all elements of all {count} sample(s){more}", _WRONG, next(iter(seen))
    )


def _equal(
    seen: Mapping[str, TensorStatistics], count: int, kept: Arrays, runs: FloatRuns
) -> Finding | None:
    """Say that samples are alike, where the outputs of the float model are so too."""
    if max((len(array) for array in kept.values()), default=0) < 2:
        return None
    varying = {name: _variation(array) for name, array in kept.items()}
    constant = [name for name, each in seen.items() if each.minimum == each.maximum]
    # Outputs are looked at only where inputs give reason to.
    if max(varying.values()) > _ALIKE and (not constant or _differs(runs)):
        return None
    ran = zip(runs.outputs(), runs.batches, strict=True)
    outputs = _join([_samples(each, sample_count(feeds), real) for each, (feeds, real) in ran])
    floats = [array for array in outputs.values() if array.dtype.kind == "f"]
    if not floats or max(map(_variation, floats)) > _ALIKE:
        return None
    if max(varying.values()) <= _ALIKE:
        name = max(kept, key=lambda each: kept[each].size)
        return _finding(
            f"the {count} samples are (nearly) equal: the elements of input {name!r} vary by "
            f"{100 * varying[name]:.2g} % of what its values do, and the outputs no more",
            _WRONG,
            name,
        )
    if not any(np.ptp(array, axis=0).any() for array in floats):
        name = max(constant, key=lambda each: int(seen[each].counts.sum()))
        return _finding(
            f"input {name!r} is {seen[name].minimum:g} in all {count} samples, and the outputs of "
            "the float model are the same for all of them",
            _WRONG,
            name,
        )
    return None


def _differs(runs: FloatRuns) -> bool:
    """Tell whether an output of the first two samples differs, without running all the others.

    The logits of all samples of a decoder would take gigabytes, and masks are always constant.
    """
    few = runs.first(2)
    ran = zip(few.outputs(), few.batches, strict=True)
    parts = [_samples(each, sample_count(feeds), real) for each, (feeds, real) in ran]
    one, other = (parts[0], parts[-1]) if len(parts) > 1 else (parts[0], {})
    for name, array in one.items():
        if array.dtype.kind != "f":
            continue
        pair = (array[:1], other.get(name, array[1:2])[:1])
        if not np.array_equal(*pair):
            return True
    return False


def _few(count: int, different: int) -> Finding | None:
    if not 0 < different < _FEW:
        return None
    if different == 1 < count:
        return _finding(f"all {count} samples are the same", _WRONG)
    said = f"{count} sample(s)" if different == count else f"{different} samples, repeated,"
    return _finding(
        f"{said} set all ranges: what others have beyond them is cut off",
        _POOR,
        remedy=MORE_SAMPLES,
    )


def _noise(kept: Arrays) -> Finding | None:
    """Say that images are noise: neighbouring pixels have nothing in common."""
    for name, array in kept.items():
        image = _image(array)
        if image is None or image.size < _PIXELS:
            continue
        ways = (image[..., 1:], image[..., :-1]), (image[..., 1:, :], image[..., :-1, :])
        if all(abs(_correlation(*pair)) < _UNRELATED for pair in ways):
            return _finding(
                f"the images of input {name!r} look like random noise: neighbouring pixels have "
                "nothing in common",
                _POOR,
                name,
            )
    return None


def _scores(kept: Arrays, runs: FloatRuns) -> npt.NDArray[np.floating] | None:
    """Return the first output of a classifier, ``[samples, classes]``; None of other models."""
    # One tells whether these are classes.
    one = next(iter(runs.first(1).outputs()), {})
    name, first = next(iter(one.items()), ("", np.zeros(0)))
    # Texts have scores of every token, and an encoder gives back as much as it gets.
    is_open = first.ndim == 2 and first.shape[1] > 1 and first.dtype.kind == "f"
    if not is_open or any(array[:1].size == first.shape[1] for array in kept.values()):
        return None
    few = runs.first(_FEW)  # which the choice of a method runs anyway
    ran = zip(few.outputs(), few.batches, strict=True)
    parts = [_samples({name: each[name]}, sample_count(feeds), n) for each, (feeds, n) in ran]
    scores = _join(parts).get(name)  # none where batches differ in their number, as detections do
    is_whole = scores is not None and scores.ndim == 2 and len(scores) == len(few)
    return scores if is_whole else None


def _one_class(kept: Arrays, runs: FloatRuns, classes: int | None) -> Finding | None:
    """Say that samples are of one class, by their labels or by sure answers of the float model."""
    answers = _scores(kept, runs) if classes is None or classes == 1 else None
    if answers is None:
        return None
    chosen = np.bincount(answers.argmax(axis=1)).max() / len(answers)
    if classes is None:
        is_sure = bool(probabilities(answers).max(axis=1).mean() > _ONE_CLASS)
        if len(answers) < _FEW or answers.shape[1] < CLASSES or not is_sure or chosen < _ONE_CLASS:
            return None
    elif chosen <= 0.5:  # labels of something else than what the model answers
        return None
    told, remedy = "the samples are of one class by their labels", _ALL_CLASSES
    if classes is None:
        told = (
            f"the float model gives {100 * chosen:.0f} % of {len(answers)} samples the same class"
        )
        remedy += "; if these are, prepare them as the model wants it"
    evidence = f"{told}: samples of others may go beyond their ranges"
    return _finding(evidence, _POOR, remedy=remedy)


def _image(array: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """Return images as ``[samples, colours, rows, columns]``; None where they are none."""
    if array.ndim != 4:
        return None
    if array.shape[1] not in _COLOURS and array.shape[3] in _COLOURS:
        array = array.transpose(0, 3, 1, 2)
    is_image = array.shape[1] in _COLOURS and min(array.shape[2:]) >= _IMAGE
    return array.astype(np.float64) if is_image else None


def _correlation(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Return the correlation of two arrays; 1 where one is constant."""
    left, right = first - first.mean(), second - second.mean()
    size = float(np.sqrt(np.mean(left**2) * np.mean(right**2)))
    return float(np.mean(left * right)) / size if size > 0 else 1.0


def _variation(array: npt.NDArray[Any]) -> float:
    """Return how much elements vary over samples, against how much all values differ from 0.

    The root mean square of the elements' deviations over that of the values around their mean, or
    around 0 where there is one element.
    """
    rows = array.reshape(len(array), -1).astype(np.float64)
    if not rows.size:  # an empty cache
        return 0.0
    if not np.isfinite(rows).all():
        return 1.0
    # A single number per sample has no other elements that its deviation could be compared with.
    around = rows.mean() if rows.shape[1] > 1 else 0.0
    whole = float(np.mean((rows - around) ** 2))
    return float(np.sqrt(np.mean(rows.var(axis=0)) / whole)) if whole > 0 else 0.0


def _samples(arrays: Arrays, size: int, real: int) -> Arrays:
    """Return the real samples of a batch along axis 0; a batch of one sample may have no such."""
    found = real_samples(arrays, size, real)
    return {
        n: a[None] if size == 1 and (a.ndim == 0 or len(a) != 1) else a for n, a in found.items()
    }


def _join(parts: Sequence[Arrays]) -> Arrays:
    """Join the samples of some batches; what has no sample axis, or unlike shapes, is left out."""
    found: dict[str, list[npt.NDArray[Any]]] = {}
    for arrays in parts:
        for name, array in arrays.items():
            found.setdefault(name, []).append(array)
    return {
        name: np.concatenate(each)
        for name, each in found.items()
        if each[0].ndim and len({array.shape[1:] for array in each}) == 1
    }

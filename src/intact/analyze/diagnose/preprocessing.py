"""Finds wrong preprocessing by preparing the same samples in other ways.

The float model is run on a few samples as they are and as they might have been meant. Three judges
tell which is better: the labels; what BatchNormalizations remember of the training data; and how
much the answers tell of the samples (`answers`). A judge speaks only where the difference is beyond
chance, so that a model that gets what it wants has no finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.framing import better_framing
from intact.analyze.diagnose.preparations import (
    Preparation,
    Steps,
    channel_axis,
    preparations,
    swap_channels,
)
from intact.analyze.diagnose.trials import Floats, KeptSamples, Outcome, Trials, kept_samples
from intact.analyze.diagnose.wrong_answers import (
    PROVEN,
    USUAL_MISMATCH,
    broken_answers,
    class_labels,
    may_be_shifted,
    shifted_labels,
    wrong_preparation,
)
from intact.data.images.reader import ImageFolder
from intact.data.preprocess import NORMALIZATIONS, Preprocess
from intact.data.stream import Samples
from intact.graph import Graph
from intact.numerics.answers import (
    are_classes,
    chance_of,
    most_information,
)

_ROUNDS = (8, 32, 128, 256)
"""Samples of each round; the best ways of a round are tried on more in the next."""
_LEADERS = 3
"""Ways that each judge keeps after the first round; then one less each time."""
_IN_REACH = 0.75
"""Part of the present figure that a way must have on the samples of a round to go on."""
_EQUAL = 0.97
"""Part of the best figure from which on a way is as good: of these the first listed is named."""
_CHANCE = 1e-4
"""Probability by chance under which one way of some thirty is better than another."""
_DEVIATIONS = 4.0
"""The same in standard errors."""
_BETTER = 1.1
"""How many times the information another way must have: small changes of contrast are no error."""
_LESS_LOST = 1.25
"""The same of what the answers lack of the most that they can tell."""
_TELLING = 0.25
"""Part of the information that answers can have, under which they are no classifier's."""
_EQUALLY_NEAR = 0.75
"""The same of mismatches with BatchNormalizations, which hardly tell the order of channels."""
_PROMISING = 0.05
"""Part by which a way must be better for more samples to be worth while."""
_CONTRAST = 4.0
"""How many times the contrast a trained net bears badly: by twice it is trained, to be robust."""
_NEARER = 2.0
"""How many times as near another way must be."""
_SMOOTH = 0.5
"""Correlation of neighbours above which an array is a picture."""


class _Way(msgspec.Struct, frozen=True, eq=False):
    """A preparation with what came of it."""

    preparation: Preparation
    outcome: Outcome


class _Case(msgspec.Struct, frozen=True, eq=False):
    """The samples in question.

    Attributes:
        trials: Runs the model on them.
        kept: The samples.
        name: The input that the preprocessing is for.
        axis: Axis of its channels.
        data: That input before the given steps.
        given: The steps.
        of_images: Whether the samples are made of images, whose channels an option can reverse.
    """

    trials: Trials
    kept: KeptSamples
    name: str
    axis: int
    data: Floats
    given: Preprocess
    of_images: bool

    def run(self, steps: Steps, count: int) -> Outcome:
        """Run the model on the first samples, prepared so."""
        values = steps.apply(self.data[:count], self.axis)
        return self.trials.run(count, {self.name: values})


def preprocessing_findings(
    graph: Graph, samples: Samples, *, preprocess: Preprocess, threads: int = 0
) -> list[Finding]:
    """Find out whether samples are prepared otherwise than a float model wants them.

    Args:
        graph: The float model.
        samples: The samples with the given steps applied, and labels where there are any. They are
            read once; at most 256 are used.
        preprocess: The steps that are applied.
        threads: Number of threads of the runtime; 0 takes all cores.

    Returns:
        One finding of the cause ``preprocessing`` or ``labels``, or none. Its severity is above 1.

    Raises:
        DataError: The samples do not fit the model.
    """
    # States, padding and what is read once cannot be prepared anew sample by sample.
    if samples.takes_feeds or samples.mask is not None or isinstance(samples.reader, Iterator):
        return []
    kept = kept_samples(samples, _ROUNDS[-1])
    trials = Trials.of(graph, samples, kept, threads)
    case = _case_of(samples, kept, trials, preprocess)
    if case is None:
        return broken_answers(trials.run(_ROUNDS[1]), kept, "")
    # Before the samples, since by shifted labels no preparation can be judged.
    # Where a few have hardly a sign of it, all have none.
    if kept.labels is not None and may_be_shifted(trials.run(_ROUNDS[1]), kept.labels):
        of_labels = shifted_labels(trials.run(_ROUNDS[-1]), kept)
        if of_labels:
            return of_labels
    steps, waiting = Steps.of(case.given), preparations(case.data, case.axis, case.given)
    # A model may find some more classes in scrambled pictures; they are no picture to anybody.
    if _is_in_place(case):
        waiting = [each for each in waiting if not each.steps.rearranges]
    for number, count in enumerate(_ROUNDS):
        present = case.run(steps, count)
        # In rounds: thirty ways on eight samples, the best of them on more.
        ways = [_Way(each, case.run(each.steps, count)) for each in waiting]
        if number:
            found = _judge_ways(case, present, ways)
            if found or count >= kept.count or not _is_contested(case, present, ways):
                break
        leaders = _leaders(case, present, ways, max(1, _LEADERS - number))
        waiting = [way.preparation for way in leaders]
        if not number and case.data.shape[case.axis] == len("rgb"):
            # Only of the best: to swap the channels of each way would double the first round.
            waiting += [swap_channels(each) for each in waiting if not each.steps.rearranges]
    if not found and _is_in_place(case):
        found = _framing_findings(case)
    return found or _impossible(case) or broken_answers(present, kept, case.name)


def _framing_findings(case: _Case) -> list[Finding]:
    """Say that pictures show another part than the model was trained on, or are squeezed."""
    steps = Steps.of(case.given)

    def run(pixels: Floats) -> Outcome:
        return case.trials.run(len(pixels), {case.name: steps.apply(pixels, case.axis)})

    labels = class_labels(case.kept, case.run(steps, 1))
    labels = case.kept.labels if labels is not None else None
    better = better_framing(case.data, case.axis, run, labels)
    if better is None:
        return []
    framing, before, after = better
    if labels is None:
        had, has = (float(each.information.mean()) for each in (before, after))
        told = f"the float model tells the samples apart better ({had:.2f} bits, {has:.2f} so)"
        told = f"{told} with {framing.name}"
    else:
        told = _accuracies(before.right(labels), after.right(labels), framing.name)
    remedies = (Remedy(text=framing.remedy),)
    unit = "dB" if labels is None else "points"
    return [Finding("preprocessing", told, PROVEN, "", case.name, remedies, unit=unit)]


def _judge_ways(case: _Case, present: Outcome, ways: Sequence[_Way]) -> list[Finding]:
    """Return the finding of the first judge that finds a way better than the present one."""
    for judge in _JUDGES:
        figures = [_figure(judge, way.outcome, case) for way in ways]
        best = max(figures, default=-math.inf)
        if not math.isfinite(best):
            continue
        equal = _EQUALLY_NEAR if judge is _by_memory else _EQUAL
        # Figures may be negative (a mismatch): the margin is on the worse side either way.
        enough = best - (1 - equal) * abs(best)
        way = next(way for way, figure in zip(ways, figures, strict=True) if figure >= enough)
        evidence = judge(case, present, way)
        if evidence:
            return [_finding(case, way, evidence)]
    return []


def _is_contested(case: _Case, present: Outcome, ways: Sequence[_Way]) -> bool:
    """Tell whether more samples may show that a way is better than the present one."""
    for judge in _JUDGES:
        figure = _figure(judge, present, case)
        best = max((_figure(judge, way.outcome, case) for way in ways), default=-math.inf)
        if best > figure + _PROMISING * abs(figure) and math.isfinite(best):
            return True
    return False


def _case_of(
    samples: Samples, kept: KeptSamples, trials: Trials, given: Preprocess
) -> _Case | None:
    """Take the one input that the preprocessing is for; None where there are others, or none."""
    floats = {name: array for name, array in kept.inputs.items() if array.dtype == np.float32}
    if len(floats) != 1:
        return None
    ((name, array),) = floats.items()
    if array.ndim < 2:
        return None
    axis = channel_axis(array.shape)
    axis = 1 if axis is None else axis
    steps = Steps.of(given)
    if any(each.size not in (1, array.shape[axis]) for each in (steps.mean, steps.scale)):
        return None
    data = steps.inverse.apply(array, axis)
    of_images = isinstance(samples.reader, ImageFolder)
    return _Case(trials, kept, name, axis, data, given, of_images)


def _leaders(case: _Case, present: Outcome, ways: Sequence[_Way], most: int) -> list[_Way]:
    """Return the best ways of each judge, in the order in which they are listed.

    What is far behind the present way on a few samples is not better on many.
    """
    found: set[int] = set()
    for judge in _JUDGES:
        figures = [_figure(judge, way.outcome, case) for way in ways]
        now = _figure(judge, present, case)
        least = now - (1 - _IN_REACH) * abs(now) if math.isfinite(now) else -math.inf
        ranked = sorted(range(len(ways)), key=lambda k: -figures[k])
        found |= {k for k in ranked[:most] if math.isfinite(figures[k]) and figures[k] >= least}
    return [ways[k] for k in sorted(found)]


_Judge = Callable[[_Case, Outcome, _Way], str]


def _figure(judge: _Judge, outcome: Outcome, case: _Case) -> float:
    """Return how good an outcome is for a judge, the more the better; -inf where it cannot tell."""
    if judge is _by_memory:
        mismatch = outcome.mismatch() if outcome.moments else math.nan
        return -mismatch if math.isfinite(mismatch) else -math.inf
    if outcome.scores is None:
        return -math.inf
    telling = float(outcome.information.mean())
    if judge is _by_answers:
        return telling
    labels = class_labels(case.kept, outcome)
    if labels is None:
        return -math.inf
    right = float(outcome.right(labels).mean())
    return right + telling / 1e3  # of equals the surer one


def _by_labels(case: _Case, present: Outcome, way: _Way) -> str:
    """Say how many more samples are right; "" where it may be chance."""
    labels = class_labels(case.kept, present)
    if labels is None or way.outcome.scores is None:
        return ""
    before, after = present.right(labels), way.outcome.right(labels)
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    if gained <= lost or chance_of(gained, gained + lost) > _CHANCE:
        return ""
    return _accuracies(before, after, way.preparation.name)


def _accuracies(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_], name: str) -> str:
    return (
        f"the float model is right for {100 * before.mean():.1f} % of {len(before)} samples, for "
        f"{100 * after.mean():.1f} % with {name}"
    )


def _by_memory(case: _Case, present: Outcome, way: _Way) -> str:
    """Say how far tensors are off what BatchNormalizations remember; "" where it may be chance."""
    del case
    if not present.moments:
        return ""
    count = len(present.moments[0][0])
    # Four interleaved parts must all say the same, in the place of a test for chance.
    parts = [slice(start, None, 4) for start in range(4)] if count >= 8 else [slice(None)]
    pairs = [(present.mismatch(each), way.outcome.mismatch(each)) for each in parts]
    if not all(had > _NEARER * has and had > USUAL_MISMATCH for had, has in pairs):
        return ""
    return f"{_memory(present)}, {way.outcome.mismatch():.2g} with {way.preparation.name}"


def _memory(outcome: Outcome) -> str:
    return (
        "the first tensors that a BatchNormalization remembers are off by "
        f"{outcome.mismatch():.2g} of its deviations"
    )


def _by_answers(case: _Case, present: Outcome, way: _Way) -> str:
    """Say how much more the answers tell; "" where it may be chance, or the net is no classifier.

    A trained classifier is tuned to a contrast: with much more or less, its answers tell less. The
    answers of any other net tell more, the greater the contrast.
    """
    if present.scores is None or way.outcome.scores is None:
        return ""
    labels = class_labels(case.kept, present)
    if not are_classes(present.scores, labels) or not _is_picture(case):
        return ""
    # The weakest judge: neither of the others may speak against it.
    if not _tells_more(present, way.outcome) or _is_opposed(present, way.outcome, labels):
        return ""
    if not _is_tuned(case, way):
        return ""
    if labels is not None:
        return _accuracies(present.right(labels), way.outcome.right(labels), way.preparation.name)
    return _differing(present, way)


def _differing(present: Outcome, way: _Way) -> str:
    """Say how alike the answers are, and that they differ with other samples."""
    assert present.scores is not None  # noqa: S101
    count, classes = present.scores.shape
    had, has = (float(each.information.mean()) for each in (present, way.outcome))
    bits = f"{had:.2f} bits of a sample, {has:.2f} so"
    if had < _TELLING * most_information(count, classes):
        told = f"gives nearly the same answer for all {count} samples; with"
        told += f" {way.preparation.name} they differ ({bits})"
    else:
        told = f"gives answers that differ more with {way.preparation.name} ({bits})"
    return f"the float model {told}: the numbers are probably not what it was trained on"


def _tells_more(present: Outcome, other: Outcome) -> bool:
    """Tell whether answers have much more information, beyond chance."""
    assert present.scores is not None  # noqa: S101
    count, classes = present.scores.shape
    difference = other.information - present.information
    error = float(difference.std()) / math.sqrt(count)
    most, had, has = (
        most_information(count, classes),
        float(present.information.mean()),
        float(other.information.mean()),
    )
    # By what they tell or, near the most that can be told, by what they lack.
    is_much = has >= _BETTER * had or most - had >= _LESS_LOST * (most - has)
    is_beyond_chance = float(difference.mean()) > _DEVIATIONS * error
    return is_much and is_beyond_chance and has >= _TELLING * most


def _is_opposed(present: Outcome, other: Outcome, labels: npt.NDArray[np.int64] | None) -> bool:
    """Tell whether memory or labels speak for the present way."""
    if present.moments and other.mismatch() > _BETTER * max(present.mismatch(), USUAL_MISMATCH):
        return True
    return labels is not None and present.right(labels).sum() > other.right(labels).sum()


_JUDGES: tuple[_Judge, ...] = (_by_labels, _by_memory, _by_answers)


def _is_tuned(case: _Case, way: _Way) -> bool:
    """Tell whether a way has more information than the same with much more or less contrast."""
    steps, count = way.preparation.steps, len(way.outcome.information)
    for factor in (1 / _CONTRAST, _CONTRAST):
        scaled = msgspec.structs.replace(steps, scale=factor * steps.scale)
        other = float(case.run(scaled, count).information.mean())
        if way.outcome.information.mean() < _BETTER * other:
            return False
    return True


def _is_picture(case: _Case) -> bool:
    """Tell whether an array has rows and columns in which neighbours are alike."""
    if channel_axis(case.data.shape) is None:
        return False
    return any(_alike(data, case.axis)[0] > _SMOOTH for data in _layouts(case))


def _is_in_place(case: _Case) -> bool:
    """Tell whether an array is a picture as it lies, more than in the other layout.

    In the other one it may look like one along rows, whose numbers lie side by side in both.
    """
    if channel_axis(case.data.shape) is None:
        return False
    own, other = (min(_alike(data, case.axis)) for data in _layouts(case))
    return own > _SMOOTH and own >= other


def _layouts(case: _Case) -> tuple[Floats, Floats]:
    """Return the first samples as they lie, and read in the other layout."""
    data = case.data[: _ROUNDS[0]]
    return data, Steps(np.zeros(1), np.ones(1), rearranges=True).apply(data, case.axis)


def _alike(data: Floats, axis: int) -> tuple[float, float]:
    """Return how alike neighbours in rows and in columns are: a correlation of each, up to 1."""
    images = np.moveaxis(data, axis, 1).astype(np.float64)
    # Without the mean, which any two neighbours have in common.
    images = images - images.mean(axis=(2, 3), keepdims=True)
    power = float((images**2).sum())
    if not power:
        return 0.0, 0.0
    rows = float((images[..., 1:] * images[..., :-1]).sum()) / power
    columns = float((images[..., 1:, :] * images[..., :-1, :]).sum()) / power
    return rows, columns


def _finding(case: _Case, way: _Way, evidence: str) -> Finding:
    unit = "dB" if case.kept.labels is None else "points"
    remedy = _remedy(case, way.preparation)
    return Finding(
        "preprocessing", evidence, PROVEN, tensor=case.name, remedies=(remedy,), unit=unit
    )


def _remedy(case: _Case, preparation: Preparation) -> Remedy:
    """Return the options that prepare data so, or what is to be done with the data."""
    steps, order = preparation.steps, str(case.given.image.order)
    if steps.rearranges:
        wanted = "N, C, H, W" if case.axis == 1 else "N, H, W, C"
        made = "reshape(N, H, W, C).transpose(0, 3, 1, 2)"
        made = made if case.axis == 1 else "reshape(N, C, H, W).transpose(0, 2, 3, 1)"
        return Remedy(text=f"the numbers lie in another layout than [{wanted}]: give array.{made}")
    if steps.swaps and not case.of_images:
        turned = "array[:, ::-1]" if case.axis == 1 else "array[..., ::-1]"
        also = "" if steps.equals(steps_with_swap(case.given)) else f", and {preparation.name}"
        return Remedy(text=f"the channels are in the other order: give {turned}{also}")
    other = {"rgb": "bgr", "bgr": "rgb"}[order] if steps.swaps else order
    named = NORMALIZATIONS.get(preparation.normalization, {})
    if preparation.normalization and named.get("order", other) == other:
        return Remedy(options=_options(normalize=preparation.normalization))
    options: dict[str, Any] = _options(
        mean=tuple(steps.mean.tolist()), scale=tuple(steps.scale.tolist())
    )
    return Remedy(options={**options, "order": other} if steps.swaps else options)


def steps_with_swap(given: Preprocess) -> Steps:
    """Return the given steps with the channels in the other order."""
    return msgspec.structs.replace(Steps.of(given), swaps=True)


def _options(**given: Any) -> dict[str, Any]:
    return dict.fromkeys(("normalize", "mean", "std", "scale")) | given


def _impossible(case: _Case) -> list[Finding]:
    """Find a mean that is beyond all values, where nothing tells what the model wants."""
    steps = Steps.of(case.given)
    low, high = float(case.data.min()), float(case.data.max())
    if not case.given.mean or not ((steps.mean > high).all() or (steps.mean < low).all()):
        return []
    means = ", ".join(f"{each:g}" for each in steps.mean)
    evidence = f"the samples lie in {low:.4g}..{high:.4g}, and a mean of {means} is subtracted"
    text = "give mean and deviation in the unit of the samples"
    remedies = [Remedy(text=text)]
    # Pixels of 0 to 1, with figures for pixels of 0 to 255.
    if low >= 0 and high <= 1 and 1 < steps.mean.max() <= 255:
        small = tuple((steps.mean / 255).tolist()), tuple((steps.scale * 255).tolist())
        remedies.insert(0, Remedy(options=_options(mean=small[0], scale=small[1])))
    return [wrong_preparation(case.name, evidence, remedies)]

"""Makes the pictures of a report: what the model gets, and where answers change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.analyze.report import figures
from intact.analyze.report.found_boxes import FoundBoxes
from intact.analyze.report.summary import options_of_recipe
from intact.data.batching import Batch
from intact.data.images.thumbnails import PictureInput, Pixels, Range, data_uri, pixels
from intact.data.preprocess import Preprocess
from intact.data.stream import Samples
from intact.graph import Graph
from intact.limits import HELD_AT_ONCE, PICTURE_BYTES, PICTURE_SIDE, PICTURES
from intact.recipe.reports import ReportOptions
from intact.results.preprocessing import steps_for
from intact.results.result import Result
from intact.results.samples import open_for_result

Arrays = Mapping[str, npt.NDArray[Any]]
_LOSING = 12
"""Classes that are listed."""
_KEPT = 4 * PICTURES
"""Samples with other answers whose pictures are kept until the labels are known."""


class Answers:
    """Watches an evaluation: what both models answer, and pictures of where they differ.

    Args:
        samples: That are evaluated.
        steps: What was done to them, by their reader or here.
        graph: The float model, which may be a detector.

    Attributes:
        labels: Those of the samples, where they are known.
        found: What is found in the pictures; None where the model is no detector.
    """

    def __init__(self, samples: Samples, steps: Preprocess, graph: Graph | None = None) -> None:
        self._input = PictureInput.of(samples.specs, steps)
        self.found = None if graph is None else FoundBoxes.of(graph, self._input)
        self._names = samples.classes
        self._range: Range | None = None
        self._answers: list[tuple[int, int]] = []
        self._pictures: dict[int, Pixels] = {}
        self._has_classes = True
        self.labels: npt.NDArray[np.int64] | None = None

    def watch(self, feeds: Batch, want: Arrays, have: Arrays, count: int) -> None:
        """Take what both models gave for a batch.

        Args:
            feeds: The batch.
            want: Outputs of the float model; the first is scored.
            have: Those of the quantized one.
            count: Samples that are real.
        """
        if self.found is not None:
            self.found.watch(feeds, want, have, count)
        name = next(iter(want))
        first, second = (np.asarray(each[name])[:count] for each in (want, have))
        is_scored = first.shape == second.shape and first.ndim == 2 and first.shape[1] > 1
        self._has_classes = self._has_classes and is_scored
        if not self._has_classes:
            self._answers.clear()
            self._pictures.clear()
            return
        begun = len(self._answers)
        found = list(zip(first.argmax(1).tolist(), second.argmax(1).tolist(), strict=True))
        self._answers += found
        changed = [at for at, (before, after) in enumerate(found) if before != after]
        # Labels come after the last batch: until then it is not known which of these matter most.
        if self._input is None or not changed or len(self._pictures) >= _KEPT:
            return
        values = self._input.values(np.asarray(feeds[self._input.name])[:count])
        # That of the first batch serves all, so that pictures can be compared with each other.
        self._range = self._range or self._input.range(values)
        for at in changed:
            self._pictures[begun + at] = pixels(values[at], self._range, PICTURE_SIDE)

    def changed(self) -> list[int]:
        """List the samples that both answer otherwise: first those that become wrong."""
        found = [at for at, (before, after) in enumerate(self._answers) if before != after]
        return sorted(found, key=lambda at: (not self._is_lost(at), at))

    def pictures(self) -> Iterator[figures.Picture]:
        """Yield pictures of samples that are answered otherwise."""
        for at in self.changed():
            if at in self._pictures:
                before, after = self._answers[at]
                label = None if self.labels is None else int(self.labels[at])
                yield figures.Picture(
                    data_uri(self._pictures[at]),
                    at,
                    None if label is None else self._name(label),
                    self._name(before),
                    self._name(after),
                    is_lost=self._is_lost(at),
                )

    def classes(self) -> Iterator[figures.ClassChange]:
        """Yield the classes that lose most: by labels, or else by the float model's answers."""
        if not self._has_classes:
            return
        first = [before for before, _ in self._answers]
        truth = first if self.labels is None else self.labels.tolist()[: len(first)]
        counts = Counter(truth)
        before: Counter[int] = Counter()
        after: Counter[int] = Counter()
        for right, (one, other) in zip(truth, self._answers, strict=False):
            before[right] += one == right
            after[right] += other == right
        losing = [each for each in counts if after[each] < before[each]]
        losing.sort(key=lambda each: (after[each] - before[each], each))
        for each in losing[:_LOSING]:
            yield figures.ClassChange(self._name(each), counts[each], before[each], after[each])

    def _is_lost(self, at: int) -> bool:
        """Tell whether a sample was right and becomes wrong."""
        return self.labels is not None and self._answers[at][0] == int(self.labels[at])

    def _name(self, number: int) -> str:
        named = number < len(self._names)
        return f"{number} {self._names[number]}" if named else str(number)


def pictures_of(
    options: ReportOptions, result: Result, answers: Answers | None
) -> figures.Pictures | None:
    """Gather the pictures of a report; None where the model takes none and answers do not change.

    Args:
        options: As a call gave them.
        result: The result.
        answers: What an evaluation of the samples saw; None where there was none.

    Raises:
        IntactError: The data is wrong.
    """
    sheets = list(_sheet(options, result))
    changed = [] if answers is None else list(answers.pictures())
    classes = () if answers is None else tuple(answers.classes())
    count = 0 if answers is None else len(answers.changed())
    found = [] if answers is None or answers.found is None else [*answers.found.pictures()]
    if not sheets and not count and not found:
        return None
    room = PICTURE_BYTES
    kept: list[list[figures.Picture]] = []
    # Changed answers take their room first: they are what the page has pictures for.
    for pictures in (changed, found, *(sheet.pictures for sheet in sheets)):
        kept.append([])
        for each in pictures[:PICTURES]:
            room -= len(each.source)
            if room > 0:
                kept[-1].append(each)
    sheets = [
        msgspec.structs.replace(sheet, pictures=tuple(pictures))
        for sheet, pictures in zip(sheets, kept[2:], strict=True)
    ]
    is_labelled = answers is not None and answers.labels is not None
    shown, boxed = (tuple(each) for each in kept[:2])
    return figures.Pictures(tuple(sheets), count, shown, classes, is_labelled, boxed)


def _sheet(options: ReportOptions, result: Result) -> Iterator[figures.Sheet]:
    """Draw the first samples, or some of a folder; nothing where the model takes no pictures.

    Only data that this call was given is shown: a recipe may be another's, and name files that
    whoever reports did not mean to show.
    """
    if options.data is None:
        return
    limit = min(PICTURES, options.samples or PICTURES)
    samples = open_for_result(options, options.data, result, limit=limit)
    steps = steps_for(options, options.data, result.preprocess)
    place = PictureInput.of(samples.specs, steps)
    if place is None:
        return
    size = samples.batch_size(HELD_AT_ONCE)
    span: Range | None = None
    found: list[str] = []
    for feeds, count in samples.first(PICTURES).batches(size):
        values = place.values(np.asarray(feeds[place.name])[:count])
        span = span or place.range(values)
        found += [data_uri(pixels(each, span, PICTURE_SIDE)) for each in values]
    calibrated = options_of_recipe(result).get("data")
    is_of_calibration = isinstance(options.data, str | Path) and str(options.data) == calibrated
    title = "Calibration samples" if is_of_calibration else "Samples"
    if span is not None:
        shape = "x".join(map(str, values.shape[1:3]))
        told = f"{shape}, {span.told}"
        told += ", shown in the order red, green, blue" if place.is_bgr else ""
        pictures = tuple(figures.Picture(source, at) for at, source in enumerate(found))
        yield figures.Sheet(title, told, pictures)

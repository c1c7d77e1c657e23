"""Keeps what both models of a detector find in some pictures, for the page to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.analyze.report import figures
from intact.data.batching import Batch, sample_count
from intact.data.detections import DetectionMetric
from intact.data.images.thumbnails import PictureInput, Pixels, Range, data_uri, pixels
from intact.data.metric import OutputRecord
from intact.errors import IntactError
from intact.graph import Graph
from intact.limits import BOXED_SIDE, CONFIDENT, PICTURES
from intact.numerics.detections import Detections, kept

Arrays = Mapping[str, npt.NDArray[Any]]

_SHOWN = PICTURES // 2
"""Pictures that are shown: they are larger than those of a contact sheet."""
_LOOKED_AT = 4 * PICTURES
"""Pictures, the first, from which these are chosen."""
_BOXES = 20
"""Boxes of each model in a picture, the best: more hide it."""


class _Seen(NamedTuple):
    """A picture, with what was found in it."""

    sample: int
    picture: Pixels
    size: tuple[int, int]
    wanted: Detections
    found: Detections
    lost: int
    added: int


class FoundBoxes:
    """Watches an evaluation of a detector.

    Args:
        metric: Reads boxes and scores from the outputs.
        place: The input that has the pictures.
    """

    def __init__(self, metric: DetectionMetric, place: PictureInput) -> None:
        self._metric, self._place = metric, place
        self._range: Range | None = None
        self._seen: list[_Seen] = []
        self._count = 0
        self._reads = True

    @staticmethod
    def of(graph: Graph, place: PictureInput | None) -> FoundBoxes | None:
        """Return it for a detector by its outputs; None for other models."""
        metric = DetectionMetric.of_model(graph)
        return None if metric is None or place is None else FoundBoxes(metric, place)

    def watch(self, feeds: Batch, want: Arrays, have: Arrays, count: int) -> None:
        """Take what both models gave for a batch, of which so many samples are real."""
        if not self._reads or self._count >= _LOOKED_AT:
            return
        pairs = self._read(want, have, sample_count(feeds), count)
        self._reads = pairs is not None
        if pairs is None:
            self._seen.clear()
            return
        values = self._place.values(np.asarray(feeds[self._place.name])[:count])
        self._range = self._range or self._place.range(values)
        for shown, wanted, found in zip(values, *pairs, strict=True):
            (wants,), (hits,) = kept([found], [wanted], CONFIDENT)
            (finds,), (known,) = kept([wanted], [found], CONFIDENT)
            if wants or finds:
                self._seen.append(
                    _Seen(
                        self._count,
                        pixels(shown, self._range, BOXED_SIDE),
                        shown.shape[:2],
                        wanted,
                        found,
                        int(wants - hits),
                        int(finds - known),
                    )
                )
            self._count += 1

    def _read(
        self, want: Arrays, have: Arrays, size: int, count: int
    ) -> tuple[list[Detections], list[Detections]] | None:
        """Read what both models find; None where the outputs are no boxes of these samples."""
        records = OutputRecord(), OutputRecord()
        for record, outputs in zip(records, (want, have), strict=True):
            record.add(outputs, size, count)
        in_float, quantized = (record.outputs() for record in records)
        try:
            if not self._metric.reads(in_float):
                return None
            pairs = (
                self._metric.detections(in_float),
                self._metric.detections(quantized, in_float),
            )
        except IntactError:  # it looked like a detector by its shapes alone
            return None
        return pairs if {len(each) for each in pairs} == {count} else None

    def pictures(self) -> Iterator[figures.Picture]:
        """Yield pictures with the boxes of both models, first those on which they differ most."""
        if self._range is None:
            return
        ranked = sorted(self._seen, key=lambda each: (-each.lost - each.added, each.sample))
        for each in ranked[:_SHOWN]:
            boxes = (
                *_boxes(each.wanted, each.size, is_float=True),
                *_boxes(each.found, each.size, is_float=False),
            )
            yield figures.Picture(
                data_uri(each.picture),
                each.sample,
                boxes=boxes,
                lost=each.lost,
                added=each.added,
            )


def _boxes(
    found: Detections, size: tuple[int, int], *, is_float: bool
) -> Iterator[figures.FoundBox]:
    """Yield boxes as shares of the picture's width and height, the best first."""
    best = np.argsort(-found.scores, kind="stable")[:_BOXES]
    rows, columns = size
    for at in best[found.scores[best] >= CONFIDENT]:
        ends = found.boxes[at] / (columns, rows, columns, rows)
        left, top, right, bottom = (round(float(each), 4) for each in np.clip(ends, 0, 1))
        score = round(float(found.scores[at]), 2)
        yield figures.FoundBox(is_float, int(found.classes[at]), score, left, top, right, bottom)

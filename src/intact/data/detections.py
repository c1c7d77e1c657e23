"""What detectors find, read from their outputs, and how much of it a quantized one finds again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from intact.data.detector_outputs import DetectionReader, DetectorEnds, are_boxes_with_scores
from intact.data.images.boxes import BOXES, CLASSES, CROWDS, IDS, LISTED
from intact.data.labels import Reference
from intact.data.metric import (
    ADDED,
    DETECTIONS,
    Compared,
    Metric,
    MetricFunction,
    OutputRecord,
    Outputs,
    PairedOutputs,
)
from intact.errors import DataError, UsageError, nearest
from intact.graph import Graph
from intact.limits import CONFIDENT, HARDLY_FOUND, OUTPUT_BYTES
from intact.numerics.detections import (
    Detections,
    average_precisions,
    draws,
    interval,
    kept,
    match,
)

_FORMS = {
    "corners": "corners",
    "xyxy": "corners",
    "centres": "centres",
    "cxcywh": "centres",
    "corners_yx": "corners_yx",
    "yxyx": "corners_yx",
    "corner_size": "corner_size",
    "xywh": "corner_size",
}
_WORDS = tuple(f":{form}" for form in _FORMS)
_CHANNELS = {1, 3}
"""Of images."""
KEPT, LIKE = "detections kept %", "mAP to float %"
MEAN, HALF = "mAP %", "mAP at IoU 0.5 %"


def metric_of(source: str | MetricFunction | Metric, outputs: Sequence[str | None] = ()) -> Metric:
    """Make a metric from ``detections``, ``module:function`` or a function.

    Args:
        source: The metric.
        outputs: For ``detections`` the names of outputs: boxes, scores, classes.

    Raises:
        UsageError: A text without a colon.
        DataError: There is no such module or function.
    """
    if source == DETECTIONS:
        return DetectionMetric.of_outputs(*(each or "" for each in outputs))
    return Metric.of(source)


@dataclass(frozen=True)
class DetectionMetric(Metric):
    """Detections of a quantized detector against the float model's, and against labels.

    Attributes:
        boxes: Name of the output with boxes, perhaps with ``:corners`` or ``:centres``; "" to find
            it.
        scores: Name of the output with scores; "" to find it, or where boxes have them.
        classes: Name of the output with class numbers; "" to find it, or where scores are by class.
        form: Of boxes; "" where their numbers tell.
        size: Rows and columns of the model's input; None where it has no image.
    """

    boxes: str = ""
    scores: str = ""
    classes: str = ""
    form: str = ""
    size: tuple[int, int] | None = None

    needs_float: ClassVar[bool] = True

    @staticmethod
    def of_outputs(boxes: str = "", scores: str = "", classes: str = "") -> DetectionMetric:
        """Make it from names as a user gives them."""
        return DetectionMetric(DETECTIONS, _uncallable, boxes, scores, classes)

    @staticmethod
    def of_model(graph: Graph) -> DetectionMetric | None:
        """Return it for a model of images whose outputs are boxes and scores by their shapes.

        One output that has both is one whose numbers tell that (see `reads`).

        Returns:
            Bound to the model; None for other models, and where the shapes leave a choice.
        """
        if not _has_image(graph):
            return None
        try:
            found = DetectionMetric.of_outputs().bound(graph)
        except UsageError:
            return None
        shape = graph.value(found.boxes).shape
        return found if shape is not None and len(shape) == 3 else None

    def reads(self, outputs: Outputs) -> bool:
        """Tell whether the numbers of the float model are boxes and scores."""
        return bool(self.scores) or are_boxes_with_scores(outputs[self.boxes])

    def bound(self, graph: Graph) -> DetectionMetric:
        """Return it with the outputs of a model.

        Raises:
            UsageError: There is no such output, or it cannot be told which hold boxes and scores.
        """
        boxes, scores, classes = self.boxes, self.scores, self.classes
        # Names of outputs may have colons.
        name, _, form = boxes.rpartition(":") if boxes.endswith(_WORDS) else (boxes, "", "")
        names = [str(value.name) for value in graph.outputs]
        for flag, each in (("--boxes", name), ("--scores", scores), ("--classes", classes)):
            if each and each not in names:
                raise UsageError(f"{flag} {each}: no such output", remedy=nearest(each, names))
        ends = _ends_of(graph, name, scores, classes)
        return replace(
            self,
            boxes=ends.boxes,
            scores=ends.scores,
            classes=ends.classes,
            form=_FORMS.get(form, form),
            size=_image_size(graph),
        )

    @property
    def boxes_with_form(self) -> str:
        """The option ``--boxes`` that says the same."""
        return f"{self.boxes}:{self.form}" if self.form else self.boxes

    def detections(self, outputs: Outputs, in_float: Outputs | None = None) -> list[Detections]:
        """Read the detections of each image, of a bound metric's model.

        Args:
            outputs: Of the model.
            in_float: Of the float model, which tell how to read; None where these are its own.
        """
        return self.reader(in_float or outputs).read(outputs)

    def reader(self, in_float: Outputs) -> DetectionReader:
        """Return how outputs are read, as the float model's tell."""
        ends = DetectorEnds(self.boxes, self.scores, self.classes)
        return DetectionReader.of(ends, self.form, self.size, in_float)

    def finds(self, outputs: Outputs) -> bool:
        """Tell whether there is a detection that a user would see."""
        return any((each.scores >= CONFIDENT).any() for each in self.detections(outputs))

    def score(
        self, outputs: Outputs, references: Mapping[str, Reference], in_float: Outputs | None = None
    ) -> dict[str, float]:
        """Score one model: mean average precision with labels, else against float."""
        if in_float is None:
            raise DataError(f"metric {self.name}: needs the float model's outputs")
        found = self.compare(in_float, outputs, references)
        return {name: after for name, (_, after) in found.figures.items()}

    def compare(
        self, in_float: Outputs, quantized: Outputs, references: Mapping[str, Reference]
    ) -> Compared:
        """Compare two models, with 95 % intervals of the changes by bootstrap over images.

        Raises:
            DataError: Outputs are no boxes and scores, labels are of another class list, or the
                float model finds nothing.
        """
        reader = self.reader(in_float)
        wanted, found = reader.read(in_float), reader.read(quantized)
        return self.compare_read(reader, wanted, found, references)

    def pairs(self) -> DetectionPairs:
        """Return what keeps the outputs of both models over a pass, or what was read of them."""
        return DetectionPairs(self)

    def compare_read(
        self,
        reader: DetectionReader,
        wanted: Sequence[Detections],
        found: Sequence[Detections],
        references: Mapping[str, Reference],
    ) -> Compared:
        """Compare what was read of the outputs of two models, by image; see `compare`."""
        count = len(wanted)
        for key, each in references.items():
            if key.startswith("labels.") and len(each) != count:
                raise DataError(
                    f"metric {self.name}: {count} arrays of output {self.boxes!r} for {len(each)} "
                    "images: it has no axis for samples",
                    remedy="run them one by one, with --batch 1",
                )
        truth = self._truth(references, reader, wanted)
        labelled = Compared({}, {}) if truth is None else _against_labels(wanted, found, truth)
        agreeing = self._against_float(wanted, found)
        return Compared(
            {**labelled.figures, **agreeing.figures},
            {**labelled.intervals, **agreeing.intervals},
            labelled.warnings,
        )

    def _against_float(self, wanted: Sequence[Detections], found: Sequence[Detections]) -> Compared:
        """Compare detections with those of the float model, which are taken for the truth."""
        count = len(wanted)
        weights = draws(count)
        figures: dict[str, tuple[float, float]] = {}
        intervals: dict[str, tuple[float, float]] = {}
        confident = [each.at(each.scores >= CONFIDENT) for each in wanted]
        if not any(len(each.scores) for each in confident):
            raise DataError(
                f"metric {self.name}: the float model has no score of {CONFIDENT} or more on "
                f"{count} image(s)",
                remedy="give images with objects, prepared as for training, or name the outputs "
                "with --boxes and --scores",
            )
        for name, one, other in ((KEPT, found, wanted), (ADDED, wanted, found)):
            counts, hits = kept(one, other, CONFIDENT)
            missing = name == ADDED  # of what the quantized model has, what float has not
            share = _share(hits[None], counts[None], missing=missing)
            drawn_share = _share(weights * hits, weights * counts, missing=missing)
            start = 0.0 if missing else 100.0
            figures[name] = start, float(share[0])
            intervals[name] = interval(drawn_share - start)
        same = match(found, confident)
        figures[LIKE] = 100.0, 100 * float(average_precisions(same)[0].mean())
        intervals[LIKE] = interval(100 * average_precisions(same, weights).mean(axis=1) - 100)
        return Compared(figures, intervals)

    def _truth(
        self,
        references: Mapping[str, Reference],
        reader: DetectionReader,
        wanted: Sequence[Detections],
    ) -> list[Detections] | None:
        """Return the objects of the labels, in the classes of the model; None without labels."""
        boxes = references.get(BOXES)
        if boxes is None:
            return None
        if CLASSES not in references:
            raise DataError(
                f"metric {self.name}: there are {BOXES} and no {CLASSES}",
                remedy="give both, one array an image",
            )
        classes = references[CLASSES]
        ids = references.get(IDS, classes)
        listed = int(np.max(references[LISTED])) if LISTED in references else 0
        highest = max((int(np.max(each)) for each in classes if np.size(each)), default=-1)
        if highest < 0:
            raise DataError(
                f"metric {self.name}: the labels have no object in {len(wanted)} image(s)",
                remedy="give images with objects, or leave --labels out",
            )
        known = reader.classes
        if known is None:  # numbers in an output of their own: those that are seen
            seen = [int(each.classes.max()) for each in wanted if len(each.classes)]
            has_ids = bool(listed) and max(seen, default=0) >= listed
        elif known == listed or (not listed and highest < known):
            has_ids = False
        else:
            has_ids = 0 < listed < known and known > max(int(np.max(e)) for e in ids if len(e))
            if not has_ids:
                what = f"{listed} classes" if listed else f"a class {highest}"
                raise DataError(
                    f"metric {self.name}: the labels have {what}, the model {known}",
                    remedy="give labels of the model's class list",
                )
        crowds = references.get(CROWDS)
        return [
            Detections.of(box, None, kind, None if crowds is None else crowds[at])
            for at, (box, kind) in enumerate(zip(boxes, ids if has_ids else classes, strict=True))
        ]


class DetectionPairs(PairedOutputs):
    """What both models find: outputs are read once they take as much memory as they may.

    A detector has megabytes of them for an image. The first tell how all are read.

    Args:
        metric: Bound to the model.
    """

    def __init__(self, metric: DetectionMetric) -> None:
        super().__init__()
        self._metric = metric
        self._reader: DetectionReader | None = None
        self._read: tuple[list[Detections], list[Detections]] = [], []
        self._bytes = 0

    def add(
        self,
        want: Mapping[str, npt.NDArray[Any]],
        have: Mapping[str, npt.NDArray[Any]],
        size: int,
        count: int,
    ) -> None:
        """Add what both models gave for a batch of ``size`` samples, ``count`` of them real."""
        super().add(want, have, size, count)
        self._bytes += sum(each.nbytes for arrays in (want, have) for each in arrays.values())
        if self._bytes > OUTPUT_BYTES:
            self._condense()

    def _condense(self) -> DetectionReader:
        in_float, quantized = (record.outputs() for record in self.records)
        reader = self._reader = self._reader or self._metric.reader(in_float)
        for seen, outputs in zip(self._read, (in_float, quantized), strict=True):
            seen.extend(reader.read(outputs))
        self.records, self._bytes = (OutputRecord(), OutputRecord()), 0
        return reader

    def compared(self, metric: Metric, references: Mapping[str, Reference]) -> Compared:
        """Compare both models by the metric that this was made for."""
        if self._reader is None:
            return super().compared(metric, references)
        reader = self._condense() if self._bytes else self._reader
        return self._metric.compare_read(reader, *self._read, references)


def _against_labels(
    wanted: Sequence[Detections], found: Sequence[Detections], truth: Sequence[Detections]
) -> Compared:
    """Compute the mean average precisions of both models, and doubt those of a float model near 0.

    Args:
        wanted: What the float model finds, by image.
        found: What the quantized model finds.
        truth: The objects of the labels, in the classes of the model.
    """
    weights = draws(len(wanted))
    figures: dict[str, tuple[float, float]] = {}
    intervals: dict[str, tuple[float, float]] = {}
    parts = [match(each, truth) for each in (wanted, found)]
    before, after = (average_precisions(each)[0] for each in parts)
    drawn = [average_precisions(each, weights) for each in parts]
    for name, pick in ((MEAN, slice(None)), (HALF, slice(1))):
        old, new = (100 * float(each[pick].mean()) for each in (before, after))
        change = 100 * (drawn[1][:, pick].mean(axis=1) - drawn[0][:, pick].mean(axis=1))
        figures[name], intervals[name] = (old, new), interval(change)
    if figures[HALF][0] >= 100 * HARDLY_FOUND:
        return Compared(figures, intervals)
    doubt = (
        f"the float model has {figures[HALF][0]:.1f} % mAP at IoU 0.5: boxes may have another form "
        "(--boxes NAME:corners, :centres, :corners_yx, :corner_size), or labels another class list"
    )
    return Compared(figures, intervals, (doubt,))


def _uncallable(*_: object) -> float:
    raise DataError("detections are compared with those of the float model")


def _share(hits: npt.NDArray[Any], counts: npt.NDArray[Any], *, missing: bool) -> Any:
    """Percent of hits, or of what is missing, over the images of each draw; NaN for none."""
    total, found = counts.sum(axis=1), hits.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(total > 0, found / total, 1.0 if missing else np.nan)
    return 100 * (1 - part if missing else part)


def _image_shape(graph: Graph) -> list[Any] | None:
    """Return the shape of the only input of rank 4; None where there is none."""
    shapes = [list(value.shape) for value in graph.inputs if value.shape is not None]
    images = [shape for shape in shapes if len(shape) == 4]
    return images[0] if len(images) == 1 else None


def _has_image(graph: Graph) -> bool:
    """Tell whether there is one, of rows and columns that are known, or of any."""
    shape = _image_shape(graph)
    is_coloured = shape is not None and bool(_CHANNELS.intersection((shape[1], shape[3])))
    return is_coloured or _image_size(graph) is not None


def _image_size(graph: Graph) -> tuple[int, int] | None:
    """Return rows and columns of the image; None where there is none, or they may be any."""
    shape = _image_shape(graph)
    if shape is None:
        return None
    sizes = [each if isinstance(each, int) else 0 for each in shape]
    is_last = sizes[3] in _CHANNELS and sizes[1] not in _CHANNELS
    rows, columns = sizes[1:3] if is_last else sizes[2:4]
    return (rows, columns) if rows and columns else None


def _ends_of(graph: Graph, boxes: str, scores: str, classes: str) -> DetectorEnds:
    """Find what is not named, by shapes; by "box" in a name where these leave a choice."""
    shapes = {
        str(value.name): [each if isinstance(each, int) else None for each in value.shape or ()]
        for value in graph.outputs
    }
    floats = [str(value.name) for value in graph.outputs if graph.is_float(value)]
    unknown = UsageError(
        "--metric detections: it cannot be told which of "
        + ", ".join(f"{n} {['?' if d is None else d for d in shapes[n]]}" for n in shapes)
        + " hold boxes and scores",
        remedy="name them with --boxes and --scores (and --classes); one output that has both is "
        "named with --boxes alone",
    )
    if not boxes:
        fours = [n for n in floats if 4 in shapes[n][-2:] and n not in (scores, classes)]
        named = [n for n in fours if "box" in n.lower()]
        wide = [n for n in floats if len(shapes[n]) in (2, 3) and n not in (scores, classes)]
        chosen = named if len(fours) > 1 else fours
        if not fours and not scores and len(wide) == 1:
            return DetectorEnds(wide[0], "", "")
        if len(chosen) != 1:
            raise unknown
        boxes = chosen[0]
    elif not scores and 4 not in shapes[boxes][-2:]:
        return DetectorEnds(boxes, "", "")
    rest = [n for n in shapes if n not in (boxes, scores, classes)]
    flat = len(shapes[boxes]) - 1
    if not scores:
        ranked = [n for n in rest if n in floats and len(shapes[n]) in (flat, flat + 1)]
        named = [n for n in ranked if "score" in n.lower() or "logit" in n.lower()]
        chosen = named if len(ranked) > 1 else ranked
        if len(chosen) != 1:
            raise unknown
        scores = chosen[0]
        rest.remove(scores)
    if not classes and len(shapes[scores]) == flat:
        numbers = [n for n in rest if n not in floats] or [
            n for n in rest if "class" in n.lower() or "label" in n.lower()
        ]
        classes = numbers[0] if len(numbers) == 1 else ""
    return DetectorEnds(boxes, scores, classes)

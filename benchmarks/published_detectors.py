"""Detectors of published packages, with what their packages do to read boxes from the outputs.

`published.MODELS` says which package has each and what it is fed. Exports end where a package's own
code begins: offsets of cells, exponentials, bins of distances, a map of text. `DECODED` has that
last step as a function from the outputs of one image to boxes (corners, in pixels) and scores, so
that detections of the float and the quantized model can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from intact.data.detections import DetectionMetric
from intact.data.labels import Reference
from intact.data.metric import Compared, Outputs
from intact.graph import Graph

Floats: TypeAlias = npt.NDArray[np.float32]
Image: TypeAlias = Mapping[str, npt.NDArray[Any]]
Decode: TypeAlias = Callable[[Image], tuple[npt.NDArray[Any], npt.NDArray[Any]]]


def cells(rows: int, columns: int, stride: int, middle: float = 0.0) -> Floats:
    """Return where the cells of a grid begin in pixels, ``[rows * columns, 2]`` as x and y."""
    y, x = np.mgrid[:rows, :columns] + middle
    return (np.stack([x.ravel(), y.ravel()], axis=1) * stride).astype(np.float32)


def offsets_of_cells(side: int, strides: Iterable[int]) -> Decode:
    """YOLOX: offsets in a cell, logarithms of sizes, objectness and classes in one output."""
    grids = [(cells(side // each, side // each, each), each) for each in strides]
    corners = np.concatenate([grid for grid, _ in grids])
    factors = np.concatenate([np.full((len(grid), 1), each) for grid, each in grids])

    def decode(outputs: Image) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        (rows,) = outputs.values()
        middle = rows[:, :2] * factors + corners
        half = np.exp(np.minimum(rows[:, 2:4], 20)) * factors / 2
        return np.concatenate([middle - half, middle + half], axis=1), rows[:, 4:5] * rows[:, 5:]

    return decode


def bins_of_distances(rows: int, columns: int, strides: Iterable[int]) -> Decode:
    """PicoDet: for each stride scores, and the distances to four sides as logits of bins."""
    steps = tuple(strides)

    def decode(outputs: Image) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        arrays = [*outputs.values()]
        boxes = []
        for logits, stride in zip(arrays[len(steps) :], steps, strict=True):
            by_side = logits.reshape(len(logits), 4, -1)
            parts = np.exp(by_side - by_side.max(axis=2, keepdims=True))
            parts /= parts.sum(axis=2, keepdims=True)
            sides = parts @ np.arange(parts.shape[2]) * stride
            middle = cells(-(-rows // stride), -(-columns // stride), stride, 0.5)
            boxes.append(np.concatenate([middle - sides[:, :2], middle + sides[:, 2:]], axis=1))
        return np.concatenate(boxes), np.concatenate(arrays[: len(steps)])

    return decode


def peaks(stride: int) -> Decode:
    """CenterFace: a map of scores, logarithms of heights and widths, offsets in a cell."""

    def decode(outputs: Image) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        scores, sizes, offsets, *_ = outputs.values()
        _, rows, columns = scores.shape
        half = np.exp(np.minimum(sizes, 20))[::-1].reshape(2, -1).T * stride / 2
        inside = offsets[::-1].reshape(2, -1).T * stride
        middle = cells(rows, columns, stride, 0.5) + inside
        return np.concatenate([middle - half, middle + half], axis=1), scores.reshape(-1, 1)

    return decode


def regions(outputs: Image) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """PP-OCR: a map of text; boxes around what is above 0.3, scored by the mean inside."""
    (text,) = outputs.values()
    places, count = ndimage.label(text[0] > 0.3)
    found = ndimage.find_objects(places)
    boxes = [(x.start, y.start, x.stop, y.stop) for y, x in found if y.stop - y.start > 2]
    kept = [at for at, (y, _) in enumerate(found, 1) if y.stop - y.start > 2]
    scores = ndimage.mean(text[0], places, kept) if count else []
    return np.array(boxes, np.float32).reshape(-1, 4), np.array(scores).reshape(-1, 1)


@dataclass(frozen=True)
class DecodedMetric(DetectionMetric):
    """Detections of a model whose outputs a package decodes.

    Attributes:
        decode: From the outputs of one image to boxes and scores.
    """

    decode: Decode = field(default=regions)

    def bound(self, graph: Graph) -> DetectionMetric:
        """Return it with the names that `decode` gives."""
        del graph
        return replace(self, boxes="boxes", scores="scores", form="corners")

    def finds(self, outputs: Outputs) -> bool:
        """Tell whether there is a detection that a user would see."""
        return super().finds(self._decoded(outputs))

    def compare(
        self, in_float: Outputs, quantized: Outputs, references: Mapping[str, Reference]
    ) -> Compared:
        """Compare what both models find."""
        return super().compare(self._decoded(in_float), self._decoded(quantized), references)

    def _decoded(self, outputs: Outputs) -> Outputs:
        names = list(outputs)
        found = [
            self.decode({name: np.asarray(outputs[name][at]) for name in names})
            for at in range(len(outputs[names[0]]))
        ]
        return {"boxes": [boxes for boxes, _ in found], "scores": [each for _, each in found]}


DECODED: Mapping[str, Decode] = {
    "ddddocr_det": offsets_of_cells(416, (8, 16, 32)),
    "page_layout": bins_of_distances(800, 608, (8, 16, 32, 64)),
    "centerface": peaks(4),
    "ppocr6_det": regions,
    "ppocr4_det": regions,
}
"""By name in `published.MODELS`; others have boxes and scores as outputs."""


def metric_of(name: str, boxes: str = "") -> DetectionMetric:
    """Return the metric of a detector, which reads its outputs as its package does."""
    given = DetectionMetric.of_outputs(boxes)
    if name not in DECODED:
        return given
    return DecodedMetric(given.name, given.function, decode=DECODED[name])

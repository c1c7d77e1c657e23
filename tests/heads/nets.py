"""Detectors with the heads of well-known families, in small, with the ranges of trained ones.

Weights are random, and each head layer is scaled so that its results have the mean and deviation
of trained heads: scores of which few are confident, boxes of 20 to 300 pixels of an image of 640.
Each net decodes inside the graph, as exporters write it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx.utils
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from tests.gallery.layers import Layers

Floats: TypeAlias = npt.NDArray[np.float32]

SIDE, IMAGE_SIDE = 64, 640
"""Pixels of the input, and of the image that boxes are in."""
STRIDES = (80, 160)
GRIDS = tuple(IMAGE_SIDE // stride for stride in STRIDES)
CLASSES, BINS = 5, 16
PLACES = sum(grid * grid for grid in GRIDS)
TOP = 40
MASKS, POINTS = 8, 4
_WIDTH, _HIDDEN = 48, 32
_SCORES = (-4.0, 2.5)
"""Mean and deviation of logits of scores: one of twenty is above 0.5."""


def images(count: int, seed: int = 0) -> Floats:
    """Smooth random images, float32 ``[count, 3, 64, 64]`` around 0."""
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, 3, 10, 10))
    at = np.linspace(0, 8.999, SIDE)
    low, part = at.astype(int), at % 1
    rows = coarse[:, :, low] * (1 - part)[:, None] + coarse[:, :, low + 1] * part[:, None]
    full = rows[..., low] * (1 - part) + rows[..., low + 1] * part
    return np.asarray(full + random.normal(0, 0.05, full.shape), np.float32)


class _Detector(Layers):
    """A builder with a backbone and heads, whose layers give what trained ones do."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.scaled: list[tuple[str, str, str, Floats, Floats]] = []

    def layer(
        self,
        x: str,
        inputs: int,
        outputs: int,
        mean: npt.ArrayLike = 0.2,
        deviation: npt.ArrayLike = 1,
        **given: int,
    ) -> str:
        """A convolution whose results have this mean and deviation, one number or one a channel."""
        kernel, name = given.get("kernel", 3), f"layer{len(self.scaled)}"
        shape = outputs, inputs, kernel, kernel
        weight = self.constant(self.random.normal(size=shape).astype(np.float32), f"{name}.weight")
        bias = self.constant(np.zeros(outputs, np.float32), f"{name}.bias")
        strides, pads = [given.get("stride", 1)] * 2, [kernel // 2] * 4
        x = self.node("Conv", x, weight, bias, name=name, pads=pads, strides=strides)
        means, deviations = (
            np.broadcast_to(np.asarray(each, np.float32), outputs) for each in (mean, deviation)
        )
        self.scaled.append((x, weight, bias, means, deviations))
        return x

    def features(self, maps: int = 2) -> list[str]:
        """Feature maps of strides 8 and 16 of the input."""
        x, channels = self.input("image", ("batch", 3, SIDE, SIDE)), 3
        found = []
        for width, stride in ((16, 2), (32, 2), (_WIDTH, 2), (_WIDTH, 1), (_WIDTH, 2))[: 3 + maps]:
            x, channels = self.relu(self.layer(x, channels, width, stride=stride)), width
            found.append(x)
        return found[3:]

    def head(self, x: str, outputs: int, mean: npt.ArrayLike, deviation: npt.ArrayLike) -> str:
        """Two convolutions; the results have this mean and deviation."""
        x = self.relu(self.layer(x, _WIDTH, _HIDDEN))
        return self.layer(x, _HIDDEN, outputs, mean, deviation, kernel=1)

    def done(self) -> onnx.ModelProto:
        """Build, and scale the layers one after another."""
        model = self.build()
        tensors = {each.name: each for each in model.graph.initializer}
        for name, weight, bias, means, deviations in self.scaled:
            values = _values(model, name)
            factor = deviations / values.std((0, 2, 3))
            scaled = numpy_helper.to_array(tensors[weight]) * factor[:, None, None, None]
            tensors[weight].CopyFrom(numpy_helper.from_array(scaled.astype(np.float32), weight))
            moved = means - values.mean((0, 2, 3)) * factor
            tensors[bias].CopyFrom(numpy_helper.from_array(moved.astype(np.float32), bias))
        return model

    def number(self, array: npt.ArrayLike) -> str:
        """A float constant."""
        return self.constant(np.asarray(array, np.float32))

    def part(self, x: str, start: int, stop: int, axis: int) -> str:
        """A slice along one axis."""
        return self.node("Slice", x, *(self.ints(each) for each in (start, stop, axis)))


def _values(model: onnx.ModelProto, name: str) -> Floats:
    """Run a model up to a tensor."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.output[:]
    part.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    part = onnx.utils.Extractor(part).extract_model(["image"], [name])
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(part.SerializeToString(), options)
    return np.asarray(session.run([name], {"image": images(16, seed=9)})[0])


def _centres(grid: int) -> Floats:
    """Centres of cells, x and y, ``[2, grid * grid]``, in cells."""
    y, x = np.mgrid[:grid, :grid].astype(np.float32) + 0.5
    return np.stack([x.ravel(), y.ravel()])


def _all_centres() -> Floats:
    return np.concatenate([_centres(grid) for grid in GRIDS], axis=1)[None]


def _all_strides() -> Floats:
    return np.concatenate(
        [np.full(g * g, s, np.float32) for g, s in zip(GRIDS, STRIDES, strict=True)]
    )[None, None]


_ANCHORS = (((100, 130), (160, 300), (330, 230)), ((300, 610), (620, 450), (590, 800)))


def yolo_v5() -> onnx.ModelProto:
    """Anchors: Sigmoid, then grid and sizes; ``[batch, places, 5 + classes]``."""
    b = _Detector(5)
    width = 5 + CLASSES
    mean = [0, 0, 0, 0, -3, *[-2] * CLASSES] * 3
    deviation = [0.4, 0.4, 0.25, 0.25, 2.5, *[2.2] * CLASSES] * 3
    outputs = []
    for features, grid, stride, anchors in zip(b.features(), GRIDS, STRIDES, _ANCHORS, strict=True):
        x = b.head(features, 3 * width, mean, deviation)
        x = b.node("Reshape", x, b.ints(0, 3, width, grid, grid))
        x = b.node("Sigmoid", b.node("Transpose", x, perm=[0, 1, 3, 4, 2]))
        xy, wh, rest = b.split(x, (2, 2, 1 + CLASSES), 4)
        cells = (_centres(grid).T - 1).reshape(1, 1, grid, grid, 2)
        xy = b.node("Add", b.node("Mul", xy, b.scalar(2)), b.number(cells))
        xy = b.node("Mul", xy, b.scalar(stride))
        wh = b.node("Pow", b.node("Mul", wh, b.scalar(2)), b.scalar(2))
        wh = b.node("Mul", wh, b.number(np.array(anchors).reshape(1, 3, 1, 1, 2)))
        x = b.node("Concat", xy, wh, rest, axis=4)
        outputs.append(b.node("Reshape", x, b.ints(0, 3 * grid * grid, width)))
    b.node("Concat", *outputs, axis=1, out="detections")
    b.output("detections", ("batch", 3 * PLACES, width))
    return b.done()


def _distances(b: _Detector, more: Sequence[tuple[int, Any, Any]] = ()) -> list[str]:
    """Logits of v8: of the bins of four distances and of classes, joined for all places.

    Returns:
        What is split again: bins ``[batch, 64, places]``, scores, and what else was asked for.
    """
    bins = np.arange(BINS) / (BINS - 1)
    mean = np.concatenate([-6 * (bins - at) ** 2 * 3 for at in (0.1, 0.12, 0.1, 0.12)])
    widths = (4 * BINS, CLASSES, *(count for count, _, _ in more))
    joined = []
    for x in b.features():
        parts = [b.head(x, 4 * BINS, mean, 0.8), b.head(x, CLASSES, *_SCORES)]
        parts += [b.head(x, *each) for each in more]
        every = b.node("Concat", *parts, axis=1)
        joined.append(b.node("Reshape", every, b.ints(0, sum(widths), -1)))
    return b.split(b.node("Concat", *joined, axis=2), widths, 1)


def _corners(b: _Detector, bins: str, *, as_centres: bool) -> str:
    """Boxes ``[batch, 4, places]`` in pixels, of v8 (centre and size) or v10 (corners)."""
    x = b.node("Reshape", bins, b.ints(0, 4, BINS, PLACES))
    x = b.node("Softmax", b.node("Transpose", x, perm=[0, 2, 1, 3]), axis=1)
    weight = b.number(np.arange(BINS).reshape(1, BINS, 1, 1) / 4)
    x = b.node("Reshape", b.node("Conv", x, weight, name="expectation"), b.ints(0, 4, PLACES))
    centres = b.number(_all_centres())
    first = b.node("Sub", centres, b.part(x, 0, 2, 1))
    second = b.node("Add", centres, b.part(x, 2, 4, 1))
    if as_centres:
        middle = b.node("Div", b.node("Add", first, second), b.scalar(2))
        first, second = middle, b.node("Sub", second, first)
    x = b.node("Concat", first, second, axis=1)
    return b.node("Mul", x, b.number(_all_strides()))


def yolo_v8() -> onnx.ModelProto:
    """No anchors: expectation over bins; boxes and scores joined, ``[batch, 4 + classes, n]``."""
    b = _Detector(8)
    bins, scores = _distances(b)
    boxes = _corners(b, bins, as_centres=True)
    b.node("Concat", boxes, b.node("Sigmoid", scores), axis=1, out="detections")
    b.output("detections", ("batch", 4 + CLASSES, PLACES))
    return b.done()


def yolo_v10(*, dense: bool = False) -> onnx.ModelProto:
    """The best places are chosen in the graph: ``[batch, 40, 6]``, corners, score, class.

    If it is dense, all are given: ``[batch, places, 4 + classes]``.
    """
    b = _Detector(10)
    bins, scores = _distances(b)
    boxes = b.node("Transpose", _corners(b, bins, as_centres=False), perm=[0, 2, 1])
    scores = b.node("Transpose", b.node("Sigmoid", scores), perm=[0, 2, 1])
    if dense:
        b.node("Concat", boxes, scores, axis=2, out="detections")
        b.output("detections", ("batch", PLACES, 4 + CLASSES))
        return b.done()
    best = b.node("ReduceMax", scores, axes=[2], keepdims=0)
    b.nodes.append(
        onnx.helper.make_node("TopK", [best, b.ints(TOP)], ["best", "at"], name="top", axis=1)
    )
    at = b.node("Unsqueeze", "at", b.ints(2))
    boxes = b.node("GatherElements", boxes, b.node("Tile", at, b.ints(1, 1, 4)), axis=1)
    classes = b.node("GatherElements", scores, b.node("Tile", at, b.ints(1, 1, CLASSES)), axis=1)
    label = b.node("Cast", b.node("ArgMax", classes, axis=2, keepdims=1), to=TensorProto.FLOAT)
    score = b.node("Unsqueeze", "best", b.ints(2))
    b.node("Concat", boxes, score, label, axis=2, out="detections")
    b.output("detections", ("batch", TOP, 6))
    return b.done()


def ssd() -> onnx.ModelProto:
    """Anchors, Exp and Softmax: corners and scores joined, ``[batch, places, 4 + classes]``."""
    b = _Detector(3)
    boxes: list[str] = []
    scores: list[str] = []
    anchors = []
    for x, grid, stride in zip(b.features(), GRIDS, STRIDES, strict=True):
        moved = b.head(x, 8, [0, 0, 0, 0] * 2, [1, 1, 0.8, 0.8] * 2)
        logits = b.head(x, 2 * (CLASSES + 1), [4, *[0] * CLASSES] * 2, 2)
        for each, group, width in ((moved, boxes, 4), (logits, scores, CLASSES + 1)):
            last = b.node("Transpose", each, perm=[0, 2, 3, 1])
            group.append(b.node("Reshape", last, b.ints(0, -1, width)))
        centres = np.repeat(_centres(grid).T * stride, 2, axis=0)
        sizes = np.tile([[1.2 * stride, 1.5 * stride], [2 * stride, 1.3 * stride]], (grid**2, 1))
        anchors.append(np.concatenate([centres, sizes], axis=1))
    known = np.concatenate(anchors)[None]
    moved = b.node("Concat", *boxes, axis=1)
    middle = b.node("Mul", b.part(moved, 0, 2, 2), b.number(known[..., 2:] * 0.1))
    middle = b.node("Add", middle, b.number(known[..., :2]))
    size = b.node("Exp", b.node("Mul", b.part(moved, 2, 4, 2), b.scalar(0.2)))
    half = b.node("Mul", size, b.number(known[..., 2:] / 2))
    corners = b.node("Concat", b.node("Sub", middle, half), b.node("Add", middle, half), axis=2)
    found = b.node("Softmax", b.node("Concat", *scores, axis=1), axis=2)
    b.node("Concat", corners, b.part(found, 1, CLASSES + 1, 2), axis=2, out="detections")
    b.output("detections", ("batch", 2 * PLACES, 4 + CLASSES))
    return b.done()


def centernet(*, dense: bool = False) -> onnx.ModelProto:
    """Peaks of a heat map, sizes and offsets: ``[batch, 40, 6]``, corners, score, class.

    If it is dense, all places are given: ``[batch, 4 + classes, places]``.
    """
    b = _Detector(12)
    x, grid, stride = b.features(1)[0], GRIDS[0], STRIDES[0]
    heat = b.node("Sigmoid", b.head(x, CLASSES, *_SCORES))
    size, offset = b.head(x, 2, [1.6, 1.8], [0.3, 0.35]), b.head(x, 2, 0.5, 0.15)
    peaks = b.node("MaxPool", heat, kernel_shape=[3, 3], pads=[1] * 4)
    corner = b.number(_centres(grid)[None] - 0.5)
    middle, half = (b.node("Reshape", each, b.ints(0, 2, grid * grid)) for each in (offset, size))
    middle = b.node("Mul", b.node("Add", middle, corner), b.scalar(stride))
    half = b.node("Mul", half, b.scalar(stride / 2))
    ends = b.node("Sub", middle, half), b.node("Add", middle, half)
    boxes = b.node("Concat", *ends, axis=1)
    if dense:
        scores = b.node("Reshape", heat, b.ints(0, CLASSES, grid * grid))
        b.nodes = [node for node in b.nodes if node.op_type != "MaxPool"]
        b.node("Concat", boxes, scores, axis=1, out="detections")
        b.output("detections", ("batch", 4 + CLASSES, grid * grid))
        return b.done()
    kept = b.node("Cast", b.node("Equal", heat, peaks), to=TensorProto.FLOAT)
    flat = b.node("Reshape", b.node("Mul", heat, kept), b.ints(0, CLASSES, grid * grid))
    best = b.node("ReduceMax", flat, axes=[1], keepdims=0)
    b.nodes.append(
        onnx.helper.make_node("TopK", [best, b.ints(TOP)], ["best", "at"], name="top", axis=1)
    )
    label = b.node("GatherElements", b.node("ArgMax", flat, axis=1, keepdims=0), "at", axis=1)
    label = b.node("Cast", b.node("Unsqueeze", label, b.ints(2)), to=TensorProto.FLOAT)
    chosen = b.node("Tile", b.node("Unsqueeze", "at", b.ints(2)), b.ints(1, 1, 4))
    boxes = b.node("Transpose", boxes, perm=[0, 2, 1])
    boxes = b.node("GatherElements", boxes, chosen, axis=1)
    score = b.node("Unsqueeze", "best", b.ints(2))
    b.node("Concat", boxes, score, label, axis=2, out="detections")
    b.output("detections", ("batch", TOP, 6))
    return b.done()


def keypoints() -> onnx.ModelProto:
    """v8 with key points and their visibility: ``[batch, 4 + classes + 3 * points, places]``."""
    b = _Detector(17)
    more = (3 * POINTS, [0, 0, 1] * POINTS, [0.6, 0.6, 2] * POINTS)
    bins, scores, points = _distances(b, [more])
    boxes = _corners(b, bins, as_centres=True)
    points = b.node("Reshape", points, b.ints(0, POINTS, 3, PLACES))
    xy = b.node(
        "Add", b.node("Mul", b.part(points, 0, 2, 2), b.scalar(2)), b.number(_all_centres())
    )
    xy = b.node("Mul", xy, b.number(_all_strides()))
    seen = b.node("Sigmoid", b.part(points, 2, 3, 2))
    points = b.node("Concat", xy, seen, axis=2)
    points = b.node("Reshape", points, b.ints(0, 3 * POINTS, PLACES))
    b.node("Concat", boxes, b.node("Sigmoid", scores), points, axis=1, out="detections")
    b.output("detections", ("batch", 4 + CLASSES + 3 * POINTS, PLACES))
    return b.done()


def segmentation() -> onnx.ModelProto:
    """v8 with coefficients of masks, and the masks: ``[batch, 4 + classes + masks, places]``."""
    b = _Detector(21)
    bins, scores, masks = _distances(b, [(MASKS, 0, 1)])
    fine = next(node.output[0] for node in b.nodes if node.op_type == "Relu" and node.output[0])
    boxes = _corners(b, bins, as_centres=True)
    b.node("Concat", boxes, b.node("Sigmoid", scores), masks, axis=1, out="detections")
    b.output("detections", ("batch", 4 + CLASSES + MASKS, PLACES))
    b.node("Relu", b.convolution(fine, 16, MASKS), out="prototypes")
    b.output("prototypes", ("batch", MASKS, SIDE // 2, SIDE // 2))
    return b.done()


@dataclass(frozen=True)
class Family:
    """A detector, and how its output is read.

    Attributes:
        build: Makes the model.
        layout: ``"channels"`` (``[batch, channels, places]``), ``"places"`` or ``"chosen"``
            (rows of corners, score and class).
        corners: Whether boxes are corners, and not centre and size.
        objectness: Whether a score of any object is multiplied with those of classes.
        classes: Number of classes.
    """

    build: Callable[[], onnx.ModelProto]
    layout: str
    corners: bool = False
    objectness: bool = False
    classes: int = CLASSES


FAMILIES = {
    "yolo_v5": Family(yolo_v5, "places", objectness=True),
    "yolo_v8": Family(yolo_v8, "channels"),
    "yolo_v10": Family(yolo_v10, "chosen", corners=True),
    "ssd": Family(ssd, "places", corners=True),
    "centernet": Family(centernet, "chosen", corners=True),
    "keypoints": Family(keypoints, "channels"),
    "segmentation": Family(segmentation, "channels"),
    "yolo_v10_dense": Family(partial(yolo_v10, dense=True), "places", corners=True),
    "centernet_dense": Family(partial(centernet, dense=True), "channels", corners=True),
}
CHOOSING = {"yolo_v10": "yolo_v10_dense", "centernet": "centernet_dense"}
"""Families that choose in the graph, which some runtimes cannot, and what those get instead."""

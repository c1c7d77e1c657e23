"""Detections are read from outputs of any layout, and labels are matched with classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact.data import detections
from intact.data.detections import HALF, KEPT, LIKE, MEAN, DetectionMetric
from intact.data.images.boxes import BOXES, CLASSES, CROWDS, IDS, LISTED, read_boxes
from intact.data.images.decode import Placement
from intact.data.images.steps import Size
from intact.data.metric import ADDED
from intact.errors import DataError, UsageError
from intact.graph import Graph, normalize

CORNERS = np.array([[10, 10, 30, 40], [40, 20, 60, 60], [0, 0, 9, 9.0]])
SCORES = np.array([[0.9, 0.05], [0.1, 0.8], [0.01, 0.02]])
CENTRES = np.concatenate(
    [(CORNERS[:, :2] + CORNERS[:, 2:]) / 2, CORNERS[:, 2:] - CORNERS[:, :2]], 1
)
CHOSEN = np.concatenate([CORNERS, SCORES.max(1)[:, None], SCORES.argmax(1)[:, None]], 1)
LABELS: dict[str, Any] = {BOXES: [CORNERS[:2]], CLASSES: [np.array([0, 1])], LISTED: np.array([2])}


def graph_of(**outputs: Sequence[int]) -> Graph:
    """A model of an image of 64 by 64 with these outputs."""
    nodes, infos, constants = [], [], []
    for name, shape in outputs.items():
        kind = TensorProto.INT64 if name.startswith("numbers") else TensorProto.FLOAT
        for part, sizes in (("flat", [0] + [1] * len(shape)), ("full", [1, *shape])):
            constants.append(
                helper.make_tensor(f"{name}.{part}", TensorProto.INT64, [len(sizes)], sizes)
            )
        nodes.append(helper.make_node("Reshape", ["x", f"{name}.flat"], [f"{name}.x"]))
        nodes.append(helper.make_node("Expand", [f"{name}.x", f"{name}.full"], [f"{name}.y"]))
        nodes.append(helper.make_node("Cast", [f"{name}.y"], [name], to=kind))
        infos.append(helper.make_tensor_value_info(name, kind, ["n", *shape]))
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image"], ["x"], axes=[1, 2, 3]), *nodes],
        "detector",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 64, 64])],
        infos,
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    onnx.checker.check_model(model)
    return normalize(model)


LAYOUTS: dict[str, tuple[dict[str, np.ndarray[Any, Any]], tuple[str, ...]]] = {
    "boxes and scores": ({"boxes": CORNERS, "scores": SCORES}, ()),
    "channels first": ({"boxes": CENTRES.T, "scores": SCORES.T}, ()),
    "parts of the image": ({"boxes": CENTRES / 64, "scores": SCORES}, ()),
    "logits": ({"boxes": CORNERS, "logits": np.log(SCORES / (1 - SCORES))}, ()),
    "joined": ({"found": np.tile(np.concatenate([CENTRES, SCORES], 1), (3, 1)).T}, ()),
    "chosen": ({"found": np.tile(CHOSEN, (3, 1))}, ()),
    "numbers": ({"boxes": CORNERS, "best": CHOSEN[:, 4], "numbers": CHOSEN[:, 5]}, ()),
    "named": (
        {"a": CORNERS[:, [1, 0, 3, 2]], "b": SCORES, "c": CORNERS},
        ("a:corners_yx", "b"),
    ),
    "a colon in a name": ({"out:0": CORNERS, "b:0": SCORES}, ("out:0:corners",)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_detections(name: str) -> None:
    arrays, flags = LAYOUTS[name]
    outputs = {key: each[None] for key, each in arrays.items()}
    metric = DetectionMetric.of_outputs(*flags).bound(
        graph_of(**{key: each.shape for key, each in arrays.items()})
    )
    same = metric.compare(outputs, outputs, LABELS)
    assert same.figures[KEPT] == (100, 100)
    assert same.figures[ADDED] == (0, 0)
    assert same.figures[MEAN] == pytest.approx((100, 100))
    assert not same.warnings
    # Of the two objects the second is gone.
    lost = {key: each.copy() for key, each in outputs.items()}
    for key, each in lost.items():
        if "numbers" in key:
            each[each == 1] = 0
        elif name == "chosen":
            each[..., 4][each[..., 4] == 0.8] = 0
        else:
            near = np.isclose(each, 0.8) | np.isclose(each, np.log(4))
            each[near] = 0.0 if name != "logits" else -9
    changed = metric.compare(outputs, lost, LABELS)
    assert changed.figures[KEPT][1] == pytest.approx(50)
    assert changed.figures[HALF][1] == pytest.approx(50)
    assert changed.figures[LIKE][1] == pytest.approx(50)
    assert metric.score(lost, LABELS, outputs)[KEPT] == pytest.approx(50)


@pytest.mark.parametrize(
    "shapes", [{"a": (100, 4), "b": (100, 4), "c": (100, 3)}, {"a": (5,), "b": (7,)}]
)
def test_outputs_of_unknown_meaning_are_asked_for(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(UsageError, match=r"a .*b .*boxes and scores"):
        DetectionMetric.of_outputs().bound(graph_of(**shapes))
    with pytest.raises(UsageError, match="scores d: no such output"):
        DetectionMetric.of_outputs("a", "d").bound(graph_of(**shapes))


def _compare(labels: dict[str, Any], scores: np.ndarray[Any, Any] = SCORES) -> Any:
    outputs = {"boxes": CORNERS[None], "scores": scores[None]}
    metric = DetectionMetric.of_outputs().bound(graph_of(boxes=(3, 4), scores=scores.shape))
    return metric.compare(outputs, outputs, labels)


def test_labels_of_another_class_list_are_refused() -> None:
    with pytest.raises(DataError, match="the labels have 80 classes, the model 2"):
        _compare({**LABELS, IDS: LABELS[CLASSES], LISTED: np.array([80])})
    with pytest.raises(DataError, match="the labels have a class 7, the model 2"):
        _compare({**LABELS, CLASSES: [np.array([0, 7])], LISTED: np.array([0])})
    # A model with a score for each number of the file reads those.
    wide = np.zeros((3, 91))
    wide[:, [3, 90]] = SCORES
    assert _compare({**LABELS, IDS: [np.array([3, 90])]}, wide).figures[MEAN][0] == pytest.approx(
        100
    )


def test_nothing_to_compare_is_said() -> None:
    empty = {BOXES: [np.zeros((0, 4))], CLASSES: [np.zeros(0, int)]}
    with pytest.raises(DataError, match="no object in 1 image"):
        _compare(empty)
    with pytest.raises(DataError, match=r"the float model has no score of 0\.25"):
        _compare({}, SCORES / 9)
    assert "another form" in _compare({**LABELS, BOXES: [CORNERS[:2] + 300]}).warnings[0]


def coco(**changes: Any) -> str:
    """Annotations of two images, the second without objects."""
    box = {"image_id": 7, "category_id": 5, "bbox": [20, 10, 40, 30]}
    found: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}],
        "annotations": [box, {**box, "category_id": 9, "iscrowd": 1}],
        "categories": [{"id": 9, "name": "cat"}, {"id": 5}],
    }
    return json.dumps({**found, **changes})


def test_coco_and_yolo_give_the_same_boxes_where_a_letterbox_puts_them(tmp_path: Path) -> None:
    (tmp_path / "coco.json").write_text(coco())
    (tmp_path / "yolo").mkdir()
    # The same box of an image of 100 by 200 (columns by rows).
    (tmp_path / "yolo" / "a.txt").write_text("0 0.4 0.125 0.4 0.15\n\n1 0.4 0.125 0.4 0.15\n")
    made = [
        (0, Size(200, 100), Placement(Size(100, 50), top=0, left=25)),
        (1, Size(200, 100), Placement(Size(100, 50), top=0, left=25)),
    ]
    files = ["x/a.png", "x/b.png"]
    for labels in ("coco.json", "yolo"):
        found = read_boxes(tmp_path / labels, files).references(made)
        np.testing.assert_allclose(found[BOXES][0][0], [35, 5, 55, 20], atol=1e-9)
        assert [len(each) for each in found[BOXES]] == [2, 0]
        assert found[CLASSES][0].tolist() == [0, 1]
        assert found[CROWDS][0].tolist() == [False, labels == "coco.json"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "no COCO annotations"),
        ("[]", "no COCO annotations"),
        (coco(images=[]), "has no image 'a.png'"),
        (coco(categories=[]), "category 5, which is not listed"),
        (coco(annotations=[{"image_id": 7, "category_id": 5, "bbox": [0, 0, -1, 2]}]), "no size"),
        ("[" * 100_000, "no COCO annotations"),
    ],
)
def test_bad_annotations_are_one_error(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "coco.json").write_text(text)
    with pytest.raises(DataError, match=expected):
        read_boxes(tmp_path / "coco.json", ["a.png"])


@pytest.mark.parametrize(
    "line", ["0 0.5 0.5 0.1", "cat 0.5 0.5 0.1 0.1", "0.5 0 0 0 0", "0 nan 0 0 0"]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(f"\n{line}\n")
    with pytest.raises(DataError, match="line 2"):
        read_boxes(tmp_path, ["a.png"])
    with pytest.raises(DataError, match="no file for any image"):
        read_boxes(tmp_path, ["b.png"])


def chosen(count: int, seed: int = 0) -> np.ndarray:
    """Make rows of box, score and class, as a detector gives them that chooses by itself."""
    rng = np.random.default_rng([count, seed])
    corner = rng.uniform(0, 200, (count, 2))
    score, kind = rng.uniform(0.5, 1, (count, 1)), rng.integers(0, 5, (count, 1))
    return np.concatenate([corner, corner + 50, score, kind], axis=1).astype(np.float32)


@pytest.mark.parametrize("counts", [(3, 5, 12, 1), (0, 5, 12), (4, 4), (300, 300)])
def test_a_detector_that_chooses_few_boxes_or_none_or_many_is_read(
    counts: tuple[int, ...],
) -> None:
    metric = DetectionMetric.of_outputs("o")
    outputs = {"o": [chosen(count, at)[None] for at, count in enumerate(counts)]}
    assert metric.reads(outputs)
    found = metric.compare(outputs, outputs, {}).figures
    assert [after for _, after in found.values()] == [100.0, 0.0, 100.0]


def test_outputs_without_any_box_are_told_so() -> None:
    metric = DetectionMetric.of_outputs("o")
    outputs = {"o": [chosen(0), chosen(0)]}
    assert not metric.reads(outputs)
    with pytest.raises(DataError, match=r"the float model has no score of 0\.25 or more"):
        metric.compare(outputs, outputs, {})


def test_what_takes_much_memory_is_read_while_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    want = rng.uniform(0, 1, (6, 7, 40)).astype(np.float32) * [[60], [60], [9], [9], [1], [1], [1]]
    have = want + rng.normal(size=want.shape) / 50
    metric = DetectionMetric.of_outputs("o")
    expected = metric.compare({"o": want}, {"o": have}, {})
    monkeypatch.setattr(detections, "OUTPUT_BYTES", 5000)
    pairs = metric.pairs()
    for at in range(0, 6, 2):
        pairs.add({"o": want[at : at + 2]}, {"o": have[at : at + 2]}, 2, 2)
        assert not any(list(record.batches()) for record in pairs.records)
    assert pairs.compared(metric, {}) == expected

"""Detectors of the kinds that are deployed now, trained on drawn shapes for a minute or two.

    python benchmarks/drawn_detectors.py FOLDER [--nets rt_detr,one_to_one] [--seconds 120]

Writes NAME.onnx to a folder, and to its sub-folders calibration/ and test/ images with labels.
The nets are small, and their ends are those of well-known families:

- ``rt_detr``: two-stage choice of queries (TopK, GatherElements), decoder layers that read
  reference points, deformable attention (GridSample), sigmoid and inverse sigmoid of boxes.
- ``d_fine``: the same, with boxes refined as distributions: Softmax over bins of unlike widths, and
  their expectation.
- ``one_to_one``: a convolutional net with one box for one object, chosen by TopK in the graph.
- ``with_nms``: the same net before the choice, with NonMaxSuppression in the graph.
- ``joined``: boxes in pixels and scores of all places in one output, ``[batch, 4 + classes, n]``.

Images are squares of 96 pixels with circles, squares and triangles on noise; boxes are in pixels.
"""

from __future__ import annotations

import argparse
import io
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from detector_nets import CLASSES, SIDE, TOP, PlaceDetector, QueryDetector

MOST = 4
"""Shapes in an image."""

Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Drawn:
    """Images with what is on them.

    Attributes:
        images: float32 ``[n, 3, 96, 96]`` from 0 to 1.
        boxes: For each image its corners in pixels, float32 ``[shapes, 4]``.
        classes: For each image its classes, int64 ``[shapes]``.
    """

    images: Floats
    boxes: list[Floats]
    classes: list[npt.NDArray[np.int64]]


def draw(count: int, seed: int) -> Drawn:
    """Draw images; the same for the same seed."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32) + 0.5
    images = np.empty((count, 3, SIDE, SIDE), np.float32)
    boxes, classes = [], []
    for image in images:
        image[:] = random.uniform(0, 0.5, (3, 1, 1)) + random.normal(0, 0.06, image.shape)
        found: list[tuple[float, ...]] = []
        for _ in range(random.integers(1, MOST + 1)):
            box = _free_box(random, found)
            if box is None:
                continue
            kind = int(random.integers(len(CLASSES)))
            colour = random.uniform(0.45, 1, 3)
            image[:, _inside(kind, box, x, y)] = colour[:, None]
            found.append((*box, kind))
        rows = np.array(found, np.float32)
        boxes.append(rows[:, :4])
        classes.append(rows[:, 4].astype(np.int64))
    return Drawn(np.clip(images, 0, 1), boxes, classes)


def write_images(folder: Path, drawn: Drawn) -> None:
    """Write images (.png), their boxes as COCO's json, and as YOLO's text files."""
    from PIL import Image

    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / "yolo").mkdir(exist_ok=True)
    images, annotations = [], []
    for number, (image, boxes, classes) in enumerate(
        zip(drawn.images, drawn.boxes, drawn.classes, strict=True)
    ):
        name = f"{number:04}"
        pixels = np.rint(image.transpose(1, 2, 0) * 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{name}.png")
        images.append({"id": number, "file_name": f"{name}.png", "width": SIDE, "height": SIDE})
        lines = []
        for box, kind in zip(boxes.astype(float), classes, strict=True):
            sizes = box[2:] - box[:2]
            each = {"image_id": number, "category_id": int(kind) + 1, "iscrowd": 0}
            annotations.append({**each, "bbox": [*box[:2], *sizes], "area": sizes.prod()})
            numbers = [*((box[:2] + box[2:]) / 2 / SIDE), *(sizes / SIDE)]
            lines.append(" ".join([str(kind), *(f"{each:.6f}" for each in numbers)]))
        (folder / "yolo" / f"{name}.txt").write_text("\n".join(lines))
    for number, each in enumerate(annotations):
        each["id"] = number + 1
    categories = [{"id": at + 1, "name": name} for at, name in enumerate(CLASSES)]
    coco = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "coco.json").write_text(json.dumps(coco))


def _free_box(
    random: np.random.Generator, others: list[tuple[float, ...]]
) -> tuple[float, float, float, float] | None:
    for _ in range(8):
        width, height = random.uniform(14, 46, 2)
        left, top = random.uniform(0, SIDE - width), random.uniform(0, SIDE - height)
        box = left, top, left + width, top + height
        if all(
            min(box[2], o[2]) - max(box[0], o[0]) < 2 or min(box[3], o[3]) - max(box[1], o[1]) < 2
            for o in others
        ):
            return box
    return None


def _inside(
    kind: int, box: tuple[float, float, float, float], x: Floats, y: Floats
) -> npt.NDArray[np.bool_]:
    left, top, right, bottom = box
    across = (x - left) / (right - left) * 2 - 1
    down = (y - top) / (bottom - top) * 2 - 1
    if kind == 0:
        return across**2 + down**2 < 1
    if kind == 1:
        return np.maximum(np.abs(across), np.abs(down)) < 1
    return (np.abs(across) < (down + 1) / 2) & (np.abs(down) < 1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Generalized IoU of boxes of the same shape (centres and sizes).

    H. Rezatofighi et al., "Generalized intersection over union", CVPR 2019.
    """
    low, high = (
        (a[..., :2] + sign * a[..., 2:] / 2, b[..., :2] + sign * b[..., 2:] / 2)
        for a, b, sign in ((one, other, -1), (one, other, 1))
    )
    common = (torch.minimum(*high) - torch.maximum(*low)).clamp_min(0).prod(-1)
    whole = one[..., 2:].prod(-1) + other[..., 2:].prod(-1) - common
    around = (torch.maximum(*high) - torch.minimum(*low)).prod(-1)
    return common / whole.clamp_min(1e-6) - (around - whole) / around.clamp_min(1e-6)


def loss_of(step: tuple[Tensor, Tensor], truth: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One box for one object, assigned at the least cost; focal loss of scores, L1 and GIoU."""
    logits, boxes = step
    wanted = torch.zeros_like(logits)
    found, right = [], []
    for image, (true_boxes, classes) in enumerate(truth):
        with torch.no_grad():
            each = boxes[image][:, None].expand(-1, len(classes), -1)
            goal = true_boxes[None].expand(len(each), -1, -1)
            cost = -2 * logits[image].sigmoid()[:, classes]
            cost = cost + 5 * (each - goal).abs().sum(-1) - 2 * overlap(each, goal)
            rows, columns = linear_sum_assignment(cost.nan_to_num(100).numpy())
        wanted[image, rows, classes[columns]] = 1
        found.append(boxes[image, rows])
        right.append(true_boxes[columns])
    one, other = torch.cat(found), torch.cat(right)
    chance = logits.sigmoid()
    error = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    focus = (0.75 * wanted + 0.25 * (1 - wanted)) * (chance - wanted).abs().square()
    scores = (error * focus).sum() / len(one)
    return (
        2 * scores + 5 * (one - other).abs().sum(-1).mean() + 2 * (1 - overlap(one, other)).mean()
    )


def train(net: Any, seconds: float, seed: int = 0) -> None:
    """Train a net for so long, on images that are drawn once."""
    torch.manual_seed(seed)
    drawn = draw(3000, seed=seed)
    images = torch.from_numpy(drawn.images)
    truth = []
    for corners, classes in zip(drawn.boxes, drawn.classes, strict=True):
        each = torch.from_numpy(corners) / SIDE
        centred = torch.cat([(each[:, :2] + each[:, 2:]) / 2, each[:, 2:] - each[:, :2]], 1)
        truth.append((centred, torch.from_numpy(classes)))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    start = time.process_time()
    net.train()
    for chosen in _batches(len(images), 32):
        spent = (time.process_time() - start) / seconds
        if spent >= 1:
            break
        for group in optimizer.param_groups:  # up, then down to nothing
            group["lr"] = 2e-3 * min(1.0, 20 * spent + 0.02) * max(1 - spent, 0.01)
        goal = [truth[at] for at in chosen]
        loss = sum(loss_of(step, goal) for step in net.steps(images[chosen]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    net.eval()


def _batches(count: int, size: int) -> Iterator[npt.NDArray[np.int64]]:
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(count)
        for at in range(0, count - size + 1, size):
            yield order[at : at + size]


def exported(net: nn.Module, outputs: list[str], batch: int | None = None) -> onnx.ModelProto:
    """Write a net as ONNX, with the batch open unless one is given."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (torch.rand(batch or 2, 3, SIDE, SIDE),),
            file,
            input_names=["image"],
            output_names=outputs,
            dynamic_axes=None if batch else {n: {0: "batch"} for n in ("image", *outputs)},
            opset_version=17,
            dynamo=False,
        )
    return onnx.load_from_string(file.getvalue())


def with_nms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Choose boxes in the graph: rows of image, class and place, with their boxes and scores."""
    graph = model.graph
    limits = {"most": np.int64(TOP), "least_iou": np.float32(0.5), "least": np.float32(0.05)}
    for name, value in limits.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    for name, part in (("first", [0, 2]), ("all", [0, 1, 2])):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(part, np.int64), name))
    graph.node.extend(
        [
            helper.make_node(
                "NonMaxSuppression",
                ["corners", "all_scores", "most", "least_iou", "least"],
                ["chosen"],
                name="suppress",
            ),
            helper.make_node("Gather", ["chosen", "first"], ["of_boxes"], name="places", axis=1),
            helper.make_node("GatherND", ["corners", "of_boxes"], ["boxes"], name="chosen_boxes"),
            helper.make_node(
                "GatherND", ["all_scores", "chosen"], ["scores"], name="chosen_scores"
            ),
        ]
    )
    del graph.output[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["found", 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["found"]),
            helper.make_tensor_value_info("chosen", TensorProto.INT64, ["found", 3]),
        ]
    )
    onnx.checker.check_model(model)
    return model


def _places(
    end: str, outputs: list[str], batch: int | None = None
) -> Callable[[Any], onnx.ModelProto]:
    def write(net: Any) -> onnx.ModelProto:
        net.end = end
        return exported(net, outputs, batch)

    return write


_NETS: dict[str, tuple[str, Callable[[Any], onnx.ModelProto]]] = {
    "rt_detr": ("rt_detr", lambda net: exported(net, ["scores", "boxes"])),
    "d_fine": ("d_fine", lambda net: exported(net, ["scores", "boxes"])),
    "one_to_one": ("places", _places("chosen", ["detections"])),
    "joined": ("places", _places("joined", ["detections"])),
    "with_nms": (
        "places",
        lambda net: with_nms(_places("dense", ["all_scores", "corners"], 1)(net)),
    ),
}
"""By name: which net is trained, and how it is written."""
NETS = tuple(_NETS)


def write_all(folder: Path, names: list[str], seconds: float) -> None:
    """Train what is not in the folder yet, and write it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    trained: dict[str, Any] = {}
    for name in names:
        path = folder / f"{name}.onnx"
        if path.exists():
            continue
        kind, write = _NETS[name]
        if kind not in trained:
            torch.manual_seed(1)
            makers = {
                "rt_detr": QueryDetector,
                "d_fine": lambda: QueryDetector(refines=True),
                "places": PlaceDetector,
            }
            trained[kind] = makers[kind]()
            train(trained[kind], seconds)
        onnx.save(write(trained[kind]), path)
        print(path)


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--seconds", type=float, default=120, help="of one core, each net")
    given = parser.parse_args()
    write_all(given.folder, given.nets.split(","), given.seconds)
    for part, count, seed in (("calibration", 64, 1), ("test", 128, 2)):
        write_images(given.folder / part, draw(count, seed))


if __name__ == "__main__":
    main()

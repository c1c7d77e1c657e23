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

SIDE = 96
CLASSES = ("circle", "square", "triangle")
MOST = 4
"""Shapes in an image."""
TOP = 16
"""Boxes that a net chooses."""
WIDTH, HEADS, POINTS, BINS, LAYERS = 64, 4, 4, 9, 3

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


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
    )


class Backbone(nn.Module):
    """Maps of strides 8 and 16, of as many channels each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(_conv(3, 16, 3, 2), _conv(16, 32, 3, 2), _conv(32, WIDTH, 3, 2))
        self.fine = _conv(WIDTH, WIDTH)
        self.second = nn.Sequential(_conv(WIDTH, WIDTH, 3, 2), _conv(WIDTH, WIDTH))
        self.joined = _conv(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute both."""
        fine = self.fine(self.first(x))
        coarse = self.second(fine)
        up = functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return [self.joined(torch.cat([fine, up], 1)), coarse]


GRIDS = (SIDE // 8, SIDE // 16)


def _centres() -> Tensor:
    """Centres of all places, ``[places, 2]`` from 0 to 1."""
    found = []
    for grid in GRIDS:
        y, x = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
        found.append((torch.stack([x, y], -1).reshape(-1, 2) + 0.5) / grid)
    return torch.cat(found)


def _logit(x: Tensor) -> Tensor:
    x = x.clamp(1e-4, 1 - 1e-4)
    return torch.log(x / (1 - x))


def _mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))


class Attention(nn.Module):
    """Attention among queries."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        """Attend; the place is added to what is compared."""
        n, each = x.shape[1], WIDTH // HEADS
        q, k, v = (
            layer(y).reshape(-1, n, HEADS, each).transpose(1, 2)
            for layer, y in ((self.q, x + place), (self.k, x + place), (self.v, x))
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / each**0.5, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(-1, n, WIDTH))


class Deformable(nn.Module):
    """Attention that samples both maps at a few points around a reference box (GridSample)."""

    def __init__(self) -> None:
        super().__init__()
        count = HEADS * len(GRIDS) * POINTS
        self.offsets, self.weights = nn.Linear(WIDTH, 2 * count), nn.Linear(WIDTH, count)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.offsets.weight)
        turn = torch.arange(HEADS) * (2 * torch.pi / HEADS)
        start = torch.stack([turn.cos(), turn.sin()], -1).reshape(HEADS, 1, 1, 2)
        steps = torch.arange(1, POINTS + 1).reshape(1, 1, POINTS, 1)
        self.offsets.bias.data = (start * steps).expand(-1, len(GRIDS), -1, -1).reshape(-1).clone()

    def forward(self, x: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
        """Sample.

        Args:
            x: Queries with their places.
            boxes: Centres and sizes from 0 to 1, ``[batch, queries, 4]``.
            memory: Both maps, ``[batch, places, width]``.
        """
        n, each, levels = x.shape[1], WIDTH // HEADS, len(GRIDS)
        offsets = self.offsets(x).reshape(-1, n, HEADS, levels * POINTS, 2)
        weights = self.weights(x).reshape(-1, n, HEADS, levels * POINTS).softmax(-1)
        middle, size = boxes[:, :, None, None, :2], boxes[:, :, None, None, 2:]
        at = middle + offsets * size * (0.5 / POINTS)
        grid = 2 * at.transpose(1, 2).reshape(-1, n, levels, POINTS, 2) - 1
        maps = self.value(memory).split([g * g for g in GRIDS], 1)
        sampled = []
        for level, (each_map, side) in enumerate(zip(maps, GRIDS, strict=True)):
            image = each_map.transpose(1, 2).reshape(-1, each, side, side)
            points = grid[:, :, level]
            sampled.append(functional.grid_sample(image, points, align_corners=False))
        together = torch.cat(sampled, -1)
        weights = weights.transpose(1, 2).reshape(-1, 1, n, levels * POINTS)
        found = (together * weights).sum(-1).reshape(-1, WIDTH, n).transpose(1, 2)
        return self.out(found)


class DecoderLayer(nn.Module):
    """One layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Deformable()
        self.dense = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, place: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
        """Attend to queries and maps."""
        x = self.norms[0](x + self.own(x, place))
        x = self.norms[1](x + self.cross(x + place, boxes, memory))
        return self.norms[2](x + self.dense(x))


class QueryDetector(nn.Module):
    """A detector with queries, as RT-DETR; with distributions, as D-FINE and RF-DETR.

    Args:
        refines: Whether boxes are refined as distributions over bins.
    """

    def __init__(self, *, refines: bool = False) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.memory = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        self.first_score, self.first_box = nn.Linear(WIDTH, len(CLASSES)), _mlp(4)
        self.place = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.scores = nn.ModuleList(nn.Linear(WIDTH, len(CLASSES)) for _ in range(LAYERS))
        self.boxes = nn.ModuleList(_mlp(4 * BINS if refines else 4) for _ in range(LAYERS))
        self.refines = refines
        centres = _centres()
        sizes = torch.cat(
            [torch.full((g * g, 2), s) for g, s in zip(GRIDS, (0.25, 0.4), strict=True)]
        )
        self.register_buffer("anchors", _logit(torch.cat([centres, sizes], 1)))
        # Fine in the middle and coarse at the ends, where few boxes need them.
        half = torch.tensor([0.03, 0.1, 0.25, 0.6])
        self.register_buffer("bins", torch.cat([-half.flip(0), torch.zeros(1), half]))
        for layer in (self.first_score, *self.scores):
            nn.init.constant_(layer.bias, -3.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and boxes (corners in pixels), ``[batch, 16, ...]``."""
        logits, boxes = self.steps(x)[-1]
        half = boxes[..., 2:] / 2
        corners = torch.cat([boxes[..., :2] - half, boxes[..., :2] + half], -1) * SIDE
        return torch.sigmoid(logits), corners

    def steps(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Logits and boxes (centres and sizes from 0 to 1) of all places, then of each layer."""
        memory = torch.cat([m.flatten(2).transpose(1, 2) for m in self.backbone(x)], 1)
        memory = self.memory(memory)
        logits, raw = self.first_score(memory), self.first_box(memory) + self.anchors
        found = [(logits, torch.sigmoid(raw))]
        at = torch.topk(logits.max(-1).values, TOP, dim=1).indices[..., None]
        x = memory.gather(1, at.expand(-1, -1, WIDTH)).detach()
        boxes = torch.sigmoid(raw.gather(1, at.expand(-1, -1, 4))).detach()
        first, spread = boxes, None
        for layer, score, box in zip(self.layers, self.scores, self.boxes, strict=True):
            x = layer(x, self.place(boxes), boxes, memory)
            moved = box(x)
            if self.refines:
                spread = moved if spread is None else spread + moved
                exact = self._refined(first, spread)
            else:
                exact = torch.sigmoid(moved + _logit(boxes))
            found.append((score(x), exact))
            boxes = exact.detach()
        return found

    def _refined(self, first: Tensor, spread: Tensor) -> Tensor:
        """Move the edges of boxes by expectations, as parts of their sizes."""
        share = spread.reshape(-1, TOP, 4, BINS).softmax(-1)
        moved = (share * self.bins).sum(-1)
        low = first[..., :2] + first[..., 2:] * (moved[..., :2] - 0.5)
        high = first[..., :2] + first[..., 2:] * (moved[..., 2:] + 0.5)
        return torch.cat([(low + high) / 2, (high - low).clamp_min(1e-3)], -1)


class PlaceDetector(nn.Module):
    """A convolutional detector with one box for one object.

    Attributes:
        end: ``chosen`` (TopK in the graph), ``dense`` (boxes and scores) or ``joined``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.end = "chosen"
        self.backbone = Backbone()
        self.scores = nn.ModuleList(
            nn.Sequential(_conv(WIDTH, WIDTH), nn.Conv2d(WIDTH, len(CLASSES), 1)) for _ in GRIDS
        )
        self.boxes = nn.ModuleList(
            nn.Sequential(_conv(WIDTH, WIDTH), nn.Conv2d(WIDTH, 4, 1)) for _ in GRIDS
        )
        self.register_buffer("centres", _centres() * SIDE)
        strides = torch.cat([torch.full((g * g, 1), float(SIDE // g)) for g in GRIDS])
        self.register_buffer("strides", strides)
        for head in self.scores:
            nn.init.constant_(head[1].bias, -4.0)

    def forward(self, x: Tensor) -> Any:
        """Return detections as the end says."""
        ((logits, boxes),) = self.steps(x)
        scores = torch.sigmoid(logits)
        half = boxes[..., 2:] / 2
        corners = torch.cat([boxes[..., :2] - half, boxes[..., :2] + half], -1) * SIDE
        if self.end == "joined":
            return torch.cat([boxes * SIDE, scores], -1).transpose(1, 2)
        if self.end == "dense":
            return scores.transpose(1, 2), corners
        best, at = torch.topk(scores.max(-1).values, TOP, dim=1)
        boxes = corners.gather(1, at[..., None].expand(-1, -1, 4))
        label = scores.gather(1, at[..., None].expand(-1, -1, len(CLASSES))).argmax(-1)
        return torch.cat([boxes, best[..., None], label[..., None].float()], -1)

    def steps(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Logits and boxes (centres and sizes from 0 to 1) of all places."""
        maps = self.backbone(x)
        logits, raw = (
            torch.cat(
                [h(m).flatten(2).transpose(1, 2) for h, m in zip(heads, maps, strict=True)], 1
            )
            for heads in (self.scores, self.boxes)
        )
        sides = functional.softplus(raw) * self.strides
        low, high = self.centres - sides[..., :2], self.centres + sides[..., 2:]
        return [(logits, torch.cat([(low + high) / 2, high - low], -1) / SIDE)]


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

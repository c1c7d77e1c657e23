"""The nets of `drawn_detectors.py`: small ones, with the ends of well-known families."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SIDE = 96
CLASSES = ("circle", "square", "triangle")
TOP = 16
"""Boxes that a net chooses."""
WIDTH, HEADS, POINTS, BINS, LAYERS = 64, 4, 4, 9, 3


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

"""Train a small re-parameterised net (RepVGG) on the zoo's images, and write it as ONNX.

    python benchmarks/repvgg.py OUTPUT.onnx [--epochs 12]

Each block has a 3x3, a 1x1 and an identity branch with a BatchNormalization each while it is
trained, and is one 3x3 convolution afterwards: weights of very unlike sizes in one channel, which
few bits or one scale a tensor hold badly. Trained on cifar10-train.npz with the zoo's ResNet-20 as
a teacher; takes a quarter of an hour on one core.

Source of the net: X. Ding et al., "RepVGG: Making VGG-style ConvNets Great Again", CVPR 2021.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo import MODELS, NORMALIZED, TEST, ZOO

WIDTHS = (
    *((3, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)),
    *((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)),
)
"""Input channels, output channels and stride of each block."""
BATCH, RATE, DECAY, SHIFT = 64, 0.08, 5e-4, 4
TEMPERATURE, TEACHER_WEIGHT = 2.0, 4.0


class Block(nn.Module):
    """Three branches that become one convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.narrow = nn.Conv2d(inputs, outputs, 1, stride, 0, bias=False)
        self.wide_norm, self.narrow_norm = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.identity = nn.BatchNorm2d(inputs) if inputs == outputs and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the branches."""
        found = self.wide_norm(self.wide(x)) + self.narrow_norm(self.narrow(x))
        if self.identity is not None:
            found = found + self.identity(x)
        return functional.relu(found)

    def folded(self) -> nn.Conv2d:
        """Return the one convolution that computes the same, in evaluation."""
        channels = self.wide.in_channels
        kernels = [
            (self.wide.weight, self.wide_norm),
            (functional.pad(self.narrow.weight, (1, 1, 1, 1)), self.narrow_norm),
        ]
        if self.identity is not None:
            centre = functional.pad(torch.eye(channels)[:, :, None, None], (1, 1, 1, 1))
            kernels.append((centre, self.identity))
        found = nn.Conv2d(channels, self.wide.out_channels, 3, self.wide.stride, 1)
        weight, bias = torch.zeros_like(found.weight), torch.zeros(self.wide.out_channels)
        for kernel, norm in kernels:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            ratio = norm.weight / torch.sqrt(norm.running_var + norm.eps)
            weight = weight + kernel * ratio[:, None, None, None]
            bias = bias + norm.bias - norm.running_mean * ratio
        assert found.bias is not None
        found.weight.data, found.bias.data = weight.detach(), bias.detach()
        return found


def plain(net: nn.Sequential) -> nn.Sequential:
    """Return the net with one convolution for each block."""
    layers: list[nn.Module] = []
    for each in net:
        layers += [each.folded(), nn.ReLU()] if isinstance(each, Block) else [each]
    return nn.Sequential(*layers).eval()


def images_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images as the zoo's ResNet-20 takes them, and labels."""
    with np.load(path) as file:
        return np.asarray(NORMALIZED("image", file["image"]), np.float32), file["labels"]


def train(net: nn.Module, epochs: int) -> None:
    """Train with labels and with what the teacher answers."""
    images, labels = images_of(ZOO / "cifar10-train.npz")
    teacher = ort.InferenceSession(str(MODELS[0].path))
    steps = len(labels) // BATCH
    optimizer = torch.optim.SGD(
        net.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, max(epochs * steps, 1))
    draw = np.random.default_rng(0)
    for epoch in range(epochs):
        net.train()
        order = draw.permutation(len(labels))
        total = 0.0
        for rows in order[: steps * BATCH].reshape(steps, BATCH):
            shifted = np.pad(images[rows], ((0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
            top, left = draw.integers(0, 2 * SHIFT + 1, 2)
            batch = shifted[:, :, top : top + 32, left : left + 32]
            batch = np.ascontiguousarray(batch[..., ::-1] if draw.random() < 0.5 else batch)
            answers = torch.from_numpy(teacher.run(None, {"image": batch})[0])
            found = net(torch.from_numpy(batch))
            likeness = functional.kl_div(
                functional.log_softmax(found / TEMPERATURE, 1),
                functional.softmax(answers / TEMPERATURE, 1),
                reduction="batchmean",
            )
            loss = functional.cross_entropy(found, torch.from_numpy(labels[rows]))
            loss = loss + TEACHER_WEIGHT * likeness
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / steps:.3f}", flush=True)


def main() -> None:
    """Train, fold, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [Block(*each) for each in WIDTHS]
    net = nn.Sequential(
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1][1], 10)
    )
    train(net, given.epochs)
    images, labels = images_of(TEST)
    deployed = plain(net)
    with torch.no_grad():
        parts = torch.from_numpy(images).split(500)
        found = np.concatenate([deployed(part).argmax(1).numpy() for part in parts])
    print(f"top-1 {100 * float((found == labels).mean()):.2f}")
    size = torch.export.Dim("N")
    torch.onnx.export(
        deployed,
        (torch.from_numpy(images[:2]),),
        str(given.output),
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: size},),
        external_data=False,
        verbose=False,
    )


if __name__ == "__main__":
    main()

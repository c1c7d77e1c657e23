"""The model and the images of the examples: put your own in their place.

The network is small enough to train in seconds on a CPU, and has what real ones have: convolutions
with BatchNormalization, a residual connection, a dense layer. The images are handwritten digits
that come with intact (8 x 8 pixels, 0 to 16).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from intact import demo


class Net(nn.Module):
    """A network for images ``[N, 1, 8, 8]``; gives scores ``[N, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.body = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Return the score of each class."""
        x = torch.relu(self.norm1(self.stem(image)))
        x = torch.relu(self.norm2(self.body(x)) + x)
        x = nn.functional.max_pool2d(x, 2)
        return self.head(torch.flatten(x, 1))


def images(samples: int) -> tuple[TensorDataset, TensorDataset]:
    """Return images and labels to train on (600 of them at most) and 200 others to test on."""
    with np.load(demo.test_path()) as train, np.load(demo.calibration_path()) as test:
        pairs = [
            (torch.from_numpy(each["image"]).float() / 16, torch.from_numpy(each["labels"]))
            for each in (train, test)
        ]
    (x, y), rest = pairs
    return TensorDataset(x[:samples], y[:samples]), TensorDataset(*rest)


def loaders(samples: int = 600, batch: int = 32) -> tuple[DataLoader, DataLoader]:
    """Return loaders of images to train on and of images to test on."""
    train, test = images(samples)
    return DataLoader(train, batch, shuffle=True, drop_last=True), DataLoader(test, 100)


def float_model(train: DataLoader, epochs: int = 12) -> Net:
    """Train the network in float: yours is trained already."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for image, label in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(image), label).backward()
            optimizer.step()
    model.eval()
    return model


def accuracy(model: nn.Module, test: DataLoader) -> float:
    """Return the percentage of images that a module tells right."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        right = [
            (model(image.to(device)).argmax(1).cpu() == label).float() for image, label in test
        ]
    model.train(was_training)
    return 100 * float(torch.cat(right).mean())

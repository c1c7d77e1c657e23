"""The zoo's images and the demo's, as models want them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt

CIFAR_MEAN = (125.307, 122.961, 113.8575)
CIFAR_SCALE = (0.0158768, 0.0161050, 0.0149907)


class Preprocessing(Enum):
    """What a zoo model expects of a CIFAR-10 image (the zoo's README, a and b)."""

    NORMALIZED = "(pixel - mean) * scale by colour: resnet20, mobilenetv2, vit"
    PIXELS = "pixels as they are, 0..255: mlperf_resnet8"


@dataclass(frozen=True)
class Images:
    """Preprocessed images, float32 [N, C, H, W], and their labels, int64 [N]."""

    image: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def first(self, count: int) -> Images:
        """Return the first ``count`` images."""
        return Images(self.image[:count], self.labels[:count])


def load_images(
    path: Path, count: int | None = None, preprocessing: Preprocessing = Preprocessing.PIXELS
) -> Images:
    """Read an ``.npz`` file with the keys ``image`` and ``labels``, or its first ``count``."""
    with np.load(path) as arrays:
        image = arrays["image"][:count].astype(np.float32)
        labels = arrays["labels"][:count].astype(np.int64)
    if preprocessing is Preprocessing.NORMALIZED:
        mean, scale = (
            np.array(constants, np.float32).reshape(1, 3, 1, 1)
            for constants in (CIFAR_MEAN, CIFAR_SCALE)
        )
        image = (image - mean) * scale
    return Images(image, labels)

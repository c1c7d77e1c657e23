"""The zoo's models and images, for the benchmarks; see the zoo's README."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from intact.data.preprocess import Preprocess

ZOO = Path(os.environ.get("INTACT_ZOO", Path(__file__).parents[2] / "shared" / "zoo"))

NORMALIZED = Preprocess((125.307, 122.961, 113.8575), (0.0158768, 0.0161050, 0.0149907))
PIXELS = Preprocess()


@dataclass(frozen=True)
class ZooModel:
    """A model of the zoo and how its images are prepared."""

    name: str
    preprocess: Preprocess
    is_cnn: bool = True

    @property
    def path(self) -> Path:
        """Where the model lies."""
        return ZOO / f"{self.name}.onnx"


MODELS = (
    ZooModel("resnet20", NORMALIZED),
    ZooModel("mobilenetv2", NORMALIZED),
    ZooModel("mobilenetv2-raw", NORMALIZED),
    ZooModel("mlperf_resnet8", PIXELS),
    ZooModel("vit", NORMALIZED, is_cnn=False),
)
CALIBRATION = ZOO / "cifar10-calib.npz"
TEST = ZOO / "cifar10-test.npz"


def calibration_images(model: ZooModel, count: int) -> npt.NDArray[np.float32]:
    """Return preprocessed calibration images, [count, 3, 32, 32]."""
    images = np.load(CALIBRATION)["image"][:count]
    return np.asarray(model.preprocess("image", images), np.float32)

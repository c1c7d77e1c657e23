"""The folder in which commands of the documentation are run: a model, its images and arrays.

The model tells the demo's digits apart, and takes them as models of photographs do: three channels,
normalized as for ImageNet.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from PIL import Image

from intact import demo

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
BRIGHTEST = 16
"""A pixel of the demo's images."""


def colour_model() -> onnx.ModelProto:
    """The demo's model behind a convolution from normalized colours to its grey."""
    model = onnx.load(demo.model_path())
    factor = BRIGHTEST / 255 / 3
    weight = (STD * factor).astype(np.float32).reshape(1, 3, 1, 1)
    bias = np.array([MEAN.sum() * factor], np.float32)
    graph = model.graph
    graph.initializer.extend(
        [numpy_helper.from_array(weight, "grey.weight"), numpy_helper.from_array(bias, "grey.bias")]
    )
    for node in graph.node:
        node.input[:] = ["grey" if name == "image" else name for name in node.input]
    node = helper.make_node("Conv", ["image", "grey.weight", "grey.bias"], ["grey"], "grey")
    graph.node.insert(0, node)
    graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    onnx.checker.check_model(model)
    return model


def pixels(path: Path, count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images of the demo, [N, 3, 8, 8] from 0 to 255, and their labels."""
    with np.load(path) as arrays:
        grey = arrays["image"][:count].astype(np.float32) * (255 / BRIGHTEST)
        return np.repeat(grey.round().astype(np.uint8), 3, axis=1), arrays["labels"][:count]


def normalized(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Images as the model takes them, float32 [N, 3, 8, 8]."""
    return (image.astype(np.float32) - MEAN.reshape(3, 1, 1)) / STD.reshape(3, 1, 1)


def prepare(folder: Path, calibration: int = 100, test: int = 200) -> None:
    """Write model, arrays and photographs, with the names that the documentation uses."""
    onnx.save(colour_model(), folder / "model.onnx")
    for source, count, name, photos in (
        (demo.calibration_path(), calibration, "calib.npz", "photos"),
        (demo.test_path(), test, "test.npz", "test-photos"),
    ):
        image, labels = pixels(source, count)
        np.savez(folder / name, image=normalized(image), labels=labels)
        for number, (pixel, label) in enumerate(zip(image, labels, strict=True)):
            place = folder / photos / str(label)
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixel.transpose(1, 2, 0))
            picture.save(place / f"{number}.jpg", quality=95)
            picture.save(folder / "cat.jpg", quality=95)  # the last of them

"""Tiny images on disk, and models that take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from PIL import Image

from intact.graph import Graph, normalize
from tests.models import ModelBuilder

Pixels = npt.NDArray[np.uint8]


def graph_of(*shape: int | str, dtype: int = onnx.TensorProto.FLOAT, name: str = "x") -> Graph:
    """A model with one input for images."""
    b = ModelBuilder()
    b.node("Cast", b.input(name, shape, dtype), to=onnx.TensorProto.FLOAT, out="y")
    b.output("y")
    return normalize(b.build())


def pixels(*shape: int, seed: int = 0) -> Pixels:
    """Random pixels."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, values: npt.ArrayLike, **options: Any) -> Path:
    """Write [rows, columns] or [rows, columns, 3] pixels, in the format of the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values)).save(path, **options)
    return path


def flat(folder: Path, count: int, *, suffix: str = "png") -> list[Path]:
    """Write images of 2x2 equal pixels: image number i has the value i % 256."""
    return [
        save(folder / f"{index:04}.{suffix}", np.full((2, 2, 3), index % 256, np.uint8))
        for index in range(count)
    ]

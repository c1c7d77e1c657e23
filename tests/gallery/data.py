"""Random samples that look like signals: neighbours along the last axes resemble each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Source: TypeAlias = Callable[[int, int], Arrays]

FREE_SIZE = 16  # for every dynamic dimension but the first


def structured(model: onnx.ModelProto) -> Source:
    """Return a function ``(count, seed)`` that draws inputs of variance one for a model."""
    shapes = {
        value.name: tuple(dim.dim_value or FREE_SIZE for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
    }

    def draw(count: int, seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        return {name: _smooth(random, (count, *shape[1:])) for name, shape in shapes.items()}

    return draw


def _smooth(random: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Normal noise, averaged with its neighbours along every axis behind the channels."""
    noise = random.normal(size=shape)
    field = noise.copy()
    for axis in range(2, len(shape)):
        field = field + np.roll(field, 1, axis) + np.roll(field, 2, axis)
    mixed = field / field.std() + 0.3 * noise
    return np.asarray(mixed / mixed.std(), dtype=np.float32)

"""Writes and reads ``scales.npz``: scales and zero points of weights in blocks.

As text they would take several times the bytes of the codes that they belong to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from intact.config import PerBlock, TensorQuantConfig
from intact.errors import ConfigError, PlanError
from intact.graph import Graph
from intact.plan.array_file import Array, Shape, arrays_hash, arrays_to_bytes, load_arrays
from intact.plan.baked_file import constant_shape
from intact.plan.quantized_graph import TensorEnd

_SCALE, _OFFSET = " scale", " offset"
_TYPES = frozenset(np.dtype(name) for name in ("f4", "u1", "i1", "i4"))


def has_block_scales(config: TensorQuantConfig) -> bool:
    """Tell whether the scales of a config are in this file instead of the plan's text."""
    # What shares a scale reads it of its dominator: it is written once.
    is_own = config.dominator is config and config.params is not None
    return isinstance(config.granularity, PerBlock) and is_own


def block_scales(configs: Mapping[TensorEnd, TensorQuantConfig]) -> dict[str, Array]:
    """Return the arrays of the file, by their names; zero points only where one is not 0."""
    found: dict[str, Array] = {}
    for end, config in configs.items():
        params = config.params
        if params is None or not has_block_scales(config):
            continue
        found[f"{end}{_SCALE}"] = params.scale
        if params.lies_between:
            found[f"{end}{_OFFSET}"] = params.zero_point
        elif params.zero_point.any():
            # Millions of zero points: a byte each and not eight.
            least = min(_TYPES - {np.dtype("f4")}, key=lambda each: _fits(params.zero_point, each))
            found[f"{end}{_OFFSET}"] = params.zero_point.astype(least)
    return found


def _fits(numbers: npt.NDArray[np.int64], dtype: np.dtype) -> tuple[bool, int, str]:
    """Order types: those that hold the numbers first, the smallest of them before others."""
    limits = np.iinfo(dtype)
    holds = limits.min <= int(numbers.min()) and int(numbers.max()) <= limits.max
    # By name last: a set has no order, and equal plans give equal files.
    return not holds, dtype.itemsize, dtype.str


def block_scales_to_bytes(configs: Mapping[TensorEnd, TensorQuantConfig]) -> bytes:
    """Encode the file; "" where there is nothing to write."""
    found = block_scales(configs)
    return arrays_to_bytes(found) if found else b""


def block_scales_hash(configs: Mapping[TensorEnd, TensorQuantConfig]) -> str:
    """Compute the SHA-256 of the scales in hexadecimal; "" if there are none."""
    return arrays_hash(block_scales(configs))


def load_block_scales(
    path: Path, graph: Graph, grains: Mapping[str, PerBlock], expected: str
) -> dict[str, tuple[Array, Array]]:
    """Read scales and zero points by the ends of a plan.

    Args:
        path: The file; shapes are compared with the constants before memory is allocated.
        graph: The model.
        grains: The blocks of the plan's ends that have scales of their own.
        expected: The hash that the plan has.

    Raises:
        PlanError: The file is missing, damaged or belongs to another plan.
    """

    def shape_of(name: str) -> Shape:
        end = name.removesuffix(_SCALE).removesuffix(_OFFSET)
        grain = grains.get(end)
        if grain is None:
            raise ValueError(f"{end} has no blocks in the plan")
        shape = constant_shape(graph, TensorEnd.parse(end))
        if grain.axis >= len(shape):
            raise ConfigError(f"{end} has no axis {grain.axis}")
        return grain.scales_shape(shape)

    remedy = "quantize again"
    arrays = load_arrays(path, shape_of, _TYPES, expected, what="scales", remedy=remedy)
    found = dict(_pairs(arrays, grains))
    missing = next((end for end in grains if end not in found), None)
    if missing is not None:
        raise PlanError(f"{path}: has no scales of {missing}", remedy=remedy)
    return found


def _pairs(
    arrays: Mapping[str, Array], grains: Collection[str]
) -> Iterator[tuple[str, tuple[Array, Array]]]:
    for end in grains:
        scale = arrays.get(f"{end}{_SCALE}")
        if scale is not None and scale.dtype == np.float32:
            offset = arrays.get(f"{end}{_OFFSET}", np.zeros(scale.shape, np.int64))
            is_between = offset.dtype.kind == "f"
            yield end, (scale, offset if is_between else offset.astype(np.int64))

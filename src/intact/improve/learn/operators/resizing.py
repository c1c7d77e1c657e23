"""Computes Resize and GridSample in torch: interpolation between pixels.

Every axis is resized by itself: each place of the result is a weighted sum of a few places of the
data. Places and weights are computed in float32 as in ONNX Runtime, whose choice of the nearest
pixel hangs on the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.graph import input_value
from intact.improve.learn.operators.rules import (
    Apply,
    fixed_array,
    nonnegative,
    operator,
)
from intact.ops.operators import GridSample, Resize

_Floats: TypeAlias = npt.NDArray[np.float32]
_f32 = np.float32


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized: lengths before and after, their ratio, the region's ends."""

    size: int
    length: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _half_pixel(axis: _Axis, x: _Floats) -> _Floats:
    return (x + _f32(0.5)) / _f32(axis.scale) - _f32(0.5)


def _pytorch_half_pixel(axis: _Axis, x: _Floats) -> _Floats:
    return _half_pixel(axis, x) if axis.length > 1 else np.zeros_like(x)


def _symmetric(axis: _Axis, x: _Floats) -> _Floats:
    adjustment = _f32(axis.length) / (_f32(axis.scale) * _f32(axis.size))
    offset = np.float64(_f32(axis.size) / _f32(2) * (_f32(1) - adjustment))
    exact = offset + (x.astype(np.float64) + 0.5) / np.float64(_f32(axis.scale)) - 0.5
    return exact.astype(np.float32)  # the only one that the runtime computes in float64


def _align_corners(axis: _Axis, x: _Floats) -> _Floats:
    return x * _f32(axis.size - 1) / _f32(max(axis.length - 1, 1))


def _crop(axis: _Axis, x: _Floats) -> _Floats:
    start, end, last = _f32(axis.start), _f32(axis.end), _f32(axis.size - 1)
    if axis.length > 1:
        return start * last + x * (end - start) * last / _f32(axis.length - 1)
    return np.full_like(x, _f32(0.5) * (start + end) * last)


_CROP = "tf_crop_and_resize"
_COORDINATES: Mapping[str, Callable[[_Axis, _Floats], _Floats]] = MappingProxyType(
    {
        "align_corners": _align_corners,
        "asymmetric": lambda axis, x: x / _f32(axis.scale),
        "half_pixel": _half_pixel,
        "half_pixel_symmetric": _symmetric,
        "pytorch_half_pixel": _pytorch_half_pixel,
        "tf_crop_and_resize": _crop,
        "tf_half_pixel_for_nn": lambda axis, x: (x + _f32(0.5)) / _f32(axis.scale),
    }
)
"""Where a place of the result lies in the data."""

_ROUNDINGS: Mapping[str, Callable[[_Floats], _Floats]] = MappingProxyType(
    {
        "ceil": np.ceil,
        "floor": np.floor,
        "round_prefer_ceil": lambda x: np.floor(x + _f32(0.5)),
        "round_prefer_floor": lambda x: np.ceil(x - _f32(0.5)),
    }
)


@dataclass(frozen=True)
class _Method:
    """The attributes of a Resize."""

    mode: str
    transform: str
    rounding: str
    cubic: float
    excludes: bool
    antialias: bool

    def taps(self, axis: _Axis) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return for each place of the result some places of the data and weights of them."""
        x = _COORDINATES[self.transform](axis, np.arange(axis.length, dtype=np.float32))
        last = axis.size - 1
        if self.mode == "nearest":
            nearest = np.clip(_ROUNDINGS[self.rounding](x), 0, last)
            return nearest.astype(np.int64)[:, None], np.ones((axis.length, 1))
        if self.antialias and axis.scale < 1:
            places, weights = self._spread(axis, x)
        elif self.mode == "linear":
            x = np.clip(x, _f32(0), _f32(last))
            places = np.floor(x).astype(np.int64)[:, None] + np.arange(2)
            weights = _triangle(x[:, None] - places)
        else:
            places = np.floor(x).astype(np.int64)[:, None] + np.arange(-1, 3)
            weights = _cubic(x[:, None] - places, self.cubic)
        if self.excludes:
            weights = np.where((places < 0) | (places > last), 0, weights)
        # Places beyond the edge are the edge's; weights that are left out must not darken it.
        return np.clip(places, 0, last), weights / weights.sum(1, keepdims=True)

    def _spread(
        self, axis: _Axis, x: _Floats
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return what lies under a filter that is as wide as a step of the result."""
        reach = (1 if self.mode == "linear" else 2) / axis.scale
        first = np.floor(x.astype(np.float64) - reach).astype(np.int64)
        places = first[:, None] + np.arange(2 * math.ceil(reach) + 2)
        distances = (x[:, None].astype(np.float64) - places) * axis.scale
        linear = self.mode == "linear"
        return places, _triangle(distances) if linear else _cubic(distances, self.cubic)

    def outside(self, axis: _Axis) -> npt.NDArray[np.bool_]:
        """Tell which places of the result lie outside the data, where a region was chosen."""
        x = _COORDINATES[self.transform](axis, np.arange(axis.length, dtype=np.float32))
        return (x < 0) | (x > axis.size - 1)


def _triangle(distance: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.maximum(1 - np.abs(distance.astype(np.float64)), 0)
    return weights


def _cubic(distance: npt.NDArray[np.floating], a: float) -> npt.NDArray[np.float64]:
    """Compute Keys' cubic convolution."""
    d = np.abs(distance.astype(np.float64))
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0))


@operator("Resize")
def resize(node: ir.Node) -> Apply:
    """Resize axes by factors or to lengths."""
    method = _method(node)
    options = Resize.of(node)
    fill, policy = options.extrapolation_value, options.keep_aspect_ratio_policy
    chosen = options.axes or None
    fixed = {slot: _numbers(fixed_array(node, slot)) for slot in (1, 2, 3)}
    is_given = {slot: input_value(node, slot) is not None for slot in fixed}
    # Compilers do not know float32 numbers of numpy. To say so imports them, which takes seconds:
    # only models that resize wait for it.
    axes_of, taps, outside = (
        torch.compiler.disable(each)
        for each in (_axes, lru_cache(64)(method.taps), lru_cache(64)(method.outside))
    )

    def read(slot: int, given: Tensor | None) -> list[float] | None:
        if fixed[slot] is not None or given is None or not is_given[slot]:
            return fixed[slot]
        return given.detach().reshape(-1).tolist() or None

    def apply(
        x: Tensor,
        region: Tensor | None = None,
        scales: Tensor | None = None,
        sizes: Tensor | None = None,
    ) -> Tensor:
        axes = [nonnegative(k, x.ndim) for k in (range(x.ndim) if chosen is None else chosen)]
        lengths = [x.shape[axis] for axis in axes]
        found = axes_of(lengths, read(2, scales), read(3, sizes), policy)
        roi = read(1, region) if method.transform == _CROP else None
        if roi is not None:
            ends = zip(found, roi, roi[len(axes) :], strict=False)
            found = [replace(how, start=start, end=end) for how, start, end in ends]
        for axis, how in zip(axes, found, strict=True):
            if how.scale == 1:  # whatever the region
                continue
            x = _interpolate(x, axis, *taps(how))
            if roi is not None:
                mask = torch.as_tensor(outside(how), device=x.device)
                x = x.masked_fill(mask.reshape(-1, *(1,) * (x.ndim - axis - 1)), fill)
        return x

    return apply


def _numbers(array: np.ndarray | None) -> list[float] | None:
    return None if array is None or not array.size else array.reshape(-1).tolist()


def _method(node: ir.Node) -> _Method:
    """Read the attributes.

    Raises:
        Unsupported: One has a value that ONNX does not have.
    """
    options = Resize.of(node)
    method = _Method(
        options.mode,
        options.coordinate_transformation_mode,
        options.nearest_mode,
        options.cubic_coeff_a,
        bool(options.exclude_outside),
        bool(options.antialias),
    )
    known = (
        (method.mode, {"nearest", "linear", "cubic"}),
        (method.transform, _COORDINATES),
        (method.rounding, _ROUNDINGS),
    )
    for word, words in known:
        if word not in words:
            raise Unsupported(f"training does not resize with {word!r}")
    return method


def _axes(
    sizes: list[int], scales: list[float] | None, wanted: list[float] | None, policy: str
) -> list[_Axis]:
    """Return how axes are resized by factors, or to lengths that may keep the ratio of sides."""
    if wanted is None:
        scales = scales or [1.0] * len(sizes)
        return [
            # In float32 like the runtime: in float64 a length could be one less.
            _Axis(size, int(_f32(scale) * _f32(size)), scale)
            for size, scale in zip(sizes, scales, strict=True)
        ]
    ratios = [float(_f32(w) / _f32(size)) for w, size in zip(wanted, sizes, strict=True)]
    if policy == "stretch":
        return [_Axis(s, int(w), r) for s, w, r in zip(sizes, wanted, ratios, strict=True)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [_Axis(size, math.floor(ratio * size + 0.5), ratio) for size in sizes]


def _interpolate(
    x: Tensor, axis: int, places: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]
) -> Tensor:
    """Return weighted sums of slices along an axis: ``places`` and ``weights`` ``[length, K]``."""
    index = torch.as_tensor(places, device=x.device)
    # One place has the weight 1: no product that could round.
    if places.shape[1] == 1:
        return x.index_select(axis, index[:, 0])
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    factors = torch.as_tensor(weights, device=x.device).to(dtype)
    factors = factors.reshape(*factors.shape, *(1,) * (x.ndim - axis - 1))
    total = x.index_select(axis, index[:, 0]) * factors[:, 0]
    for k in range(1, places.shape[1]):
        total = total + x.index_select(axis, index[:, k]) * factors[:, k]
    return total.to(x.dtype)


_SAMPLING = {"linear": "bilinear", "cubic": "bicubic"}
"""Names of torch for modes of GridSample since opset 20; older ones are torch's."""


@operator("GridSample")
def grid_sample(node: ir.Node) -> Apply:
    """Take pixels at places of a grid."""
    options = GridSample.of(node)
    name, aligned = _SAMPLING.get(options.mode, options.mode), bool(options.align_corners)
    return lambda x, grid: F.grid_sample(x, grid, name, options.padding_mode, aligned)

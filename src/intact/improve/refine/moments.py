"""Second moments of what a layer multiplies its weights by, in float and quantized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.improve.layers import Doubles, Layer
from intact.program.lower.attributes import integers, window_pads

Array: TypeAlias = npt.NDArray[Any]

_MOST_ROWS = 4096
"""Products with the weights that are counted of one batch; more of them say nothing new."""


@dataclass
class Moments:
    """Sums over the inputs that meet a layer's weights, in float (x) and quantized (z).

    Sums of two sets of samples add up to those of both.

    Attributes:
        count: Of how many products.
        x: Sum of x, ``[groups, inputs * taps]``.
        z: Sum of z.
        xx: Sum of x by x, ``[groups, inputs * taps, inputs * taps]``.
        xz: Sum of x by z.
        zz: Sum of z by z.
    """

    count: int
    x: Doubles
    z: Doubles
    xx: Doubles
    xz: Doubles
    zz: Doubles

    @staticmethod
    def of(layer: Layer, batches: Iterable[tuple[Array, Array]]) -> Moments:
        """Count batches of the layer's input, in float and quantized.

        Raises:
            Unsupported: The windows of the layer are not known.
        """
        groups, _, inputs, taps = layer.view(layer.weight).shape
        wide = inputs * taps
        sums, squares = ((groups, wide), 2), ((groups, wide, wide), 3)
        x_sum, z_sum, *rest = (np.zeros(shape) for shape, n in (sums, squares) for _ in range(n))
        found = Moments(0, x_sum, z_sum, *rest)
        for in_float, quantized in batches:
            x, z = (multiplied(layer, array) for array in (in_float, quantized))
            found.count += x.shape[2]
            found.x += x.sum(axis=2, dtype=np.float64)
            found.z += z.sum(axis=2, dtype=np.float64)
            turned = z.transpose(0, 2, 1)
            with np.errstate(over="ignore", invalid="ignore"):
                found.xx += x @ x.transpose(0, 2, 1)
                found.xz += x @ turned
                found.zz += z @ turned
        return found

    def __add__(self, other: Moments) -> Moments:
        """Return the sums over both sets of samples."""
        mine, others = vars(self).values(), vars(other).values()
        return Moments(*(a + b for a, b in zip(mine, others, strict=True)))

    def is_finite(self) -> bool:
        """Tell whether no sum is infinite or none at all."""
        return all(np.isfinite(each).all() for each in (self.xx, self.xz, self.zz))

    def means(self, *, centred: bool) -> tuple[Doubles, Doubles, Doubles]:
        """Return the means of x by x, x by z and z by z; centred, without those of x and z."""
        count = max(self.count, 1)
        found = self.xx / count, self.xz / count, self.zz / count
        if not centred:
            return found
        x, z = self.x / count, self.z / count
        pairs = (x, x), (x, z), (z, z)
        xx, xz, zz = (
            mean - a[:, :, None] * b[:, None, :] for mean, (a, b) in zip(found, pairs, strict=True)
        )
        return xx, xz, zz


def multiplied(layer: Layer, array: Array) -> npt.NDArray[np.float32]:
    """Return what a layer multiplies its weights by.

    Args:
        layer: A Conv, Gemm or MatMul.
        array: Its input, ``[samples, channels, *positions]`` or ``[..., channels]``.

    Returns:
        ``[groups, inputs * taps, products]``, in the order of `Layer.view`. Of many positions some
        lines are left out, the same in every call.

    Raises:
        Unsupported: It is another operator, or pads are not known.
    """
    array = np.asarray(array, np.float32)
    if layer.is_dense:
        rows = array.reshape(-1, array.shape[-1])
        step = max(len(rows) // _MOST_ROWS, 1)
        return np.ascontiguousarray(rows[::step].T)[None]
    if layer.node.op_type != "Conv":
        raise Unsupported(f"inputs of {layer.node.op_type} are not laid out")
    kernel = layer.weight.shape[2:]
    ones = (1,) * len(kernel)
    strides = integers(layer.node, "strides") or ones
    dilations = integers(layer.node, "dilations") or ones
    pads = window_pads(layer.node, array.shape, kernel, strides, dilations)
    padded = np.pad(array, ((0, 0), (0, 0), *pads))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    axes = tuple(range(2, array.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
    every = tuple(slice(None, None, step) for step in (*strides, *dilations))
    windows = windows[(slice(None), slice(None), *every)]
    rank = len(kernel)
    samples, channels, *positions = windows.shape[: 2 + rank]
    step = max(samples * int(np.prod(positions)) // _MOST_ROWS, 1)
    windows = windows[:, :, :: min(step, positions[0])]
    order = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    groups = layer.groups
    inputs = channels // groups * int(np.prod(kernel))
    return np.ascontiguousarray(windows.transpose(order)).reshape(groups, inputs, -1)

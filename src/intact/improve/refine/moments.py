"""Sums the second moments of a layer's inputs, in float and quantized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from numpy.lib.stride_tricks import sliding_window_view

from intact.errors import Unsupported
from intact.improve.layers import Doubles, Layer
from intact.ops.operators import Conv, is_a
from intact.plan import QuantPoint
from intact.program.lower.attributes import integers, window_pads

Array: TypeAlias = npt.NDArray[Any]

_ROWS_PER_INPUT = 32
"""Products that are counted for each weight of an output: many more than weights to be found."""
_FEWEST_ROWS = 16384
"""As many are counted at least: they cost little where an output has few weights."""


@dataclass
class LastMoments:
    """Moments of the input that was counted last: layers that read one tensor share them."""

    _key: tuple[object, ...] = ()
    _found: tuple[Moments, Moments] | None = None

    def of(
        self,
        layer: Layer,
        end: QuantPoint | None,
        pairs: Sequence[tuple[Array, Array]],
        *,
        of_float: bool = True,
    ) -> tuple[Moments, Moments]:
        """Return moments of every other batch, and of those between.

        Args:
            layer: The layer.
            end: Where its own input is quantized; None where the producer's result is.
            pairs: Batches of its input, in float and quantized.
            of_float: See `Moments.of`.

        Raises:
            Unsupported: The windows of the layer are not known.
        """
        node = layer.node
        geometry = (
            layer.is_dense or node.op_type,
            layer.groups,
            layer.inputs,
            () if layer.is_dense else layer.weight.shape[2:],
            *(() if layer.is_dense else (integers(node, name) for name in _GEOMETRY)),
            node.attributes.get_string("auto_pad"),
        )
        key = (node.inputs[0], end, of_float, *geometry)
        # Only of the last layer: queries, keys and values follow one another, and moments are
        # large.
        if self._found is None or key != self._key:
            count = partial(Moments.of, layer, of_float=of_float)
            # Each by a thread: a product of matrices is one thread's work.
            with ThreadPoolExecutor(2) as pool:
                fit, held_out = pool.map(count, (pairs[::2], pairs[1::2]))
            self._found, self._key = (fit, held_out), key
        return self._found


_GEOMETRY = ("strides", "dilations", "pads", "output_padding", "output_shape")


@dataclass
class Moments:
    """Sums over the inputs that meet a layer's weights, in float (x) and quantized (z).

    Sums of two sets of samples add up to those of both.

    Attributes:
        count: How many products are summed.
        x: Sum of x, ``[groups, inputs * taps]``.
        z: Sum of z.
        xx: Sum of x by x, ``[groups, inputs * taps, inputs * taps]``; None where it is left out.
        xz: Sum of x by z.
        zz: Sum of z by z.
    """

    count: int
    x: Doubles
    z: Doubles
    xx: Doubles | None
    xz: Doubles
    zz: Doubles

    @staticmethod
    def of(
        layer: Layer, batches: Sequence[tuple[Array, Array]], *, of_float: bool = True
    ) -> Moments:
        """Count batches of the layer's input, in float and quantized.

        Args:
            layer: The layer.
            batches: Its input.
            of_float: Whether x by x is summed, which only a judge of results needs.

        Raises:
            Unsupported: The windows of the layer are not known.
        """
        groups, _, inputs, taps = layer.view(layer.weight).shape
        wide = inputs * taps
        x_sum, z_sum = np.zeros((2, groups, wide))
        cross, moments = np.zeros((2, groups, wide, wide))
        own = np.zeros_like(cross) if of_float else None
        found = Moments(0, x_sum, z_sum, own, cross, moments)
        rows = max(_ROWS_PER_INPUT * wide, _FEWEST_ROWS) // max(len(batches), 1) + 1
        for in_float, quantized in batches:
            x, z = (unfold_inputs(layer, array, rows) for array in (in_float, quantized))
            found.count += x.shape[2]
            # In float64: a float32 that has summed many values takes no small one any more.
            found.x += x.sum(axis=2, dtype=np.float64)
            found.z += z.sum(axis=2, dtype=np.float64)
            turned = z.transpose(0, 2, 1)
            # Whoever reads the sums asks `is_finite`.
            with np.errstate(over="ignore", invalid="ignore"):
                if own is not None:
                    own += x @ x.transpose(0, 2, 1)
                found.xz += x @ turned
                found.zz += z @ turned
        return found

    def __add__(self, other: Moments) -> Moments:
        """Return the sums over both sets of samples."""
        xx = None if self.xx is None or other.xx is None else self.xx + other.xx
        sums = self.x + other.x, self.z + other.z, xx, self.xz + other.xz, self.zz + other.zz
        return Moments(self.count + other.count, *sums)

    def is_finite(self) -> bool:
        """Tell whether no sum is infinite or none at all."""
        counted = (each for each in (self.xx, self.xz, self.zz) if each is not None)
        return all(np.isfinite(each).all() for each in counted)

    def of_quantized(self) -> tuple[Doubles, Doubles]:
        """Return the means of x by z and z by z."""
        count = max(self.count, 1)
        return self.xz / count, self.zz / count

    def means(self, *, centred: bool) -> tuple[Doubles, Doubles, Doubles]:
        """Return the means of x by x, x by z and z by z; centred, without those of x and z.

        Raises:
            ValueError: x by x was left out.
        """
        if self.xx is None:
            raise ValueError("x by x was left out")
        count = max(self.count, 1)
        found = self.xx / count, *self.of_quantized()
        if not centred:
            return found
        x, z = self.x / count, self.z / count
        pairs = (x, x), (x, z), (z, z)
        xx, xz, zz = (
            mean - a[:, :, None] * b[:, None, :] for mean, (a, b) in zip(found, pairs, strict=True)
        )
        return xx, xz, zz


def unfold_inputs(layer: Layer, array: Array, rows: int | None = None) -> npt.NDArray[np.float32]:
    """Return what a layer multiplies its weights by.

    Args:
        layer: Its weights are constant.
        array: Its input, ``[samples, channels, *positions]`` or ``[..., channels]``.
        rows: About how many products are wanted; None for all.

    Returns:
        ``[groups, inputs * taps, products]``, in the order of `Layer.view`. Which positions are
        left out, if there are more than wanted, is the same in every call.

    Raises:
        Unsupported: Pads are not known.
    """
    array = np.asarray(array, np.float32)
    if layer.is_dense:
        lines = array.reshape(-1, array.shape[-1])
        step = 1 if rows is None else max(len(lines) // rows, 1)
        # From the middle of a step, so that the first position is not always among them.
        return np.ascontiguousarray(lines[step // 2 :: step].T)[None]
    windows = _windows(layer, array)
    rank = array.ndim - 2
    samples, channels, *positions = windows.shape[: 2 + rank]
    steps = _steps(samples, positions, rows)
    windows = windows[(slice(None), slice(None), *(slice(k // 2, None, k) for k in steps))]
    order = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    groups = layer.groups
    inputs = channels // groups * int(np.prod(layer.weight.shape[2:]))
    return np.ascontiguousarray(windows.transpose(order)).reshape(groups, inputs, -1)


def _steps(samples: int, positions: Sequence[int], rows: int | None) -> list[int]:
    """Return the distance of the positions that are counted, along each axis."""
    steps = [1] * len(positions)
    if rows is None:
        return steps
    left = samples * math.prod(positions) / rows
    for axis in range(len(positions)):
        step = math.floor(left ** (1 / (len(positions) - axis)))
        steps[axis] = max(min(step, positions[axis]), 1)
        # What one axis cannot leave out, the next ones do.
        left /= steps[axis]
    return steps


def _windows(layer: Layer, array: Array) -> Array:
    """Return a view of the windows of a convolution: ``[samples, channels, *positions, *taps]``.

    A transposed convolution is one of the input with zeros between its values, whose taps are in
    the opposite order.
    """
    node, kernel = layer.node, layer.weight.shape[2:]
    ones = (1,) * len(kernel)
    strides = integers(node, "strides") or ones
    dilations = integers(node, "dilations") or ones
    axes = tuple(range(2, array.ndim))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    if is_a(node, Conv):
        pads = window_pads(node, array.shape, kernel, strides, dilations)
        windows = sliding_window_view(np.pad(array, ((0, 0), (0, 0), *pads)), reach, axes)
        every = tuple(slice(None, None, step) for step in (*strides, *dilations))
        return windows[(slice(None), slice(None), *every)]
    windows = sliding_window_view(_spread(node, array, reach, strides), reach, axes)
    turned = tuple(slice(None, None, -step) for step in dilations)
    return windows[(slice(None),) * array.ndim + turned]


def _spread(node: ir.Node, array: Array, reach: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Put zeros between and around the input of a transposed convolution."""
    mode = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    if mode not in ("NOTSET", "VALID") or integers(node, "output_shape"):
        raise Unsupported("the pads of a transposed convolution are not known")
    sizes = ((n - 1) * step + 1 for n, step in zip(array.shape[2:], strides, strict=True))
    spread = np.zeros((*array.shape[:2], *sizes), np.float32)
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in strides))] = array
    pads = window_pads(node, array.shape, reach, strides, (1,) * len(reach))
    added = integers(node, "output_padding") or (0,) * len(reach)
    around = [
        (r - 1 - before, r - 1 - behind + more)
        for r, (before, behind), more in zip(reach, pads, added, strict=True)
    ]
    wide = np.pad(spread, ((0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in around)))
    # Pads of a transposed convolution may cut more than a kernel reaches.
    inner = (slice(max(-a, 0), min(b, 0) or None) for a, b in around)
    return wide[(slice(None), slice(None), *inner)]

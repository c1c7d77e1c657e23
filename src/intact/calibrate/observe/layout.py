"""How many samples are run at once, and where each tensor holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.data.signature import InputSpec, input_specs
from intact.graph import Graph


@dataclass(frozen=True)
class Observed:
    """The tensors of one batch, one after the other in one array.

    Attributes:
        values: float32, flat.
        starts: Where each tensor begins, in the observer's order.
        elements: Elements of one sample of each tensor.
        samples: Real samples; a tensor holds ``samples * elements`` values.
        shapes: Shape of one sample of each tensor.
    """

    values: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    elements: npt.NDArray[np.int64]
    samples: int
    shapes: tuple[Shape, ...]


Shape = tuple[int, ...]
Run = Callable[[dict[str, npt.NDArray[Any]], Sequence[str]], Sequence[npt.NDArray[Any]]]
"""Runs the model on a batch and returns the tensors of these names."""

_LARGEST_BATCH = 32
_BATCH_ELEMENTS = 1 << 20  # 4 MiB of activations a thread: they are counted from the cache


@dataclass(frozen=True)
class BatchLayout:
    """The internal batches of one model and a set of observed tensors.

    Attributes:
        batch_size: Samples of a batch; it follows from the model and the tensors alone.
        axes: For each tensor the axis along which it holds the samples, None where it is the
            same for a whole batch.
        shapes: For each tensor its shape in a batch; None where shapes depend on the samples, or
            the model fixes the batch.
    """

    batch_size: int
    axes: Mapping[str, int | None]
    shapes: Mapping[str, Shape] | None = None

    def sample_axis(self, name: str, shape: Shape) -> int | None:
        """Return the axis along which a tensor of this shape holds the samples.

        None where it is not a whole number of slices for each of them (sequences along axis 0,
        in a model that fixes the batch but not their length): such a tensor counts as the same
        for the whole batch, so that nothing of it is lost.
        """
        axis = self.axes[name]
        if axis is None or not shape or shape[axis] % self.batch_size:
            return None
        return axis

    def sample_shape(self, name: str, shape: Shape) -> Shape:
        """Return the shape of one sample of a tensor: what it holds of it along the sample axis
        (if more than one slice), then the other axes.

        Args:
            name: The tensor.
            shape: Its shape in a batch.
        """
        axis = self.sample_axis(name, shape)
        if axis is None:
            return shape
        each = shape[axis] // self.batch_size
        return (each,) * (each != 1) + shape[:axis] + shape[axis + 1 :]


def find_layout(graph: Graph, tensors: Sequence[str], run: Run) -> BatchLayout:
    """Return the layout for observing these tensors.

    Args:
        graph: The float model.
        tensors: Names of the values to observe; inputs of the model too.
        run: Used where shape inference does not tell: on one and two samples of zeros.
    """
    specs = input_specs(graph)
    computed = [name for name in tensors if name not in specs]
    axes: dict[str, int | None] = dict.fromkeys(tensors, 0)
    fixed = {spec.fixed_batch for spec in specs.values()}
    is_ragged = any(None in spec.shape[1:] for spec in specs.values())
    if fixed != {None} or is_ragged:
        size = max((batch for batch in fixed if batch is not None), default=1)
        if not is_ragged and size > 1:
            shapes = _shapes_at(size, specs, computed, run)
            axes |= {n: 0 if s and s[0] % size == 0 else None for n, s in shapes.items()}
        return BatchLayout(size, axes)
    found = _inferred(graph, computed) or _measured(specs, computed, run)
    elements = sum(math.prod(shape) for shape, _ in found.values())
    size = _LARGEST_BATCH
    while size > 1 and size * elements > _BATCH_ELEMENTS:
        size //= 2
    axes |= {name: axis for name, (_, axis) in found.items()}
    batch_shapes: dict[str, Shape] = {}
    for name in tensors:
        if name in found:
            shape, axis = found[name]
            batch_shapes[name] = tuple(n * size if k == axis else n for k, n in enumerate(shape))
        else:
            batch_shapes[name] = (size, *(n or 1 for n in specs[name].shape[1:]))
    return BatchLayout(size, axes, batch_shapes)


def _inferred(graph: Graph, computed: Sequence[str]) -> dict[str, tuple[Shape, int | None]]:
    """Return shape of one sample and sample axis by shape inference; empty if not all known."""
    batches = {next(iter(value.shape or (None,))) for value in graph.inputs}
    found: dict[str, tuple[Shape, int | None]] = {}
    for name in computed:
        dims = list(graph.value(name).shape or (None,))
        axes = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int)]
        if len(axes) != 1 or len(batches) != 1 or dims[axes[0]] not in batches:
            return {}
        shape = tuple(dim if isinstance(dim, int) else 1 for dim in dims)
        found[name] = shape, axes[0]
    return found


def _measured(
    specs: Mapping[str, InputSpec], computed: Sequence[str], run: Run
) -> dict[str, tuple[Shape, int | None]]:
    """Return the same by running the model on one and on two samples of zeros."""
    one, two = (_shapes_at(size, specs, computed, run) for size in (1, 2))
    return {name: (one[name], _changed_axis(one[name], two[name])) for name in computed}


def _shapes_at(
    size: int, specs: Mapping[str, InputSpec], computed: Sequence[str], run: Run
) -> dict[str, Shape]:
    if not computed:
        return {}
    zeros = {
        name: np.zeros((size, *(dim or 1 for dim in spec.shape[1:])), spec.dtype)
        for name, spec in specs.items()
    }
    return {n: array.shape for n, array in zip(computed, run(zeros, computed), strict=True)}


def _changed_axis(one: Shape, two: Shape) -> int | None:
    changed = [axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    return changed[0] if changed else None

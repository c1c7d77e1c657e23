"""Runs the float model with all observed tensors as outputs, in batches of one size."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from intact.data.batching import Batch
from intact.data.signature import InputSpec, input_specs
from intact.engines.session import make_session, model_of_outputs, run_bound, run_session
from intact.errors import CalibrationError
from intact.graph import Graph
from intact.limits import OBSERVED_AT_ONCE


class Observed(msgspec.Struct, frozen=True):
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

_BATCH_ELEMENTS = 1 << 20

_GATHERED_ELEMENTS = 1 << 23
"""Elements that are gathered before they are counted, 32 MiB a thread, where there are several
batches in it: the tables of a tensor, some 50 KiB, then come into the cache for many elements.
Measured on 64 tensors of a MobileNetV2 beside other programs: 2.4 ns an element for each batch of
2 samples alone, 1.6 for 4 batches, 1.4 for 8, 1.25 for 16."""

_MOST_GATHERED = 8
"""Batches of them."""


class BatchLayout(msgspec.Struct, frozen=True):
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
        if axis is None or axis >= len(shape) or shape[axis] % self.batch_size:
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


def find_layout(
    graph: Graph, tensors: Sequence[str], run: Run, *, takes_feeds: bool = False
) -> BatchLayout:
    """Return the layout for observing these tensors.

    Args:
        graph: The float model.
        tensors: Names of the values to observe; inputs of the model too.
        run: Used where shape inference does not tell: on one and two samples of zeros.
        takes_feeds: Each sample is a batch of its own, in which no axis is that of samples.
    """
    if takes_feeds:
        return BatchLayout(1, dict.fromkeys(tensors))
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
    found = _infer_shapes(graph, computed) or _measure_shapes(specs, computed, run)
    elements = sum(math.prod(shape) for shape, _ in found.values())
    size = OBSERVED_AT_ONCE
    # Halved, so that every size divides the largest: 32 MiB of activations at most, and more
    # samples where they are small.
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


def _infer_shapes(graph: Graph, computed: Sequence[str]) -> dict[str, tuple[Shape, int | None]]:
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


def _measure_shapes(
    specs: Mapping[str, InputSpec], computed: Sequence[str], run: Run
) -> dict[str, tuple[Shape, int | None]]:
    """Return the same by running the model on one and on two samples of zeros."""
    one, two = (_shapes_at(size, specs, computed, run) for size in (1, 2))
    for name in computed:
        if len(one[name]) != len(two[name]):
            raise CalibrationError(
                f"tensor {name!r} has the shape {list(one[name])} for one sample and "
                f"{list(two[name])} for two",
                remedy="name the axes of the Squeeze before it, and export the model again",
            )
    return {name: (one[name], _batch_axis(one[name], two[name])) for name in computed}


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


def _batch_axis(one: Shape, two: Shape) -> int | None:
    changed = [axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    return changed[0] if changed else None


class Observer:
    """Runs the float model on batches of one fixed size and reads chosen tensors.

    The size is fixed because a runtime's floats can change with it; it follows from the model
    alone. Each run uses one thread, so that floats do not depend on their number either; several
    threads run batches side by side, which also keeps cores busier than splitting small
    operators. Along which axis a tensor holds the samples is known from shape inference, or else
    found by running one and two samples of zeros.

    Args:
        graph: The float model.
        tensors: Names of the values to read.
        session: Has the computed ones as outputs; made if it is not given.
        layout: Where the tensors lie in the batches; found if it is not given.
        takes_feeds: Each sample is a batch of its own, in which no axis is that of samples.
        gathers: Whether `add` gathers batches, for which there is memory.

    Raises:
        CalibrationError: The graph has no such value.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Sequence[str],
        *,
        session: ort.InferenceSession | None = None,
        layout: BatchLayout | None = None,
        takes_feeds: bool = False,
        gathers: bool = True,
    ) -> None:
        self.tensors = tuple(tensors)
        self._gathers = gathers
        inputs = {str(value.name) for value in graph.inputs}
        self._computed = tuple(name for name in self.tensors if name not in inputs)
        # Inputs are observed without a run, and a session has copies of all weights.
        if session is None and self._computed:
            session = make_session(model_of_outputs(graph, self._computed), threads=1)
        self._session = session
        self.layout = layout or find_layout(
            graph, self.tensors, self._computes, takes_feeds=takes_feeds
        )
        # An arena for each thread: bound outputs are written while another thread counts its own.
        self._local = threading.local()

    @property
    def batch_size(self) -> int:
        """The samples of a batch."""
        return self.layout.batch_size

    def run(self, batch: Batch, count: int) -> Observed:
        """Run one batch.

        Args:
            batch: Inputs with ``batch_size`` samples.
            count: How many of them are real; the padding is dropped.

        Returns:
            What was observed, good until the calling thread's next run.
        """
        arena = self._arena()
        if arena is not None:
            return arena.run(batch, count)
        arrays = self._computes(batch, self._computed)
        found = batch | dict(zip(self._computed, arrays, strict=True))
        axes = {name: self.layout.sample_axis(name, found[name].shape) for name in self.tensors}
        rows = [_rows(found[name], axes[name], self.batch_size, count) for name in self.tensors]
        sizes = np.array([row.size for row in rows], np.int64)
        values = np.concatenate([row.ravel() for row in rows])
        shapes = tuple(self.layout.sample_shape(n, found[n].shape) for n in self.tensors)
        return Observed(values, np.cumsum(sizes) - sizes, sizes // count, count, shapes)

    def _computes(self, batch: Batch, names: Sequence[str]) -> list[npt.NDArray[Any]]:
        return run_session(self._session, batch, names) if self._session and names else []

    def add(self, batch: Batch, count: int) -> Observed | None:
        """Run one batch and gather what is observed, in the calling thread.

        Args:
            batch: Inputs with ``batch_size`` samples.
            count: How many of them are real.

        Returns:
            What was gathered, if there is no room for another batch or this one has padding; good
            until the calling thread's next run.
        """
        arena = self._arena()
        return self.run(batch, count) if arena is None else arena.add(batch, count)

    def rest(self) -> Observed | None:
        """Return what the calling thread has gathered and not returned."""
        arena: _Arena | None = getattr(self._local, "arena", None)
        return None if arena is None else arena.take()

    def _arena(self) -> _Arena | None:
        """Return the calling thread's arena; None where shapes depend on the samples."""
        if self.layout.shapes is None:
            return None
        if not hasattr(self._local, "arena"):
            try:
                self._local.arena = _Arena(
                    self._session,
                    self._computed,
                    self.tensors,
                    self.layout,
                    self.layout.shapes,
                    _MOST_GATHERED if self._gathers else 1,
                )
            except ValueError as error:  # more than there are addresses, or not what is computed
                raise CalibrationError(
                    f"the sizes of the model's tensors contradict each other: {error}",
                    remedy="export the model again, with the size of its real input",
                ) from error
            except MemoryError as error:
                raise CalibrationError(
                    f"the activations of one batch do not fit into memory: {error}"
                ) from error
        arena: _Arena = self._local.arena
        return arena


class _Arena:
    """One thread's tensors, side by side in one array, each with room for some batches.

    The session writes there directly, bound once for each batch, where samples are along axis 0;
    the rest (the model's own inputs, other axes) is copied in.
    """

    def __init__(
        self,
        session: ort.InferenceSession | None,
        computed: Sequence[str],
        tensors: Sequence[str],
        layout: BatchLayout,
        batch_shapes: Mapping[str, Shape],
        most: int,
    ) -> None:
        axes, batch_size = layout.axes, layout.batch_size
        self._session, self._axes, self._batch_size = session, axes, batch_size
        shapes = {name: batch_shapes[name] for name in tensors}
        self._shapes = tuple(layout.sample_shape(name, shape) for name, shape in shapes.items())
        sizes = np.array([int(np.prod(shape)) for shape in shapes.values()], np.int64)
        # What is the same for the whole batch is counted once for each sample.
        repeats = np.array([batch_size if axes[n] is None else 1 for n in shapes], np.int64)
        self._room = room = sizes * repeats  # of one batch
        self._batches = max(1, min(most, _GATHERED_ELEMENTS // max(int(room.sum()), 1)))
        self._elements = room // batch_size
        self._starts = (np.cumsum(room) - room) * self._batches
        self._values = np.empty(int(room.sum()) * self._batches, np.float32)
        self._samples = self._slot = 0  # that are gathered: samples, and batches
        self._copied = [
            (name, position)
            for position, name in enumerate(shapes)
            if name not in computed or axes[name] != 0
        ]
        copied = {name for name, _ in self._copied}
        self._buffers = {n: np.empty(shapes[n], np.float32) for n in copied & set(computed)}
        self._bindings = []
        if session is None or not computed:
            return
        for slot in range(self._batches):
            binding = session.io_binding()
            for position, (name, shape) in enumerate(shapes.items()):
                if name not in computed:
                    continue
                start = int(self._starts[position] + slot * room[position])
                place = self._values[start : start + int(sizes[position])].reshape(shape)
                # The session writes into the place where it is counted: no copy of what are most of
                # the bytes.
                address = self._buffers.get(name, place).ctypes.data
                binding.bind_output(name, "cpu", 0, np.float32, shape, address)
            self._bindings.append(binding)

    def run(self, batch: Batch, count: int) -> Observed:
        """Run a batch and return its ``count`` real samples."""
        self._slot = self._samples = 0
        self._fill(batch, count)
        return self._observe()

    def add(self, batch: Batch, count: int) -> Observed | None:
        """Run a batch; return what is gathered where no other can follow."""
        self._fill(batch, count)
        is_last = self._slot == self._batches or count < self._batch_size
        return self.take() if is_last else None

    def take(self) -> Observed | None:
        """Return what is gathered, and gather anew."""
        return self._observe() if self._slot else None

    def _observe(self) -> Observed:
        samples, self._slot, self._samples = self._samples, 0, 0
        return Observed(self._values, self._starts, self._elements, samples, self._shapes)

    def _fill(self, batch: Batch, count: int) -> None:
        slot = self._slot
        if self._session is not None and self._bindings:
            binding = self._bindings[slot]
            for name, array in batch.items():
                binding.bind_cpu_input(name, array)
            run_bound(self._session, binding)
        for name, position in self._copied:
            array = self._buffers[name] if name in self._buffers else batch[name]
            rows = _rows(array, self._axes[name], self._batch_size, count).ravel()
            start = self._starts[position] + slot * self._room[position]
            self._values[start : start + rows.size] = rows
        self._slot += 1
        self._samples += count


def _rows(
    array: npt.NDArray[Any], axis: int | None, batch_size: int, count: int
) -> npt.NDArray[np.float32]:
    """Return the real samples of a tensor, [count, elements]."""
    array = array.astype(np.float32, copy=False)
    if axis is None or not array.ndim:
        return np.broadcast_to(array.reshape(1, -1), (count, array.size))
    rows = np.moveaxis(array, axis, 0)
    each = rows.shape[0] // batch_size
    return rows[: count * each].reshape(count, -1)

"""A float session that hands out chosen activations in fixed internal batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from intact.errors import CalibrationError
from intact.graph import Graph
from intact.graph.edit import Editor
from intact.run.session import make_session, run_bound, run_session
from intact.samples.signature import input_specs
from intact.samples.stream import Batch

_LARGEST_BATCH = 32
_BATCH_ELEMENTS = 1 << 20  # 4 MiB of activations a thread: they are counted from the cache


@dataclass(frozen=True)
class Observed:
    """The tensors of one batch, one after the other in one array.

    Attributes:
        values: float32, flat.
        starts: Where each tensor begins, in the observer's order.
        elements: Elements of one sample of each tensor.
        samples: Real samples; a tensor holds ``samples * elements`` values.
    """

    values: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    elements: npt.NDArray[np.int64]
    samples: int


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

    Raises:
        CalibrationError: The graph has no such value.
    """

    def __init__(self, graph: Graph, tensors: Sequence[str]) -> None:
        self.tensors = tuple(tensors)
        inputs = {str(value.name) for value in graph.inputs}
        self._computed = tuple(name for name in self.tensors if name not in inputs)
        self._specs = input_specs(graph)
        self._graph = graph
        self._session = _session_with_outputs(graph, self._computed)
        self._axes: dict[str, int | None] = dict.fromkeys(self.tensors, 0)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._shapes_are_known = False
        self._local = threading.local()
        self.batch_size = self._probe()

    def run(self, batch: Batch, count: int) -> Observed:
        """Run one batch.

        Args:
            batch: Inputs with ``batch_size`` samples.
            count: How many of them are real; the padding is dropped.

        Returns:
            What was observed, good until the calling thread's next run.
        """
        if self._shapes_are_known:
            if not hasattr(self._local, "arena"):
                self._local.arena = self._new_arena()
            arena: _Arena = self._local.arena
            return arena.run(batch, count)
        arrays = run_session(self._session, batch, self._computed) if self._computed else []
        found = batch | dict(zip(self._computed, arrays, strict=True))
        rows = [
            _rows(found[name], self._axes[name], self.batch_size, count) for name in self.tensors
        ]
        sizes = np.array([row.size for row in rows], np.int64)
        values = np.concatenate([row.ravel() for row in rows])
        return Observed(values, np.cumsum(sizes) - sizes, sizes // count, count)

    def _new_arena(self) -> _Arena:
        inputs = {name: spec.shape[1:] for name, spec in self._specs.items()}
        shapes = {
            name: self._shapes.get(name) or (self.batch_size, *(n or 1 for n in inputs[name]))
            for name in self.tensors
        }
        return _Arena(self._session, self._computed, shapes, self._axes, self.batch_size)

    def _probe(self) -> int:
        """Find the batch size, each tensor's sample axis and the shapes of the outputs."""
        fixed = {spec.fixed_batch for spec in self._specs.values()}
        ragged = any(None in spec.shape[1:] for spec in self._specs.values())
        if fixed != {None} or ragged:
            size = max((batch for batch in fixed if batch is not None), default=1)
            if not ragged and size > 1:
                shapes = self._shapes_at(size)
                self._axes |= {n: 0 if s and s[0] % size == 0 else None for n, s in shapes.items()}
            return size
        found = self._inferred() or self._measured()
        elements = sum(int(np.prod(shape)) for shape, _ in found.values())
        size = _LARGEST_BATCH
        while size > 1 and size * elements > _BATCH_ELEMENTS:
            size //= 2
        for name, (shape, axis) in found.items():
            self._axes[name] = axis
            self._shapes[name] = tuple(n * size if k == axis else n for k, n in enumerate(shape))
        self._shapes_are_known = True
        return size

    def _inferred(self) -> dict[str, tuple[tuple[int, ...], int | None]]:
        """Return shape of one sample and sample axis by shape inference; empty if not all known."""
        batches = {next(iter(value.shape or (None,))) for value in self._graph.inputs}
        found: dict[str, tuple[tuple[int, ...], int | None]] = {}
        for name in self._computed:
            dims = list(self._graph.value(name).shape or (None,))
            axes = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int)]
            if len(axes) != 1 or len(batches) != 1 or dims[axes[0]] not in batches:
                return {}
            shape = tuple(dim if isinstance(dim, int) else 1 for dim in dims)
            found[name] = shape, axes[0]
        return found

    def _measured(self) -> dict[str, tuple[tuple[int, ...], int | None]]:
        """Return the same by running the model on one and on two samples of zeros."""
        one, two = self._shapes_at(1), self._shapes_at(2)
        return {name: (one[name], _changed_axis(one[name], two[name])) for name in self._computed}

    def _shapes_at(self, size: int) -> dict[str, tuple[int, ...]]:
        if not self._computed:
            return {}
        zeros = {
            name: np.zeros((size, *(dim or 1 for dim in spec.shape[1:])), spec.dtype)
            for name, spec in self._specs.items()
        }
        arrays = run_session(self._session, zeros, self._computed)
        return {name: array.shape for name, array in zip(self._computed, arrays, strict=True)}


class _Arena:
    """One thread's tensors, side by side in one array.

    The session writes there directly, bound once, where samples are along axis 0; the rest (the
    model's own inputs, other axes) is copied in.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        computed: Sequence[str],
        shapes: dict[str, tuple[int, ...]],
        axes: dict[str, int | None],
        batch_size: int,
    ) -> None:
        self._session, self._axes, self._batch_size = session, axes, batch_size
        sizes = np.array([int(np.prod(shape)) for shape in shapes.values()], np.int64)
        # What is the same for the whole batch is counted once for each sample.
        repeats = np.array([batch_size if axes[n] is None else 1 for n in shapes], np.int64)
        room = sizes * repeats
        self._elements = room // batch_size
        self._starts = np.cumsum(room) - room
        self._values = np.empty(int(room.sum()), np.float32)
        self._binding = session.io_binding()
        self._copied: list[tuple[str, int]] = []
        self._buffers: dict[str, npt.NDArray[np.float32]] = {}
        for position, (name, shape) in enumerate(shapes.items()):
            start, size = int(self._starts[position]), int(sizes[position])
            buffer = self._values[start : start + size].reshape(shape)
            if name not in computed or axes[name] != 0:
                self._copied.append((name, position))
                buffer = np.empty(shape, np.float32)
            if name in computed:
                self._buffers[name] = buffer
                address = buffer.ctypes.data
                self._binding.bind_output(name, "cpu", 0, np.float32, shape, address)

    def run(self, batch: Batch, count: int) -> Observed:
        """Run a batch and return its ``count`` real samples."""
        for name, array in batch.items():
            self._binding.bind_cpu_input(name, array)
        if self._buffers:
            run_bound(self._session, self._binding)
        for name, position in self._copied:
            array = self._buffers[name] if name in self._buffers else batch[name]
            rows = _rows(array, self._axes[name], self._batch_size, count).ravel()
            start = self._starts[position]
            self._values[start : start + rows.size] = rows
        return Observed(self._values, self._starts, self._elements, count)


def _rows(
    array: npt.NDArray[Any], axis: int | None, batch_size: int, count: int
) -> npt.NDArray[np.float32]:
    """Return the real samples of a tensor, [count, elements]."""
    array = array.astype(np.float32, copy=False)
    if axis is None:
        return np.broadcast_to(array.reshape(1, -1), (count, array.size))
    rows = np.moveaxis(array, axis, 0)
    each = rows.shape[0] // batch_size
    return rows[: count * each].reshape(count, -1)


def _changed_axis(one: tuple[int, ...], two: tuple[int, ...]) -> int | None:
    changed = [axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    return changed[0] if changed else None


def _session_with_outputs(graph: Graph, names: Sequence[str]) -> ort.InferenceSession:
    editor = Editor(graph.model)
    try:
        outputs = [editor.value(name) for name in names]
    except KeyError as error:
        raise CalibrationError(f"the model has no tensor {error}") from None
    if outputs:
        editor.model.graph.outputs.clear()
        editor.model.graph.outputs.extend(outputs)
    return make_session(editor.finish(), threads=1)

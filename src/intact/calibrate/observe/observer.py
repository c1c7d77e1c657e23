"""A float session that hands out chosen activations in fixed internal batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort

from intact.calibrate.observe.layout import BatchLayout, Observed, Shape, find_layout
from intact.data.batching import Batch
from intact.engines.session import make_session, run_bound, run_session
from intact.errors import CalibrationError
from intact.graph import Graph
from intact.graph.edit import Editor


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
        session: Hands out those that are computed; made if it is not given.
        layout: Of the batches; found if it is not given.

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
    ) -> None:
        self.tensors = tuple(tensors)
        inputs = {str(value.name) for value in graph.inputs}
        self._computed = tuple(name for name in self.tensors if name not in inputs)
        self._session = session or make_session(model_of_outputs(graph, self._computed), threads=1)
        run = partial(run_session, self._session)
        self.layout = layout or find_layout(graph, self.tensors, run)
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
        if self.layout.shapes is not None:
            if not hasattr(self._local, "arena"):
                try:
                    self._local.arena = _Arena(
                        self._session, self._computed, self.tensors, self.layout, self.layout.shapes
                    )
                except MemoryError as error:
                    raise CalibrationError(
                        f"the activations of one batch do not fit into memory: {error}"
                    ) from error
            arena: _Arena = self._local.arena
            return arena.run(batch, count)
        arrays = run_session(self._session, batch, self._computed) if self._computed else []
        found = batch | dict(zip(self._computed, arrays, strict=True))
        axes = {name: self.layout.sample_axis(name, found[name].shape) for name in self.tensors}
        rows = [_rows(found[name], axes[name], self.batch_size, count) for name in self.tensors]
        sizes = np.array([row.size for row in rows], np.int64)
        values = np.concatenate([row.ravel() for row in rows])
        shapes = tuple(self.layout.sample_shape(n, found[n].shape) for n in self.tensors)
        return Observed(values, np.cumsum(sizes) - sizes, sizes // count, count, shapes)


class _Arena:
    """One thread's tensors, side by side in one array.

    The session writes there directly, bound once, where samples are along axis 0; the rest (the
    model's own inputs, other axes) is copied in.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        computed: Sequence[str],
        tensors: Sequence[str],
        layout: BatchLayout,
        batch_shapes: Mapping[str, Shape],
    ) -> None:
        axes, batch_size = layout.axes, layout.batch_size
        self._session, self._axes, self._batch_size = session, axes, batch_size
        shapes = {name: batch_shapes[name] for name in tensors}
        self._shapes = tuple(layout.sample_shape(name, shape) for name, shape in shapes.items())
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
        return Observed(self._values, self._starts, self._elements, count, self._shapes)


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


def model_of_outputs(graph: Graph, names: Sequence[str]) -> ir.Model:
    """Return a copy of the model that hands out these values, or its own outputs if there are none.

    Raises:
        CalibrationError: The graph has no such value.
    """
    editor = Editor(graph.model)
    try:
        outputs = [editor.value(name) for name in names]
    except KeyError as error:
        raise CalibrationError(f"the model has no tensor {error}") from None
    if outputs:
        editor.model.graph.outputs.clear()
        editor.model.graph.outputs.extend(outputs)
    return editor.finish()

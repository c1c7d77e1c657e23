"""A float session that hands out chosen activations in fixed internal batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from intact.calibrate.samples import Batch
from intact.calibrate.signature import input_specs
from intact.errors import CalibrationError
from intact.graph import Graph
from intact.graph.edit import Editor
from intact.run.session import make_session, run_session

_LARGEST_BATCH = 32
_BATCH_ELEMENTS = 1 << 23  # 32 MiB of float32 activations in flight for each thread


class Observer:
    """Runs the float model on batches of one fixed size and reads chosen tensors.

    The size is fixed because a runtime's floats can change with it; it follows from the model
    alone. Each run uses one thread, so that floats do not depend on their number either, and
    several threads run batches side by side, which also keeps every core busier than splitting
    small operators. Along which axis a tensor holds the samples is found by running one and two
    zeros.

    Args:
        graph: The float model.
        tensors: Names of the values to read.

    Raises:
        CalibrationError: The graph has no such value.
    """

    def __init__(self, graph: Graph, tensors: Sequence[str]) -> None:
        self.tensors = tuple(tensors)
        self._inputs = {str(value.name) for value in graph.inputs}
        self._computed = [name for name in self.tensors if name not in self._inputs]
        self._specs = input_specs(graph)
        self._session = _session_with_outputs(graph, self._computed)
        self._axes: dict[str, int | None] = {}
        self._shapes_of_batch: dict[str, tuple[int, ...]] = {}
        self._local = threading.local()
        self.batch_size = self._probe()

    def run(self, batch: Batch, count: int) -> Mapping[str, npt.NDArray[np.float32]]:
        """Run one batch and return each tensor's real samples as rows, [samples, elements].

        The rows are views of the calling thread's buffers, good until its next call.

        Args:
            batch: Inputs with ``batch_size`` samples.
            count: How many of them are real; the padding is dropped.
        """
        buffers = self._buffers()
        if buffers:
            binding = self._session.io_binding()
            for name, array in batch.items():
                binding.bind_cpu_input(name, array)
            for name, buffer in buffers.items():
                binding.bind_output(name, "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)
            self._session.run_with_iobinding(binding)
            found = dict(buffers)
        else:
            arrays = run_session(self._session, batch, self._computed) if self._computed else []
            found = dict(zip(self._computed, arrays, strict=True))
        found |= {name: batch[name] for name in self.tensors if name in self._inputs}
        return {name: self._rows(name, found[name], count) for name in self.tensors}

    def _rows(self, name: str, array: npt.NDArray[Any], count: int) -> npt.NDArray[np.float32]:
        axis = self._axes[name]
        array = array.astype(np.float32, copy=False)
        if axis is None:  # the same for the whole batch: counted once for each sample
            return np.broadcast_to(array.reshape(1, -1), (count, array.size)).copy()
        rows = np.moveaxis(array, axis, 0) if axis else array
        each = rows.shape[0] // self.batch_size
        return np.ascontiguousarray(rows[: count * each]).reshape(count, -1)

    def _probe(self) -> int:
        """Find the batch size, each tensor's sample axis and the shapes of the outputs."""
        fixed = {spec.fixed_batch for spec in self._specs.values()}
        ragged = any(None in spec.shape[1:] for spec in self._specs.values())
        if fixed != {None} or ragged:
            size = max((batch for batch in fixed if batch is not None), default=1)
            self._axes = dict.fromkeys(self.tensors, 0)
            if not ragged and size > 1:
                shapes = self._shapes(size)
                self._axes |= {n: 0 if s and s[0] % size == 0 else None for n, s in shapes.items()}
            return size
        one, two = self._shapes(1), self._shapes(2)
        self._axes = dict.fromkeys(self.tensors, 0)
        self._axes |= {name: _changed_axis(one[name], two[name]) for name in self._computed}
        elements = sum(int(np.prod(shape)) for shape in one.values())
        size = _LARGEST_BATCH
        while size > 1 and size * elements > _BATCH_ELEMENTS:
            size //= 2
        for name in self._computed:
            axis = self._axes[name]
            self._shapes_of_batch[name] = tuple(
                n * size if k == axis else n for k, n in enumerate(one[name])
            )
        return size

    def _buffers(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the calling thread's output buffers; none where the shapes are not known."""
        if not hasattr(self._local, "buffers"):
            shapes = self._shapes_of_batch.items()
            self._local.buffers = {name: np.empty(shape, np.float32) for name, shape in shapes}
        buffers: dict[str, npt.NDArray[np.float32]] = self._local.buffers
        return buffers

    def _shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        if not self._computed:
            return {}
        zeros = {
            name: np.zeros((size, *(dim or 1 for dim in spec.shape[1:])), spec.dtype)
            for name, spec in self._specs.items()
        }
        arrays = run_session(self._session, zeros, self._computed)
        return {name: array.shape for name, array in zip(self._computed, arrays, strict=True)}


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

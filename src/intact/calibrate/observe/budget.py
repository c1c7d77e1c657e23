"""Divides the memory of a calibration: into how many threads, and groups of tensors."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
import onnxruntime as ort

from intact.calibrate.observe.observer import BatchLayout, Observed, Observer, Shape
from intact.engines.session import Optimization, model_of_outputs, refuse_threads
from intact.errors import CalibrationError, ModelError, UsageError
from intact.graph import Graph, save_model
from intact.numerics.histogram import BINS

COUNTS_BYTES = BINS * 16

"""One tensor's counts in one thread: int64, and the part of the scratch tables that is in use."""

_VALUE_BYTES = 4

_MOST_COUNTS = 1 << 30

"""Memory for the counts of all threads; beyond it fewer threads are used."""


class Schedule(msgspec.Struct, frozen=True):
    """How tensors are observed.

    Attributes:
        workers: Batches that run side by side.
        groups: Tensors that are observed together, in their order; each group in a pass over the
            samples.
    """

    workers: int
    groups: tuple[tuple[str, ...], ...]


def worker_count(threads: int, tensors: int) -> int:
    """Return how many batches run side by side, within the memory for their counts.

    Args:
        threads: How many may work; 0 for all cores.
        tensors: How many are observed.

    Raises:
        UsageError: ``threads`` is no number of threads.
    """
    refuse_threads(threads)
    wanted = threads or os.cpu_count() or 1
    return max(1, min(wanted, _MOST_COUNTS // (tensors * COUNTS_BYTES + 1)))


def schedule(
    tensors: Sequence[str],
    workers: int,
    sizes: Mapping[str, int],
    max_memory: int,
    *,
    refuses: bool = True,
) -> Schedule:
    """Return how tensors are observed within the memory.

    First with fewer threads, which costs time only where there are cores; then in groups, as few
    as fit, each of which costs a pass over the samples.

    Args:
        tensors: Names, in the order of the graph.
        workers: Threads that are wanted.
        sizes: Bytes of each tensor in one thread: one batch of activations and the counts.
        max_memory: Bytes.
        refuses: Whether a tensor that needs more is refused; otherwise it is observed alone.

    Raises:
        CalibrationError: A tensor alone needs more.
        UsageError: The limit is not positive.
    """
    if max_memory <= 0:
        raise UsageError(f"max_memory is {max_memory}", remedy="give a number of bytes")
    largest = max(tensors, key=lambda name: sizes[name], default=None)
    if refuses and largest is not None and sizes[largest] > max_memory:
        raise CalibrationError(
            f"one batch of {largest!r} and its counts need {_size_text(sizes[largest])} of memory, "
            f"{max_memory >> 20} MiB are allowed",
            remedy=f"allow {_size_text(sizes[largest])}, or keep the nodes around it float",
        )
    groups = tuple(_groups(tensors, sizes, max_memory)) or ((),)
    most = max(sum(sizes[name] for name in group) for group in groups)
    return Schedule(max(1, min(workers, max_memory // max(most, 1))), groups)


def _groups(
    tensors: Sequence[str], sizes: Mapping[str, int], max_memory: int
) -> Iterator[tuple[str, ...]]:
    """Yield neighbours that fit: an early group then needs only the beginning of the model."""
    group: list[str] = []
    room = max_memory
    for name in tensors:
        # Neighbours and not the best fit: a group of late tensors runs the model from the start
        # anyway.
        if sizes[name] > room and group:
            yield tuple(group)
            group, room = [], max_memory
        group.append(name)
        room -= sizes[name]
    if group:
        yield tuple(group)


def known_sizes(graph: Graph, layout: BatchLayout, tensors: Sequence[str]) -> dict[str, int] | None:
    """Return the bytes of each tensor in one thread; None where they depend on the samples."""
    if layout.shapes is not None:
        return {name: _bytes(layout.shapes[name], copies=1) for name in tensors}
    sizes = {}
    for name in tensors:
        dims = graph.value(name).shape
        numbers = tuple(dim for dim in dims or () if isinstance(dim, int))
        if dims is None or len(numbers) < len(dims):
            return None
        sizes[name] = _bytes(numbers, copies=2)  # the runtime's own, and what is counted
    return sizes


def sizes_of_observed(observed: Observed, tensors: Sequence[str]) -> dict[str, int]:
    """Return the same from a batch that was run."""
    sizes = observed.elements * observed.samples
    return {n: _bytes((int(size),), copies=2) for n, size in zip(tensors, sizes, strict=True)}


def _bytes(shape: Shape, *, copies: int) -> int:
    return math.prod(shape) * _VALUE_BYTES * copies + COUNTS_BYTES


def _size_text(size: int) -> str:
    return f"{math.ceil(size / 2**20)} MiB"


def part_observers(
    graph: Graph, tensors: Sequence[str], layout: BatchLayout, groups: Sequence[Sequence[str]]
) -> Iterator[Observer]:
    """Yield an observer for each group of tensors, to be used before the next one is asked for.

    Args:
        graph: The float model.
        tensors: Names of all observed values.
        layout: For observing all of them.
        groups: Some of them each.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        computed = set(tensors) - {str(value.name) for value in graph.inputs}
        # Optimized once with all tensors as outputs, and cut afterwards: optimized part by part,
        # layers would fuse otherwise in each, and floats differ.
        whole = _rewritten(model_of_outputs(graph, [n for n in tensors if n in computed]), folder)
        for position, group in enumerate(groups):
            path = folder / f"part{position}.onnx"
            names = [name for name in group if name in computed]
            part = _part(whole, names or [whole.graph.output[0].name])  # any: it will not be run
            path.write_bytes(part.SerializeToString())
            # No name holds the session, so that it goes with its observer.
            session = _session(path, Optimization.NONE)
            yield Observer(graph, group, session=session, layout=layout, gathers=False)


def _rewritten(model: ir.Model, folder: Path) -> onnx.ModelProto:
    """Return the model as the runtime optimizes it; its weights stay in a file of the folder."""
    source, rewritten = folder / "model.onnx", folder / "rewritten.onnx"
    save_model(model, source)
    _session(source, Optimization.ALL, rewritten)
    source.unlink()
    return onnx.load(rewritten, load_external_data=False)


def _session(
    path: Path, optimization: Optimization, rewritten: Path | None = None
) -> ort.InferenceSession:
    """Open a file, and write it as the runtime rewrites it if that is asked for."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = optimization.value
    # Its arena grows by doubling and never shrinks: 212 MiB, where 100 were allowed, became 109.
    options.enable_cpu_mem_arena = False
    if rewritten is not None:
        options.optimized_model_filepath = str(rewritten)
        entry = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{entry}file_name", f"{rewritten.stem}.weights")
        options.add_session_config_entry(f"{entry}min_size_in_bytes", "1024")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises a dozen unrelated classes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"ONNX Runtime cannot run the model in parts: {reason[:300]}",
            remedy="give no limit of memory",
        ) from error


def _part(whole: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Cut out the part that computes some tensors. Inputs stay, read or not."""
    part = onnx.ModelProto()
    part.CopyFrom(whole)
    needed, nodes = set(tensors), []
    for node in reversed(whole.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
            needed.update(_read_inside(node))
    for field in ("node", "output", "initializer"):
        part.graph.ClearField(field)
    part.graph.node.extend(reversed(nodes))
    part.graph.output.extend(each for each in whole.graph.output if each.name in set(tensors))
    part.graph.initializer.extend(e for e in whole.graph.initializer if e.name in needed)
    return part


def _read_inside(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the bodies of a node read: some are of its surroundings."""
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in body.node:
                yield from inner.input
                yield from _read_inside(inner)
            yield from (each.name for each in body.output)

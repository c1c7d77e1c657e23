"""Writes trial data into a folder, for worker processes.

Nothing is pickled. ``model.onnx`` is the normalized model and ``statistics.npz`` the statistics.
The samples and float outputs of all chunks are concatenated in ``NUMBER.npy`` files, which are
memory-mapped when read, as are weights that are rounded already, in ``rounding.npz``.
``trial_data.json`` holds the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.calibrate.assign import Method
from intact.calibrate.statistics import Statistics
from intact.data.archive import map_npy
from intact.data.detections import DetectionMetric, metric_of
from intact.data.functions import import_function
from intact.data.labels import Reference
from intact.data.metric import DETECTIONS, Metric
from intact.errors import DataError, IntactError, UsageError
from intact.graph import Graph
from intact.graph.files.regular import read_file
from intact.plan import Overrides, TensorEnd, build_plan
from intact.search.measuring.objective import Objective
from intact.search.measuring.trial_data import Chunk, TrialData
from intact.search.roundings import Roundings
from intact.search.space import Group, GroupKind, Space
from intact.targets import target_from_json, target_to_json

VERSION = 3

_MODEL, _STATISTICS, _REST = "model.onnx", "statistics.npz", "trial_data.json"
_ROUNDINGS = "rounding.npz"


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    kind: GroupKind
    ends: list[str]
    owners: list[str]
    choices: list[int]


class _Overrides(msgspec.Struct, forbid_unknown_fields=True):
    keep_float: list[str]
    bits: dict[str, int]
    blocks: dict[str, int]
    weight_bits: int | None
    activation_bits: int | None
    widths: dict[str, int]
    apart: list[str]


class _Method(msgspec.Struct, forbid_unknown_fields=True):
    activations: str
    fallback: str
    weights: str
    options: dict[str, float]


class _Objective(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    metric: str
    function: str
    figure: str
    lower_is_better: bool
    outputs: list[str] = []


class _Array(msgspec.Struct, forbid_unknown_fields=True):
    """A named array: one file with all samples, or one file for each part."""

    name: str
    files: list[str]
    is_list: bool = False


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    target: dict[str, Any]
    overrides: _Overrides
    groups: list[_Group]
    method: _Method
    objective: _Objective
    sizes: list[int]
    counts: list[int]
    feeds: list[_Array]
    outputs: list[_Array]
    labels: str
    references: list[_Array]
    is_probability: bool
    error: float
    cache_bytes: int | None
    session_bytes: int | None


class _Writer:
    """Writes arrays to numbered files, since names of tensors may not be file names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0

    def __call__(self, array: npt.NDArray[Any]) -> str:
        name = f"{self._written}.npy"
        self._written += 1
        np.save(self._folder / name, array, allow_pickle=False)
        return name


def save_trial_data(trial_data: TrialData, folder: Path) -> None:
    """Write the trial data into a folder, which must exist.

    Raises:
        UsageError: The metric is a function that cannot be imported by name.
    """
    objective = _store_objective(trial_data.objective)
    space, write = trial_data.space, _Writer(folder)
    trial_data.space.plan.graph.save(folder / _MODEL)
    (folder / _STATISTICS).write_bytes(trial_data.statistics.to_bytes())
    trial_data.roundings.save(folder / _ROUNDINGS)
    overrides = space.overrides
    chunks = trial_data.chunks
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    document = _Document(
        VERSION,
        target_to_json(space.plan.target),
        _Overrides(
            list(overrides.keep_float),
            dict(overrides.bits),
            dict(overrides.blocks),
            overrides.weight_bits,
            overrides.activation_bits,
            {str(end): bits for end, bits in overrides.widths.items()},
            sorted(map(str, overrides.apart)),
        ),
        [
            _Group(g.name, g.kind, [str(end) for end in g.ends], list(g.owners), list(g.choices))
            for g in space.groups
        ],
        _Method(
            trial_data.method.activations,
            trial_data.method.fallback,
            trial_data.method.weights,
            dict(trial_data.method.options),
        ),
        objective,
        [chunk.size for chunk in chunks],
        [chunk.count for chunk in chunks],
        [
            _store([(c.feeds[name], c.size) for c in chunks], name, write)
            for name in chunks[0].feeds
        ],
        [
            _store([(c.outputs[name], c.count) for c in chunks], name, write)
            for name in chunks[0].outputs
        ],
        write(np.concatenate(labels)) if labels else "",
        [_store_reference(name, values, write) for name, values in trial_data.references.items()],
        trial_data.is_probability,
        trial_data.error,
        trial_data.cache_bytes,
        trial_data.session_bytes,
    )
    (folder / _REST).write_bytes(msgspec.json.encode(document))


def load_trial_data(folder: Path) -> TrialData:
    """Read the trial data; arrays are mapped into memory, so that processes share them.

    Raises:
        DataError: A file is missing or damaged, or has another version.
    """
    try:
        document = msgspec.json.decode(read_file(folder / _REST), type=_Document)
        if document.version != VERSION:
            raise DataError(f"version {document.version}, this intact reads {VERSION}")
        return _decode(document, folder)
    except (OSError, ValueError, KeyError, RecursionError, IntactError) as error:
        raise DataError(
            f"{folder}: cannot be read as trial data ({error})", remedy="write it again"
        ) from error


def _decode(document: _Document, folder: Path) -> TrialData:
    asked = document.overrides
    overrides = Overrides(
        tuple(asked.keep_float),
        asked.bits,
        asked.blocks,
        asked.weight_bits,
        asked.activation_bits,
        {TensorEnd.parse(end): bits for end, bits in asked.widths.items()},
        frozenset(map(TensorEnd.parse, asked.apart)),
    )
    graph = Graph.load(folder / _MODEL)
    groups = tuple(
        Group(
            g.name, g.kind, tuple(map(TensorEnd.parse, g.ends)), tuple(g.owners), tuple(g.choices)
        )
        for g in document.groups
    )
    method = document.method
    return TrialData(
        Space(build_plan(graph, target_from_json(document.target), overrides), overrides, groups),
        Statistics.load(folder / _STATISTICS),
        Method(method.activations, method.fallback, method.weights, method.options),
        _load_objective(document.objective, graph),
        tuple(_chunks(document, folder)),
        {each.name: _load_reference(each, folder) for each in document.references},
        document.is_probability,
        document.error,
        document.cache_bytes,
        document.session_bytes,
        Roundings.load(folder / _ROUNDINGS),
    )


def _chunks(document: _Document, folder: Path) -> list[Chunk]:
    feeds = {each.name: _load_reference(each, folder) for each in document.feeds}
    outputs = {each.name: _load_reference(each, folder) for each in document.outputs}
    labels = _map_array(document.labels, folder) if document.labels else None
    chunks, start, done = [], 0, 0
    for number, (size, count) in enumerate(zip(document.sizes, document.counts, strict=True)):
        own = {
            name: array[number] if isinstance(array, list) else array[done : done + count]
            for name, array in outputs.items()
        }
        rows = {
            name: array[number] if isinstance(array, list) else array[start : start + size]
            for name, array in feeds.items()
        }
        classes = None if labels is None else labels[done : done + count]
        chunks.append(Chunk(rows, own, size, count, classes))
        start, done = start + size, done + count
    return chunks


def _map_array(name: str, folder: Path) -> npt.NDArray[Any]:
    # A name of the document must not lead out of the folder; names that are written have no folder.
    if "/" in name or "\\" in name:
        raise DataError(f"{name!r} is outside the folder")
    return map_npy(folder / name)


def _store(parts: Sequence[tuple[npt.NDArray[Any], int]], name: str, write: _Writer) -> _Array:
    """Write an input or output as one file, or as one per chunk where it has no sample axis.

    Args:
        parts: The array of each chunk, and how many samples it is of.
        name: Name of the input or output.
        write: Writes an array.
    """
    if all(array.ndim and len(array) == count for array, count in parts):
        return _Array(name, [write(np.concatenate([array for array, _ in parts]))])
    return _Array(name, [write(array) for array, _ in parts], is_list=True)


def _store_reference(name: str, values: Reference, write: _Writer) -> _Array:
    if isinstance(values, list):
        return _Array(name, [write(each) for each in values], is_list=True)
    return _Array(name, [write(values)])


def _load_reference(stored: _Array, folder: Path) -> Reference:
    arrays = [_map_array(file, folder) for file in stored.files]
    return arrays if stored.is_list else arrays[0]


def _store_objective(objective: Objective) -> _Objective:
    metric = objective.metric
    if isinstance(metric, DetectionMetric):
        row = objective.kind, metric.name, metric.name, objective.figure, objective.lower_is_better
        return _Objective(*row, [metric.boxes_with_form, metric.scores, metric.classes])
    source = "" if metric is None else _import_name(metric)
    name = "" if metric is None else metric.name
    return _Objective(objective.kind, name, source, objective.figure, objective.lower_is_better)


def _load_objective(stored: _Objective, graph: Graph) -> Objective:
    metric = None
    if stored.function == DETECTIONS:
        metric = metric_of(DETECTIONS, stored.outputs).bound(graph)
    elif stored.function:
        metric = Metric(stored.metric, import_function(stored.function, "--metric"))
    return Objective(stored.kind, metric, stored.figure, stored.lower_is_better)


def _import_name(metric: Metric) -> str:
    """Find the name ``module:function`` of a metric.

    Raises:
        UsageError: Its module does not have it: it is a nested function or a lambda.
    """
    module = getattr(metric.function, "__module__", "") or ""
    name = getattr(metric.function, "__qualname__", "")
    source = metric.name if ":" in metric.name else f"{module}:{name}"
    try:
        # `__main__` is another module in another process. `is`, because a name may have been bound
        # to another function since.
        if module != "__main__" and import_function(source, "--metric") is metric.function:
            return source
    except DataError:
        pass
    raise UsageError(
        f"metric {metric.name}: other processes cannot import it",
        remedy="move the function to a module of its own, or search with one worker",
    )

"""Labels and other references of samples, for accuracy and metrics.

These are arrays with the key ``labels`` or a key that starts with ``labels.`` or ``labels_``
(boxes, texts, masks ...), one entry per sample. Entries of different samples may differ in shape.
They are checked when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.data.arrays import plain
from intact.data.signature import LABELS
from intact.errors import DataError

Reference: TypeAlias = npt.NDArray[Any] | list[npt.NDArray[Any]]
"""An array with samples along axis 0, or a list of one array per sample if shapes differ."""


class BatchReferences(NamedTuple):
    """The references of one batch.

    Attributes:
        values: The references by key.
        given: Number of samples in the batch.
        used: Number of samples that are used, from the first on.
    """

    values: Mapping[str, Reference]
    given: int
    used: int


def is_reference(name: str, inputs: Iterable[str]) -> bool:
    """Tell whether an array is a reference; an input of the model may have such a name too."""
    return (name == LABELS or name.startswith((f"{LABELS}.", f"{LABELS}_"))) and name not in inputs


def as_reference(source: str, name: str, values: object) -> Reference:
    """Convert the values of a key to one array, or to a list of arrays.

    Raises:
        DataError: The values are Python objects.
    """
    try:
        made = _stack(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{source}: {name!r} holds no arrays ({error})", remedy=_PLAIN) from error
    if any(each.dtype.kind == "O" for each in (made if isinstance(made, list) else [made])):
        raise DataError(f"{source}: {name!r} holds Python objects", remedy=_PLAIN)
    return made


def join_references(source: str, batches: Sequence[BatchReferences]) -> dict[str, Reference]:
    """Join the references of the used samples, by key.

    Args:
        source: Name of the data for messages.
        batches: References in the order of the samples.

    Raises:
        DataError: Some samples have no entry, or there are not as many entries as samples.
    """
    keys = dict.fromkeys(key for batch in batches for key in batch.values)
    return {key: join_samples(_used_entries(source, key, batches)) for key in keys}


def join_labels(source: str, batches: Sequence[BatchReferences]) -> npt.NDArray[np.int64] | None:
    """Join the labels of the used samples, ``[N]``; None if no batch has labels.

    Args:
        source: Name of the data for messages.
        batches: References in the order of the samples.

    Raises:
        DataError: Some samples have no label, or labels are not one class number per sample.
    """
    if all(LABELS not in batch.values for batch in batches):
        return None
    numbers = []
    for batch in batches:
        values = batch.values.get(LABELS)
        checked = None if values is None else _class_numbers(source, values, batch.given)
        numbers.append(batch._replace(values={} if checked is None else {LABELS: checked}))
    return np.concatenate(_used_entries(source, LABELS, numbers))


def join_samples(parts: Sequence[Reference]) -> Reference:
    """Join samples of batches: into one array if they have one shape, else into a list."""
    arrays = [part for part in parts if not isinstance(part, list)]
    kinds = {(array.shape[1:], array.dtype.kind) for array in arrays}
    if len(arrays) == len(parts) and len(kinds) == 1:
        return np.concatenate(arrays)
    return [np.asarray(sample) for part in parts for sample in part]


_PLAIN = "give arrays of numbers or strings, or a list with one array per sample"


def _stack(values: object) -> Reference:
    if not isinstance(values, list | tuple):
        return plain(values)
    try:
        return plain(values)
    except ValueError:  # of different shapes
        return [plain(each) for each in values]


def _used_entries(source: str, key: str, batches: Sequence[BatchReferences]) -> list[Reference]:
    """Return the entries of the used samples for each batch."""
    found: list[Reference] = []
    first = 0
    what = "label" if key == LABELS else repr(key)
    for batch in batches:
        values = batch.values.get(key)
        if values is None:
            raise DataError(
                f"{source}: sample {first} has no {what}, others have",
                remedy=f"give {key} for all samples, or for none",
            )
        entries = len(values) if isinstance(values, list) or values.ndim else 0
        if entries != batch.given:
            raise DataError(
                f"{source}: {entries} {key} for {batch.given} samples", remedy="give one for each"
            )
        found.append(values[: batch.used])
        first += batch.used
    return found


def _class_numbers(source: str, labels: Reference, samples: int) -> npt.NDArray[np.int64]:
    if isinstance(labels, list):
        raise DataError(f"{source}: the labels have different shapes", remedy=_CLASSES)
    if labels.dtype.kind not in "iu":
        raise DataError(
            f"{source}: the labels have dtype {labels.dtype}",
            remedy="give class numbers, as integers",
        )
    if labels.ndim > 1 and labels.size != len(labels):
        raise DataError(f"{source}: the labels have shape {list(labels.shape)}", remedy=_CLASSES)
    if labels.size != samples:
        raise DataError(
            f"{source}: {labels.size} labels for {samples} samples", remedy="give one for each"
        )
    return labels.reshape(-1).astype(np.int64)


_CLASSES = "give one class number per sample, [N]; use argmax(axis=1) for one-hot labels"

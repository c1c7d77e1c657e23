"""The labels that come along with samples, checked when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import DataError


class BatchLabels(NamedTuple):
    """The labels of one of the source's batches.

    Attributes:
        values: As they were given; None where there were none.
        given: Samples in that batch.
        used: How many of them, from the first on.
    """

    values: npt.NDArray[Any] | None
    given: int
    used: int


def joined_labels(source: str, batches: Sequence[BatchLabels]) -> npt.NDArray[np.int64] | None:
    """Return the labels of the used samples, [N]; None where no batch has any.

    Args:
        source: What to call the data in messages.
        batches: In the order of the samples.

    Raises:
        DataError: Some samples have no label, or labels are not one class number for each.
    """
    if all(batch.values is None for batch in batches):
        return None
    labels, first = [], 0
    for batch in batches:
        if batch.values is None:
            raise DataError(
                f"{source}: sample {first} has no label, others have",
                remedy="give labels for all samples, or for none",
            )
        labels.append(_class_numbers(source, batch.values, batch.given)[: batch.used])
        first += batch.used
    return np.concatenate(labels)


def _class_numbers(source: str, labels: npt.NDArray[Any], samples: int) -> npt.NDArray[np.int64]:
    if labels.dtype.kind not in "iu":
        raise DataError(
            f"{source}: the labels have dtype {labels.dtype}",
            remedy="give class numbers, as integers",
        )
    if labels.ndim > 1 and labels.size != len(labels):
        raise DataError(
            f"{source}: the labels have shape {list(labels.shape)}",
            remedy="give one class number a sample, [N]; argmax(axis=1) of one-hot labels",
        )
    if labels.size != samples:
        raise DataError(
            f"{source}: {labels.size} labels for {samples} samples", remedy="give one for each"
        )
    return labels.reshape(-1).astype(np.int64)

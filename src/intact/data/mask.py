"""Finds the real positions of padded sequences by their mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.data.signature import InputSpec
from intact.errors import DataError, nearest

RealPositions = npt.NDArray[np.bool_]
"""bool ``[N, S]``: False where a sequence is padded."""


def refuse_other_rank(mask: str | None, specs: Mapping[str, InputSpec]) -> None:
    """Check that a mask that is an input of the model has shape ``[N, S]``.

    Raises:
        DataError: The mask has another rank.
    """
    if mask is None or mask not in specs or len(specs[mask].shape) == 2:
        return
    raise DataError(
        f"the mask {mask!r} is a model input of rank {len(specs[mask].shape)}",
        remedy="name an input or an array of shape [N, S], one number for each position",
    )


def refuse_missing(source: str, mask: str | None, names: Iterable[str]) -> None:
    """Check that a batch has the array of the mask.

    Raises:
        DataError: The array is missing.
    """
    known = set(names)
    if mask is not None and mask not in known:
        raise DataError(f"{source}: no array {mask!r} for the mask", remedy=nearest(mask, known))


def real_positions(
    source: str,
    mask: str,
    batch: Mapping[str, npt.NDArray[Any]],
    specs: Mapping[str, InputSpec],
    *,
    first: int,
) -> RealPositions:
    """Compute the real positions of a batch: where the mask is not 0.

    Args:
        source: What to call the data in messages.
        mask: Name of the mask, which is an array of the batch and may be an input of the model.
        batch: Arrays by name, samples along axis 0.
        specs: The model's inputs.
        first: Position of the batch's first sample in the source, for messages.

    Raises:
        DataError: The shape or the values of the mask are wrong.
    """
    array, where = batch[mask], f"{source}: the mask {mask!r}"
    others = {name: value.shape for name, value in batch.items() if name in specs and name != mask}
    if array.ndim != 2:
        raise DataError(
            f"{where} has shape {list(array.shape)}",
            remedy="give [N, S], one number for each position of each sample",
        )
    if any(shape[:1] != array.shape[:1] for shape in others.values()):
        raise DataError(f"{where} has {len(array)} samples, the inputs have others: {others}")
    # Any axis: models have their sequences at different ones.
    if others and not any(array.shape[1] in shape[1:] for shape in others.values()):
        raise DataError(
            f"{where} has sequences of {array.shape[1]}, no input has an axis of that length: "
            f"{', '.join(f'{name} {list(shape)}' for name, shape in others.items())}",
            remedy="give it the length of the sequences",
        )
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where} has dtype {array.dtype}", remedy="give numbers or booleans")
    # Not `array < 0`, which is False for NaN.
    wrong = ~(array >= 0) if array.dtype.kind in "if" else np.zeros(array.shape, np.bool_)
    if wrong.any():
        bad = first + int(np.argmax(wrong.any(axis=1)))
        raise DataError(
            f"{where} holds negative numbers or NaN in sample {bad}",
            remedy="give 0 where a sequence is padded and 1 where it is real",
        )
    real: RealPositions = array != 0
    return real

"""What a model's inputs accept, and the check of a batch against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError, nearest
from intact.graph import Graph


@dataclass(frozen=True)
class InputSpec:
    """Dtype and shape of one input; None stands for a dimension of any size."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    @property
    def fixed_batch(self) -> int | None:
        """Return the batch size that the model fixes, None if it is free."""
        return self.shape[0] if self.shape else None


def input_specs(graph: Graph) -> dict[str, InputSpec]:
    """Return the specs of the graph's inputs by name."""
    specs = {}
    for value in graph.inputs:
        dims = () if value.shape is None else value.shape
        dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
        shape = tuple(dim if isinstance(dim, int) else None for dim in dims)
        specs[str(value.name)] = InputSpec(np.dtype(dtype), shape)
    return specs


def check_batch(
    source: str,
    specs: Mapping[str, InputSpec],
    batch: Mapping[str, npt.NDArray[Any]],
    *,
    first: int,
) -> dict[str, npt.NDArray[Any]]:
    """Return the batch as the model takes it.

    Args:
        source: What to call the data in messages.
        specs: The model's inputs.
        batch: Arrays by name, samples along axis 0.
        first: Position of the batch's first sample in the source, for messages.

    Raises:
        DataError: A missing or unknown name, unequal lengths, a wrong dtype or shape, NaN or
            infinity (with the number of the sample).
    """
    for name in batch:
        if name not in specs:
            raise DataError(
                f"{source}: the model has no input {name!r}", remedy=nearest(name, specs)
            )
    for name in specs:
        if name not in batch:
            raise DataError(
                f"{source}: no array for input {name!r}", remedy=f"add one named {name!r}"
            )
    ready = {
        name: _check_array(source, name, spec, batch[name], first) for name, spec in specs.items()
    }
    lengths = {name: len(array) for name, array in ready.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{source}: inputs have different numbers of samples: {lengths}")
    return ready


def _check_array(
    source: str, name: str, spec: InputSpec, array: npt.NDArray[Any], first: int
) -> npt.NDArray[Any]:
    where = f"{source}: input {name!r}"
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: dtype {array.dtype}", remedy=f"give {spec.dtype} numbers")
    if (
        spec.dtype.kind in "biu"
        and array.dtype.kind != spec.dtype.kind
        and array.dtype.kind not in "iu"
    ):
        raise DataError(
            f"{where}: dtype {array.dtype}, the model takes {spec.dtype}",
            remedy=f"convert to {spec.dtype}",
        )
    if array.ndim != len(spec.shape) or not _fits(array.shape[1:], spec.shape[1:]):
        shown = ", ".join("N" if dim is None else str(dim) for dim in ("N", *spec.shape[1:]))
        raise DataError(
            f"{where}: samples of shape {list(array.shape)}, the model takes [{shown}]",
            remedy="put the samples along axis 0 and check the layout",
        )
    with np.errstate(over="ignore"):  # what becomes infinite is named below
        ready = np.ascontiguousarray(array, dtype=spec.dtype)
    if spec.dtype.kind == "f" and not np.isfinite(ready).all():
        bad = int(np.argmax(~np.isfinite(ready.reshape(len(ready), -1)).all(axis=1)))
        raise DataError(
            f"{where}: sample {first + bad} holds NaN or infinity",
            remedy="mend or drop that sample",
        )
    return ready


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return all(want is None or have == want for have, want in zip(shape, expected, strict=True))

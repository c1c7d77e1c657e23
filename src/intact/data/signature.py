"""Checks batches against the inputs of a model: names, types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.data.shapes import fits, sample_remedy, shape_remedy
from intact.errors import DataError, ModelError, nearest
from intact.graph import Graph

LABELS = "labels"
"""Key of the labels."""
_NUMBERS = "biuf"  # numpy's kinds: bool, signed, unsigned, float


@dataclass(frozen=True)
class InputSpec:
    """Dtype and shape of one input; None for a dimension of any size.

    Attributes:
        first: The value of a state in the first run, ``[1, ...]``: it stands for a missing array.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    first: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that the model fixes; None if it is free."""
        return self.shape[0] if self.shape else None


def input_specs(graph: Graph) -> dict[str, InputSpec]:
    """Make the specs of the graph's inputs, by name.

    Raises:
        ModelError: There is no input, or an input is not numeric or has an impossible shape.
    """
    specs = {}
    for value in graph.inputs:
        where = f"input {value.name!r} of the model"
        if value.shape is None:
            raise ModelError(f"{where} has no shape", remedy="export the model with input shapes")
        dtype = _numpy_type(value)
        if dtype is None or dtype.kind not in _NUMBERS:
            raise ModelError(
                f"{where} takes {value.dtype}", remedy="cut the model at a numeric tensor"
            )
        shape = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        if shape[:1] == (0,) or any(size is not None and size < 0 for size in shape):
            raise ModelError(
                f"{where} has the impossible shape {list(shape)}",
                remedy="export the model with another input shape",
            )
        state = graph.states.get(str(value.name))
        first = None if state is None else state.first
        specs[str(value.name)] = InputSpec(dtype, shape, first)
    if not specs:
        raise ModelError("the model has no inputs", remedy="export it with its input")
    return specs


def _numpy_type(value: ir.Value) -> np.dtype[Any] | None:
    """Return the numpy type of an input; None if numpy has none."""
    try:
        return np.dtype(np.float32 if value.dtype is None else value.dtype.numpy())
    except TypeError:
        return None


def check_batch(
    source: str,
    specs: Mapping[str, InputSpec],
    batch: Mapping[str, npt.NDArray[Any]],
    *,
    first: int,
) -> dict[str, npt.NDArray[Any]]:
    """Check a batch and convert it to the model's input types.

    Args:
        source: What to call the data in messages.
        specs: The model's inputs.
        batch: Arrays by name, samples along axis 0.
        first: Position of the batch's first sample in the source, for messages.

    Raises:
        DataError: A name is missing or unknown, lengths differ, a dtype or shape is wrong, or a
            sample has NaN or infinity (with the number of the sample).
    """
    for name in batch:
        if name not in specs:
            raise DataError(
                f"{source}: the model has no input {name!r}",
                remedy=nearest(name, [*specs, LABELS]),
            )
    batch = _with_first_values(specs, batch)
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
        raise DataError(
            f"{source}: inputs have different numbers of samples from {first} on: {lengths}",
            remedy="give the same number for each input",
        )
    return ready


def without_batch_axis(
    specs: Mapping[str, InputSpec], batch: Mapping[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Leave out the batch axis of 1 of samples that are stacked as the runtime takes each."""
    found = dict(batch)
    for name in specs.keys() & batch.keys():
        shape, expected = batch[name].shape, specs[name].shape
        is_stacked = len(shape) == len(expected) + 1 and fits(shape[1:], (1, *expected[1:]))
        if is_stacked and expected[0] in (None, 1):
            found[name] = batch[name][:, 0]
    return found


def _with_first_values(
    specs: Mapping[str, InputSpec], batch: Mapping[str, npt.NDArray[Any]]
) -> Mapping[str, npt.NDArray[Any]]:
    """Return a batch in which states that are not given have their first values."""
    count = max((len(batch[name]) for name in specs if np.ndim(batch.get(name, 0))), default=0)
    first = {
        name: np.broadcast_to(spec.first, (count, *spec.first.shape[1:]))
        for name, spec in specs.items()
        if spec.first is not None and name not in batch and count
    }
    return {**batch, **first}


def check_ranks(
    source: str, specs: Mapping[str, InputSpec], batch: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Check the number of dimensions, on which it depends which axis holds samples and channels.

    Raises:
        DataError: An array has another one than the model's input.
    """
    for name, array in batch.items():
        if name in specs and array.dtype.kind in _NUMBERS and array.ndim != len(specs[name].shape):
            raise _other_shape(source, name, array.shape, specs[name].shape)


def _check_array(
    source: str, name: str, spec: InputSpec, array: npt.NDArray[Any], first: int
) -> npt.NDArray[Any]:
    where = f"{source}: input {name!r}"
    _refuse_other_dtype(where, spec, array)
    if array.ndim != len(spec.shape) or not fits(array.shape[1:], spec.shape[1:]):
        raise _other_shape(source, name, array.shape, spec.shape)
    ready, wrong, what = _convert(spec, array)
    if wrong is not None and wrong.any():
        bad = int(np.argmax(wrong.reshape(len(ready), -1).any(axis=1)))
        raise _wrong_sample(where, first + bad, what)
    return ready


def check_feed(
    source: str, specs: Mapping[str, InputSpec], feed: Mapping[str, npt.NDArray[Any]], index: int
) -> dict[str, npt.NDArray[Any]]:
    """Check one feed, in which every input has the model's own shape, and convert it.

    Args:
        source: What to call the data in messages.
        specs: The model's inputs.
        feed: Arrays by name, of shapes that fit.
        index: Position of the sample in the source, for messages.

    Raises:
        DataError: A dtype is wrong, or there is NaN or infinity.
    """
    ready = {}
    for name, spec in specs.items():
        where = f"{source}: input {name!r}"
        _refuse_other_dtype(where, spec, feed[name])
        ready[name], wrong, what = _convert(spec, feed[name])
        if wrong is not None and wrong.any():
            raise _wrong_sample(where, index, what)
    return ready


def _wrong_sample(where: str, index: int, what: str) -> DataError:
    return DataError(f"{where}: sample {index} holds {what}", remedy="correct or remove it")


def _refuse_other_dtype(where: str, spec: InputSpec, array: npt.NDArray[Any]) -> None:
    # Integers stand for booleans; floats never for integers, as token ids in float are a slip.
    kinds = "iu" if spec.dtype.kind in "iu" else "biu" if spec.dtype.kind == "b" else _NUMBERS
    if array.dtype.kind not in kinds:
        raise DataError(
            f"{where}: dtype {array.dtype}, the model takes {spec.dtype}",
            remedy=f"convert to {spec.dtype}",
        )


def _convert(
    spec: InputSpec, array: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None, str]:
    """Convert an array to the type of an input.

    Returns:
        The array, which of its elements cannot be converted (None: all can) and what those are.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is reported by the caller
        ready = np.asarray(array, dtype=spec.dtype, order="C")
    if spec.dtype.kind == "f":
        # Asked after the conversion, which itself makes infinity of what is too large.
        wrong, what = ~np.isfinite(ready), "NaN or infinity"
        if wrong.any() and np.isfinite(array).all():
            what = f"a number that is too large for {spec.dtype}"
        return ready, wrong, what
    if spec.dtype.kind in "iu" and not np.can_cast(array.dtype, spec.dtype):
        # The types do not fit in general, but the values may.
        return ready, ready != array, f"a number outside the range of {spec.dtype}"
    return ready, None, ""


def _format_shape(shape: tuple[int | None, ...]) -> str:
    """Format a shape with N for samples and ? for any size."""
    sizes = ["?" if size is None else str(size) for size in shape[1:]]
    return f"[{', '.join(['N', *sizes])}]" if shape else "[]"


def _other_shape(
    source: str, name: str, shape: tuple[int, ...], expected: tuple[int | None, ...]
) -> DataError:
    where = f"{source}: input {name!r}"
    if fits(shape, expected[1:]):
        return DataError(
            f"{where}: one sample of shape {list(shape)} without an axis for samples, the model "
            f"takes {_format_shape(expected)}",
            remedy="add that axis in front: array[None] in NumPy",
        )
    return DataError(
        f"{where}: samples of shape {_format_shape(shape)}, the model takes "
        f"{_format_shape(expected)}",
        remedy=shape_remedy(shape, expected, name),
    )


def other_sample(where: str, shape: tuple[int, ...], expected: tuple[int | None, ...]) -> DataError:
    """Return the error for a single sample that does not fit.

    Args:
        where: The sample, for the message.
        shape: Shape of the sample, without an axis for samples.
        expected: Shape of the model's input, with that axis.
    """
    return DataError(
        f"{where}: a sample of shape {list(shape)}, the model takes {_format_shape(expected)}",
        remedy=sample_remedy(shape, expected[1:], 0),
    )


def shown_sizes(shape: tuple[int | None, ...]) -> str:
    """Format a shape with ? for any size."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"

"""Fixes inputs to values: they become constants, which data may still give.

Their names and values are metadata of the model, so that they hold in a result's folder too.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import DataError, UsageError, nearest
from intact.graph.aliases import aliases_of
from intact.graph.metadata import metadata_of, set_metadata

METADATA_KEY = "intact.fixed_inputs"

Number: TypeAlias = bool | int | float
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


def fix_inputs(model: ir.Model, values: Mapping[str, Number]) -> ir.Model:
    """Copy a model with inputs as constants.

    Args:
        model: Not changed.
        values: The values by input name.

    Raises:
        UsageError: The model has no such input, or its input does not hold that one value.
    """
    model = model.clone()
    graph = model.graph
    inputs = {str(v.name): v for v in graph.inputs if str(v.name) not in graph.initializers}
    aliases = aliases_of(model)
    found: dict[str, npt.NDArray[Any]] = dict(fixed_inputs_of(model))
    for name, number in values.items():
        own = aliases.get(name, name)
        shown = shown_value(name, number)
        if own not in inputs or own in found:
            remedy = nearest(name, inputs)
            raise UsageError(f"{shown}: the model has no such input", remedy=remedy)
        found[own] = _array(shown, inputs[own], number)
        _replace(graph, inputs[own], found[own])
    _remember(model, found)
    return model


def fix_arrays(model: ir.Model, arrays: Arrays) -> ir.Model:
    """Copy a model with inputs as constants of any size.

    Args:
        model: Not changed.
        arrays: By the names of inputs of the model; shapes and types are those of the inputs.
    """
    model = model.clone()
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, array in arrays.items():
        _replace(model.graph, inputs[name], array)
    _remember(model, {**fixed_inputs_of(model), **arrays})
    return model


def _remember(model: ir.Model, found: Arrays) -> None:
    entries = {
        name: [str(each.dtype), each.shape, each.reshape(-1).tolist()]
        for name, each in found.items()
    }
    set_metadata(model, METADATA_KEY, entries)


def _replace(graph: ir.Graph, value: ir.Value, array: npt.NDArray[Any]) -> None:
    graph.inputs.remove(value)
    value.const_value = ir.Tensor(array, dtype=value.dtype, name=value.name)
    value.shape = ir.Shape(array.shape)
    graph.register_initializer(value)


def takes_one_value(value: ir.Value) -> bool:
    """Tell whether an input is a number or truth value, alone or in axes of one."""
    kind = _kind(value)
    return kind != "" and value.shape is not None and all(n == 1 for n in value.shape)


def _kind(value: ir.Value) -> str:
    """Return numpy's letter for the kind of an input: b, i, u or f; empty for others."""
    try:
        kind = np.dtype(np.float32 if value.dtype is None else value.dtype.numpy()).kind
    except TypeError:
        return ""
    return kind if kind in "biuf" else ""


def _array(shown: str, value: ir.Value, number: Number) -> npt.NDArray[Any]:
    """Return a number as the array that an input takes; an open axis has the length 1."""
    shape = () if value.shape is None else value.shape
    if not _kind(value) or any(isinstance(n, int) and n != 1 for n in shape):
        raise UsageError(
            f"{shown}: the model's input {value.name!r} is {value.dtype} {value.shape}",
            remedy="fix an input of one number",
        )
    dtype = np.dtype(np.float32 if value.dtype is None else value.dtype.numpy())
    if not _fits(number, dtype):
        wanted = {"b": "true or false", "f": "a finite number"}
        remedy = f"give {wanted.get(dtype.kind, f'a whole number that {dtype} holds')}"
        raise UsageError(f"{shown}: the model's input {value.name!r} holds {dtype}", remedy=remedy)
    return np.full([1] * len(shape), number, dtype)


def _fits(number: Number, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return number in (0, 1)
    if dtype.kind == "f":
        # This refuses NaN as well, which compares as false.
        return abs(number) <= float(np.finfo(dtype).max)
    limits = np.iinfo(dtype)
    return limits.min <= number <= limits.max and int(number) == number


def shown_value(name: str, number: Number) -> str:
    """Write the option as a shell takes it."""
    text = str(number).lower() if isinstance(number, bool) else repr(number)
    return f"--input-value {quote(f'{name}={text}')}"


def fixed_inputs_of(model: ir.Model) -> dict[str, npt.NDArray[Any]]:
    """Return what inputs of a model were fixed to, by name, in the model's types and shapes.

    Raises:
        ModelError: The metadata does not hold what `fix_inputs` writes.
    """
    return metadata_of(model, METADATA_KEY, _read, {})


def _read(entries: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Make the arrays of the metadata, none larger than what is listed there."""
    found = {}
    for name, (dtype, shape, numbers) in entries.items():
        kind = np.dtype(str(dtype))
        if kind.kind not in "biuf" or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(name)
        found[str(name)] = np.array(numbers, kind).reshape(shape)
    return found


def without_fixed(source: str, fixed: Arrays, items: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays without those of fixed inputs, which must hold the same value.

    Args:
        source: What to call the arrays in messages.
        fixed: From `fixed_inputs_of`.
        items: The items by name.

    Raises:
        DataError: One holds another value.
    """
    for name in items.keys() & fixed.keys():
        wanted, given = fixed[name], np.asarray(items[name])
        is_number = given.dtype.kind in "biuf"
        # A float may be given with more digits; another integer must not become the fixed one.
        kind = wanted.dtype if wanted.dtype.kind == "f" else given.dtype
        other = given[_differs(given.astype(kind), wanted)] if is_number else given
        if other.size and wanted.size == 1:
            raise DataError(
                f"{source}: input {name!r} is {other.reshape(-1)[0]}, and the model has it fixed "
                f"to {wanted.item()}",
                remedy="leave it out, or quantize again with another "
                f"{shown_value(name, wanted.item())}",
            )
        if other.size:
            raise DataError(
                f"{source}: input {name!r} holds other values than those it is fixed to",
                remedy="give samples that have those too, or quantize again with such samples",
            )
    return {name: item for name, item in items.items() if name not in fixed}


def _differs(given: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which values are others than those of each sample; all where sizes are others."""
    if wanted.size == 1:
        return np.asarray(given != wanted.item())
    if not wanted.size or given.size % wanted.size:
        return np.ones(given.shape, np.bool_)
    return np.asarray(given.reshape(-1, wanted.size) != wanted.reshape(-1)).reshape(given.shape)

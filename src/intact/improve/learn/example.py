"""The first batch of data, to export a module with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact.errors import DataError
from intact.improve.learn.export import argument_names

Example = dict[str, Tensor]

_GIVE = "give example=, a batch of the module's inputs: a tensor, a tuple or a dict"


def example_of(module: nn.Module, data: object) -> tuple[Example, object]:
    """Return a batch of a module's inputs, and the data with that batch still in it.

    Args:
        module: Its arguments say how many inputs there are.
        data: A tensor or array of samples, a dict of those, a loader, a list or an iterator.
            Items of a list or of a dataset are samples, others batches.

    Raises:
        DataError: No batch can be told from the data.
    """
    names = argument_names(module)
    if isinstance(data, Mapping) or _is_array(data):
        return as_example(names, data), data
    if isinstance(data, Iterator):
        item = next(data, None)
        return as_example(names, item), itertools.chain([] if item is None else [item], data)
    if _is_dataset(data):
        first: Any = data[0]  # type: ignore[index]
        return as_example(names, _batch_of_one(first)), data
    try:
        item = next(iter(data), None)  # type: ignore[call-overload]
    except TypeError:
        item = None
    return as_example(names, item), data


def as_example(names: Sequence[str], item: object) -> Example:
    """Return the inputs of an item by name: labels that come along are left out.

    Raises:
        DataError: The item does not have them.
    """
    if isinstance(item, Mapping):
        found = {name: item[name] for name in names if name in item}
        if len(found) < len(names) and len(item) and len(names) == 1:
            found = {names[0]: next(iter(item.values()))}
    elif isinstance(item, list | tuple):
        found = dict(zip(names, item, strict=False))
    else:
        found = {names[0]: item} if names else {}
    if len(found) < len(names) or not all(_is_array(each) for each in found.values()):
        raise DataError(
            f"the data does not begin with a batch of {', '.join(names) or 'inputs'}", remedy=_GIVE
        )
    return {name: _tensor(each) for name, each in found.items()}


def _tensor(array: Any) -> Tensor:
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
    # Pixels come as bytes, and numbers from NumPy as float64; modules take float32.
    is_float32 = tensor.dtype in (torch.uint8, torch.float64, torch.float16)
    return tensor.float() if is_float32 else tensor


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic | Tensor)


def _is_dataset(data: object) -> bool:
    has_places = hasattr(type(data), "__getitem__") and hasattr(type(data), "__len__")
    return has_places and not hasattr(data, "batch_size") and len(data) > 0  # type: ignore[arg-type]


def _batch_of_one(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {name: _batch_of_one(each) for name, each in item.items()}
    if isinstance(item, list | tuple):
        return type(item)(_batch_of_one(each) for each in item)
    if isinstance(item, Tensor):
        return item[None]
    return np.asarray(item)[None] if isinstance(item, np.ndarray | np.generic) else item

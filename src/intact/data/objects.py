"""Recognizes and opens the Python objects that hold samples: loaders, datasets, lists, arrays.

They are told by what they can do, and no library is imported: a loader or dataset of PyTorch, a
dataset of Hugging Face and one's own class are the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import msgspec

from intact.data.arrays import is_array, shape_of
from intact.data.images.decode import is_picture
from intact.data.images.reader import evenly_spread, is_image
from intact.data.items import Holds, OpenedSource
from intact.data.shapes import fits
from intact.data.signature import InputSpec
from intact.errors import DataError

Specs = Mapping[str, InputSpec]

_FUNCTIONS = (FunctionType, MethodType, partial)  # no models, which are called with samples
_ONCE = "a generator or other iterator is read once: make it anew, or give a list of its items"


class Kind(NamedTuple):
    """A kind of object.

    Attributes:
        what: What it is, for messages.
        recognise: Whether an object is one; those above are none.
        open: Opens it for the inputs of a model, with the number of samples that are used.
    """

    what: str
    recognise: Callable[[Any], bool]
    open: Callable[[Any, Specs, int | None], OpenedSource]


def open_object(source: object, specs: Specs, limit: int | None = None) -> OpenedSource:
    """Open an object that holds samples; nothing is read yet.

    Args:
        source: The object.
        specs: The model's inputs.
        limit: Number of samples; a source that can be asked for any gives evenly spaced ones.

    Raises:
        DataError: It is of no known kind.
    """
    # In the order of the table, from special to general: an array can be iterated too.
    for kind in KINDS:
        if kind.recognise(source):
            return kind.open(source, specs, limit)
    kinds = [each.what for each in KINDS]
    raise DataError(
        f"data of type {type(source).__name__} holds no samples",
        remedy=f"give {', '.join(kinds[:-1])}, or {kinds[-1]}",
    )


def listed_images(source: object) -> tuple[list[Any], list[int] | None] | None:
    """Return a list of images, or of paths of images, with labels if it has pairs; else None."""
    if is_picture(source):
        return [source], None
    if not isinstance(source, list | tuple) or not source:
        return None
    if all(is_image(each) for each in source):
        return list(source), None
    are_pairs = all(
        isinstance(each, list | tuple)
        and len(each) == 2
        and is_image(each[0])
        and isinstance(each[1], int)
        for each in source
    )
    # Labels of other kinds are left to items, which take any.
    return ([each[0] for each in source], [each[1] for each in source]) if are_pairs else None


def holds_images(source: Any) -> bool:
    """Tell whether an object is known to hold images: by the first item of what has places.

    Iterators and loaders are not looked into: that would take a sample, or start workers.
    """
    if is_image(source) and not isinstance(source, str | Path):
        return True
    if not (isinstance(source, list | tuple) or is_indexed(source)):
        return False
    try:
        first: Any = source[0]
    except Exception:  # reported when read
        return False
    if isinstance(first, Mapping):
        return any(is_picture(value) for value in first.values())
    if isinstance(first, list | tuple) and first:
        first = first[0]
    return is_image(first)


class _NumberedItems(msgspec.Struct, frozen=True):
    """Some items of what gives any by its number."""

    source: Any
    numbers: Sequence[int]

    def __iter__(self) -> Iterator[Any]:
        return (self.source[number] for number in self.numbers)


class _FunctionItems(msgspec.Struct, frozen=True):
    """Samples that a function returns, called each time that they are read."""

    function: Callable[[], Iterable[Any]]

    def __iter__(self) -> Iterator[Any]:
        found = self.function()
        return iter([found] if isinstance(found, Mapping) else found)


def _open_mapping(source: Mapping[str, Any], specs: Specs, limit: int | None) -> OpenedSource:
    del specs, limit
    splits = [name for name, value in source.items() if _has_columns(value)]
    if splits:
        raise DataError(
            f"data: a {type(source).__name__} of the splits {', '.join(splits)}",
            remedy=f"give one of them: data[{splits[0]!r}]",
        )
    return OpenedSource([source], "the dict", is_kept=True, holds=Holds.BATCHES)


def only_input(where: str, array: Any, specs: Specs) -> dict[str, Any]:
    """Name an array after the model's one input.

    Raises:
        DataError: The model has several.
    """
    if len(specs) != 1:
        raise DataError(
            f"{where}: one array, the model has {len(specs)} inputs ({', '.join(specs)})",
            remedy="give an .npz with one array for each",
        )
    return {next(iter(specs)): array}


def _open_array(source: Any, specs: Specs, limit: int | None) -> OpenedSource:
    del limit
    whole = [only_input("data", source, specs)]
    return OpenedSource(whole, "the array", is_kept=True, holds=Holds.WHOLE)


def _open_loader(source: Any, specs: Specs, limit: int | None) -> OpenedSource:
    del specs, limit
    what, size = type(source).__name__, source.batch_size
    remedy = "give one of a dataset that has some"
    if getattr(source, "drop_last", False):
        remedy = f"leave out drop_last: it drops a batch of fewer than {size} samples"
    holds = Holds.EITHER if size is None else Holds.BATCHES  # None: samples as the dataset has them
    count = _loader_count(source)
    return OpenedSource(source, f"the {what}", "batch", count=count, holds=holds, remedy=remedy)


def _loader_count(loader: Any) -> int | None:
    """Count the samples that a loader gives; None where it does not tell."""
    try:
        count = len(loader.sampler)
        # The sampler's length, because a sampler may draw a part of the dataset.
        return count - count % loader.batch_size if loader.drop_last else count
    except Exception:  # of a loader that has none, or of a dataset without a length
        return None


def _open_table(source: Any, specs: Specs, limit: int | None) -> OpenedSource:
    # It gives no number of rows and no row by its number.
    if not is_indexed(source):  # a stream
        return OpenedSource(source, "the dataset", "row", holds=Holds.SAMPLES, is_table=True)
    opened = _open_indexed(source, specs, limit)
    return msgspec.structs.replace(opened, unit="row", is_table=True)


def _open_indexed(source: Any, specs: Specs, limit: int | None) -> OpenedSource:
    del specs
    numbers = evenly_spread(range(len(source)), limit)
    items = _NumberedItems(source, numbers)
    return OpenedSource(
        items, "the dataset", numbers=numbers, count=len(numbers), holds=Holds.SAMPLES
    )


def _open_list(source: Sequence[Any], specs: Specs, limit: int | None) -> OpenedSource:
    del limit
    what = f"the {type(source).__name__}"
    if _is_one_item(source, specs):
        return OpenedSource([source], what, is_kept=True, holds=Holds.WHOLE)
    return OpenedSource(source, what, is_kept=True)


def _is_one_item(source: Sequence[Any], specs: Specs) -> bool:
    """Tell arrays of all samples, ``(x, y)`` or ``(x1, x2)``, from a list of samples.

    Samples of one input have one rank, and labels are seldom of the shape of samples.
    """
    if len(source) < 2 or not all(map(is_array, source)):
        return False
    # Arrays of several inputs are one item; a list of samples would have tuples.
    if len(specs) > 1:
        return True
    if len(source) > 2:
        return False
    x, y = shape_of(source[0]), shape_of(source[1])
    (spec,) = specs.values()
    return len(x) != len(y) or (
        x[:1] == y[:1] and fits(x[1:], spec.shape[1:]) and not fits(y[1:], spec.shape[1:])
    )


def _open_iterator(source: Iterator[Any], specs: Specs, limit: int | None) -> OpenedSource:
    del specs, limit
    return OpenedSource(source, f"the {type(source).__name__}", remedy=_ONCE)


def _open_iterable(source: Iterable[Any], specs: Specs, limit: int | None) -> OpenedSource:
    del specs, limit
    return OpenedSource(source, f"the {type(source).__name__}")


def _open_function(source: Callable[[], Any], specs: Specs, limit: int | None) -> OpenedSource:
    del specs, limit
    return OpenedSource(_FunctionItems(source), "the function")


def _is_loader(source: object) -> bool:
    return all(hasattr(source, each) for each in ("dataset", "batch_size", "__iter__"))


def _has_columns(source: object) -> bool:
    return hasattr(source, "column_names") and hasattr(source, "__iter__")


def is_indexed(source: object) -> bool:
    """Tell what has places from mappings, and from what has its own order of iteration."""
    has_places = all(hasattr(type(source), each) for each in ("__len__", "__getitem__"))
    # Datasets of torch have no `__iter__`; a class that defines one wants to be iterated.
    is_own = hasattr(type(source), "__iter__") and not _has_columns(source)
    return has_places and not is_own and not isinstance(source, Mapping)


def is_function(source: object) -> bool:
    """Tell functions, which return data, from models, which are called with samples."""
    return isinstance(source, _FUNCTIONS)


def _is_iterable(source: object) -> bool:
    if isinstance(source, str | bytes | type):
        return False
    return hasattr(type(source), "__iter__") or hasattr(type(source), "__getitem__")


KINDS: tuple[Kind, ...] = (
    Kind("a dict of arrays by input name", lambda each: isinstance(each, Mapping), _open_mapping),
    Kind("an array or tensor", lambda each: is_array(each) and not is_picture(each), _open_array),
    Kind("a DataLoader", _is_loader, _open_loader),
    Kind("a dataset with columns", _has_columns, _open_table),
    Kind(
        "a list of samples, of batches or of (sample, label) pairs, or of images or their paths",
        lambda each: isinstance(each, list | tuple),
        _open_list,
    ),
    Kind("a dataset with a length", is_indexed, _open_indexed),
    Kind("an iterator", lambda each: isinstance(each, Iterator), _open_iterator),
    Kind("an iterable of such", _is_iterable, _open_iterable),
    Kind(
        "a function that returns one",
        is_function,
        _open_function,
    ),
)
"""What is recognized, in this order."""

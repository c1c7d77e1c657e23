"""Takes the first batch of the data, to export a module with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from intact.data.functions import describe
from intact.data.images.reader import image_files, is_image
from intact.data.images.steps import ImageSteps
from intact.data.items import LABEL_KEYS
from intact.data.objects import is_function, is_indexed
from intact.data.signature import LABELS
from intact.data.sources import FunctionSource, is_folder, load_arrays
from intact.errors import DataError, IntactError
from intact.improve.learn.export import argument_names, optional_names, runs

Example = dict[str, Tensor]

_GIVE = "give example=, a batch of the module's inputs: a tensor, a tuple or a dict"
_LABELS = frozenset({LABELS, *LABEL_KEYS})
_COLOURS = (3, 1)
_FOCUS = 4


class Preparation(msgspec.Struct, frozen=True):
    """What is done to samples before a module sees them.

    Attributes:
        transform: Applied to each sample first.
        image: The steps of images, where there is no transform.
    """

    transform: Callable[[Any], Any] | None = None
    image: ImageSteps = ImageSteps()


class _First(msgspec.Struct, frozen=True):
    """The first item of data.

    Attributes:
        item: A batch or a sample, as the data has it.
        is_sample: It rather is a sample.
        is_known: There is no doubt of that.
    """

    item: Any
    is_sample: bool = False
    is_known: bool = False


def example_of(
    module: nn.Module, data: object, preparation: Preparation | None = None
) -> tuple[Example, object]:
    """Return a batch of a module's inputs, and the data with that batch still in it.

    Args:
        module: Its arguments say how many inputs there are. Where an item may be a batch or a
            sample it is what the module computes with.
        data: Whatever `intact.data.sources.open_samples` opens.
        preparation: What is done to the samples.

    Raises:
        DataError: No batch can be told from the data.
    """
    preparation = preparation or Preparation()
    names = argument_names(module)
    others = [name for name in optional_names(module) if name not in _LABELS]
    kind = type(data).__name__
    first, data = _first(names, data)
    if first.item is None:
        raise DataError(f"data: no samples: the {kind} gives none", remedy="give at least one")
    for candidate in _prepare(names, first, preparation):
        ways = [candidate.item, _batch_of_one(candidate.item)]
        if candidate.is_sample:
            # Whether an item is a sample or a batch only the module knows: the likelier is tried
            # first.
            ways.reverse()
        if candidate.is_known:
            return as_example(names, ways[0], others), data
        examples = [as_example(names, way, others) for way in ways]
        fitting = next((each for each in examples if runs(module, each)), None)
        if fitting is not None:
            return fitting, data
    return examples[0], data  # torch says what is wrong with it


def as_example(names: Sequence[str], item: object, others: Sequence[str] = ()) -> Example:
    """Return the inputs of an item by name: labels that come along are left out.

    Args:
        names: The inputs that have to be there.
        item: Dicts have them by name, tuples and lists in order.
        others: Inputs that are taken from a dict that has them.

    Raises:
        DataError: The item does not have them.
    """
    if isinstance(item, Mapping):
        found = {name: item[name] for name in names if name in item}
        found |= {name: item[name] for name in others if name in item}
        if not found and len(names) == 1:
            found = {names[0]: _only(item)}
        is_whole = bool(found) and (len(found) >= len(names) or set(names) <= set(others))
    else:
        parts = item if isinstance(item, list | tuple) else [item]
        found = dict(zip(names, parts, strict=False))
        is_whole = len(found) == len(names)
    if not is_whole or not names or not all(_is_array(each) for each in found.values()):
        raise _no_batch(names)
    return {name: _tensor(each) for name, each in found.items()}


def _no_batch(names: Sequence[str]) -> DataError:
    listed = ", ".join(names) or "inputs"
    return DataError(f"the data does not begin with a batch of {listed}", remedy=_GIVE)


def _first(names: Sequence[str], data: object) -> tuple[_First, object]:
    """Return the first item of data, and the data with that item still in it."""
    if isinstance(data, Iterator):
        item = next(data, None)
        return _First(item), itertools.chain([] if item is None else [item], data)
    return _first_kept(names, data), data


def _first_kept(names: Sequence[str], data: Any) -> _First:
    """Return the first item of data that can be read again."""
    if isinstance(data, str | Path) and not is_image(data):
        return _first_of_file(data)
    is_list = isinstance(data, list | tuple)
    if isinstance(data, Mapping) or _is_array(data) or (is_list and _is_whole(names, data)):
        return _First(data, is_known=True)
    if is_image(data):
        return _First(data, is_sample=True)
    if (is_list or is_indexed(data)) and len(data):
        return _First(data[0], is_sample=True)
    made = data() if is_function(data) else data
    return _First(made if isinstance(made, Mapping) else _next(made))


def _first_of_file(data: str | Path) -> _First:
    if is_folder(data):
        return _First(Path(data) / image_files(Path(data))[0], is_sample=True)
    if Path(data).suffix in {".npz", ".npy"} or ":" not in str(data):
        return _First(load_arrays(Path(data)), is_known=True)
    return _First(_next(FunctionSource(str(data))))


def _next(data: Any) -> Any:
    try:
        return next(iter(data), None)
    except TypeError:
        return None


def _is_whole(names: Sequence[str], data: Sequence[Any]) -> bool:
    """Tell all samples, ``(x, y)`` or ``(x1, x2)``, from a list of samples or batches."""
    if not all(map(_is_array, data)) or len(data) not in (len(names), len(names) + 1):
        return False
    if len(data) == 1:
        return isinstance(data, tuple)
    shapes = [np.shape(each) for each in data]
    if any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        return False
    # For one input two equal shapes are two samples, unlike ones are samples and labels.
    return len(names) > 1 or len(shapes[0]) != len(shapes[1]) or shapes[0] != shapes[1]


def _prepare(names: Sequence[str], first: _First, steps: Preparation) -> Iterable[_First]:
    """Return what the module may see of an item, the likeliest first."""
    item, transform = first.item, steps.transform
    image = _image_of(item)
    if transform is not None:
        sample = item if first.is_sample or image is not None else _one(item)
        return [_First(_transform(names, sample, transform), is_sample=True)]
    if image is None:
        return [first]
    size = steps.image.size or steps.image.letterbox
    if size is None:
        raise DataError(
            "the data begins with an image, and nothing says what size the module takes",
            remedy="give size=(ROWS, COLUMNS), transform= or example=",
        )
    factor = 2 if steps.image.focus else 1
    shapes = [(1, c * factor * factor, *(each // factor for each in size)) for c in _COLOURS]
    return [_First(np.zeros(shape, np.float32)) for shape in shapes]


def _transform(names: Sequence[str], sample: Any, transform: Callable[[Any], Any]) -> Any:
    from intact.data.images.decode import decode, require_pillow

    given = _image_of(sample)
    if isinstance(given, str | Path):
        require_pillow()
        given = decode(Path(given), gray=False)
    if given is None and len(names) > 1:
        parts = sample if isinstance(sample, list | tuple) else []
        given = sample if isinstance(sample, Mapping) else dict(zip(names, parts, strict=False))
        given = {name: given[name] for name in names if name in given}
    elif given is None:
        parts = sample if isinstance(sample, list | tuple) else [sample]
        given = _only(sample, names) if isinstance(sample, Mapping) else parts[0]
    try:
        return transform(given)
    except (IntactError, MemoryError):
        raise
    except Exception as error:  # it may raise anything
        raise DataError(f"data: item 0: transform raises {describe(error)}") from error


def _image_of(item: Any) -> Any:
    """Return the image of an item, or the path of one; None where it has none."""
    if isinstance(item, Mapping):
        return next((each for each in item.values() if is_image(each)), None)
    if isinstance(item, list | tuple) and item:
        return _image_of(item[0])
    return item if is_image(item) else None


def _only(item: Mapping[str, Any], names: Sequence[str] = ()) -> Any:
    """Return the input of a dict that has it by another name: labels come behind, or are known."""
    known = next((item[name] for name in names if name in item), None)
    values = [value for name, value in item.items() if name not in _LABELS]
    return known if known is not None else next(iter(values or item.values()), None)


def _one(item: Any) -> Any:
    """Return the first sample of a batch."""
    if isinstance(item, Mapping):
        return {name: _one(each) for name, each in item.items()}
    if isinstance(item, list | tuple):
        return [_one(each) for each in item]
    return item[0] if _is_array(item) and np.ndim(item) else item


def _tensor(array: Any) -> Tensor:
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
    # Pixels come as bytes, and numbers from NumPy as float64; modules take float32.
    is_float32 = tensor.dtype in (torch.uint8, torch.float64, torch.float16)
    return tensor.float() if is_float32 else tensor


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic | Tensor)


def _batch_of_one(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {name: _batch_of_one(each) for name, each in item.items()}
    if isinstance(item, list | tuple):
        return [_batch_of_one(each) for each in item]
    if isinstance(item, Tensor):
        return item[None]
    return np.asarray(item)[None] if isinstance(item, np.ndarray | np.generic) else item

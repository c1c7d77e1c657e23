"""Makes batches of the items of a dataset or loader, as training code has them.

An item is a dict by input name, an array or image for a model with one input, or these with labels:
``(x, y)``, or ``(x1, x2, y)`` for two inputs. It is a batch or one sample: an array of the rank of
the model's input is a batch, one of a dimension less is a sample.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt

from intact.data.arrays import as_array, is_array, plain, shape_of
from intact.data.batching import Batch
from intact.data.columns import Columns
from intact.data.feeding import Feeding, arrange_feeds, takes_feeds
from intact.data.functions import describe, place_in
from intact.data.images.decode import BadImageError, decode, is_picture, require_pillow
from intact.data.images.fit import ImageInput, image_input
from intact.data.images.reader import blank, draw, is_image
from intact.data.labels import is_reference
from intact.data.preprocess import Preprocess
from intact.data.shapes import fits
from intact.data.signature import LABELS, InputSpec, other_sample
from intact.errors import DataError, IntactError
from intact.graph import Graph
from intact.graph.aliases import by_own_name
from intact.graph.fixed_inputs import without_fixed

LABEL_KEYS = ("label", "y", "target", "targets")
"""Keys of dicts that mean the labels, where there is no key ``labels`` and no such input."""

Named = Mapping[str, Any]
"""Arrays, images or lists of them, by input name and with references."""


class PreparedBatch(dict[str, npt.NDArray[Any]]):
    """A batch of images, to which all steps have been applied."""


class Holds(Enum):
    """The form of the items of a source."""

    BATCHES = "samples along axis 0, whatever their rank"
    WHOLE = "all samples, or but one; raw ones, for a transform, are all"
    SAMPLES = "one sample each; what has the rank of a batch is one nevertheless"
    EITHER = "batches or samples, by their rank"


class OpenedSource(msgspec.Struct, frozen=True):
    """What a source gives.

    Attributes:
        items: The items.
        what: What it is, for messages.
        unit: What an item is called in messages.
        numbers: The numbers of the items in the source; None counts them.
        count: Number of samples, if the source tells.
        is_kept: The source is a list: it can be looked at without a cost, and its arrays stay.
        holds: What an item is: a batch, a sample, or either, by its rank.
        is_table: Items are rows, of which a model takes some columns.
        remedy: What to do where there are no items.
    """

    items: Iterable[Any]
    what: str
    unit: str = "item"
    numbers: Sequence[int] | None = None
    count: int | None = None
    is_kept: bool = False
    holds: Holds = Holds.EITHER
    is_table: bool = False
    remedy: str = "give at least one"


class Layout(msgspec.Struct, frozen=True):
    """What items become.

    Attributes:
        source: Name of the data for messages.
        graph: The model, for second names and fixed values of its inputs.
        specs: Its inputs.
        preprocess: The steps for images.
        feeding: Which inputs have no axis for samples, and which are states.
        mask: Name of the mask.
        transform: Applied to each sample first.
    """

    source: str
    graph: Graph
    specs: Mapping[str, InputSpec]
    preprocess: Preprocess
    feeding: Feeding
    mask: str | None = None
    transform: Callable[[Any], Any] | None = None

    @property
    def is_fed(self) -> bool:
        """Whether samples are feeds, whose arrays have the model's own shapes."""
        return takes_feeds(self.specs, self.feeding)

    @property
    def states(self) -> frozenset[str]:
        """The inputs that need not be given."""
        return frozenset(self.feeding.states.values())


class Items:
    """The batches of a source; where it is an iterator there is one pass.

    Args:
        opened: The source.
        layout: What its items become.
    """

    def __init__(self, opened: OpenedSource, layout: Layout) -> None:
        self.opened, self.layout = opened, layout

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches.

        Raises:
            DataError: The source fails or is empty, or an item does not fit.
        """
        number = None
        for number, item in self._number_items():
            yield from self.batches(item, number)
        if number is None:
            opened = self.opened
            raise DataError(
                f"{self.layout.source}: no samples: {opened.what} gives no {opened.unit}",
                remedy=opened.remedy,
            )

    def count(self) -> int | None:
        """Count the samples, where that costs nothing."""
        if not self.opened.is_kept:
            return self.opened.count
        try:
            # By shapes, so that it costs little.
            return sum(self._size(item, number) for number, item in self._number_items())
        except DataError:  # reported when read
            return None

    def stored(self) -> list[Batch] | None:
        """Return all batches of a source that is in memory; None of others, and of what is wrong.

        What is wrong is reported when it is read.
        """
        if not self.opened.is_kept or self.layout.transform is not None:
            return None
        found = []
        try:
            for batch in self:
                if isinstance(batch, PreparedBatch):
                    return None
                found.append(batch)
        except DataError:
            return None
        return found

    def batches(self, item: object, number: int) -> Iterator[Batch]:
        """Yield what an item holds: one batch, or one for each transformed sample."""
        if self.opened.is_table:
            item = self._columns.of(f"{self.layout.source}: {self._where(number)}", item)
        # Columns are picked before names are given, because a row has more than the model takes.
        named = self.name_parts(item, number)
        if self.layout.transform is None:
            yield self._batch(named, number)
        else:
            for sample in self._samples(named, number):
                yield self._batch(self._transform(sample, number), number, is_one=True)

    def name_parts(self, item: object, number: int) -> Named:
        """Return what an item holds by input name, with references."""
        if isinstance(item, Mapping):
            return self._own_names(item)
        if isinstance(item, list | tuple):
            return self._parts(item, number)
        if isinstance(item, bool | int | float) or is_array(item) or is_image(item):
            return dict(zip(self._names(1, number), [item], strict=True))
        raise DataError(
            f"{self.layout.source}: {self._where(number)} is of type {type(item).__name__}",
            remedy="give arrays, tensors or images, dicts of them by input name, or pairs of "
            "such and labels",
        )

    def _number_items(self) -> Iterator[tuple[int, Any]]:
        numbers = itertools.count() if self.opened.numbers is None else iter(self.opened.numbers)
        number = -1
        try:
            items = iter(self.opened.items)
            # Item by item under one `try`: libraries raise in `iter` as well as in `next`.
            for number in numbers:
                try:
                    item = next(items)
                except StopIteration:
                    return
                yield number, item
        except (IntactError, MemoryError):
            raise
        except Exception as error:  # the source may raise anything
            raise DataError(
                f"{self.layout.source}: {self._where(max(number, 0))}: {_reason(error)}"
            ) from error

    def _where(self, number: int) -> str:
        return f"{self.opened.unit} {number}"

    def _size(self, item: object, number: int) -> int:
        named, layout = self.name_parts(item, number), self.layout
        if layout.is_fed:
            given = {n: as_array("data", n, v) for n, v in named.items() if n in layout.specs}
            return arrange_feeds("data", layout.specs, given, layout.feeding).count
        shapes = {n: shape_of(v) for n, v in named.items() if not is_reference(n, layout.specs)}
        # The same rule as `_batch`, so that the count is what will be read.
        is_sample = self.opened.holds is not Holds.BATCHES and self._is_sample(shapes)
        return 1 if is_sample else max((shape[0] for shape in shapes.values() if shape), default=0)

    def _own_names(self, item: Mapping[Any, Any]) -> Named:
        source, graph = self.layout.source, self.layout.graph
        try:
            given = {str(name): item[name] for name in item}
        except Exception as error:  # reading an array may raise anything
            raise DataError(f"{source}: cannot be read ({describe(error)})") from error
        # Labels are looked for behind the model's own names: an input may be called `y`.
        own = by_own_name(source, graph.aliases, given)
        if LABELS not in own and LABELS not in self.layout.specs:
            key = next((key for key in LABEL_KEYS if key in own.keys() - self.layout.specs), None)
            own = {LABELS if name == key else name: value for name, value in own.items()}
        return without_fixed(source, graph.fixed_inputs, own)

    def _names(self, count: int, number: int) -> list[str]:
        """Return the names of the inputs that stand in order: all but states."""
        needed = [name for name in self.layout.specs if name not in self.layout.states]
        if count == len(needed):
            return needed
        shown, plural = ", ".join(map(repr, needed)), "s" * (len(needed) != 1)
        order = ", ".join(needed) if len(needed) > 1 else "x"
        raise DataError(
            f"{self.layout.source}: {self._where(number)} has {count} part{'s' * (count != 1)}, "
            f"the model has {len(needed)} input{plural} ({shown})",
            remedy=f"give {order}, or ({order}, labels), or dicts by input name",
        )

    def _parts(self, item: Sequence[Any], number: int) -> Named:
        """Name the parts of a tuple or list: the inputs in order, and labels."""
        # ``((x1, x2), y)`` and ``({...}, y)``, as data loaders collate them.
        if len(item) == 2 and _is_nested(item[0]):
            return {**self.name_parts(item[0], number), **self._name_labels(item[1])}
        inputs, labels = [*item], None
        if len(item) == len(self.layout.specs.keys() - self.layout.states) + 1 > 1:
            labels = inputs.pop()
        return {
            **dict(zip(self._names(len(inputs), number), inputs, strict=True)),
            **self._name_labels(labels),
        }

    def _name_labels(self, labels: object) -> Named:
        """Return labels as references; those that are dicts (boxes, masks ...) by their keys."""
        if isinstance(labels, Mapping):
            found = {f"{LABELS}.{key}": value for key, value in labels.items()}
        elif isinstance(labels, list | tuple) and labels and isinstance(labels[0], Mapping):
            found = {f"{LABELS}.{key}": [each.get(key) for each in labels] for key in labels[0]}
        elif is_array(labels) or isinstance(labels, bool | int | float | str | list | tuple):
            found = {LABELS: labels}
        else:  # None, or objects of which only training knows the meaning
            found = {}
        return {key: value for key, value in found.items() if key not in self.layout.specs}

    def _batch(self, named: Named, number: int, *, is_one: bool = False) -> Batch:
        """Convert an item to arrays with samples along axis 0.

        Args:
            named: What it holds.
            number: Its number in the source.
            is_one: It is one sample, whether its arrays have an axis for samples or not.
        """
        layout = self.layout
        # A reference has any shape, so it must not take part in telling a sample from a batch.
        references = {n: v for n, v in named.items() if is_reference(n, layout.specs)}
        inputs = {n: v for n, v in named.items() if n not in references}
        if any(_pictures(value) for value in inputs.values()):
            return self._draw_images(inputs, references, number)
        arrays = {n: as_array(layout.source, n, v) for n, v in inputs.items()}
        if layout.is_fed:
            return {
                **arrays,
                **{n: v if shape_of(v) else _add_axis(v) for n, v in references.items()},
            }
        shapes = {n: array.shape for n, array in arrays.items()}
        # What is known to be batches is not judged by rank: `check_ranks` names what does not fit.
        is_known = self.opened.holds is Holds.BATCHES and not is_one
        if not is_known and self._is_sample(shapes):
            self._refuse_other_sizes(shapes, number)
            arrays, is_one = {n: array[None] for n, array in arrays.items()}, True
        return {
            **arrays,
            **({n: _add_axis(v) for n, v in references.items()} if is_one else references),
        }

    def _refuse_other_sizes(self, shapes: Mapping[str, tuple[int, ...]], number: int) -> None:
        for name, spec in self.layout.specs.items():
            if name in shapes and not fits(shapes[name], spec.shape[1:]):
                where = f"{self.layout.source}: {self._where(number)}: input {name!r}"
                raise other_sample(where, shapes[name], spec.shape)

    def _is_sample(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Tell one sample from a batch, by the ranks of the model's inputs."""
        specs = self.layout.specs
        given = [name for name in specs if name in shapes]
        return (
            bool(given)
            and not self.layout.is_fed
            and all(len(shapes[name]) + 1 == len(specs[name].shape) for name in given)
        )

    def _draw_images(self, inputs: Named, references: Named, number: int) -> PreparedBatch:
        """Apply the steps to images."""
        takes = self._takes
        if list(inputs) != [takes.name]:
            raise DataError(
                f"{self.layout.source}: {self._where(number)} has {', '.join(map(repr, inputs))}, "
                f"the model takes an image as {takes.name!r}",
                remedy="give the image alone",
            )
        given = inputs[takes.name]
        images = _pictures(given)
        canvas = blank(takes, len(images))
        for place, image in enumerate(images):
            decoded = self._decode(image, number, gray=takes.channels == 1)
            try:
                draw(decoded, takes, canvas[place])
            except BadImageError as error:
                raise self._bad_image(image, number, error) from error
        if is_image(given):
            references = {n: _add_axis(value) for n, value in references.items()}
        return PreparedBatch({takes.name: takes.finish(canvas), **references})

    @functools.cached_property
    def _columns(self) -> Columns:
        layout, graph = self.layout, self.layout.graph
        mask = () if layout.mask is None else (layout.mask,)
        names = (*layout.specs, *graph.aliases, *graph.fixed_inputs, *mask)
        return Columns(layout.specs, (*names, *LABEL_KEYS))

    @functools.cached_property
    def _takes(self) -> ImageInput:
        require_pillow()
        return image_input(self.layout.specs, self.layout.preprocess)

    def _samples(self, named: Named, number: int) -> Iterator[Named]:
        """Yield the samples of an item, for the transform."""
        specs, holds = self.layout.specs, self.opened.holds
        shapes = {n: shape_of(named[n]) for n in specs if n in named}
        ranks = all(len(shape) == len(specs[n].shape) for n, shape in shapes.items())
        if not (holds in (Holds.BATCHES, Holds.WHOLE) or (holds is Holds.EITHER and ranks)):
            yield named
            return
        lengths = {n: next(iter(shape_of(value)), 0) for n, value in named.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"{self.layout.source}: {self._where(number)} has different numbers of samples: "
                f"{lengths}",
                remedy="give the same number of each",
            )
        for index in range(next(iter(lengths.values()), 0)):
            yield {name: value[index] for name, value in named.items()}

    def _transform(self, sample: Named, number: int) -> Named:
        """Apply the transform to the inputs of one sample."""
        transform, specs = self.layout.transform, self.layout.specs
        inputs = {n: sample[n] for n in specs if n in sample}
        if transform is None or not inputs:  # a missing input is reported later
            return sample
        given = inputs if len(specs) > 1 else next(iter(inputs.values()))
        try:
            made = transform(self._decode(given, number) if is_image(given) else given)
        except (IntactError, MemoryError):
            raise
        except Exception as error:  # it may raise anything
            raise DataError(
                f"{self.layout.source}: {self._where(number)}: transform raises {describe(error)}"
            ) from error
        others = {n: v for n, v in sample.items() if n not in inputs}
        return {**others, **self.name_parts(made, number)}

    def _decode(self, image: Any, number: int, *, gray: bool | None = None) -> Any:
        """Decode an image; for a transform a file in RGB, and one of Pillow as it is."""
        if gray is None and is_picture(image):
            return image
        require_pillow()
        try:
            source = Path(image) if isinstance(image, str) else image
            return decode(source, gray=bool(gray))
        except BadImageError as error:
            raise self._bad_image(image, number, error) from error

    def _bad_image(self, image: object, number: int, error: BadImageError) -> DataError:
        name = f": {image}" if isinstance(image, str | Path) else ""
        return DataError(
            f"{self.layout.source}: {self._where(number)}{name}: {error}",
            remedy="repair or remove it",
        )


def _is_nested(value: object) -> bool:
    """Tell whether the first of two parts holds inputs of its own: a dict, or several arrays."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list | tuple) and bool(value) and is_array(value[0])


def _pictures(value: object) -> list[Any]:
    """List the images of a value: itself, or those of a list."""
    if is_image(value):
        return [value]
    is_list = isinstance(value, list | tuple) and bool(value) and all(map(is_image, value))
    return list(value) if is_list else []  # type: ignore[call-overload]


def _add_axis(value: Any) -> Any:
    """Return the reference of one sample as that of a batch of one."""
    try:
        return plain(value)[None]
    except ValueError:  # of parts of different shapes
        return [value]


def _reason(error: Exception) -> str:
    """Format an exception on one line; one of a worker process holds its traceback as text."""
    if "Traceback (most recent call last)" in str(error):
        place = place_in(str(error))
        said = str(error).strip().splitlines()[-1].strip()
        return f"raises {said} ({place})" if place else f"raises {said}"
    return f"raises {describe(error)}"

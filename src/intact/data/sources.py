"""Opening data: files, folders of images, functions, arrays."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.archive import PickledError, map_npy, read_npz
from intact.data.batching import Batch
from intact.data.feeding import Feeding, Step, arranged, takes_feeds
from intact.data.functions import describe, import_function
from intact.data.labels import is_reference
from intact.data.mask import refuse_other_rank
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec, input_specs
from intact.data.stream import Samples, as_array
from intact.errors import DataError, UsageError
from intact.graph import Graph
from intact.graph.aliases import by_own_name
from intact.graph.files.regular import open_file
from intact.graph.fixed_inputs import without_fixed

_NPZ, _NPY, _PICKLE = b"PK", b"\x93NUMPY", b"\x80"  # the first bytes of the files


def load_arrays(path: Path, flag: str = "--data") -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """Read an ``.npy`` (an array) or an ``.npz`` (a dict of arrays).

    Arrays are memory-mapped; only compressed members of an ``.npz`` are read. Nothing in the file
    is executed: pickled objects are rejected.

    Args:
        path: The file.
        flag: The option that names it, for messages.

    Raises:
        DataError: The file is missing, unreadable, of another kind or damaged, or has pickled
            objects or compressed arrays that do not fit into memory.
    """
    try:
        with open_file(path) as file:
            start = file.read(len(_NPY))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", remedy=f"check {flag}") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
    if start.startswith(_PICKLE):
        raise _pickled(path)
    if not start.startswith((_NPZ, _NPY)):
        raise DataError(f"{path}: not an .npz or .npy file", remedy="write it with numpy.savez")
    try:
        return map_npy(path) if start.startswith(_NPY) else read_npz(path)
    except DataError:
        raise
    except PickledError as error:
        raise _pickled(path) from error
    except Exception as error:  # numpy, zipfile and zlib raise a dozen unrelated classes
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path}: damaged or truncated ({reason})", remedy="write or copy it again"
        ) from error


def _pickled(path: Path) -> DataError:
    return DataError(
        f"{path}: contains pickled Python objects, which can run code when loaded",
        remedy="save plain numeric arrays",
    )


class FunctionSource:
    """A ``module:function`` source: called for each pass over the data.

    Args:
        text: ``module:function``; the module may be in the working directory.

    Raises:
        DataError: There is no such module or function.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._function = import_function(text, "--data")

    def __iter__(self) -> Iterator[Any]:
        """Call the function and yield its batches; a single dict is one batch."""
        try:
            found = self._function()
            if found is None:
                raise DataError(
                    f"{self._text}: returns None", remedy="yield or return dicts of arrays"
                )
            yield from [found] if isinstance(found, Mapping) else found
        except DataError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"{self._text}: raises {describe(error)}") from error


def open_samples(
    source: str | Path | npt.NDArray[Any] | Mapping[str, npt.ArrayLike] | Iterable[Batch],
    graph: Graph,
    *,
    preprocess: Preprocess | None = None,
    limit: int | None = None,
    mask: str | None = None,
    labels: str | Path | None = None,
    skip_bad: bool = False,
    unread: Collection[str] = (),
    feeding: Feeding | None = None,
    step: Step | None = None,
) -> Samples:
    """Open calibration or evaluation data.

    Args:
        source: An ``.npz`` keyed by input name (and ``labels``), an ``.npy`` for a model with one
            input, ``module:function`` that returns an iterable of dicts, a dict of arrays, an array
            for a model with one input, any iterable of such dicts, or a folder of images for a
            model with one image input. Arrays have samples along axis 0. References for a metric
            may have keys that start with ``labels.`` or ``labels_``: arrays, or lists of one array
            per sample.
        graph: The model; where it has second names for its inputs, they may be keys.
        preprocess: Mean and scale; for a folder also the image steps.
        limit: Number of samples to use: the first ones, or of a folder evenly spaced ones.
        mask: Name of the mask of padded sequences, ``[N, S]`` and 0 where padded: an input of the
            model, or another array of the source.
        labels: A CSV file of ``file,label``, for a folder whose sub-folders are not the classes.
        skip_bad: Skip unreadable images and list them in ``skipped``.
        unread: Names of arrays of the source that are not needed.
        feeding: Which inputs have no axis for samples, and which are states.
        step: Runs the float model for its states.

    Raises:
        DataError: The source is missing, unreadable or has pickled objects; the mask is an input of
            another rank; a folder has no images, labels that do not match, or images that do not
            fit the model.
        UsageError: ``limit`` is not positive.
        MissingExtraError: The source is a folder of images, and Pillow is not installed.
    """
    if limit is not None and limit < 1:  # a slice would accept a negative number
        raise UsageError(f"samples is {limit}", remedy="give 1 or more, or None for all")
    specs = input_specs(graph)
    feeding = (feeding or Feeding()).of_graph(graph)
    is_fed = takes_feeds(specs, feeding)
    if is_fed and mask is not None:
        raise UsageError(
            f"--mask {mask} is for inputs that all have samples along axis 0", remedy="leave it out"
        )
    refuse_other_rank(mask, specs)
    preprocess = preprocess or Preprocess()
    if is_folder(source):
        if mask is not None:
            raise DataError(f"{source}: a folder of images has no mask", remedy="remove the mask")
        return _images(source, specs, preprocess, limit, labels, skip_bad=skip_bad)
    if labels is not None:
        raise DataError(
            "--labels needs a folder of images",
            remedy="arrays have their labels under the key 'labels'",
        )
    if skip_bad:
        raise DataError("--skip-bad needs a folder of images", remedy="leave it out")
    reader, name = _reader(source, specs)
    if graph.aliases or graph.fixed_inputs:
        mask = None if mask is None else graph.aliases.get(mask, mask)
        reader = _by_own_name(name, graph, reader)
    count = _feed_count(reader, specs, feeding) if is_fed else _count(reader)
    if count is not None and limit is not None:
        count = min(count, limit)
    return Samples(
        name,
        specs,
        reader,
        preprocess,
        limit,
        count,
        mask=mask,
        unread=frozenset(unread) - specs.keys(),
        feeding=feeding,
        step=step,
    )


def _images(
    folder: str | Path,
    specs: Mapping[str, InputSpec],
    preprocess: Preprocess,
    limit: int | None,
    labels: str | Path | None,
    *,
    skip_bad: bool,
) -> Samples:
    """Open a folder of images."""
    from intact.data.images.reader import open_folder

    table = None if labels is None else Path(labels)
    images = open_folder(
        Path(folder), specs, preprocess, limit=limit, labels=table, skip_bad=skip_bad
    )
    # The folder's threads apply mean and scale already.
    exact = {images.takes.name: images.takes.spec}
    return Samples(str(folder), exact, images, limit=limit, count=len(images))


def _by_own_name(source: str, graph: Graph, reader: Iterable[Batch]) -> Iterable[Batch]:
    """Return batches whose arrays have the names of the model's inputs."""
    own = _OwnNames(source, graph, reader)
    return list(own) if isinstance(reader, list) else own


class _OwnNames(msgspec.Struct, frozen=True):
    """Batches of a source, each with the names of the model's inputs, without fixed ones."""

    source: str
    graph: Graph
    reader: Iterable[Batch]

    def __iter__(self) -> Iterator[Any]:
        for batch in self.reader:
            is_batch = isinstance(batch, Mapping)  # others are reported when read
            yield self._named(batch) if is_batch else batch

    def _named(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        own = by_own_name(self.source, self.graph.aliases, batch)
        return without_fixed(self.source, self.graph.fixed_inputs, own)


def is_folder(source: object) -> TypeGuard[str | Path]:
    """Tell whether a source is a folder of images."""
    # os.path, because pathlib raises for a name that is too long.
    return isinstance(source, str | Path) and os.path.isdir(source)  # noqa: PTH112


def _count(reader: Iterable[Batch]) -> int | None:
    """Count the samples of a list of batches; None for sources that must be read."""
    if not isinstance(reader, list):
        return None
    lengths = [
        [
            len(array)
            for array in batch.values()
            if isinstance(array, list | tuple) or np.ndim(array)
        ]
        for batch in reader
        if isinstance(batch, Mapping)  # others are reported when read
    ]
    return sum(max(each, default=0) for each in lengths)


def _feed_count(
    reader: Iterable[Batch], specs: Mapping[str, InputSpec], feeding: Feeding
) -> int | None:
    """Count the feeds of a list of batches; None where they must be read."""
    if not isinstance(reader, list):
        return None
    count = 0
    for batch in reader:
        if not isinstance(batch, Mapping):  # reported when read
            return None
        try:
            given = {n: as_array("data", n, array) for n, array in batch.items() if n in specs}
            count += arranged("data", specs, given, feeding).count
        except DataError:  # reported when read
            return None
    return count


def _reader(
    source: str | Path | npt.NDArray[Any] | Mapping[str, npt.ArrayLike] | Iterable[Batch],
    specs: Mapping[str, InputSpec],
) -> tuple[Iterable[Batch], str]:
    if isinstance(source, Mapping):
        converted: dict[str, Any] = {
            name: array if is_reference(name, specs) else as_array("data", name, array)
            for name, array in source.items()
        }
        return [converted], "data"
    if isinstance(source, np.ndarray):
        return [_only_input("data", source, specs)], "data"
    if not isinstance(source, str | Path):
        return source, "data"
    text = str(source)
    path = Path(text)
    # os.path, because pathlib raises for a name that is too long.
    if path.suffix in {".npz", ".npy"} or os.path.exists(path):  # noqa: PTH110
        loaded = load_arrays(path)
        if isinstance(loaded, np.ndarray):
            loaded = _only_input(text, loaded, specs)
        return [loaded], text
    if ":" in text:
        return FunctionSource(text), text
    raise DataError(
        f"{text}: no such file", remedy="give a folder, an .npz, an .npy or module:function"
    )


def _only_input(
    where: str, array: npt.NDArray[Any], specs: Mapping[str, InputSpec]
) -> dict[str, npt.NDArray[Any]]:
    if len(specs) != 1:
        raise DataError(
            f"{where}: one array, the model has {len(specs)} inputs ({', '.join(specs)})",
            remedy="give an .npz with one array for each",
        )
    return {next(iter(specs)): array}

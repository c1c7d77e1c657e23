"""Opens data of any kind: files, folders of images, functions and Python objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.archive import PickledError, map_npy, read_npz
from intact.data.feeding import Feeding, Step, takes_feeds
from intact.data.functions import describe, import_function
from intact.data.images.decode import require_pillow
from intact.data.images.fit import image_input
from intact.data.images.reader import (
    DecodedFolder,
    ImageFolder,
    is_image,
    labelled_files,
    open_folder,
    open_images,
)
from intact.data.items import Holds, Items, Layout, OpenedSource
from intact.data.mask import refuse_other_rank
from intact.data.objects import holds_images, listed_images, only_input, open_object
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec, input_specs
from intact.data.stream import Samples
from intact.errors import DataError, UsageError
from intact.graph import Graph
from intact.graph.files.regular import as_typed, is_url, open_file, remedy_for_absent

_NPZ, _NPY, _PICKLE = b"PK", b"\x93NUMPY", b"\x80"  # the first bytes of the files

_TABLE = (
    "if it lists labels, give the folder of the images; if it holds numbers, write them as an "
    "array with numpy.save"
)
_PACKED = "unpack it, and give the folder of its images"
_OTHERS = {
    **dict.fromkeys([".csv", ".tsv", ".txt"], _TABLE),
    **dict.fromkeys([".gz", ".tar", ".tgz", ".zip"], _PACKED),
    **dict.fromkeys([".pt", ".pth"], "write its tensors as arrays with numpy.savez"),
}
"""What to do with files of other kinds that hold data, by suffix."""


class Reading(msgspec.Struct, frozen=True):
    """How text and sounds are read.

    Attributes:
        tokenizer: Any source of an `intact.data.text.tokenizer.TextTokenizer`.
        context: Tokens of a window of text, or the most of a line.
        sample_rate: Rate of sounds, in samples a second.
    """

    tokenizer: Any = None
    context: int | None = None
    sample_rate: int | None = None

    @property
    def is_of_text(self) -> bool:
        """Whether it says that the data is text or tokens."""
        return self.tokenizer is not None or self.context is not None


_TEXT = frozenset({".md", ".text", ".txt"})
"""Suffixes of files that are text."""


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
        remedy = remedy_for_absent(path, f"check {flag}")
        raise DataError(f"{as_typed(path)}: no such file", remedy=remedy) from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
    # Told apart for its message: a pickle is often what a user has, and is never loaded.
    if start.startswith(_PICKLE):
        raise _pickle_error(path)
    if not start.startswith((_NPZ, _NPY)):
        raise DataError(f"{path}: not an .npz or .npy file", remedy=_remedy_for_other(path))
    try:
        return map_npy(path) if start.startswith(_NPY) else read_npz(path)
    except DataError:
        raise
    except PickledError as error:
        raise _pickle_error(path) from error
    except Exception as error:  # numpy, zipfile and zlib raise a dozen unrelated classes
        if path.suffix.lower() in _OTHERS:
            remedy = _remedy_for_other(path)
            raise DataError(f"{path}: not an .npz or .npy file", remedy=remedy) from error
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path}: damaged or truncated ({reason})", remedy="write or copy it again"
        ) from error


def _remedy_for_other(path: Path) -> str:
    """Say how to give what a file of another kind holds."""
    write = "write its samples with numpy.savez, or give a function that yields them"
    if path.suffix.lower() == ".csv":
        read = f"numpy.loadtxt({str(path)!r}, 'f', delimiter=',', ndmin=2)"
        return f"{_TABLE}: numpy.save({str(path.with_suffix('.npy'))!r}, {read})"
    return _OTHERS.get(path.suffix.lower(), write)


def _pickle_error(path: Path) -> DataError:
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
    source: object,
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
    transform: Callable[[Any], Any] | None = None,
    reading: Reading | None = None,
) -> Samples:
    """Open calibration or evaluation data.

    Args:
        source: An ``.npz`` keyed by input name (and ``labels``), an ``.npy`` for a model with one
            input, ``module:function``, a folder of images for a model with one image input, or an
            object of `intact.data.objects.KINDS`: a dict of arrays, an array or tensor of any
            library, a ``DataLoader``, a dataset, or a list, iterator or function of items. An item
            is a dict by input name, an array or image for a model with one input, or a tuple of
            the inputs in order, which labels may follow. It is a batch with samples along axis 0,
            or one sample without that axis: its rank tells. Files, dicts and loaders hold batches.
            References for a metric may have keys that start with ``labels.`` or ``labels_``:
            arrays, or lists of one array per sample.
        graph: The model; where it has second names for its inputs, they may be keys.
        preprocess: Mean and scale; for images also the image steps.
        limit: Number of samples to use: the first ones, or of a folder, a list of images or a
            dataset with a length evenly spaced ones.
        mask: Name of the mask of padded sequences, ``[N, S]`` and 0 where padded: an input of the
            model, or another array of the source.
        labels: A CSV file of ``file,label``, for a folder whose sub-folders are not the classes.
        skip_bad: Skip unreadable images and list them in ``skipped``.
        unread: Names of arrays of the source that are not needed.
        feeding: Which inputs have no axis for samples, and which are states.
        step: Runs the float model for its states.
        transform: Applied to each sample, an array or an image of Pillow, before anything else; of
            a model with several inputs to their dict.
        reading: How text and sounds are read; a source of text is the path of a file, texts, or
            rows of token ids.

    Raises:
        DataError: The source is missing, unreadable, of no known kind or has pickled objects; the
            mask is an input of another rank; a folder has no images, labels that do not match, or
            images that do not fit the model.
        UsageError: ``limit`` is not positive.
        MissingExtraError: The source holds images, and Pillow is not installed.
    """
    if limit is not None and limit < 1:  # a slice would accept a negative number
        raise UsageError(f"samples is {limit}", remedy="give 1 or more, or None for all")
    reading = reading or Reading()
    opened, feeding = None, feeding or Feeding()
    if takes_text(source, reading):
        from intact.data.text.source import open_text  # few need it

        text = open_text(
            _text_content(source, reading), graph, reading.tokenizer, reading.context, limit
        )
        opened, mask = text.opened, mask or text.mask
        feeding = feeding.with_unbatched(text.no_batch)
    specs = input_specs(graph)
    # Behind the text, which adds inputs without an axis for samples.
    feeding = feeding.of_graph(graph)
    if opened is None and holds_sounds(source):
        from intact.data.sounds import open_sounds  # few need it

        states = frozenset(feeding.states.values())
        sounds = open_sounds(source, specs, states, reading.sample_rate, limit)
        opened, feeding = sounds.opened, feeding.with_unbatched(sounds.no_batch)
    if takes_feeds(specs, feeding) and mask is not None:
        raise UsageError(
            f"--mask {mask} is for inputs that all have samples along axis 0", remedy="leave it out"
        )
    if takes_feeds(specs, feeding) and transform is not None:
        raise UsageError(
            "transform is for inputs that all have samples along axis 0", remedy="leave it out"
        )
    refuse_other_rank(mask, specs)
    # By the model's own name from here on, as all arrays are.
    mask = None if mask is None else graph.aliases.get(mask, mask)
    name = str(source) if isinstance(source, str | Path) else "data"
    if is_image_file(source):
        source = [source]  # a list of one
    layout = Layout(name, graph, specs, preprocess or Preprocess(), feeding, mask, transform)
    reader: ImageFolder | Items | None = None
    if opened is None:
        # Images have a way of their own, with threads that decode ahead.
        reader = _images(source, layout, limit, labels, skip_bad=skip_bad)
    if isinstance(reader, ImageFolder):  # its threads apply mean and scale already
        exact = {reader.takes.name: reader.takes.spec}
        return Samples(name, exact, reader, limit=limit, count=len(reader))
    items = reader or Items(opened or _open_any(source, specs, limit), layout)
    count = items.count()
    is_once = isinstance(items.opened.items, Iterator)
    return Samples(
        name,
        _exact_specs(source, layout),
        # An iterator stands for one pass, and `Samples` refuses a second one.
        iter(items) if is_once else items,
        layout.preprocess,
        limit,
        count if count is None or limit is None else min(count, limit),
        mask=mask,
        # An input of the model is always needed.
        unread=frozenset(unread) - specs.keys(),
        feeding=feeding,
        step=step,
    )


def _images(
    source: object,
    layout: Layout,
    limit: int | None,
    labels: str | Path | None,
    *,
    skip_bad: bool,
) -> ImageFolder | Items | None:
    """Open a folder or a list of images; None for other data.

    With a transform they are items: what becomes of them is for the transform to say.
    """
    if is_folder(source):
        if layout.mask is not None:
            raise DataError(f"{source}: a folder of images has no mask", remedy="remove the mask")
        folder, table = Path(source), None if labels is None else Path(labels)
        if layout.transform is None:
            specs, steps = layout.specs, layout.preprocess
            return open_folder(folder, specs, steps, limit=limit, labels=table, skip_bad=skip_bad)
        require_pillow()
        files, known = labelled_files(folder, limit=limit, labels=table)
        decoded = DecodedFolder(folder, files, known, skip_bad=skip_bad)
        opened = OpenedSource(decoded, "the folder", "image", count=len(files), holds=Holds.SAMPLES)
        return Items(opened, layout)
    if labels is not None:
        raise DataError(
            "--labels needs a folder of images",
            remedy="arrays have their labels under the key 'labels'",
        )
    listed = None if layout.transform else listed_images(source)
    if listed is None and skip_bad:
        raise DataError("--skip-bad needs a folder of images", remedy="leave it out")
    if listed is None:
        return None
    if layout.mask is not None:
        raise DataError("data: images have no mask", remedy="remove the mask")
    return open_images(*listed, layout.specs, layout.preprocess, limit=limit, skip_bad=skip_bad)


def takes_text(source: object, reading: Reading) -> bool:
    """Tell whether a source is text or tokens: an option says so, or the name of the file."""
    is_text = isinstance(source, str | Path) and Path(source).suffix.lower() in _TEXT
    return is_text or reading.is_of_text


def _text_content(source: Any, reading: Reading) -> Any:
    """Return a source of text as the path of a text, or as what holds texts or tokens.

    Raises:
        UsageError: It has arrays by name, which no tokenizer is for.
    """
    if isinstance(source, str | Path):
        text, path = str(source), Path(source)
        if os.path.isdir(path):  # noqa: PTH112 - pathlib raises for a name that is too long
            raise UsageError(f"{text}: is a folder, and text is a file", remedy="join its files")
        if path.suffix in {".npz", ".npy"}:
            source = load_arrays(path)
        elif ":" in text and not os.path.exists(path):  # noqa: PTH110
            return FunctionSource(text)
    if isinstance(source, Mapping):
        given = "tokenizer" if reading.tokenizer is not None else "context"
        raise UsageError(
            f"--{given} is for text or rows of tokens, and the data has arrays by name",
            remedy="leave it out",
        )
    return source


def _exact_specs(source: object, layout: Layout) -> Mapping[str, InputSpec]:
    """Return the specs of the inputs; of images with the size that they are brought to."""
    if layout.transform is not None or not holds_images(source):
        return layout.specs
    takes = image_input(layout.specs, layout.preprocess)
    return {takes.name: takes.spec}


def is_folder(source: object) -> TypeGuard[str | Path]:
    """Tell whether a source is a folder of images."""
    # os.path, because pathlib raises for a name that is too long.
    is_any = isinstance(source, str | Path) and os.path.isdir(source)  # noqa: PTH112
    return is_any and not holds_sounds(source)


def holds_sounds(source: object) -> TypeGuard[str | Path]:
    """Tell whether a source is a ``.wav`` file, or a folder with some and no images."""
    if not isinstance(source, str | Path):
        return False
    if not os.path.isdir(source):  # noqa: PTH112 - as above
        return Path(source).suffix.lower() == ".wav"
    from intact.data.sounds import is_sound_folder

    return is_sound_folder(Path(source))


def is_image_file(source: object) -> TypeGuard[str | Path]:
    """Tell whether a source is the path of one image."""
    is_path = isinstance(source, str | Path) and is_image(source)
    return is_path and os.path.isfile(source)  # type: ignore[arg-type]  # noqa: PTH113


def has_image_steps(source: object, transform: Callable[[Any], Any] | None = None) -> bool:
    """Tell whether the steps of images are applied: to a folder, a file, or objects with images.

    A transform takes their place.
    """
    is_path = is_folder(source) or is_image_file(source)
    return transform is None and (is_path or holds_images(source))


def _open_any(source: object, specs: Mapping[str, InputSpec], limit: int | None) -> OpenedSource:
    """Open a file, a function by its name, or an object."""
    if not isinstance(source, str | Path):
        return open_object(source, specs, limit)
    text = str(source)
    path = Path(text)
    # os.path, because pathlib raises for a name that is too long.
    if path.suffix in {".npz", ".npy"} or os.path.exists(path):  # noqa: PTH110
        loaded = load_arrays(path)
        if isinstance(loaded, np.ndarray):
            loaded = only_input(text, loaded, specs)
        return OpenedSource([loaded], "the file", is_kept=True, holds=Holds.BATCHES)
    if ":" in text and not is_url(path):
        return OpenedSource(FunctionSource(text), "the function")
    kinds = "give a folder, an .npz, an .npy or module:function"
    raise DataError(f"{text}: no such file", remedy=remedy_for_absent(path, kinds))

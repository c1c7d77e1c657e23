"""Declares preprocessing: image steps, then ``(values - mean) * scale``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.data.images.steps import ImageSteps
from intact.data.signature import InputSpec
from intact.errors import DataError, nearest
from intact.graph.files.regular import open_file

NORMALIZATIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "imagenet": {
            "mean": (123.675, 116.28, 103.53),
            "std": (58.395, 57.12, 57.375),
            "order": "rgb",
        },
        "imagenet-caffe": {"mean": (103.939, 116.779, 123.68), "scale": (), "order": "bgr"},
        "0..1": {"mean": (), "std": (255.0,)},
        "-1..1": {"mean": (127.5,), "std": (127.5,)},
    }
)
"""Preprocessings by name, of pixels from 0 to 255: torchvision's, that of Caffe's models, and
pixels brought to a range."""


@dataclass(frozen=True)
class Preprocess:
    """Mean and scale, per channel or common, and the steps for images.

    Mean and scale apply to float inputs of rank 3 or more; if the model has none, to those of rank
    2.

    Attributes:
        mean: Subtracted first, in the units of the data; empty for none. One number, or one per
            channel: along axis 1, or along the last axis if only that has this size.
        scale: Multiplied next; empty for none.
        image: The steps for folders of images; not applied to arrays.

    Raises:
        DataError: A number is not finite, or a scale is 0.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    image: ImageSteps = field(default_factory=ImageSteps)

    def __post_init__(self) -> None:
        for what, given in (("mean", self.mean), ("scale", self.scale)):
            object.__setattr__(self, what, _check_numbers(what, given))
        if 0 in self.scale:
            raise DataError(
                "--scale contains 0, which makes all samples equal", remedy="remove it for no scale"
            )

    def inputs(self, specs: Mapping[str, InputSpec]) -> frozenset[str]:
        """List the inputs that mean and scale apply to, by name.

        Raises:
            DataError: Mean or scale is given, and no input is suitable.
        """
        if not (self.mean or self.scale):
            return frozenset()
        ranks = {n: len(spec.shape) for n, spec in specs.items() if spec.dtype.kind == "f"}
        largest = max(ranks.values(), default=0)
        if largest < 2:
            raise DataError(
                "--mean and --scale need float inputs of rank 2 or more, the model has none",
                remedy="leave them out",
            )
        # Images and sequences of features; beside them a vector is a side input, with units of its
        # own.
        return frozenset(name for name, rank in ranks.items() if rank >= min(largest, 3))

    def __call__(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Apply mean and scale to an array (a new float32 array if any is given).

        Raises:
            DataError: The number of channels does not match ``mean`` or ``scale``.
        """
        # Left as it is, for the later check to name it.
        if values.dtype.kind not in "buif" or values.ndim < 2:
            return values
        return self.normalize(name, values)

    def normalize(
        self, name: str, values: npt.NDArray[Any], axis: int | None = None
    ) -> npt.NDArray[Any]:
        """Apply mean and scale, with a known channel axis.

        Raises:
            DataError: The number of channels does not match ``mean`` or ``scale``.
        """
        if not (self.mean or self.scale):
            return values
        with np.errstate(over="ignore"):  # infinity is reported by later checks
            result = values.astype(np.float32)
            if self.mean:
                result -= _along_channels(name, "mean", self.mean, result, axis)
            if self.scale:
                result *= _along_channels(name, "scale", self.scale, result, axis)
        return result


def preprocess_with(base: Preprocess, changes: Mapping[str, object]) -> Preprocess:
    """Copy ``base`` with other values; None keeps a value.

    Args:
        base: The value to change, for example from a file.
        changes: New values by field name of :class:`Preprocess` or :class:`ImageSteps`; ``std``,
            which is divided by, in the place of ``scale``; and ``normalize``, the name of some of
            `NORMALIZATIONS`, which the others win over.

    Raises:
        DataError: A field is unknown, or the values contradict each other.
    """
    # Options of a command line that were not given are None.
    changed = _as_scales({name: value for name, value in changes.items() if value is not None})
    of_images = {each.name for each in fields(ImageSteps)}
    of_arrays = {"mean", "scale"}
    for name in changed:
        if name not in of_images | of_arrays:
            raise DataError(
                f"there is no preprocessing step {name!r}",
                remedy=nearest(name, of_images | of_arrays),
            )
    image: dict[str, Any] = {name: changed[name] for name in changed if name in of_images}
    defaults = {each.name: each.default for each in fields(ImageSteps)}
    for one, other in (_FRAMED, _CROPPED), (_CROPPED, _FRAMED):
        if image.keys() & set(one):  # a geometry that is given replaces the other kind
            image = {**{name: defaults[name] for name in other}, **image}
    if not any(
        image.get(name, getattr(base.image, name)) for name in ("letterbox", "shorter_side")
    ):
        image.setdefault("side_rounding", defaults["side_rounding"])  # nothing is left to round
    arrays: dict[str, Any] = {name: changed[name] for name in changed if name in of_arrays}
    return replace(base, **arrays, image=replace(base.image, **image))


_FRAMED, _CROPPED = ("letterbox", "pad"), ("size", "shorter_side", "center_crop")
"""The steps of two kinds of geometry, which exclude each other."""


def _as_scales(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Write names and deviations as means and scales."""
    rest = dict(changes)
    named = _named_normalization(rest.pop("normalize", None))
    if "std" in rest and "scale" in rest:
        raise DataError("--std and --scale are both given", remedy="give one: scale is 1 / std")
    # What is given by a number wins over the name, whichever of the two it is written as.
    if {"std", "scale"} & rest.keys():
        named = {name: value for name, value in named.items() if name not in ("std", "scale")}
    merged = {**named, **rest}
    if "std" in merged:
        deviations = _check_numbers("std", merged.pop("std"))
        if 0 in deviations:
            raise DataError("--std contains 0, which cannot be divided by", remedy="remove it")
        # One form inside: a Preprocess has scales only.
        merged["scale"] = tuple(1 / each for each in deviations)
    return merged


def _named_normalization(name: Any) -> Mapping[str, Any]:
    if name is None:
        return {}
    if not isinstance(name, str):
        raise DataError("--normalize is not a name", remedy=f"give {', '.join(NORMALIZATIONS)}")
    if name not in NORMALIZATIONS:
        raise DataError(f"--normalize {name[:60]!r}", remedy=nearest(name[:60], NORMALIZATIONS))
    return NORMALIZATIONS[name]


def _check_numbers(what: str, given: Any) -> tuple[float, ...]:
    if not isinstance(given, list | tuple) or not all(
        isinstance(number, Real) and not isinstance(number, bool) for number in given
    ):
        raise DataError(f"--{what} is not a list of numbers", remedy="give one, or one per channel")
    try:
        numbers = tuple(float(number) for number in given)
    except OverflowError:
        numbers = (np.inf,)
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise DataError(f"--{what} has a number that is not finite", remedy="give finite numbers")
    return numbers


def _along_channels(
    name: str, what: str, numbers: tuple[float, ...], values: npt.NDArray[Any], axis: int | None
) -> npt.NDArray[np.float32]:
    """Reshape the numbers to broadcast along the channels."""
    array = np.asarray(numbers, np.float32)
    if len(array) == 1:
        return array.reshape(())
    # Channels first wins where both axes have the size: that is ONNX's layout.
    if axis is None and len(array) != values.shape[1] and len(array) == values.shape[-1]:
        axis = values.ndim - 1
    axis = 1 if axis is None else axis
    if len(array) == values.shape[axis]:
        return array.reshape(-1, *[1] * (values.ndim - 1 - axis))
    raise DataError(
        f"--{what} has {len(array)} numbers, input {name!r} has {values.shape[axis]} channels in "
        f"the data: {list(values.shape)}",
        remedy="give one number, or one per channel",
    )


_FORMAT = 1

_LARGEST_FILE = 1 << 14

"""Also limits dotted keys: the parser's time grows with the square of their parts."""

_ARRAYS = ("mean", "scale")

_GIVEN = ("normalize", "mean", "std", "scale")
"""Keys of a file; what is written has the two of a `Preprocess`."""

_IMAGE = tuple(step.name for step in fields(ImageSteps))


def read_preprocess(path: str | Path) -> Preprocess:
    """Read a preprocessing file.

    Raises:
        DataError: It cannot be read, is not TOML, has another format, an unknown key, a wrong type
            or a contradiction.
    """
    return preprocess_from_toml(_read(Path(path), str(path)), str(path))


def preprocess_from_toml(data: bytes, label: str) -> Preprocess:
    """Parse the content of a preprocessing file.

    Args:
        data: The content.
        label: Name of the file for messages.

    Raises:
        DataError: As for :func:`read_preprocess`.
    """
    if len(data) > _LARGEST_FILE:
        raise DataError(
            f"{label}: larger than {_LARGEST_FILE >> 10} KiB", remedy="give a preprocessing file"
        )
    table = _parse(data, label)
    _check_keys(table, ("format", *_GIVEN, "image"), label)
    if "format" not in table:
        raise DataError(f"{label}: key 'format' is missing", remedy=f"add format = {_FORMAT}")
    # `type`, because True equals 1.
    if type(table["format"]) is not int or table["format"] != _FORMAT:
        raise DataError(f"{label}: format is not {_FORMAT}", remedy=f"write format = {_FORMAT}")
    image = table.get("image", {})
    if not isinstance(image, dict):
        raise DataError(f"{label}: image is not a table", remedy="write [image] and its keys below")
    _check_keys(image, _IMAGE, label, place=" in [image]")
    arrays = {name: table[name] for name in _GIVEN if name in table}
    try:
        return preprocess_with(Preprocess(), {**arrays, **image})
    except DataError as error:  # keys have the names of options in Python
        raise DataError(f"{label}: {error}") from error


def preprocess_to_toml(preprocess: Preprocess) -> bytes:
    """Format a file that :func:`read_preprocess` reads back to an equal value.

    It has the fields that differ from the defaults, in order.
    """
    lines = [f"format = {_FORMAT}"]
    lines += [
        f"{name} = {_toml(value)}" for name in _ARRAYS if (value := getattr(preprocess, name))
    ]
    steps = preprocess.image
    if steps.given:
        lines += ["", "[image]"]
        lines += [f"{name} = {_toml(getattr(steps, name))}" for name in steps.given]
    return "\n".join([*lines, ""]).encode()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'  # an enum value, which needs no escapes
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return repr(value)  # for floats the shortest that reads back to the same value


def _read(path: Path, label: str) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(_LARGEST_FILE + 1)
    except FileNotFoundError as error:
        raise DataError(f"{label}: no such file", remedy="check --preprocess") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{label}: cannot be read ({reason})", remedy="check the path") from error


def _parse(data: bytes, label: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 text", remedy="give a TOML file") from error
    except RecursionError as error:
        raise DataError(f"{label}: nested too deeply", remedy="use the documented keys") from error
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise DataError(f"{label}: not TOML: {error}", remedy="correct the line") from error


def _check_keys(
    table: dict[str, Any], known: Iterable[str], label: str, *, place: str = ""
) -> None:
    for key in table:
        if key in known:
            continue
        remedy = nearest(key[:60], known)
        if key in _IMAGE:
            remedy = "put it below [image]"
        elif key in {"format", *_GIVEN}:
            remedy = "put it above [image]"
        raise DataError(f"{label}: unknown key {key!r}{place}", remedy=remedy)

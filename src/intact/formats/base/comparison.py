"""Counts where two results differ, batch by batch, without keeping them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.numerics.affine import dequantize, quantize
from intact.numerics.error_sums import ErrorSums
from intact.program import Array, Encoding, Program, Step, Tensor


def stored_feeds(
    program: Program,
    feeds: Mapping[str, npt.NDArray[Any]],
    as_lowered: Mapping[str, Tensor] | None = None,
) -> dict[str, Array]:
    """Return a batch as the inputs of a program.

    Args:
        program: Its inputs may be integers, and stored with channels last.
        feeds: By input name, with axes as the model has them: floats, or codes in the type of an
            integer input, which are taken as they are.
        as_lowered: The inputs before they were made integers, which tell how axes lie; those
            of the program if None.

    Raises:
        DataError: An input is missing.
    """
    layouts = program.inputs if as_lowered is None else as_lowered
    return {
        name: np.asarray(_fed(name, tensor, layouts[name].as_stored, feeds), order="C")
        for name, tensor in program.inputs.items()
    }


def _fed(
    name: str,
    tensor: Tensor,
    as_stored: Callable[[Array], Array],
    feeds: Mapping[str, npt.NDArray[Any]],
) -> Array:
    if name not in feeds:
        raise DataError(f"input {name!r} is missing", remedy="give an array of that name")
    array, encoding = as_stored(np.asarray(feeds[name])), tensor.encoding
    if encoding is None or array.dtype == encoding.dtype:
        return array
    # Integers of another type might be codes of another grid, or raw pixels: neither is guessed.
    if array.dtype.kind != "f":
        raise DataError(
            f"input {name!r} is {array.dtype}, the program takes {encoding.dtype}",
            remedy="give its codes in that type, or floats",
        )
    return in_codes(array, encoding)


def in_int32(name: str, array: Array) -> npt.NDArray[np.int32]:
    """Return whole numbers of an input as a runtime of int32 takes them.

    Raises:
        DataError: It does not hold them.
    """
    # A wider index would wrap silently in the conversion.
    limits = np.iinfo(np.int32)
    is_held = array.dtype.kind in "iu" and ((limits.min <= array) & (array <= limits.max)).all()
    if not is_held:
        raise DataError(
            f"input {name!r} is {array.dtype}, the program takes int32",
            remedy="give whole numbers that int32 holds",
        )
    return array.astype(np.int32)


def in_codes(array: Array, encoding: Encoding) -> Array:
    """Return floats as the nearest codes."""
    codes = quantize(
        array,
        encoding.scale,
        encoding.zero_point,
        encoding.quant_min,
        encoding.quant_max,
        rounding=encoding.rounding,
        axis=encoding.axis,
    )
    return codes.astype(encoding.dtype)


def in_numbers(array: Array, tensor: Tensor) -> Array:
    """Dequantize the codes of a tensor, as it is stored; floats are returned as they are."""
    encoding = tensor.encoding
    if encoding is None:
        return array
    return dequantize(array, encoding.scale, encoding.zero_point, axis=encoding.axis)


def numbers_of(outputs: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Dequantize the outputs of a program, with axes and whole numbers as the model has them.

    Args:
        outputs: As the program stores them.
        tensors: What they are, by the same names.
    """
    return {name: _number_of(array, tensors[name]) for name, array in outputs.items()}


def _number_of(array: Array, tensor: Tensor) -> Array:
    number = tensor.as_in_model(in_numbers(array, tensor))
    is_whole = tensor.encoding is None and tensor.dtype.kind in "iu"
    # A file may hold them in a narrower type.
    return number.astype(tensor.dtype, copy=False) if is_whole else number


@dataclass
class LayerComparison:
    """One tensor between steps, compared between what was deployed and a reference.

    Attributes:
        end: Where it is: the quantization point of the plan, or the tensor's name where it is none.
        tensor: Its name in the program, "" where it is compared without one.
        operation: What made it, e.g. ``Convolution`` or ``Elementwise add``.
        values: How many values were compared.
        mismatches: How many differ.
        largest: The largest difference, in quantization steps; of floats the difference itself.
        layout: How the axes of a recorded tensor were taken to lie, "" where that is known.
    """

    end: str
    tensor: str = ""
    operation: str = ""
    values: int = 0
    mismatches: int = 0
    largest: int | float = 0  # of codes an integer, when it was sent too
    layout: str = ""

    @property
    def rate(self) -> float:
        """The share of values that differ; 0 where there are none."""
        return self.mismatches / max(self.values, 1)

    def add(self, deployed: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
        """Compare one batch.

        Raises:
            DataError: The two have different shapes.
        """
        if deployed.shape != expected.shape:
            raise DataError(
                f"{self.end}: the deployed model gives {list(deployed.shape)}, "
                f"its plan {list(expected.shape)}",
                remedy="compare a model with the plan that it was written from",
            )
        self.values += expected.size
        # Equal arrays are the usual case, and cheaper to see than a difference is to measure.
        are_codes = deployed.dtype.kind in "iu" and expected.dtype.kind in "iu"
        if (are_codes or deployed.dtype == expected.dtype) and np.array_equal(deployed, expected):
            return
        count, largest = differences(deployed, expected)
        self.mismatches += count
        self.largest = max(self.largest, largest)

    def join(self, more: LayerComparison) -> None:
        """Add what was compared of further samples."""
        self.values += more.values
        self.mismatches += more.mismatches
        self.largest = max(self.largest, more.largest)


@dataclass
class OutputComparison:
    """An output of the model, deployed against expected.

    Attributes:
        name: As the model calls it.
        values: How many values were compared.
        mismatches: How many are not equal; NaN equals NaN.
        largest: The largest difference: of codes in steps, of floats as it is.
        sqnr_db: Signal to noise, dB, of the numbers as they are given; infinite when identical.
    """

    name: str
    values: int = 0
    mismatches: int = 0
    largest: int | float = 0
    sqnr_db: float = math.inf

    def __post_init__(self) -> None:
        """Begin the sums that the SQNR is made of; they are no field, which would be shown."""
        self.sums = ErrorSums()

    def join(self, more: OutputComparison) -> None:
        """Add what was compared of further samples."""
        self.values += more.values
        self.mismatches += more.mismatches
        self.largest = max(self.largest, more.largest)
        self.sums.join(more.sums)
        self.sum_up()

    def sum_up(self) -> None:
        """Compute the SQNR."""
        self.sqnr_db = self.sums.sqnr_db if self.mismatches else math.inf


class Totals(NamedTuple):
    """What comparisons of several tensors come to.

    Attributes:
        tensors: How many there are.
        values: How many values were compared.
        differ: How many of these differ.
        largest: The largest difference, in steps.
    """

    tensors: int
    values: int
    differ: int
    largest: float

    @staticmethod
    def of(compared: Sequence[LayerComparison] | Sequence[OutputComparison]) -> Totals:
        """Sum up."""
        return Totals(
            len(compared),
            sum(each.values for each in compared),
            sum(each.mismatches for each in compared),
            max((float(each.largest) for each in compared), default=0.0),
        )


@dataclass
class Classes:
    """The best class of each sample.

    Attributes:
        deployed: As the runtime decides.
        expected: As the engine does.
    """

    deployed: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)

    def add(self, deployed: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
        """Decide a batch of scores, [N, classes] (any further axes have the length 1)."""
        self.deployed += _best(deployed)
        self.expected += _best(expected)

    def join(self, more: Classes) -> None:
        """Add the decisions for further samples."""
        self.deployed += more.deployed
        self.expected += more.expected


def _best(scores: npt.NDArray[Any]) -> list[int]:
    return [int(best) for best in scores.reshape(len(scores), -1).argmax(axis=1)]


def has_classes(scores: npt.NDArray[Any]) -> bool:
    """Check whether an output decides between classes: one score each, for every sample."""
    lengths = [length for length in scores.shape[1:] if length != 1]
    return scores.ndim >= 2 and len(lengths) == 1 and scores.dtype.kind in "iuf"


class OutputComparer:
    """Collects the comparison of each output over batches."""

    def __init__(self) -> None:
        self._found: dict[str, OutputComparison] = {}
        self._classes: Classes | None = None

    def add(
        self,
        name: str,
        deployed: npt.NDArray[Any],
        expected: npt.NDArray[Any],
        tensor: Tensor | None = None,
    ) -> None:
        """Compare one batch of an output.

        Args:
            name: As the model calls it.
            deployed: What the runtime gave.
            expected: What the engine gave.
            tensor: What codes stand for, for the SQNR; None takes the arrays as numbers.

        Raises:
            DataError: The two have different shapes.
        """
        if not self._found and has_classes(deployed):
            self._classes = Classes()
        found = self._found.setdefault(name, OutputComparison(name))
        if deployed.shape != expected.shape:
            raise DataError(
                f"output {name!r}: the deployed model gives {list(deployed.shape)}, "
                f"its plan {list(expected.shape)}",
                remedy="compare a model with the plan that it was written from",
            )
        # The first output decides: of a detector or a model with heads beside it the others are no
        # scores.
        if self._classes is not None and name == next(iter(self._found)):
            self._classes.add(deployed, expected)
        count, largest = differences(deployed, expected)
        found.values += expected.size
        found.mismatches += count
        found.largest = max(found.largest, largest)
        if tensor is None:
            found.sums.add(deployed, expected)
        else:
            found.sums.add(in_numbers(deployed, tensor), in_numbers(expected, tensor))

    def found(self) -> list[OutputComparison]:
        """Return them in the order in which they came."""
        for each in self._found.values():
            each.sum_up()
        return list(self._found.values())

    def classes(self) -> Classes | None:
        """Return the classes that the first output decides, if it does."""
        return self._classes


def differences(deployed: npt.NDArray[Any], expected: npt.NDArray[Any]) -> tuple[int, float]:
    """Return how many elements of two arrays of one shape differ, and by how much at most.

    An integer for integers; NaN equals NaN, and against a number it differs infinitely.

    >>> differences(np.array([1, 200], np.uint8), np.array([3, 200], np.uint8))
    (1, 2)
    """
    if deployed.dtype.kind not in "biuf" or expected.dtype.kind not in "biuf":
        # Texts and other objects have no distance.
        unequal = int(np.count_nonzero(deployed != expected))
        return unequal, math.inf if unequal else 0
    if deployed.dtype.kind == "f" or expected.dtype.kind == "f":
        first, second = deployed.astype(np.float64), expected.astype(np.float64)
        equal = (first == second) | (np.isnan(first) & np.isnan(second))
        # An infinity less itself is NaN, and was found equal before.
        with np.errstate(invalid="ignore"):
            apart = np.where(equal, 0.0, np.abs(first - second))
        apart = np.where(np.isnan(apart), math.inf, apart)
        return int(np.count_nonzero(~equal)), float(apart.max(initial=0.0))
    # In int64, because differences of 8-bit codes wrap in their own type.
    apart_codes = np.abs(deployed.astype(np.int64) - expected.astype(np.int64))
    return int(np.count_nonzero(apart_codes)), int(apart_codes.max(initial=0))


def comparisons(program: Program, tensors: list[Tensor]) -> dict[str, LayerComparison]:
    """Return an empty comparison for each of a program's tensors, by name."""
    makers = {tensor.name: step for step in program.steps for tensor in step.outputs}
    return {
        tensor.name: LayerComparison(
            str(tensor.end or tensor.name),
            tensor.name,
            operation_name(makers[tensor.name]) if tensor.name in makers else "input",
        )
        for tensor in tensors
    }


def operation_name(step: Step) -> str:
    """Name the operation of a step in words: ``Convolution``, ``Elementwise add``."""
    kind = getattr(step.operation, "kind", None)
    name = type(step.operation).__name__
    return f"{name} {kind}" if kind is not None else name


def activations(program: Program) -> list[Tensor]:
    """Return the tensors that steps compute, in order."""
    return [tensor for step in program.steps for tensor in step.outputs]


def as_held(array: Array, tensor: Tensor) -> Array:
    """Return an array in the type that the program holds a tensor in, saturated."""
    # `ascontiguousarray` would give scalars an axis.
    if tensor.encoding is None or array.dtype == tensor.encoding.dtype:
        return np.asarray(array, order="C")
    kind = np.iinfo(tensor.encoding.dtype)
    return np.asarray(np.clip(array, kind.min, kind.max), tensor.encoding.dtype, order="C")

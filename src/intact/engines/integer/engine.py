"""Runs a program on the integers that the hardware computes with.

Every kernel is composed from the step's ``Arithmetic``; none asks for a target's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.engines.integer import moves, pooling, reductions, resizing
from intact.engines.integer.islands import float_island
from intact.engines.integer.kernel import KERNELS, Kernel, Overflow, Overflows
from intact.engines.integer.pointwise import conversions, elementwise, functions, softmax
from intact.engines.integer.products import convolution, matmul
from intact.errors import DataError
from intact.program import Array, Program, Step, Tensor
from intact.program.operations import FloatNodes

_MODULES = (
    conversions,
    convolution,
    elementwise,
    functions,
    matmul,
    moves,
    pooling,
    reductions,
    resizing,
    softmax,
)
"""Their kernels are registered when they are imported."""


def prepare(step: Step, overflows: Overflows, threads: int = 0) -> Kernel:
    """Make the kernel of a step."""
    if isinstance(step.operation, FloatNodes):
        return float_island(step, threads)
    return KERNELS.of(step.operation)(step, overflows)


@dataclass(frozen=True)
class IntegerRun:
    """Results of one batch.

    Attributes:
        outputs: By the model's output names.
        tensors: The observed ones, by the names of the program's tensors: codes in their
            encoding's dtype, or floats, with axes as the program stores them.
    """

    outputs: dict[str, Array]
    tensors: dict[str, Array]


class IntegerEngine:
    """A program that is ready to run.

    Args:
        program: The program.
        threads: Threads of float islands; 0 lets their runtime choose.

    Attributes:
        program: The program that is run.
    """

    def __init__(self, program: Program, *, threads: int = 0) -> None:
        self.program = program
        self._overflows = Overflows()
        self._kernels = [prepare(step, self._overflows, threads) for step in program.steps]
        self._tensors = {tensor.name: tensor for tensor in program.tensors()}
        self._last_uses = _last_uses(program)

    @property
    def overflows(self) -> Mapping[str, Overflow]:
        """Sums that left their accumulators in all runs so far, by step; only where counted."""
        return self._overflows.by_step

    def run(
        self,
        feeds: Mapping[str, npt.NDArray[Any]],
        observe: Collection[str] = (),
        forced: Mapping[str, Array] | None = None,
        seen: Callable[[str, Array], object] | None = None,
    ) -> IntegerRun:
        """Run one batch.

        Args:
            feeds: The model's inputs by name. An input that the program holds in integers takes
                its codes, and only those.
            observe: Names of tensors to return; those of ``program.tensors()`` for all of them,
                of which constants are left out.
            forced: Arrays that take the place of what the program computed for these tensors,
                for all that reads them: teacher forcing. What was computed is what is observed.
            seen: Takes each observed tensor when it is there, with its name, instead of the result,
                which then holds none of them: all together they are many times a batch.

        Raises:
            DataError: A feed is missing; a feed or a forced array has the wrong type or shape; or
                the program has no tensor of an observed or forced name.
        """
        forced = {} if forced is None else self._check_forced(forced)
        wanted = set(observe)
        self._check_names(wanted)
        values = {t.name: _take_feed(name, t, feeds) for name, t in self.program.inputs.items()}
        tensors: dict[str, Array] = {}
        keep = tensors.__setitem__ if seen is None else seen
        for name, array in values.items():
            if name in wanted:
                keep(name, array)
        values |= {name: array for name, array in forced.items() if name in values}
        runs = zip(self.program.steps, self._kernels, self._last_uses, strict=True)
        for step, kernel, last_uses in runs:
            results = _run(step, kernel, [values[tensor.name] for tensor in step.activations])
            for tensor, array in zip(step.outputs, results, strict=True):
                if tensor.name in wanted:
                    keep(tensor.name, array)
                # Observed first, replaced then: with teacher forcing one sees what a step made of
                # the teacher's inputs.
                values[tensor.name] = forced.get(tensor.name, array)
            # Freed as soon as nothing reads it: all tensors together are many times a batch.
            for name in last_uses:
                values.pop(name, None)
        outputs = {
            name: t.data if t.data is not None else values[t.name]
            for name, t in self.program.outputs.items()
        }
        return IntegerRun(outputs, tensors)

    def _check_forced(self, forced: Mapping[str, Array]) -> Mapping[str, Array]:
        self._check_names(forced.keys())
        for name, array in forced.items():
            _check(f"the array forced on {name!r}", array, self._tensors[name])
        return forced

    def _check_names(self, names: Collection[str]) -> None:
        unknown = sorted(name for name in names if name not in self._tensors)
        if unknown:
            raise DataError(
                f"the program has no tensor {', '.join(map(repr, unknown[:3]))}",
                remedy="take names of program.tensors()",
            )


def _last_uses(program: Program) -> list[list[str]]:
    """List for each step the tensors that no later step reads."""
    kept = {tensor.name for tensor in program.outputs.values()}
    readers = Counter(t.name for step in program.steps for t in step.activations)
    dead: list[list[str]] = []
    for step in program.steps:
        readers.subtract(t.name for t in step.activations)
        touched = (*step.activations, *step.outputs)
        dead.append([t.name for t in touched if readers[t.name] <= 0 and t.name not in kept])
    return dead


def _run(step: Step, kernel: Kernel, arrays: list[Array]) -> tuple[Array, ...]:
    """Run a kernel; name the step where NumPy rejects its operands.

    Raises:
        DataError: Their shapes do not go together.
    """
    try:
        return kernel(*arrays)
    except ValueError as error:
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise DataError(
            f"step {step.name!r} cannot compute with arrays of the shapes {shapes}: {error}",
            remedy="feed data of the model's shape",
        ) from error


def _take_feed(name: str, tensor: Tensor, feeds: Mapping[str, npt.NDArray[Any]]) -> Array:
    if name not in feeds:
        raise DataError(f"input {name!r} is missing", remedy="give an array of that name")
    array = np.asarray(feeds[name])
    _check(f"input {name!r}", array, tensor)
    return array


def _check(what: str, array: Array, tensor: Tensor) -> None:
    """Check type and rank of an array; a batch may have another length than the model's."""
    if array.dtype != tensor.dtype:
        raise DataError(
            f"{what} is {array.dtype}, the program takes {tensor.dtype}",
            remedy="give it in that type",
        )
    if tensor.shape and array.ndim != len(tensor.shape):  # () may be a rank that is not known
        raise DataError(
            f"{what} has {array.ndim} axes, the program takes {len(tensor.shape)}",
            remedy="give it in the model's shape",
        )

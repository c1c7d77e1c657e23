"""Feeds models sample by sample where not all inputs have samples along axis 0.

A feed is what a runtime takes for one run: all inputs by name, each in the model's own shape.
States (``[2, 1, 128]``), scalars and inputs that are the same for all samples have no axis for
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.data.shapes import fits
from intact.data.signature import InputSpec, shown_sizes
from intact.errors import DataError, UsageError, nearest
from intact.graph import Graph

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Step: TypeAlias = Callable[[Batch], Arrays]
"""Runs the float model on a feed and returns the outputs that are states."""


class Feeding(msgspec.Struct, frozen=True):
    """How samples become what the runtime takes.

    Attributes:
        no_batch: Inputs that have no axis for samples.
        states: Inputs by the output that is fed to them in the next sample.
    """

    no_batch: tuple[str, ...] = ()
    states: Mapping[str, str] = msgspec.field(default_factory=dict)

    def with_unbatched(self, names: Iterable[str]) -> Feeding:
        """Return the same with further inputs that have no axis for samples."""
        return Feeding(tuple(dict.fromkeys((*self.no_batch, *names))), self.states)

    def of_graph(self, graph: Graph) -> Feeding:
        """Return the same by the model's own names, in a fixed order.

        Raises:
            UsageError: The model has no such input or output, or two outputs are fed to one input.
        """
        inputs = _Names(graph.aliases, "input", {str(value.name) for value in graph.inputs})
        outputs = _Names(graph.aliases, "output", {str(value.name) for value in graph.outputs})
        no_batch = {
            inputs.own(name, "--no-batch")
            for name in self.no_batch
            if name not in graph.fixed_inputs
        }
        states = {
            outputs.own(output, "--state"): inputs.own(name, "--state")
            for output, name in self.states.items()
        }
        fed = list(states.values())
        for name in fed:
            # Asked of the model's own names: two that a user gives may be of one input.
            if fed.count(name) > 1:
                raise UsageError(
                    f"--state feeds two outputs to the input {name!r}", remedy="leave one out"
                )
        # Sorted, because it goes into the plan's provenance and the same options must give the same
        # bytes.
        return Feeding(tuple(sorted(no_batch)), dict(sorted(states.items())))


class _Names(NamedTuple):
    aliases: Mapping[str, str]
    what: str
    known: set[str]

    def own(self, name: str, flag: str) -> str:
        """Return the model's own name."""
        # Options may have the names of the user's file, which differ from those of the normalized
        # graph.
        found = self.aliases.get(name, name)
        if found not in self.known:
            raise UsageError(
                f"{flag}: the model has no {self.what} {name!r}", remedy=nearest(name, self.known)
            )
        return found


def takes_feeds(specs: Mapping[str, InputSpec], feeding: Feeding) -> bool:
    """Tell whether samples are feeds: some input has no axis for samples in front.

    That is a scalar, what the user names, or an input that fixes another length of axis 0 than
    the others.
    """
    if feeding.no_batch or feeding.states or any(not spec.shape for spec in specs.values()):
        return True
    lengths = {spec.shape[0] for spec in specs.values()}
    # A free length and 1 may both be a batch of one.
    return len(lengths) > 1 and not lengths <= {None, 1}


class _Form(Enum):
    """How an array holds an input."""

    WHOLE = "as the runtime takes it, for all samples"
    STACKED = "one a sample along a further axis"
    WITHOUT = "one a sample, without an axis of 1"


class FeedsOfArrays(msgspec.Struct, frozen=True):
    """The feeds in some arrays.

    Attributes:
        count: How many feeds there are.
    """

    count: int
    _arrays: Arrays
    _forms: Mapping[str, _Form]
    _specs: Mapping[str, InputSpec]

    def __iter__(self) -> Iterator[Batch]:
        for index in range(self.count):
            yield {name: self._pick(name, array, index) for name, array in self._arrays.items()}

    def _pick(self, name: str, array: npt.NDArray[Any], index: int) -> npt.NDArray[Any]:
        form = self._forms[name]
        if form is _Form.WHOLE:
            return array
        if form is _Form.STACKED:
            return np.asarray(array[index])
        axis = _missing_axis(array.shape[1:], self._specs[name].shape)
        return np.expand_dims(array[index], 0 if axis is None else axis)


def arrange_feeds(
    source: str, specs: Mapping[str, InputSpec], arrays: Arrays, feeding: Feeding
) -> FeedsOfArrays:
    """Tell the feeds in the arrays of a source apart.

    Of each input there is one array for all samples, in the model's own shape, or one for each
    along a further first axis, from which an axis of 1 may be left out. Arrays that all have the
    model's own shapes are one feed, where they do not have the same number of samples.

    Args:
        source: What to call the data in messages.
        specs: The model's inputs.
        arrays: Arrays by input name; states may be missing.
        feeding: Which inputs have no axis for samples.

    Raises:
        DataError: A name is unknown or missing, a shape does not fit, or there are different
            numbers of samples.
    """
    for name in arrays:
        if name not in specs:
            raise DataError(
                f"{source}: the model has no input {name!r}", remedy=nearest(name, specs)
            )
    for name in specs:
        if name not in arrays and name not in feeding.states.values():
            raise DataError(
                f"{source}: no array for input {name!r}", remedy=f"add one named {name!r}"
            )
    forms = {
        name: _form(source, name, array.shape, specs[name].shape, name in feeding.no_batch)
        for name, array in arrays.items()
    }
    lengths = {name: len(array) for name, array in arrays.items() if forms[name] is not _Form.WHOLE}
    if len(set(lengths.values())) > 1:
        if all(fits(array.shape, specs[name].shape) for name, array in arrays.items()):
            # Axis 0 counts something else in each, as the atoms and the bonds of a molecule.
            return FeedsOfArrays(1, arrays, dict.fromkeys(arrays, _Form.WHOLE), specs)
        raise DataError(
            f"{source}: inputs have different numbers of samples: {lengths}",
            remedy="give the same number for each input, and name inputs that are the same for "
            "all samples with --no-batch",
        )
    return FeedsOfArrays(next(iter(lengths.values()), 1), arrays, forms, specs)


def _form(
    source: str,
    name: str,
    shape: tuple[int, ...],
    expected: tuple[int | None, ...],
    is_unbatched: bool,
) -> _Form:
    if fits(shape[1:], expected) and shape:
        return _Form.STACKED
    # Asked before the whole: an array of the model's rank is taken for many samples where it can
    # be, unless the user says that the input has no axis for them.
    is_short = not is_unbatched and bool(shape) and _missing_axis(shape[1:], expected) is not None
    if is_short:
        return _Form.WITHOUT
    if fits(shape, expected):
        return _Form.WHOLE
    one, several = shown_sizes(expected), shown_sizes((None, *expected)).replace("?", "N", 1)
    raise DataError(
        f"{source}: input {name!r} has shape {list(shape)}, the model takes {one}",
        remedy=f"give {several}, one a sample, or {one} for all",
    )


def _missing_axis(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> int | None:
    """Return the axis of length 1 that a sample of this shape lacks; None if it is not one."""
    if len(shape) + 1 != len(expected):
        return None
    for axis, size in enumerate(expected):
        if size in (None, 1) and fits(shape, expected[:axis] + expected[axis + 1 :]):
            return axis
    return None


class Carried:
    """The states of one model over a sequence: its outputs become inputs of the next feed.

    Args:
        states: Inputs by output.
        specs: The model's inputs.
    """

    def __init__(self, states: Mapping[str, str], specs: Mapping[str, InputSpec]) -> None:
        self._states, self._specs = states, specs
        self._held: Batch = {}

    def into(self, feed: Batch) -> Batch:
        """Return a feed with the states of the model, which win over its own; zeros at first."""
        missing = {n: self._zeros(n) for n in self._states.values() if n not in feed}
        # Those of the source are for the first feed only.
        return {**missing, **feed, **self._held}

    def keep(self, outputs: Arrays) -> None:
        """Take the states out of the outputs of a run.

        Raises:
            DataError: One is of another shape or type than the input that it is fed to.
        """
        for output, name in self._states.items():
            array, spec = np.asarray(outputs[output]), self._specs[name]
            if not fits(array.shape, spec.shape) or (array.dtype.kind != spec.dtype.kind):
                raise DataError(
                    f"--state {output}={name}: the output is {array.dtype} {list(array.shape)}, "
                    f"the input {spec.dtype} {shown_sizes(spec.shape)}",
                    remedy="name an output that has the shape of the input",
                )
            # A copy, because a runtime may reuse its outputs.
            self._held[name] = array.astype(spec.dtype)

    def _zeros(self, name: str) -> npt.NDArray[Any]:
        spec = self._specs[name]
        return np.zeros([1 if size is None else size for size in spec.shape], spec.dtype)

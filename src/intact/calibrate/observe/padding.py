"""Leaves padded positions of sequences out of what is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.calibrate.observe.observer import BatchLayout, Observed, Shape
from intact.calibrate.scales.masked import MASKED_BEYOND, attention_values, softmax_factors
from intact.data.mask import RealPositions
from intact.graph import Graph, OpKind, Role, input_role, op_spec
from intact.ops.operators import Einsum, is_a

_Dim = int | str | None
"""A declared size: a number, the name of a free one, or unknown."""


class SequenceAxes(NamedTuple):
    """Where one sample of a tensor has the positions of the sequence.

    Attributes:
        axes: Empty where it has none.
        is_padded_once: A value is left out where its position on any of the axes is padded;
            otherwise only where all are.
    """

    axes: tuple[int, ...]
    is_padded_once: bool = True


class Padding:
    """Leaves the padded positions out of observed tensors.

    A tensor has the sequence along the axes whose free dimension has the name of the mask's second
    one. Where the model does not say (dimensions that are numbers, or have other names), an axis
    as long as the mask's counts. Attention scores, ``[..., queries, keys]``, have two: a value is
    left out where either is padded. Lengths can agree by chance, so that in doubt nothing real is
    lost: with several such axes elsewhere, only values that are padded on all of them are left
    out; and with one, none, if a weight of a model of fixed sizes has that size too.

    A sample in which nothing is real is left out of every tensor.

    What switches padded positions off is kept, because a range has to hold it: tensors that
    depend on the mask alone, or lead to a Softmax without a product on the way, are counted
    whole, and the mask constants (:mod:`intact.calibrate.scales.masked`) of those with one as well.

    Args:
        graph: The float model.
        tensors: Names of the observed values, in their order.
        mask: Name of the mask: an input of the model, or an array that it does not take.
        layout: Where the tensors hold the samples.
    """

    def __init__(
        self, graph: Graph, tensors: Sequence[str], mask: str, layout: BatchLayout
    ) -> None:
        self._tensors = tuple(tensors)
        self._layout = layout
        self._dims = {name: _dims(graph, name) for name in tensors}
        inputs = {str(value.name): _dims(graph, str(value.name))[1:] for value in graph.inputs}
        if mask in inputs:
            inputs = {mask: inputs[mask]}
        names = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
        # With several names none is known to be the sequence.
        self._free = names.pop() if len(names) == 1 else None
        self._fixed = frozenset(
            dim
            for dims in inputs.values()
            for dim in dims
            if isinstance(dim, int) and all(isinstance(each, int) for each in dims)
        )
        self._widths = _widths(graph)
        self._scores = attention_values(graph)
        before_softmax = softmax_factors(graph).keys() | self._scores
        products, of_data = _descendants(graph, mask)
        self._whole = frozenset(self._tensors) - of_data | (before_softmax - products)
        self._with_constants = before_softmax & products

    def axes(self, name: str, shape: Shape, length: int) -> SequenceAxes:
        """Return where a tensor has the sequence.

        Args:
            name: The tensor.
            shape: The shape of one sample.
            length: Positions of the mask.
        """
        together = self._layout.batch_size > 1 and self._layout.axes.get(name) is None
        if name in self._whole or together:  # one mask does not cover a whole batch
            return SequenceAxes(())
        declared = self._declared_dims(name, shape)
        fitting = [axis for axis, size in enumerate(shape) if size == length]
        named = tuple(axis for axis in fitting if declared[axis] == self._free is not None)
        is_fixed = length in self._fixed
        likely = tuple(axis for axis in fitting if is_fixed or not isinstance(declared[axis], int))
        if name in self._scores:
            return SequenceAxes(tuple(axis for axis in likely if axis >= len(shape) - 2))
        if named:
            return SequenceAxes(named)
        if len(likely) == 1 and is_fixed and length in self._widths:
            return SequenceAxes(())
        return SequenceAxes(likely, is_padded_once=len(likely) == 1)

    def real_parts(self, observed: Observed, real: RealPositions) -> Iterator[Observed]:
        """Yield what a batch really holds: as it is, or sample by sample if some are padded.

        Each sample's real values are moved together at its beginning, so that what was observed
        is overwritten.

        Args:
            observed: A batch.
            real: bool ``[samples, S]``.
        """
        if real.all():
            yield observed
            return
        length = real.shape[1]
        pairs = zip(self._tensors, observed.shapes, strict=True)
        found = [self.axes(name, shape, length) for name, shape in pairs]
        for sample, own in enumerate(real):
            if not own.any():
                continue
            starts = observed.starts + sample * observed.elements
            elements = observed.elements.copy()
            for tensor, where in enumerate(found):
                if where.axes and not own.all():
                    start = int(starts[tensor])
                    values = observed.values[start : start + int(elements[tensor])]
                    whole = values.reshape(observed.shapes[tensor])
                    keep = _is_real(whole.shape, where, own)
                    if self._tensors[tensor] in self._with_constants:
                        keep = keep | (np.abs(whole) >= MASKED_BEYOND)
                    kept = whole[keep]
                    # In place: what is left is at most as long, and the observer's memory is
                    # overwritten by the next batch anyway.
                    values[: kept.size] = kept
                    elements[tensor] = kept.size
            yield Observed(observed.values, starts, elements, 1, observed.shapes)

    def _declared_dims(self, name: str, shape: Shape) -> tuple[_Dim, ...]:
        """Return the declared sizes of one sample's axes; see ``BatchLayout.sample_shape``."""
        dims, axis = self._dims[name], self._layout.axes[name]
        if axis is not None and dims:
            first = dims[axis] if dims[axis] == self._free else None  # it is of many samples
            dims = (first, *dims[:axis], *dims[axis + 1 :])[-len(shape) or len(dims) + 1 :]
        return dims if len(dims) == len(shape) else (None,) * len(shape)


def _is_real(
    shape: Shape, where: SequenceAxes, real: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which values of one sample are not padded."""
    join = np.logical_and if where.is_padded_once else np.logical_or
    keep = np.full(shape, where.is_padded_once)
    for axis in where.axes:
        join(keep, real.reshape(-1, *[1] * (len(shape) - axis - 1)), out=keep)
    return keep


def _descendants(graph: Graph, mask: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the values that a product leads to, and of those that an input other
    than the mask leads to.
    """
    products: set[str] = set()
    of_data = {str(value.name) for value in graph.inputs} - {mask}
    for node in graph.nodes:
        inputs = {str(value.name) for value in node.inputs if value is not None}
        outputs = {str(value.name) for value in node.outputs}
        spec = op_spec(node)
        makes = spec is None or spec.kind is OpKind.COMPUTE or is_a(node, Einsum)
        if makes or inputs & products:
            products |= outputs
        if inputs & of_data or spec is None or spec.kind is OpKind.OTHER:
            of_data |= outputs
    return frozenset(products), frozenset(of_data)


def _dims(graph: Graph, name: str) -> tuple[_Dim, ...]:
    shape = graph.value(name).shape
    return tuple(dim if isinstance(dim, int) else dim.value for dim in shape or ())


def _widths(graph: Graph) -> frozenset[int]:
    """Return the sizes of the axes of all weights: an axis of that length may hold channels."""
    return frozenset(
        int(size)
        for node in graph.nodes
        for slot, value in enumerate(node.inputs)
        if value is not None and input_role(node, slot) is Role.WEIGHT
        for size in value.shape or ()
        if isinstance(size, int)
    )

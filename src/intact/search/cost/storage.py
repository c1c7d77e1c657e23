"""Bytes of the deployed model's parameters, as a file of integers and scales stores them.

A constant that is quantised takes its codes, packed where they have 4 bits and the format does so
(ONNX stores them two a byte), and a float32 scale and a zero point for each channel; codes of 5 to
8 bits fill a byte. An int32 bias is a quantised constant like any other. A constant that several
nodes read alike is stored once; with two grids it is stored twice, and once more if a float node
reads it too. Activations have one scale and one zero point each, whatever their width (a
zero point of 16 bits is a byte more, which is left out: it would make two choices of what is one).
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.graph import IMPLICIT_SLOT, is_constant
from intact.plan import TensorEnd, quantizes
from intact.search.cost.model import Choice, Term
from intact.search.cost.structure import Structure, is_signed
from intact.search.space import Kind
from intact.targets import DType

_SCALE_BYTES = 4
_ZERO_POINT_BYTES = 1


def storage_terms(structure: Structure) -> Iterator[Term]:
    """Yield the bytes of each constant, and of the scales of the activations."""
    scaled: set[int] = set()
    for value in structure.plan.graph.values:
        if is_constant(value):
            stored = _Stored(structure, value, scaled)
            scaled.update(stored.points)
            yield structure.table(stored.groups, stored.nbytes)
    activations = [group for group in structure.space.groups if group.kind is Kind.ACTIVATION]
    parameters = len(activations) * (_SCALE_BYTES + _ZERO_POINT_BYTES)
    yield structure.table((), lambda _: parameters)


class _Stored:
    """How one constant is stored.

    Args:
        structure: Of the space.
        value: The constant.
        scaled: Dominators whose scales were counted with another constant.

    Attributes:
        points: Ends that share a grid, by the identity of their dominator.
    """

    def __init__(self, structure: Structure, value: ir.Value, scaled: set[int]) -> None:
        self._structure = structure
        self._value = value
        self._scaled = frozenset(scaled)
        self._is_always_float = value.is_graph_output()
        self.points: dict[int, list[TensorEnd]] = {}
        configs = structure.plan.configs
        for node, slot in structure.plan.graph.consumers(value):
            end = TensorEnd.input(str(node.name), slot)
            if slot == IMPLICIT_SLOT or not _holds_codes(structure, end):
                self._is_always_float = True
            else:
                self.points.setdefault(id(configs[end].dominator), []).append(end)

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups on which the bytes depend."""
        return self._structure.concerned(end for ends in self.points.values() for end in ends)

    def nbytes(self, choice: Choice) -> int:
        """Return the bytes of codes and scales, and of the floats if any node reads those."""
        total, is_float = 0, self._is_always_float
        for key, ends in self.points.items():
            floats = [self._structure.is_floating(end, choice) for end in ends]
            is_float |= any(floats)
            if not all(floats):
                end = ends[floats.index(False)]
                total += self._codes(end, choice, has_scales=key not in self._scaled)
        tensor = self._value.const_value
        return total + (tensor.nbytes if is_float and tensor is not None else 0)

    def _codes(self, end: TensorEnd, choice: Choice, *, has_scales: bool) -> int:
        bits, tensor = self._structure.bits(end, choice), self._value.const_value
        if tensor is None:
            return 0
        dtype = DType.holding(bits, signed=is_signed(self._structure.plan, end))
        axis = self._structure.plan.configs[end].granularity.axis
        channels = 1 if axis is None else int(tensor.shape.numpy()[axis])
        if not self._structure.packs:
            dtype = DType.holding(max(bits, 8), signed=dtype.is_signed)
        scales = channels * _SCALE_BYTES + packed(channels, dtype)
        return packed(tensor.size, dtype) + (scales if has_scales else 0)


def packed(size: int, dtype: DType) -> int:
    """Return the bytes of an array of integers; those of 4 bits are stored two a byte.

    >>> packed(3, DType.INT4), packed(3, DType.INT8)
    (2, 3)
    """
    return -(-size * dtype.bits // 8)


def _holds_codes(structure: Structure, end: TensorEnd) -> bool:
    return end in structure.group_of or quantizes(structure.plan.configs[end])

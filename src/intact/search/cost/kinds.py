"""The kinds of cost, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from intact.engines.session import Feeds
from intact.errors import UsageError, nearest
from intact.graph import IMPLICIT_SLOT, is_constant
from intact.plan import TensorEnd, quantizes
from intact.search.cost.model import Choice, CostModel, Measure, Term, summed
from intact.search.cost.operations import bit_operations, target_operations
from intact.search.cost.structure import Shapes, Structure, is_signed
from intact.search.space import GroupKind, Space
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
    activations = [group for group in structure.space.groups if group.kind is GroupKind.ACTIVATION]
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


@dataclass(frozen=True)
class CostKind:
    """A row of the table.

    Attributes:
        unit: What it counts.
        help: One line for users.
        terms: Makes the tables, from the structure of a space and the shapes of its values.
        is_measured: The tables only stand for what is measured.
    """

    unit: str
    help: str
    terms: Callable[[Structure, Shapes], Iterable[Term]]
    is_measured: bool = False


def make_cost(
    name: str,
    space: Space,
    feeds: Feeds | None = None,
    measure: Measure | None = None,
    *,
    packs: bool = True,
) -> CostModel:
    """Return the cost of the candidates of a space.

    Args:
        name: A key of ``COSTS``.
        space: The candidates.
        feeds: One sample, for models whose shapes depend on it.
        measure: Measures a candidate; for kinds that are measured.
        packs: The deployed file stores codes of 4 bits two a byte.

    Raises:
        UsageError: There is no such kind, a measured one without ``measure``, or the target's
            costs are the same for every candidate.
        DataError: Operations are counted, a shape depends on the sample, and there is none.
    """
    if name not in COSTS:
        raise UsageError(f"unknown cost {name!r}", remedy=nearest(name, COSTS))
    kind = COSTS[name]
    if kind.is_measured and measure is None:
        raise UsageError(f"the cost {name!r} is measured", remedy="hand in what measures it")
    terms = kind.terms(Structure(space, packs=packs), Shapes(space.plan.graph, feeds))
    constant, found = summed(terms)
    choices = tuple(group.choices for group in space.groups)
    return CostModel(
        name, kind.unit, constant, found, choices, measure if kind.is_measured else None
    )


def _bits(structure: Structure, _: Shapes) -> Iterator[Term]:
    """Yield the width of each group; 32 for one that stays float.

    HAGO ranks by the sum over quantized edges. Edges of one group have one quantizer and one width
    here, and count once.
    """
    for index in range(len(structure.space.groups)):
        yield structure.table((index,), lambda choice, index=index: choice[index])  # type: ignore[misc]


def _storage(structure: Structure, _: Shapes) -> Iterator[Term]:
    return storage_terms(structure)


def _priced(structure: Structure, shapes: Shapes) -> Iterable[Term]:
    terms = list(target_operations(structure, shapes))
    if structure.space.open and not summed(terms)[1]:
        raise UsageError(
            f"target {structure.plan.target.name} makes no difference between the costs of types",
            remedy="minimize another cost, or "
            + (
                "let operators stay float, in a --format that has floats (onnx_qdq)"
                if structure.plan.target.cost
                else "give its file a [cost] table"
            ),
        )
    return terms


def _guessed(structure: Structure, shapes: Shapes) -> Iterable[Term]:
    """Choose the estimate of latency: the target's costs, or bit-operations without those."""
    terms = list(target_operations(structure, shapes))
    return terms if summed(terms)[1] else bit_operations(structure, shapes)


COSTS: Mapping[str, CostKind] = MappingProxyType(
    {
        "bytes": CostKind(
            "bytes", "size of the parameters: integers as stored, scales, biases", _storage
        ),
        "bitops": CostKind(
            "bit-operations",
            "products of one sample, times the bits of both factors (float: 32)",
            bit_operations,
        ),
        "target": CostKind(
            "operations",
            "the target file's cost of each operator and data type, times its operations",
            _priced,
        ),
        "latency": CostKind(
            "ms", "measured in ONNX Runtime, 32 samples at once", _guessed, is_measured=True
        ),
        "bits": CostKind("bits", "sum of the widths of all groups (HAGO's)", _bits),
    }
)

"""What a search can make small."""

"""The kinds of cost, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from intact.errors import UsageError, nearest
from intact.run.session import Feeds
from intact.search.cost.model import CostModel, Measure, Term, summed
from intact.search.cost.operations import bit_operations, target_operations
from intact.search.cost.shapes import Shapes
from intact.search.cost.storage import storage_terms
from intact.search.cost.structure import Structure
from intact.search.space import Space


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

    HAGO ranks by the sum over quantised edges. Edges of one group have one quantiser and one width
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
            remedy="minimise another cost, or "
            + (
                "let operators stay float, in a --format that has floats (onnx_qdq)"
                if structure.plan.target.cost
                else "give its file a [cost] table"
            ),
        )
    return terms


def _guessed(structure: Structure, shapes: Shapes) -> Iterable[Term]:
    """Return what stands for the latency: the target's costs, or bit-operations without those."""
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

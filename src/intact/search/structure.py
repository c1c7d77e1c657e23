"""What plans of several candidates have in common: everything but grids and scales.

A structure asks of the candidate which nodes stay float, and of its widths only which ends lie on
the same grid (`intact.config.OnGrid.same_grid`). While it is made every such question is heard, so
it holds for each candidate with the same float nodes that would answer them alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from intact.calibrate.assign import Points
from intact.config import Grid, QuantState
from intact.graph import Role, input_role, output_channel_axis
from intact.plan import (
    Direction,
    Overrides,
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    annotate,
    quantization_points,
    quantizes,
)
from intact.plan.build import structured
from intact.plan.schemes import config_from_scheme
from intact.plan.unsigned import unsigned_values
from intact.plan.widths import Missing, missing_operator, width_notes
from intact.targets import TensorScheme


class Grids:
    """The grids of a target's schemes at all widths; equal ones are one object."""

    def __init__(self) -> None:
        self._families: dict[tuple[TensorScheme, int | None], dict[int, Grid]] = {}
        self._known: dict[Grid, Grid] = {}

    def family(self, scheme: TensorScheme, axis: int | None) -> dict[int, Grid]:
        """Return the grids of a scheme and channel axis by width, as far as they were asked."""
        return self._families.setdefault((scheme, axis), {})

    def fill(self, scheme: TensorScheme, axis: int | None, bits: int) -> Grid:
        """Return a grid, and keep it in its family."""
        grid = self.only(config_from_scheme(scheme, axis, bits).grid)
        return self.family(scheme, axis).setdefault(bits, grid)

    def only(self, grid: Grid) -> Grid:
        """Return the one object of an equal grid."""
        return self._known.setdefault(grid, grid)


@dataclass(frozen=True)
class Place:
    """An end whose width a candidate chooses.

    Attributes:
        end: The end.
        group: Number of its group in the space.
        scheme: Of the target, for this end.
        axis: Of the channels.
        family: The grids of the two by width; others may be added.
    """

    end: TensorEnd
    group: int
    scheme: TensorScheme
    axis: int | None
    family: dict[int, Grid]

    def grid(self, grids: Grids, widths: Sequence[int]) -> Grid:
        """Return the grid with the widths of a candidate, by group."""
        bits = widths[self.group]
        found = self.family.get(bits)
        return grids.fill(self.scheme, self.axis, bits) if found is None else found


@dataclass(frozen=True)
class Question:
    """Whether two ends lie on the same grid; the second may be on one that no width moves."""

    first: Place
    second: Place | Grid
    answer: bool

    def holds(self, grids: Grids, widths: Sequence[int]) -> bool:
        """Tell whether the widths of a candidate give the same answer."""
        other = self.second
        second = other if isinstance(other, Grid) else other.grid(grids, widths)
        return (self.first.grid(grids, widths) is second) is self.answer


@dataclass(frozen=True)
class Structure:
    """A plan without scales, to be moved to the widths of a candidate.

    Attributes:
        plan: With the widths of some candidate; without notes on widths.
        annotated: The ends that were to be quantised before anything was fused, in order, with
            what has no operator there; that of places depends on the candidate.
        places: The ends whose widths candidates choose.
        questions: What it asked of the widths.
        points: The quantisation points of ``plan``.
        parts: Positions in ``points`` of activations and of weights.
    """

    plan: QuantizedGraph
    annotated: tuple[tuple[Place | None, TensorEnd, Missing | None], ...]
    places: tuple[Place, ...]
    questions: tuple[Question, ...]
    points: tuple[QuantPoint, ...]
    parts: tuple[tuple[int, ...], tuple[int, ...]]

    @staticmethod
    def of(
        template: QuantizedGraph,
        overrides: Overrides,
        groups: Mapping[TensorEnd, int],
        grids: Grids,
    ) -> Structure:
        """Make the structure of a candidate.

        Args:
            template: Gives graph and target.
            overrides: The candidate's requests.
            groups: The group of each end whose width is a candidate's choice.
            grids: Where grids are kept.
        """
        plan = annotate(template.graph, template.target, overrides)
        places = {place.end: place for place in _places(plan, groups, grids)}
        heard: list[tuple[_Heard, Grid, bool]] = []
        for end in places:
            config = plan.configs[end]
            config.grid = _Heard.of(config.grid, end, heard)
        annotated = tuple(
            (places.get(end), end, None if end in places else missing_operator(plan, end, config))
            for end, config in plan.configs.items()
            if quantizes(config)
        )
        built = structured(plan)
        for config in built.configs.values():
            if isinstance(config.grid, _Heard):
                config.grid = grids.only(config.grid.plain)
        built.notes = built.notes[len(width_notes(plan)) :]
        points = tuple(quantization_points(built))
        parts = Points.of(points)
        at = {id(point): number for number, point in enumerate(points)}
        return Structure(
            built,
            annotated,
            tuple(places.values()),
            tuple(_questions(heard, places, grids)),
            points,
            (
                tuple(at[id(point)] for point in parts.activations),
                tuple(at[id(point)] for point in parts.weights),
            ),
        )

    def serves(self, grids: Grids, widths: Sequence[int]) -> bool:
        """Tell whether a candidate with the same float nodes has this structure."""
        return all(question.holds(grids, widths) for question in self.questions)

    def moved(self, grids: Grids, widths: Sequence[int]) -> QuantizedGraph:
        """Return a plan of its own with the widths of a candidate, by group."""
        plan = self.plan.copy()
        configs = plan.configs
        for place in self.places:
            # As `move_to`, which would ask again what the questions have answered.
            configs[place.end].grid = place.grid(grids, widths)
        return plan

    def points_of(self, plan: QuantizedGraph) -> Points:
        """Return the quantisation points of a plan that `moved` gave."""
        configs = plan.configs
        points = [
            QuantPoint(p.value, configs[p.end], p.end, p.readers, p.at_output, p.is_passed_on)
            for p in self.points
        ]
        activations, weights = self.parts
        return Points(points, [points[k] for k in activations], [points[k] for k in weights])


class _Heard(Grid):
    """A grid that writes down what it is compared with."""

    plain: Grid
    end: TensorEnd
    heard: list[tuple[_Heard, Grid, bool]]

    @staticmethod
    def of(grid: Grid, end: TensorEnd, heard: list[tuple[_Heard, Grid, bool]]) -> _Heard:
        """Return a grid like another one."""
        twin = object.__new__(_Heard)
        # The dataclass is frozen, and its fields were checked when the first one was made.
        vars(twin).update(vars(grid), plain=grid, end=end, heard=heard)
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        same = self.plain == (other.plain if isinstance(other, _Heard) else other)
        self.heard.append((self, other, same))
        return same

    __hash__ = Grid.__hash__


def _places(plan: QuantizedGraph, groups: Mapping[TensorEnd, int], grids: Grids) -> Iterator[Place]:
    """Yield the ends of an annotated plan whose widths are chosen."""
    target = plan.target
    unsigned = unsigned_values(plan.graph, target, plan.decisions)
    for end, config in plan.configs.items():
        if config.state is not QuantState.INITIAL or end not in groups:
            continue
        node = plan.graph.node(end.node)
        rule = target.rule_for(node)
        if rule is None:
            continue
        is_input = end.direction is Direction.INPUT
        value = (node.inputs if is_input else node.outputs)[end.slot]
        scheme, axis = None, None
        if is_input and input_role(node, end.slot) is Role.WEIGHT:
            scheme, axis = target.weight_scheme(rule), output_channel_axis(node)
        else:
            name = "" if value is None else str(value.name)
            scheme = target.activation_scheme(rule, unsigned=name in unsigned)
        yield Place(end, groups[end], scheme, axis, grids.family(scheme, axis))


def _questions(
    heard: Sequence[tuple[_Heard, Grid, bool]], places: Mapping[TensorEnd, Place], grids: Grids
) -> Iterator[Question]:
    """Yield what the widths decide, each question once."""
    seen: set[tuple[object, ...]] = set()
    for first, other, same in heard:
        place = places[first.end]
        second = places[other.end] if isinstance(other, _Heard) else grids.only(other)
        mine, theirs = _kind(first), _kind(other)
        if mine != theirs:
            continue  # at no width
        if isinstance(second, Place) and (place.group, place.scheme, place.axis) == (
            second.group,
            second.scheme,
            second.axis,
        ):
            continue  # at every width
        key = (place.group, id(place.family), *_identity(second))
        if key not in seen:
            seen.add(key)
            yield Question(place, second, same)


def _kind(grid: Grid) -> tuple[object, ...]:
    return grid.policy, grid.rounding, grid.granularity


def _identity(second: Place | Grid) -> tuple[int, int]:
    return (second.group, id(second.family)) if isinstance(second, Place) else (-1, id(second))

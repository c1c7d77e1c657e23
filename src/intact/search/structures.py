"""Shares plans without scales between the candidates for which they hold.

Annotating, fusing and tying compare grids. A structure records what they asked: it serves every
candidate for which the answers are the same, with other widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from intact.calibrate.assign import Points
from intact.config import Grid, QuantState
from intact.graph import Role, input_role, weight_scale_axis
from intact.plan import Direction, Overrides, QuantizedGraph, TensorEnd, annotate, quantizes
from intact.plan.build import structured
from intact.plan.points import QuantPlace, quantization_places
from intact.plan.schemes import config_from_scheme
from intact.plan.signs import signs_of
from intact.plan.stored_weights import is_in_blocks
from intact.plan.widths import Missing, missing_operator, width_notes
from intact.targets import TensorScheme


class Grids:
    """The grids of a target's schemes at all widths. Equal grids are one object."""

    def __init__(self) -> None:
        self._families: dict[tuple[TensorScheme, int | None], dict[int, Grid]] = {}
        self._known: dict[Grid, Grid] = {}

    def family(self, scheme: TensorScheme, axis: int | None) -> dict[int, Grid]:
        """Return the grids of a scheme and channel axis by width, those made so far."""
        return self._families.setdefault((scheme, axis), {})

    def fill(self, scheme: TensorScheme, axis: int | None, bits: int) -> Grid:
        """Make a grid of a width and keep it in its family."""
        grid = self.only(config_from_scheme(scheme, axis, bits).grid)
        return self.family(scheme, axis).setdefault(bits, grid)

    def only(self, grid: Grid) -> Grid:
        """Return the object that represents all grids equal to this one."""
        return self._known.setdefault(grid, grid)


@dataclass(frozen=True)
class ChosenEnd:
    """An end whose width a candidate chooses.

    Attributes:
        end: The end.
        group: Index of its group in the space.
        scheme: The target's scheme for this end.
        axis: Channel axis; None for one scale.
        family: The grids of this scheme and axis by width; more are added when needed.
    """

    end: TensorEnd
    group: int
    scheme: TensorScheme
    axis: int | None
    family: dict[int, Grid]

    def grid(self, grids: Grids, widths: Sequence[int]) -> Grid:
        """Return the grid of this end.

        Args:
            grids: All grids.
            widths: Bits of each group.
        """
        bits = widths[self.group]
        found = self.family.get(bits)
        return grids.fill(self.scheme, self.axis, bits) if found is None else found


@dataclass(frozen=True)
class GridComparison:
    """One comparison of grids that a pass made, with its result.

    Attributes:
        first: An end whose width candidates choose.
        second: Another such end, or the grid of an end whose width is fixed.
        answer: Whether they have the same grid.
    """

    first: ChosenEnd
    second: ChosenEnd | Grid
    answer: bool

    def holds(self, grids: Grids, widths: Sequence[int]) -> bool:
        """Tell whether the widths of a candidate give the same result."""
        other = self.second
        second = other if isinstance(other, Grid) else other.grid(grids, widths)
        # By identity, as `Grids` keeps one object for equal grids: comparing fields here would take
        # longer than all else that a structure saves.
        return (self.first.grid(grids, widths) is second) is self.answer


@dataclass(frozen=True)
class Structure:
    """A plan without scales that serves several candidates: only its widths are replaced.

    Attributes:
        plan: With the widths of one candidate; without notes on widths.
        annotated: The quantized ends before fusing, in order, each with its missing operator. Where
            the end is one of ``places`` that depends on the candidate.
        places: The ends whose widths candidates choose.
        questions: The comparisons of grids that decided the structure.
        quantized: The places of the quantization points of ``plan``.
        parts: Positions in ``quantized`` of activations and of weights.
    """

    plan: QuantizedGraph
    annotated: tuple[tuple[ChosenEnd | None, TensorEnd, Missing | None], ...]
    places: tuple[ChosenEnd, ...]
    questions: tuple[GridComparison, ...]
    quantized: tuple[QuantPlace, ...]
    parts: tuple[tuple[int, ...], tuple[int, ...]]

    @staticmethod
    def of(
        template: QuantizedGraph,
        overrides: Overrides,
        groups: Mapping[TensorEnd, int],
        grids: Grids,
    ) -> Structure:
        """Build the structure of a candidate.

        Args:
            template: A plan with the graph and the target.
            overrides: The candidate as overrides of the target.
            groups: The group of each end whose width candidates choose.
            grids: All grids.
        """
        plan = annotate(template.graph, template.target, overrides)
        places = {place.end: place for place in _places(plan, groups, grids)}
        heard: list[tuple[_RecordingGrid, Grid, bool]] = []
        for end in places:
            config = plan.configs[end]
            # Only these: comparisons between fixed grids have one answer for all candidates.
            config.grid = _RecordingGrid.of(config.grid, end, heard)
        annotated = tuple(
            (places.get(end), end, None if end in places else missing_operator(plan, end, config))
            for end, config in plan.configs.items()
            if quantizes(config)
        )
        built = structured(plan)
        # The passes are done: what is compared from here on decides no structure.
        for config in built.configs.values():
            if isinstance(config.grid, _RecordingGrid):
                config.grid = grids.only(config.grid.plain)
        # Notes on widths come first and depend on the candidate; the planner makes them anew.
        built.notes = built.notes[len(width_notes(plan)) :]
        quantized = tuple(quantization_places(built))
        points = tuple(place.point(built) for place in quantized)
        parts = Points.of(points)
        at = {id(point): number for number, point in enumerate(points)}
        return Structure(
            built,
            annotated,
            tuple(places.values()),
            tuple(_questions(heard, places, grids)),
            quantized,
            (
                tuple(at[id(point)] for point in parts.activations),
                tuple(at[id(point)] for point in parts.weights),
            ),
        )

    def serves(self, grids: Grids, widths: Sequence[int]) -> bool:
        """Tell whether a candidate with the same float nodes has this structure."""
        return all(question.holds(grids, widths) for question in self.questions)

    def with_widths(self, grids: Grids, widths: Sequence[int]) -> QuantizedGraph:
        """Copy the plan with the widths of a candidate, given by group."""
        plan = self.plan.copy()
        configs = plan.configs
        for place in self.places:
            # Set directly: `move_to` would repeat the checks that the comparisons replace.
            configs[place.end].grid = place.grid(grids, widths)
        return plan

    def points_of(self, plan: QuantizedGraph) -> Points:
        """Return the quantization points of a plan that `with_widths` returned."""
        points = [place.point(plan) for place in self.quantized]
        activations, weights = self.parts
        return Points(points, [points[k] for k in activations], [points[k] for k in weights])


class _RecordingGrid(Grid):
    """A grid that records its comparisons with other grids."""

    plain: Grid
    end: TensorEnd
    heard: list[tuple[_RecordingGrid, Grid, bool]]

    @staticmethod
    def of(
        grid: Grid, end: TensorEnd, heard: list[tuple[_RecordingGrid, Grid, bool]]
    ) -> _RecordingGrid:
        """Make a recording copy of a grid."""
        twin = object.__new__(_RecordingGrid)
        # The dataclass is frozen, and its fields were checked when the first one was made.
        # `dataclasses.replace` would check them again for each end.
        vars(twin).update(vars(grid), plain=grid, end=end, heard=heard)
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        same = self.plain == (other.plain if isinstance(other, _RecordingGrid) else other)
        self.heard.append((self, other, same))
        return same

    # Python takes the hash away from a class that defines `__eq__`.
    __hash__ = Grid.__hash__


def _places(
    plan: QuantizedGraph, groups: Mapping[TensorEnd, int], grids: Grids
) -> Iterator[ChosenEnd]:
    """Yield the ends of an annotated plan whose widths are chosen."""
    target = plan.target
    signs = signs_of(plan.graph, target, plan.decisions)
    for end, config in plan.configs.items():
        # Other states have a prescribed width or none.
        if config.state is not QuantState.INITIAL or end not in groups:
            continue
        node = plan.graph.node(end.node)
        rule = target.rule_for(node)
        if rule is None:
            continue
        is_input = end.direction is Direction.INPUT
        value = (node.inputs if is_input else node.outputs)[end.slot]
        scheme, axis = None, None
        if is_in_blocks(config):
            scheme = msgspec.structs.replace(target.weight_scheme(rule), block=config.grid.block)
            axis = config.grid.axis
        elif is_input and input_role(node, end.slot) is Role.WEIGHT:
            scheme, axis = target.weight_scheme(rule), weight_scale_axis(node)
        else:
            unsigned = signs.is_unsigned(node, value, is_input=is_input)
            scheme = target.activation_scheme(rule, unsigned=unsigned)
        yield ChosenEnd(end, groups[end], scheme, axis, grids.family(scheme, axis))


def _questions(
    heard: Sequence[tuple[_RecordingGrid, Grid, bool]],
    places: Mapping[TensorEnd, ChosenEnd],
    grids: Grids,
) -> Iterator[GridComparison]:
    """Yield the recorded comparisons whose result depends on widths, each once."""
    seen: set[tuple[object, ...]] = set()
    for first, other, same in heard:
        place = places[first.end]
        second = places[other.end] if isinstance(other, _RecordingGrid) else grids.only(other)
        mine, theirs = _kind(first), _kind(other)
        # `_kind` has all of a grid but its width.
        if mine != theirs:
            continue  # different at all widths
        if isinstance(second, ChosenEnd) and (place.group, place.scheme, place.axis) == (
            second.group,
            second.scheme,
            second.axis,
        ):
            continue  # equal at all widths
        # Ends of one group and family always have the same grid: one question for all of them.
        key = (place.group, id(place.family), *_identity(second))
        if key not in seen:
            seen.add(key)
            yield GridComparison(place, second, same)


def _kind(grid: Grid) -> tuple[object, ...]:
    return grid.policy, grid.rounding, grid.granularity, grid.steps_per_octave


def _identity(second: ChosenEnd | Grid) -> tuple[int, int]:
    return (second.group, id(second.family)) if isinstance(second, ChosenEnd) else (-1, id(second))

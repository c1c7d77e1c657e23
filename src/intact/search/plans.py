"""Plans of candidates, fast: what candidates have in common is made once.

Structures serve all candidates that have them (`intact.search.plans`). The range of an
activation and the scale of a weight follow from the tensor and its grid, whatever the rest of the
candidate is: they are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from intact.calibrate.assign import Method, Points, assign_own
from intact.calibrate.memo import Memo
from intact.calibrate.statistics import Statistics
from intact.config import Grid, QuantState, TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import Role, input_role, is_constant, output_channel_axis
from intact.plan import (
    Direction,
    Note,
    Overrides,
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    annotate,
    quantization_points,
    quantizes,
)
from intact.plan.annotate import unsigned_values
from intact.plan.build import structured
from intact.plan.schemes import config_from_scheme
from intact.plan.widths import Missing, missing_operator, operator_notes, width_notes
from intact.search.space import FLOAT, Candidate, Space
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
class ChosenEnd:
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

    first: ChosenEnd
    second: ChosenEnd | Grid
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
        annotated: The ends that were to be quantized before anything was fused, in order, with
            what has no operator there; that of places depends on the candidate.
        places: The ends whose widths candidates choose.
        questions: What it asked of the widths.
        points: The quantization points of ``plan``.
        parts: Positions in ``points`` of activations and of weights.
    """

    plan: QuantizedGraph
    annotated: tuple[tuple[ChosenEnd | None, TensorEnd, Missing | None], ...]
    places: tuple[ChosenEnd, ...]
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
        """Return the quantization points of a plan that `moved` gave."""
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


def _places(
    plan: QuantizedGraph, groups: Mapping[TensorEnd, int], grids: Grids
) -> Iterator[ChosenEnd]:
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
        yield ChosenEnd(end, groups[end], scheme, axis, grids.family(scheme, axis))


def _questions(
    heard: Sequence[tuple[_Heard, Grid, bool]], places: Mapping[TensorEnd, ChosenEnd], grids: Grids
) -> Iterator[Question]:
    """Yield the decisions that depend on widths, each once."""
    seen: set[tuple[object, ...]] = set()
    for first, other, same in heard:
        place = places[first.end]
        second = places[other.end] if isinstance(other, _Heard) else grids.only(other)
        mine, theirs = _kind(first), _kind(other)
        if mine != theirs:
            continue  # at no width
        if isinstance(second, ChosenEnd) and (place.group, place.scheme, place.axis) == (
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


def _identity(second: ChosenEnd | Grid) -> tuple[int, int]:
    return (second.group, id(second.family)) if isinstance(second, ChosenEnd) else (-1, id(second))


_KEPT = 256

"""Structures that are kept, some 0.3 MB each for a hundred nodes."""


def required(space: Space) -> tuple[str, ...]:
    """Return the tensors whose statistics candidates may need, in graph order.

    They are all that are quantized somewhere with everything quantized, hidden ones too: leaving
    nodes float never quantizes an end that was not, but can bring to light what was hidden.
    """
    found: dict[str, None] = {}
    for end, config in space.plan.configs.items():
        node = space.plan.graph.node(end.node)
        value = (node.inputs if end.direction is Direction.INPUT else node.outputs)[end.slot]
        is_hidden = config.dominator is not config
        is_prescribed = not is_hidden and bool(config.detail.get("fixed"))
        if value is None or is_constant(value) or is_prescribed:
            continue
        if is_hidden or quantizes(config):
            found[str(value.name)] = None
    return tuple(str(v.name) for v in space.plan.graph.values if str(v.name) in found)


class Planner:
    """Makes the plans of candidates, one after the other.

    Args:
        space: All candidates.
        statistics: Of the tensors that `required` names.
        method: How scales follow from them.

    Raises:
        CalibrationError: The statistics are of another model.
    """

    def __init__(self, space: Space, statistics: Statistics, method: Method) -> None:
        if statistics.model_hash != space.plan.graph.hash:
            raise CalibrationError(
                "the statistics are of another model", remedy="collect them again"
            )
        self.space = space
        self._statistics = statistics
        self._method = method
        self._memo = Memo()
        self._grids = Grids()
        self._structures: OrderedDict[frozenset[str], list[Structure]] = OrderedDict()
        self._groups = {
            end: number
            for number, group in enumerate(space.groups)
            for end in group.ends
            if group.default != FLOAT
        }
        self._general = width_notes(replace(space.plan, configs={}))

    def plan(self, candidate: Candidate) -> QuantizedGraph:
        """Return the calibrated plan of a candidate, which shares nothing with other plans.

        It equals ``assign(build_plan(graph, target, space.requests(candidate)), ...)`` in every
        config, decision, note and word of provenance.

        Raises:
            UsageError: The candidate is none of the space.
            CalibrationError: Statistics are missing, or a constant is NaN or infinite.
        """
        self.space.check(candidate)
        widths = [
            group.default if bits == FLOAT else bits
            for group, bits in zip(self.space.groups, candidate, strict=True)
        ]
        structure = self._structure(candidate, widths)
        plan = structure.moved(self._grids, widths)
        plan.notes = (*self._general, *self._width_notes(structure, widths), *plan.notes)
        points = structure.points_of(plan)
        return assign_own(plan, points, self._statistics, self._method, None, self._memo)

    def _structure(self, candidate: Candidate, widths: Sequence[int]) -> Structure:
        kept_float = self.space.kept_float(candidate)
        known = self._structures.setdefault(kept_float, [])
        self._structures.move_to_end(kept_float)
        for structure in known:
            if structure.serves(self._grids, widths):
                return structure
        overrides = self.space.requests(candidate)
        structure = Structure.of(self.space.plan, overrides, self._groups, self._grids)
        known.append(structure)
        while sum(map(len, self._structures.values())) > _KEPT and len(self._structures) > 1:
            self._structures.popitem(last=False)
        del known[:-_KEPT]
        return structure

    def _width_notes(self, structure: Structure, widths: Sequence[int]) -> tuple[Note, ...]:
        """Collect the notes of `width_notes` about single ends, before fusing hides any."""
        return operator_notes(
            structure.plan.target,
            (
                (end, found if place is None else self._missing(structure.plan, place, widths))
                for place, end, found in structure.annotated
            ),
        )

    def _missing(
        self, plan: QuantizedGraph, place: ChosenEnd, widths: Sequence[int]
    ) -> Missing | None:
        grid = place.grid(self._grids, widths)
        return self._memo(
            ("missing", place.end, id(grid)),  # equal grids are one object, which is kept
            lambda: missing_operator(plan, place.end, TensorQuantConfig.on_grid(grid)),
        )

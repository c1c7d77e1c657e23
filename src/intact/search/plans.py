"""Plans of candidates, fast: what candidates have in common is computed once.

Annotating, fusing and tying are shared by all candidates for which they give the same result
(`Structure`). The range of an activation and the scale of a weight depend only on the tensor and
its grid, so they are cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from intact.calibrate.assign import Method, Points, assign_own
from intact._memo import Memo
from intact.calibrate.scales.masked import MaskConstants
from intact.calibrate.scales.ranges import range_of, weight_threshold
from intact.calibrate.scales.roles import is_fixed, is_parameter
from intact.calibrate.statistics import Statistics
from intact.config import Grid, QuantState, TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import Role, input_role, is_constant, weight_scale_axis
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
from intact.plan.build import structured
from intact.plan.schemes import config_from_scheme
from intact.plan.signs import signs_of
from intact.plan.widths import Missing, missing_operator, operator_notes, width_notes
from intact.search.roundings import Roundings
from intact.search.space import FLOAT, Candidate, Space
from intact.search.strategy import WIDEST_CODES, Strategy, Threshold, has_integers
from intact.search.strategy import threshold_of as threshold_of_scale
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
        points: The quantization points of ``plan``.
        parts: Positions in ``points`` of activations and of weights.
    """

    plan: QuantizedGraph
    annotated: tuple[tuple[ChosenEnd | None, TensorEnd, Missing | None], ...]
    places: tuple[ChosenEnd, ...]
    questions: tuple[GridComparison, ...]
    points: tuple[QuantPoint, ...]
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
            config.grid = _RecordingGrid.of(config.grid, end, heard)
        annotated = tuple(
            (places.get(end), end, None if end in places else missing_operator(plan, end, config))
            for end, config in plan.configs.items()
            if quantizes(config)
        )
        built = structured(plan)
        for config in built.configs.values():
            if isinstance(config.grid, _RecordingGrid):
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
        """Copy the plan with the widths of a candidate, given by group."""
        plan = self.plan.copy()
        configs = plan.configs
        for place in self.places:
            # Set directly: `move_to` would repeat the checks that the comparisons replace.
            configs[place.end].grid = place.grid(grids, widths)
        return plan

    def points_of(self, plan: QuantizedGraph) -> Points:
        """Return the quantization points of a plan that `moved` returned."""
        configs = plan.configs
        points = [
            QuantPoint(p.value, configs[p.end], p.end, p.readers, p.at_output, p.is_passed_on)
            for p in self.points
        ]
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
        vars(twin).update(vars(grid), plain=grid, end=end, heard=heard)
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        same = self.plain == (other.plain if isinstance(other, _RecordingGrid) else other)
        self.heard.append((self, other, same))
        return same

    __hash__ = Grid.__hash__


def _places(
    plan: QuantizedGraph, groups: Mapping[TensorEnd, int], grids: Grids
) -> Iterator[ChosenEnd]:
    """Yield the ends of an annotated plan whose widths are chosen."""
    target = plan.target
    signs = signs_of(plan.graph, target, plan.decisions)
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
        if mine != theirs:
            continue  # different at all widths
        if isinstance(second, ChosenEnd) and (place.group, place.scheme, place.axis) == (
            second.group,
            second.scheme,
            second.axis,
        ):
            continue  # equal at all widths
        key = (place.group, id(place.family), *_identity(second))
        if key not in seen:
            seen.add(key)
            yield GridComparison(place, second, same)


def _kind(grid: Grid) -> tuple[object, ...]:
    return grid.policy, grid.rounding, grid.granularity, grid.steps_per_octave


def _identity(second: ChosenEnd | Grid) -> tuple[int, int]:
    return (second.group, id(second.family)) if isinstance(second, ChosenEnd) else (-1, id(second))


def _measured(plan: QuantizedGraph, value: ir.Value) -> QuantPoint | None:
    """Describe where a tensor gets its threshold; None where it has no codes, or is a bias.

    That is the end of its producer, also where that is inside a fused operator; where there is none
    the first end that reads codes.
    """
    reads = list(plan.consumer_configs(value))
    ends = [(TensorEnd.input(str(node.name), slot), config) for node, slot, config in reads]
    node, output = value.producer(), plan.producer_config(value)
    if node is not None and output is not None:
        ends.insert(0, (TensorEnd.output(str(node.name), value.index() or 0), output))
    for end, config in ends:
        if has_integers(config) and config.bits <= WIDEST_CODES:
            named = end if node is None else ends[0][0]
            readers = tuple((reader, slot) for reader, slot, _ in reads)
            return QuantPoint(value, config.dominator, named, readers, node is not None)
    return None


_KEPT = 256

"""Number of structures in the cache; one takes about 0.3 MB for a hundred nodes."""


def required(space: Space) -> tuple[str, ...]:
    """List the tensors whose statistics candidates may need, in graph order.

    These are all tensors that are quantized in the plan with everything quantized, and those inside
    fused operators: a candidate that leaves a node float may quantize them.
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
    """Makes the calibrated plans of candidates.

    Args:
        space: All candidates.
        statistics: Of the tensors that `required` lists.
        method: The threshold methods.
        roundings: Weights that are rounded already; None rounds all to nearest.

    Raises:
        CalibrationError: The statistics belong to another model.
    """

    def __init__(
        self,
        space: Space,
        statistics: Statistics,
        method: Method,
        roundings: Roundings | None = None,
    ) -> None:
        if statistics.model_hash != space.plan.graph.hash:
            raise CalibrationError(
                "the statistics belong to another model", remedy="collect them again"
            )
        self.space = space
        self._roundings = roundings or Roundings()
        self._statistics = statistics
        self._method = method
        self._memo = Memo()
        self._grids = Grids()
        self._structures: OrderedDict[frozenset[str], list[Structure]] = OrderedDict()
        self._latest: tuple[Candidate, QuantizedGraph | None] = ((), None)
        self._groups = {
            end: number
            for number, group in enumerate(space.groups)
            for end in group.ends
            if group.default != FLOAT
        }
        self._general = width_notes(replace(space.plan, configs={}))

    def plan(self, candidate: Candidate) -> QuantizedGraph:
        """Make the calibrated plan of a candidate; it shares nothing with other plans.

        Who asks `strategy_of` for the same candidate next gets the strategy of this very object.

        It equals ``assign(build_plan(graph, target, space.requests(candidate)), ...)`` in every
        config, decision and note, and in its provenance; `Roundings.apply` to that where there are
        rounded weights: these differ in scale, integers and bias.

        Raises:
            UsageError: The candidate does not belong to the space.
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
        found = assign_own(plan, points, self._statistics, self._method, None, self._memo)
        found = self._roundings.apply(found)
        self._latest = tuple(candidate), found
        return found

    def strategy_of(self, candidate: Candidate) -> Strategy:
        """Make the strategy of a candidate; its plan is not made again if it was the latest."""
        latest, plan = self._latest
        return self.strategy(plan if plan and latest == candidate else self.plan(candidate))

    def strategy(self, plan: QuantizedGraph) -> Strategy:
        """Extract the strategy of a candidate's plan, with the thresholds that the methods gave."""
        scaled = self._roundings.without(plan)
        return Strategy.of(scaled, dict(self._thresholds(scaled)), self._roundings.named(plan))

    def _thresholds(self, plan: QuantizedGraph) -> Iterator[tuple[str, Threshold]]:
        """Yield what the methods gave for each tensor that is quantized somewhere."""
        factors = self._memo("factors", lambda: MaskConstants.of(plan.graph).factors)
        for value in plan.graph.values:
            point = _measured(plan, value)
            if point is None:
                continue
            grid, root = point.config.grid, point.config
            if is_fixed(root):
                if root.params is not None:
                    yield str(point.end), threshold_of_scale(root, root.params)
            elif is_parameter(point):
                key = ("weight threshold", value.name, grid)
                found = self._memo(key, partial(weight_threshold, point, self._method))
                yield str(point.end), found.tolist()
            else:
                find = partial(range_of, point, self._statistics, self._method, factors)
                place = ("range", value.name, grid, self._method.activations)
                yield str(point.end), self._memo(place, find).threshold

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
        """Collect the notes of `width_notes` about single ends, also inside fused operators."""
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
            ("missing", place.end, id(grid)),  # equal grids are one object, which stays alive
            lambda: missing_operator(plan, place.end, TensorQuantConfig.on_grid(grid)),
        )

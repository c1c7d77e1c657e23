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
from typing import NamedTuple

from intact._memo import Memo
from intact.calibrate.assign import Method, Points, assign_own
from intact.calibrate.scales.masked import MaskConstants
from intact.calibrate.scales.ranges import Found, range_of, weight_threshold
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
    quantizes,
)
from intact.plan.build import structured
from intact.plan.points import QuantPlace, quantization_places
from intact.plan.schemes import config_from_scheme
from intact.plan.signs import signs_of
from intact.plan.widths import Missing, missing_operator, operator_notes, width_notes
from intact.search.roundings import Roundings
from intact.search.space import FLOAT, Candidate, Space
from intact.search.strategy import WIDEST_CODES, Outline, Strategy, Threshold, has_integers
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


class _Measured(NamedTuple):
    """A tensor with codes of its own: it has a threshold.

    Attributes:
        place: Where it gets that, and what reads it; the end names it.
        end: The end whose config counts.
        is_parameter: It is a constant weight.
    """

    place: QuantPlace
    end: TensorEnd
    is_parameter: bool

    def point(self, root: TensorQuantConfig) -> QuantPoint:
        """Return the point of a plan, given the dominator at the end."""
        place = self.place
        return QuantPoint(place.value, root, place.ends[0], place.readers, place.at_output)


def _measured(plan: QuantizedGraph) -> Iterator[_Measured]:
    """Yield the tensors that get a threshold: not those without codes, and not biases.

    The end is that of the producer, also where that is inside a fused operator; where there is none
    the first end that reads codes.
    """
    for value in plan.graph.values:
        reads = list(plan.consumer_configs(value))
        ends = [(TensorEnd.input(str(node.name), slot), config) for node, slot, config in reads]
        node, output = value.producer(), plan.producer_config(value)
        if node is not None and output is not None:
            ends.insert(0, (TensorEnd.output(str(node.name), value.index() or 0), output))
        for end, config in ends:
            if has_integers(config) and config.bits <= WIDEST_CODES:
                named = end if node is None else ends[0][0]
                readers = tuple((reader, slot) for reader, slot, _ in reads)
                place = QuantPlace(value, (named,), readers, node is not None)
                found = _Measured(place, end, is_parameter=False)
                yield found._replace(is_parameter=is_parameter(found.point(config.dominator)))
                break


def _weight_threshold(measured: _Measured, root: TensorQuantConfig, method: Method) -> Threshold:
    found: Threshold = weight_threshold(measured.point(root), method).tolist()
    return found


_KEPT = 256

"""Number of structures in the cache; one takes about 0.3 MB for a hundred nodes."""


_ROUNDED = 4096

"""Number of scales of rounded weights in the memo: one for each place and scale of its input."""


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
        found = self._roundings.apply(found, self._memo.bounded("rounded", _ROUNDED))
        self._latest = tuple(candidate), found
        return found

    def strategy_of(self, candidate: Candidate) -> Strategy:
        """Make the strategy of a candidate; its plan is not made again if it was the latest."""
        latest, plan = self._latest
        return self.strategy(plan if plan and latest == candidate else self.plan(candidate))

    def strategy(self, plan: QuantizedGraph) -> Strategy:
        """Extract the strategy of a candidate's plan, with the thresholds that the methods gave."""
        outlines = self._memo.bounded("outlines", _KEPT)
        key = plan.structure(), tuple(plan.decisions.values())
        outline, measured = outlines(key, partial(self._outline, plan))
        thresholds = {str(each.place.ends[0]): self._threshold(plan, each) for each in measured}
        found = {name: number for name, number in thresholds.items() if number is not None}
        return Strategy.of(plan, found, self._roundings.named(plan), outline)

    def _outline(self, plan: QuantizedGraph) -> tuple[Outline, tuple[_Measured, ...]]:
        scaled = self._roundings.without(plan)
        return Outline.of(scaled), tuple(_measured(scaled))

    def _threshold(self, plan: QuantizedGraph, measured: _Measured) -> Threshold | None:
        """Return what the methods gave for a tensor; None where the target's scale is missing."""
        root = plan.configs[measured.end].dominator
        if is_fixed(root):
            return None if root.params is None else threshold_of_scale(root, root.params)
        name = str(measured.place.value.name)
        if measured.is_parameter:
            find = partial(_weight_threshold, measured, root, self._method)
            return self._memo(("weight threshold", name, root.grid), find)
        place = ("range", name, root.grid, self._method.activations)
        return self._memo(place, partial(self._range, measured, root)).threshold

    def _range(self, measured: _Measured, root: TensorQuantConfig) -> Found:
        factors = self._memo("factors", lambda: MaskConstants.of(self.space.plan.graph).factors)
        return range_of(measured.point(root), self._statistics, self._method, factors)

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

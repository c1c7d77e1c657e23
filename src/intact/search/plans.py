"""Makes the plans of candidates fast: what they have in common is computed once.

Annotating, fusing and tying are shared by all candidates for which they give the same result
(`structures.py`). The range of an activation and the scale of a weight depend only on the tensor
and its grid, so they are cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from intact._memo import Memo
from intact.calibrate.assign import Method, assign_own
from intact.calibrate.scales.masked import MaskConstants
from intact.calibrate.scales.ranges import ChosenRange, range_of, weight_threshold
from intact.calibrate.scales.roles import is_fixed, is_parameter
from intact.calibrate.statistics import Statistics
from intact.config import TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import is_constant
from intact.plan import (
    Direction,
    Note,
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantizes,
)
from intact.plan.overrides import WIDEST_CODES
from intact.plan.points import QuantPlace
from intact.plan.stored_weights import is_in_blocks
from intact.plan.widths import Missing, missing_operator, operator_notes, width_notes
from intact.search.roundings import Roundings
from intact.search.space import FLOAT, Candidate, Space
from intact.search.strategy import Outline, Strategy, Threshold, has_integers
from intact.search.strategy import threshold_of as threshold_of_scale
from intact.search.structures import ChosenEnd, Grids, Structure


class _ThresholdTensor(NamedTuple):
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


def _threshold_tensors(plan: QuantizedGraph) -> Iterator[_ThresholdTensor]:
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
            # Named by the producer even where a reader's config counts: a strategy has one name a
            # tensor.
            if is_in_blocks(config):  # its scales follow from the weight
                continue
            if has_integers(config) and config.bits <= WIDEST_CODES:
                named = end if node is None else ends[0][0]
                readers = tuple((reader, slot) for reader, slot, _ in reads)
                place = QuantPlace(value, (named,), readers, node is not None)
                found = _ThresholdTensor(place, end, is_parameter=False)
                yield found._replace(is_parameter=is_parameter(found.point(config.dominator)))
                break


def _weight_threshold(
    measured: _ThresholdTensor, root: TensorQuantConfig, method: Method
) -> Threshold:
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
        # A scale that the target prescribes needs no statistics.
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
        statistics: Statistics of the tensors that `required` lists.
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
        # A trial is planned, measured and logged in turn: one plan back is enough.
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
        plan = structure.with_widths(self._grids, widths)
        # In the order in which `build_plan` gives them, as the plans must be equal.
        plan.notes = (*self._general, *self._width_notes(structure, widths), *plan.notes)
        points = structure.points_of(plan)
        found = assign_own(plan, points, self._statistics, self._method, None, self._memo)
        # After the scales: a rounded weight fits only the bias that follows from them.
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
        # Thresholds are not in the key: the outline has only names and decisions.
        key = plan.structure(), tuple(plan.decisions.values())
        outline, measured = outlines(key, partial(self._outline, plan))
        thresholds = {str(each.place.ends[0]): self._threshold(plan, each) for each in measured}
        found = {name: number for name, number in thresholds.items() if number is not None}
        return Strategy.of(plan, found, self._roundings.named(plan), outline)

    def _outline(self, plan: QuantizedGraph) -> tuple[Outline, tuple[_ThresholdTensor, ...]]:
        scaled = self._roundings.without(plan)
        return Outline.of(scaled), tuple(_threshold_tensors(scaled))

    def _threshold(self, plan: QuantizedGraph, measured: _ThresholdTensor) -> Threshold | None:
        """Return what the methods gave for a tensor; None where the target's scale is missing."""
        root = plan.configs[measured.end].dominator
        if is_fixed(root):
            return None if root.params is None else threshold_of_scale(root, root.params)
        name = str(measured.place.value.name)
        if measured.is_parameter:
            find = partial(_weight_threshold, measured, root, self._method)
            return self._memo(("weight threshold", name, root.grid), find)
        # The key of `assign`, so that the range is found in the memo and not searched again.
        place = ("range", name, root.grid, self._method.activations)
        return self._memo(place, partial(self._range, measured, root)).threshold

    def _range(self, measured: _ThresholdTensor, root: TensorQuantConfig) -> ChosenRange:
        factors = self._memo("factors", lambda: MaskConstants.of(self.space.plan.graph).factors)
        return range_of(measured.point(root), self._statistics, self._method, factors)

    def _structure(self, candidate: Candidate, widths: Sequence[int]) -> Structure:
        # Which nodes are float decides most of a structure and is hashed; the rest is asked, one
        # structure after the other.
        kept_float = self.space.kept_float(candidate)
        known = self._structures.setdefault(kept_float, [])
        self._structures.move_to_end(kept_float)
        for structure in known:
            if structure.serves(self._grids, widths):
                return structure
        overrides = self.space.requests(candidate)
        structure = Structure.of(self.space.plan, overrides, self._groups, self._grids)
        known.append(structure)
        # The least recently used go first, but never those of the present candidate.
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

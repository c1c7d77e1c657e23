"""Plans of candidates, fast: what candidates have in common is made once.

Structures serve all candidates that have them (`intact.search.structure`). The range of an
activation and the scale of a weight follow from the tensor and its grid, whatever the rest of the
candidate is: they are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from intact.calibrate.assign import Method, assign_own
from intact.calibrate.memo import Memo
from intact.calibrate.statistics import Statistics
from intact.config import TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import is_constant
from intact.plan import Direction, Note, QuantizedGraph, quantizes
from intact.plan.widths import Missing, missing_operator, operator_notes, width_notes
from intact.search.space import FLOAT, Candidate, Space
from intact.search.structure import Grids, Place, Structure

_KEPT = 256
"""Structures that are kept, some 0.3 MB each for a hundred nodes."""


def required(space: Space) -> tuple[str, ...]:
    """Return the tensors whose statistics candidates may need, in graph order.

    They are all that are quantised somewhere with everything quantised, hidden ones too: leaving
    nodes float never quantises an end that was not, but can bring to light what was hidden.
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
        """Return what `width_notes` says of single ends, which no fusing has hidden yet."""
        return operator_notes(
            structure.plan.target,
            (
                (end, found if place is None else self._missing(structure.plan, place, widths))
                for place, end, found in structure.annotated
            ),
        )

    def _missing(self, plan: QuantizedGraph, place: Place, widths: Sequence[int]) -> Missing | None:
        grid = place.grid(self._grids, widths)
        return self._memo(
            ("missing", place.end, id(grid)),  # equal grids are one object, which is kept
            lambda: missing_operator(plan, place.end, TensorQuantConfig.on_grid(grid)),
        )

"""Gives every tensor of a plan its scale, from statistics; the model is not run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from intact._memo import Forgetful, Memo
from intact.calibrate.method import Method
from intact.calibrate.scales.bias import assign_biases
from intact.calibrate.scales.given import PrescribedScales, given_params, prescribe
from intact.calibrate.scales.masked import MaskConstants
from intact.calibrate.scales.ranges import (
    TiedRanges,
    params_of,
    range_of,
    relevant_ranges,
    store_scales,
    stored,
    weight_params,
)
from intact.calibrate.scales.roles import (
    is_fixed,
    is_parameter,
    needs_range,
    point_role,
)
from intact.calibrate.statistics import Statistics
from intact.config import QuantState
from intact.errors import CalibrationError
from intact.graph import Role
from intact.plan import Note, NoteKind, QuantizedGraph, QuantPoint, quantization_points
from intact.plan.bounds import follow_data
from intact.plan.given_scales import GIVEN, ScaleTable
from intact.targets import Blocks

_BIASES = 4096
"""Scales of biases that are remembered: there is one for each pair of input and weight scales."""

_LOGARITHMIC, _ASYMMETRIC = (
    "tensors with logarithmic levels",
    "asymmetric tensors with both signs",
)
"""For which a method may not be defined."""

__all__ = [
    "Method",
    "Points",
    "activate",
    "activation_scales",
    "assign",
    "assign_own",
    "required_tensors",
]


def required_tensors(plan: QuantizedGraph, given: ScaleTable | None = None) -> tuple[str, ...]:
    """Return the names of the activations whose statistics the plan needs, in graph order.

    Those of tensors whose own scale is only kept beside the one in effect are among them.

    Args:
        plan: A plan; it may still lack scales.
        given: Scales that need no statistics.

    Raises:
        CalibrationError: A given scale does not fit (see `assign`): said before samples are run.
    """
    points = list(quantization_points(plan))
    own = [str(point.value.name) for point in _shared(plan)]
    observed = _observed(points, prescribe(points, given, own))
    if not own:
        return observed
    # In the order of the graph, so that memory is given to groups of neighbours.
    needed = {*observed, *(name for name in own if given is None or name not in given)}
    return tuple(str(v.name) for v in plan.graph.values if str(v.name) in needed)


def assign(
    plan: QuantizedGraph,
    statistics: Statistics | None,
    method: Method,
    given: ScaleTable | None = None,
) -> QuantizedGraph:
    """Give every quantized end its scale and offset.

    What is given is taken bit for bit. Else activations follow from the statistics, weights from
    their values, biases as the product of the two (and where an int32 bias would overflow, by a
    larger weight scale, unless that is given; a note says so).

    Args:
        plan: Is not changed.
        statistics: Those of the tensors that `required_tensors` names; None where it names none.
        method: How scales follow from statistics.
        given: Scales by the names of the float model's tensors, weights or activations.

    Returns:
        A new plan in which no end is INITIAL or PASSIVE_INIT.

    Raises:
        CalibrationError: Statistics are missing or of another model, a method is not defined, or
            a given scale does not fit: its bits, its channels, a zero point on a symmetric grid,
            no power of two where the target asks for one.
    """
    if statistics is not None and statistics.model_hash != plan.graph.hash:
        raise CalibrationError("the statistics are of another model", remedy="collect them again")
    plan = plan.copy()
    points = Points.of(quantization_points(plan))
    return assign_own(plan, points, statistics, method, given, Forgetful())


class Points(msgspec.Struct, frozen=True):
    """The quantization points of a plan, in their order.

    Attributes:
        all: All of them.
        activations: The activations that are no weights or biases.
        weights: The constants that are weights.
    """

    all: Sequence[QuantPoint]
    activations: Sequence[QuantPoint]
    weights: Sequence[QuantPoint]

    @staticmethod
    def of(points: Iterable[QuantPoint]) -> Points:
        """Return the points by what they are."""
        found = tuple(points)
        weights = (p for p in found if p.is_constant and point_role(p) is Role.WEIGHT)
        return Points(found, tuple(p for p in found if not is_parameter(p)), tuple(weights))


def assign_own(
    plan: QuantizedGraph,
    points: Points,
    statistics: Statistics | None,
    method: Method,
    given: ScaleTable | None,
    memo: Memo,
) -> QuantizedGraph:
    """Assign scales as `assign` does, to the configs of the plan itself.

    Args:
        plan: A plan without scales that is nobody else's.
        points: Its own.
        statistics: The same as for `assign`, of the plan's model.
        method: The same as for `assign`.
        given: The same as for `assign`.
        memo: What former calls computed with the same graph, target, statistics and method.
    """
    shared = _shared(plan)
    prescribed = prescribe(points.all, given, (str(point.value.name) for point in shared))
    observed = _observed(points.all, prescribed)
    if statistics is None and observed:
        raise _unknown_ranges(observed, given)
    known = Statistics(plan.graph.hash) if statistics is None else statistics
    # Given scales first: what shares one with them needs no range, and biases are products of both.
    prescribed.apply()
    activations = [point for point in points.activations if point.config not in prescribed]
    masks = MaskConstants(memo("factors", lambda: MaskConstants.of(plan.graph).factors))
    notes = [
        *prescribed.notes,
        *_assign_activations(activations, known, method, masks, memo, plan),
        *store_scales(points.all, plan.target.arithmetic.scale_precision),
    ]
    if shared:
        _keep_own_scales(plan, shared, given, known, method, masks.factors, memo)
    truncates = plan.target.weight.truncated_zero_point
    for point in points.weights:
        if point.config not in prescribed and not is_fixed(point.config):
            _assign_weight(point, method, memo, plan.target.blocks, truncates=truncates)
    # Last: the scale of a bias is the product of two others, and may raise that of the weight.
    notes += assign_biases(plan, memo.bounded("biases", _BIASES))
    activate(plan)
    plan.provenance = plan.provenance.calibrated(
        _said_method(points, method, observed, given),
        method.weights,
        "" if statistics is None else memo("hash", statistics.hash),
    )
    if given is not None:
        plan.provenance = plan.provenance.given(given.name, given.hash())
    return plan.with_notes(tuple(notes))


def _said_method(
    points: Points, method: Method, observed: Sequence[str], given: ScaleTable | None
) -> str:
    """Name what gave the scales of activations; "" where none of them has one beforehand."""
    if given is not None and not observed:
        return GIVEN
    return method.activations if points.activations else ""


def _shared(plan: QuantizedGraph) -> tuple[QuantPoint, ...]:
    """Return the points whose own scales the target keeps beside those in effect."""
    if not plan.target.calibration.own_scales:
        return ()
    from intact.plan.own_scales import shared_points

    return tuple(shared_points(plan))


def _keep_own_scales(
    plan: QuantizedGraph,
    shared: Iterable[QuantPoint],
    given: ScaleTable | None,
    statistics: Statistics,
    method: Method,
    factors: Mapping[str, float],
    memo: Memo,
) -> None:
    """Keep the own scale of each tensor that shares one, in place, where it is known.

    Args:
        plan: A plan with scales in effect.
        shared: The plan's ``shared_points``.
        given: A table, which holds own scales; what it has is taken from it.
        statistics: The statistics of tensors that the table leaves out.
        method: Chooses ranges.
        factors: How tensors come out at a Softmax (see `MaskConstants`).
        memo: The same as for `assign_own`.
    """
    from intact.plan.own_scales import keep_own  # few targets have tables of them

    truncates = plan.target.activation.truncated_zero_point
    for point in shared:
        name, grid = str(point.value.name), point.config.grid
        if given is not None and name in given:
            params = given_params(point, given)
        elif name in statistics.tensors:
            found = memo(
                ("range", name, grid, method.activations),
                partial(range_of, point, statistics, method, factors),
            )
            made = params_of(grid, found.low, found.high, truncates=truncates)
            params = stored(made, plan.target.arithmetic.scale_precision)
        else:
            continue
        keep_own(plan, point, params)


def _observed(points: Iterable[QuantPoint], prescribed: PrescribedScales) -> tuple[str, ...]:
    names = (
        str(point.value.name)
        for point in points
        if not point.is_constant and point.config not in prescribed and needs_range(point.config)
    )
    return tuple(dict.fromkeys(names))


def _unknown_ranges(names: Sequence[str], given: ScaleTable | None) -> CalibrationError:
    lacking = "there are no statistics" if given is None else f"{given.source}: gives no scale"
    shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    return CalibrationError(
        f"{lacking} for {len(names)} tensor(s): {shown}",
        remedy="give samples with --data to calibrate them",
    )


def activation_scales(
    plan: QuantizedGraph, points: Sequence[QuantPoint], statistics: Statistics, method: Method
) -> None:
    """Give some activations of a plan the scales that `assign` would, in place."""
    masks = MaskConstants(MaskConstants.of(plan.graph).factors)
    _assign_activations(points, statistics, method, masks, Forgetful(), plan)


def _assign_activations(
    points: Sequence[QuantPoint],
    statistics: Statistics,
    method: Method,
    masks: MaskConstants,
    memo: Memo,
    plan: QuantizedGraph,
) -> list[Note]:
    truncates = plan.target.activation.truncated_zero_point
    intervals = memo("told apart", lambda: relevant_ranges(plan.graph))
    groups: dict[int, TiedRanges] = {}
    fallen: dict[str, list[str]] = {}
    for point in points:
        if not needs_range(point.config):
            continue
        root = point.config.dominator
        name = str(point.value.name)
        found = memo(
            ("range", name, point.config.grid, method.activations),
            partial(range_of, point, statistics, method, masks.factors, intervals),
        )
        masks.found |= found.masks.found
        for factor in found.masks.alone.values():
            masks.alone[id(root)] = factor
        if found.is_fallen:
            is_logarithmic = point.config.grid.exponential
            kind = _LOGARITHMIC if is_logarithmic else _ASYMMETRIC
            fallen.setdefault(kind, []).append(name)
        # By identity of the dominator: two tensors with equal configs may still have scales of
        # their own.
        group = groups.setdefault(id(root), TiedRanges(root))
        group.add(point.config, (found.low, found.high))
    # After all ranges: a scale is chosen once the whole group is known.
    for key, group in groups.items():
        root, shared = group.root, masks.shared(key, *group.common(), root.levels)
        params = partial(params_of, root.grid, *shared, truncates=truncates)
        root.set_checked(memo(("params", root.grid, shared), params))
        root.observer = method.activations
    messages = [masks.note()] if masks.found else []
    messages += [
        f"{method.activations} is not defined for {kind}; "
        f"{len(names)} of them use {method.fallback} (first: {names[0]})"
        for kind, names in fallen.items()
    ]
    return [Note(NoteKind.CALIBRATION, "", message) for message in messages]


def _assign_weight(
    point: QuantPoint, method: Method, memo: Memo, blocks: Blocks | None, *, truncates: bool
) -> None:
    config = point.config
    if point.value.const_value is None or config.dominator is not config:
        return
    params = partial(weight_params, point, method, truncates=truncates, blocks=blocks)
    config.set_checked(memo(("weight", point.value.name, config.grid), params))
    config.observer = method.weights


def activate(plan: QuantizedGraph) -> None:
    """Put configs in effect whose dominators have their scales by now, in place."""
    for config in plan.configs.values():
        if config.state is QuantState.INITIAL:
            config.transition(QuantState.ACTIVATED)
        elif config.state is QuantState.PASSIVE_INIT:
            config.transition(QuantState.PASSIVE)
    follow_data(plan)

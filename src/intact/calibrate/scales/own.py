"""The scale of a tensor's own range, where another's is in effect; only tables hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from intact._memo import Memo
from intact.calibrate.method import Method
from intact.calibrate.scales.given import given_params
from intact.calibrate.scales.ranges import params_of, range_of, stored
from intact.calibrate.statistics import Statistics
from intact.plan import QuantizedGraph, QuantPoint
from intact.plan.given_scales import ScaleTable
from intact.plan.own_scales import keep_own


def keep_own_scales(
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
        plan: With scales in effect.
        shared: The plan's ``shared_points``.
        given: A table, which holds own scales; what it has is taken from it.
        statistics: Those of tensors that the table leaves out.
        method: Chooses ranges.
        factors: How tensors come out at a Softmax (see `MaskConstants`).
        memo: The same as for `assign_own`.
    """
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

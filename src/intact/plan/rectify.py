"""Thresholds of ends that share a scale: the TVM document's ``threshold_rectify``.

`tie` decides which ends share a scale and writes down, in ``detail["follows"]``, what the range of
such a group is made of. Here is one registered function for each of these words; what has a range
is handed to it when scales are assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeAlias

Range: TypeAlias = tuple[float, float]
"""The lowest and the highest value that codes shall hold."""

Rectify: TypeAlias = Callable[[Sequence[int], Sequence[Range]], list[Range]]
"""Widths in bits and ranges of tied ends, the master's first, give the ranges on one scale."""


class Follows(StrEnum):
    """What the range of a group is made of; stored in plan files."""

    MASTER = "master"
    """Of the master's own tensor."""
    UNION = "union"
    """Of the tensors of all that are tied."""


THRESHOLD_RECTIFY: dict[str, Rectify] = {}
"""The function of each way to follow."""


def rectifies(follows: str) -> Callable[[Rectify], Rectify]:
    """Register the function for a way to follow; a later registration replaces an earlier one."""

    def register(function: Rectify) -> Rectify:
        THRESHOLD_RECTIFY[follows] = function
        return function

    return register


@rectifies(Follows.UNION)
def largest_scale(bits: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
    """Give tied ends the largest of their scales (add, concat and the like).

    With widths ``b_i`` and thresholds ``t_i`` a scale is ``t_i / 2^(b_i - 1)``. The end ``*`` of
    the largest one keeps its threshold, the others have ``t_i = 2^(b_i - b*) t*``; for ranges that
    are not symmetric, both of their sides. With equal widths that is the union of the ranges.
    Source: the TVM document (HAGO), "Threshold Estimation"; facts, "HAGO, Rectify".

    >>> largest_scale([8, 8], [(-1.0, 0.5), (-0.25, 2.0)])
    [(-1.0, 2.0), (-1.0, 2.0)]
    >>> largest_scale([8, 6], [(-4.0, 4.0), (-2.0, 2.0)])
    [(-8.0, 8.0), (-2.0, 2.0)]
    """
    steps = [2.0 ** (max(bits) - width) for width in bits]
    low = min(low * step for (low, _), step in zip(ranges, steps, strict=True))
    high = max(high * step for (_, high), step in zip(ranges, steps, strict=True))
    return [(low / step, high / step) for step in steps]


@rectifies(Follows.MASTER)
def master_scale(bits: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
    """Give tied ends the master's scale (relu, clip and what moves codes).

    >>> master_scale([8, 6], [(-4.0, 4.0), (-2.0, 2.0)])
    [(-4.0, 4.0), (-1.0, 1.0)]
    """
    steps = [2.0 ** (bits[0] - width) for width in bits]
    return [(ranges[0][0] / step, ranges[0][1] / step) for step in steps]

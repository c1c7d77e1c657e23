"""How much less noise leaves the score that is wanted, from what noises gave before."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEAST, _MOST = 1.4, 16.0
"""A step down is within these factors."""


def quieter(
    points: Sequence[tuple[float, float]], start: tuple[float, float], least: float
) -> float:
    """Return where a line through the start, fitted to the points, meets a score.

    Args:
        points: Noise and score of what was tried, the last one last; scores that are not finite
            are passed over.
        start: Those of a candidate of less noise.
        least: The score that is wanted.

    Returns:
        A noise below the last one, by a factor from 1.4 to 16.

    >>> quieter([(8.0, 0.68)], (0.0, 1.0), 0.9)
    2.5
    """
    tried = points[-1][0]
    noise, score = start
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    squares = sum((x - noise) ** 2 for x, _ in finite)
    slope = sum((score - y) * (x - noise) for x, y in finite) / (squares or 1.0)
    meets = noise + (score - least) / slope if slope > 0 else 0.0
    return max(min(meets, tried / _LEAST), tried / _MOST)

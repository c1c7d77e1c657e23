"""Looking for the most noise that still leaves the score, in few trials.

The score falls with the noise, but not strictly: with some hundreds of samples two candidates of
the same noise differ by a point of accuracy, as either has luck with other samples. So a failure is
no proof that more noise cannot do, and nothing is concluded from one but a smaller step.
"""

from __future__ import annotations

import math

_SMALLEST_STRIDE = 1.08
_DOWN = (2.0, 16.0)
"""A step down, before anything did, is within these factors."""


class Ladder:
    """Up by a factor from what did; down to where the scores so far say that the limit is.

    Args:
        first: The noise to try first, above 0.
        lowest: Nothing below it is tried.
        highest: Nothing above it is tried.
        least: The score that is to be reached.
        start: Noise and score of what is known beforehand.
        stride: The first factor upwards; its square root is taken after each failure.

    Attributes:
        next: The noise to try; None where it ends.
    """

    def __init__(
        self,
        first: float,
        *,
        lowest: float,
        highest: float,
        least: float,
        start: tuple[float, float],
        stride: float,
    ) -> None:
        self._lowest, self._highest = lowest, max(highest, lowest)
        self._least, self._start, self._stride = least, start, stride
        self._points: list[tuple[float, float]] = []
        self._good: float | None = None
        self.next: float | None = min(max(first, lowest), self._highest)

    def tell(self, score: float, *, does: bool) -> None:
        """Learn the score at the last noise, and whether it will do.

        >>> ladder = Ladder(8.0, lowest=0.1, highest=100.0, least=0.5, start=(0.0, 1.0), stride=4.0)
        >>> ladder.tell(0.0, does=False)
        >>> ladder.next
        4.0
        >>> ladder.tell(0.9, does=True)
        >>> ladder.next
        16.0
        >>> ladder.tell(0.4, does=False)
        >>> ladder.next
        8.0
        """
        if self.next is None:
            return
        tried = self.next
        if math.isfinite(score):
            self._points.append((tried, score))
        if does:
            self._good = tried
            self.next = self._up(tried, tried >= self._highest)
        elif self._good is not None:
            self._stride = math.sqrt(self._stride)
            self.next = self._up(self._good, self._stride < _SMALLEST_STRIDE)
        else:
            self.next = None if tried <= self._lowest else self._down(tried)

    def _up(self, good: float, is_over: bool) -> float | None:
        return None if is_over else min(good * self._stride, self._highest)

    def _down(self, tried: float) -> float:
        """Return where a line through the start, fitted to the points, meets the limit."""
        noise, score = self._start
        squares = sum((x - noise) ** 2 for x, _ in self._points)
        slope = sum((score - y) * (x - noise) for x, y in self._points) / (squares or 1.0)
        meets = noise + (score - self._least) / slope if slope > 0 else 0.0
        near, far = _DOWN
        return max(min(max(meets, tried / far), tried / near), self._lowest)

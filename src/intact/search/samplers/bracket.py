"""Looking for the largest number that is still good enough, in few trials."""

from __future__ import annotations

import math

_CLOSE = 1.1


class Bracket:
    """Between a number that will do and one that will not, on a logarithmic scale.

    Args:
        first: The first number to try, above 0.
        lowest: Nothing below it is tried.
        highest: Nothing above it is tried.
        stride: The factor from one trial to the next until both sides are known.

    Attributes:
        next: The number to try; None when the two sides are close, or an end was reached.
    """

    def __init__(self, first: float, lowest: float, highest: float, stride: float = 4.0) -> None:
        self._lowest, self._highest, self._stride = lowest, highest, stride
        self._good: float | None = None
        self._bad = math.inf
        self.next: float | None = min(max(first, lowest), highest)

    def tell(self, does: bool) -> None:
        """Learn whether the last number will do.

        >>> bracket = Bracket(1.0, 0.01, 100.0)
        >>> bracket.tell(True); bracket.next
        4.0
        >>> bracket.tell(False); bracket.next
        2.0
        """
        if self.next is None:
            return
        tried = self.next
        if does:
            self._good = tried
            is_over = tried >= self._highest
            following = min(tried * self._stride, self._highest)
        else:
            self._bad = tried
            is_over = tried <= self._lowest
            following = max(tried / self._stride, self._lowest)
        if self._good is not None and self._bad < math.inf:
            is_over = self._bad <= self._good * _CLOSE
            following = math.sqrt(self._good * self._bad)
        self.next = None if is_over else following

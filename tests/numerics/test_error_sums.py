"""Sums of errors do not depend on the order of pieces, nor on who summed which."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from intact.numerics.error_sums import ErrorSums, SavedSums
from intact.numerics.metrics import cosine, sqnr_db


def sent(sums: ErrorSums) -> ErrorSums:
    message = msgspec.msgpack.encode(sums.saved())
    return ErrorSums.of(msgspec.msgpack.decode(message, type=SavedSums))


def pieces(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.integers(-3, 6, 40)
    rows = [(scale * random.normal(size=(7, 300))).astype(np.float32) for scale in scales]
    return [(row, row + random.normal(size=row.shape).astype(np.float32)) for row in rows]


def test_parts_in_any_order_give_the_same_bits() -> None:
    whole = ErrorSums()
    for one, other in pieces():
        whole.add(one, other)
    parts = [ErrorSums() for _ in range(3)]
    for number, (one, other) in enumerate(reversed(pieces())):
        parts[number % 3].add(one, other)
    joined = ErrorSums()
    for part in parts:
        joined.join(sent(part))
    assert (joined.sqnr_db, joined.cosine) == (whole.sqnr_db, whole.cosine)
    first, second = (np.concatenate(each) for each in zip(*pieces(), strict=True))
    assert whole.sqnr_db == pytest.approx(sqnr_db(first, second))
    assert whole.cosine == pytest.approx(cosine(first, second))


def test_what_is_not_finite_and_what_cannot_be_compared_is_sent() -> None:
    row = np.ones((1, 3))
    for odd in (np.inf, np.nan):
        one, other = ErrorSums(), ErrorSums()
        one.add(row, row)
        other.add(row, row * odd)
        one.join(sent(other))
        assert math.isnan(one.cosine)
        assert not math.isfinite(one.sqnr_db)
    one, other = ErrorSums(), ErrorSums()
    one.add(row, row)
    other.add(row, np.ones((1, 4)))
    one.join(sent(other))
    assert math.isnan(one.sqnr_db)
    assert math.isnan(ErrorSums().sqnr_db)
    assert math.isnan(sent(one).sqnr_db)

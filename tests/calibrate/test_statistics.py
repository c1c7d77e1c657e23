from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.errors import CalibrationError
from intact.numerics.histogram import accumulate, new_workspace

Rows = npt.NDArray[np.float32]

ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(0, 20)),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


def of(*parts: Rows) -> Statistics:
    """Return statistics of one tensor ``x`` that saw some rows."""
    tensor = TensorStatistics()
    for rows in parts:
        tensor.add(accumulate(np.ascontiguousarray(rows), tensor.counts, new_workspace()))
    return Statistics("hash", {"x": tensor})


@given(ROWS, st.randoms())
def test_neither_order_nor_splitting_leaves_a_trace(rows: Rows, random: object) -> None:
    shuffled = rows.copy()
    np.random.default_rng(random.randrange(2**32)).shuffle(shuffled)  # type: ignore[attr-defined]
    whole = of(rows)
    merged = of(shuffled[: len(rows) // 2])
    merged.merge(of(shuffled[len(rows) // 2 :]))
    assert merged.to_bytes() == whole.to_bytes()
    assert merged.hash() == whole.hash()


@given(ROWS)
def test_save_and_load_keep_everything(rows: Rows) -> None:
    before = of(rows)
    data = before.to_bytes()
    loaded = _loaded(data)
    assert loaded.to_bytes() == data
    assert loaded.hash() == before.hash()


def test_magnitudes_of_a_second_pass_are_kept_until_samples_are_added(tmp_path: Path) -> None:
    statistics = of(np.ones((2, 3), np.float32))
    plain = statistics.hash()
    statistics["x"].count_again(np.array([0, 0, 6]))
    assert statistics.hash() != plain
    loaded = _loaded(statistics.to_bytes())
    assert loaded.hash() == statistics.hash()
    found = loaded["x"].distribution().magnitudes
    assert found is not None
    assert found.tolist() == [0, 0, 6]
    loaded.merge(of(np.ones((1, 3), np.float32)))
    assert loaded["x"].distribution().magnitudes is None
    for wrong in ({"counted_again": np.array([1])}, {"magnitudes": np.array([[-1]])}):
        with np.load(io.BytesIO(statistics.to_bytes())) as arrays:
            np.savez(tmp_path / "wrong.npz", **{**arrays, **wrong})
        with pytest.raises(CalibrationError, match="magnitudes of other tensors"):
            Statistics.load(tmp_path / "wrong.npz")


def _loaded(data: bytes) -> Statistics:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "statistics.npz"
        path.write_bytes(data)
        return Statistics.load(path)


def test_the_distribution_has_the_exact_extremes_and_means() -> None:
    rows = np.array([[-3, 0, 1], [2, 5, 0]], np.float32)
    found = of(rows)["x"].distribution()
    assert (found.minimum, found.maximum) == (-3, 5)
    assert (found.mean_minimum, found.mean_maximum) == (-1.5, 3.0)
    assert found.mean == pytest.approx(5 / 6, abs=0)
    assert found.mean_square == 39 / 6
    assert (found.samples, found.zeros, found.total) == (2, 2, 6)


def test_values_that_are_not_finite_are_counted_and_do_not_count() -> None:
    found = of(np.array([[1, np.nan], [np.inf, -np.inf]], np.float32))["x"]
    assert found.counts.sum() == 4
    assert (found.minimum, found.maximum, found.samples) == (1, 1, 1)
    assert found.distribution().mean == 1


def test_nothing_finite_is_refused_when_a_range_is_wanted() -> None:
    with pytest.raises(CalibrationError, match="finite"):
        of(np.array([[np.nan]], np.float32))["x"].distribution()


def test_a_tensor_that_was_not_observed_is_named_with_the_nearest() -> None:
    with pytest.raises(CalibrationError, match="'y' was not observed"):
        _ = of(np.ones((1, 1), np.float32))["y"]


def test_merging_what_does_not_belong_together_is_refused() -> None:
    first = of(np.ones((1, 1), np.float32))
    with pytest.raises(CalibrationError, match="different models"):
        first.merge(Statistics("other", {"x": TensorStatistics()}))
    with pytest.raises(CalibrationError, match="different tensors"):
        first.merge(Statistics("hash", {"y": TensorStatistics()}))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:0], lambda data: data[:200], lambda data: b"x" + data[:50]]
)
def test_a_damaged_file_is_one_clear_error(damage: object, tmp_path: Path) -> None:
    path = tmp_path / "statistics.npz"
    path.write_bytes(damage(of(np.ones((1, 1), np.float32)).to_bytes()))  # type: ignore[operator]
    with pytest.raises(CalibrationError, match=r"statistics\.npz"):
        Statistics.load(path)
    with pytest.raises(CalibrationError, match="missing"):
        Statistics.load(tmp_path / "missing.npz")

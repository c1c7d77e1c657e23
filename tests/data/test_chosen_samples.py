"""A few samples are kept: the same whatever their order and their batches."""

from __future__ import annotations

import numpy as np
import pytest

from intact.data import chosen_samples
from intact.data.batching import Batch
from intact.data.chosen_samples import ChosenSamples
from intact.limits import CHOSEN


def kept(rows: np.ndarray, size: int) -> list[bytes]:
    """Let rows pass in batches of a size, the last one padded; return what is kept."""
    found = ChosenSamples()
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        padding = np.repeat(part[-1:], size - len(part), axis=0)
        found.add({"x": np.concatenate([part, padding])}, len(part))
    return [batch["x"].tobytes() for batch, _ in found.batches(1)]


def test_the_order_and_the_batches_do_not_matter() -> None:
    rows = np.random.default_rng(0).random((200, 3, 2), np.float32)
    first = kept(rows, 8)
    assert len(first) == CHOSEN
    assert kept(rows[::-1].copy(), 7) == first


def test_a_sample_that_comes_twice_is_kept_once() -> None:
    rows = np.repeat(np.arange(4, dtype=np.float32)[:, None], 3, axis=0)
    assert len(kept(rows, 5)) == 4


def test_samples_of_other_sizes_stay_within_the_bytes_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"x": np.full((1, n), n, np.float32)} for n in range(1, 60)]
    monkeypatch.setattr(chosen_samples, "CHOSEN_BYTES", 1000)

    def passed(batches: list[Batch]) -> list[int]:
        found = ChosenSamples()
        for batch in batches:
            found.add(batch, 1)
        return [batch["x"].size for batch, _ in found.batches(1)]

    first = passed(rows)
    assert passed(rows[::-1]) == first
    assert 1 <= sum(first) * 4 <= 1000


def test_inputs_without_a_common_axis_are_kept_as_one_batch() -> None:
    found = ChosenSamples()
    found.add({"x": np.zeros((1, 4), np.float32), "state": np.zeros((2, 1, 3), np.float32)}, 1)
    ((batch, _),) = found.batches(4)
    assert [array.shape for array in batch.values()] == [(1, 4), (2, 1, 3)]


def test_the_last_batch_is_padded() -> None:
    found = ChosenSamples()
    found.add({"x": np.arange(6, dtype=np.float32)[:, None]}, 6)
    assert [(len(batch["x"]), count) for batch, count in found.batches(4)] == [(4, 4), (4, 2)]


def test_samples_of_one_shape_are_joined() -> None:
    found = ChosenSamples()
    for number, length in enumerate((2, 3, 2, 5, 3, 2)):
        found.add({"x": np.full((1, length), number, np.float32)}, 1)
    batches = list(found.batches(2))
    assert sorted((batch["x"].shape, count) for batch, count in batches) == [
        *(((2, 2), 1), ((2, 2), 2), ((2, 3), 2), ((2, 5), 1)),
    ]
    real = [row for batch, count in batches for row in batch["x"][:count, 0]]
    assert sorted(real) == list(range(6))


def test_feeds_are_kept_whole() -> None:
    """Inputs without an axis of samples, scalars too, keep the shapes that the model takes."""
    found = ChosenSamples(whole=True)
    for number in range(3):
        found.add({"x": np.full((2, 4), number, np.float32), "rate": np.array(16000 + number)}, 1)
    batches = list(found.batches(4))
    assert len(batches) == 3
    assert {batch["x"].shape for batch, _ in batches} == {(2, 4)}
    assert {batch["rate"].shape for batch, _ in batches} == {()}

"""Plans are tried on no more at once than memory allows."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import intact
from intact.calibrate.outputs import FloatRuns
from intact.data.batching import sample_count
from intact.flow import calibration
from intact.improve.refine import walk
from intact.plan import plan_to_json
from tests.models import residual_net

_SAMPLES = 8


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Threads and the samples of the largest batch, of all that plans were tried on."""
    found: list[tuple[int, int]] = []

    def runs(graph: Any, batches: Any, *, threads: int = 0) -> FloatRuns:
        found.append((threads, max(sample_count(feeds) for feeds, _ in batches)))
        return FloatRuns(graph, batches, threads=threads)

    monkeypatch.setattr(calibration, "FloatRuns", runs)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    return found


def quantized(**options: Any) -> Any:
    image = np.random.default_rng(0).standard_normal((_SAMPLES, 3, 8, 8)).astype(np.float32)
    return intact.quantize(residual_net(), {"image": image}, target="onnxruntime", **options)


def test_as_many_threads_as_cores_try_several_samples_at_once(
    tried: list[tuple[int, int]],
) -> None:
    quantized()
    assert tried == [(3, 4)]


def test_a_large_model_is_tried_on_one_sample_at_once(
    tried: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_TRIED_ELEMENTS", 1000)
    quantized()
    assert tried == [(3, 1)]


def test_the_memory_allowed_holds_for_trials(
    tried: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized(max_memory=1 << 24)
    monkeypatch.setattr(calibration, "_BYTES", 1 << 16)
    quantized(max_memory=1 << 24)
    assert [threads for threads, _ in tried] == [3, 1]


def test_half_of_the_free_memory_is_the_default(
    tried: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_BYTES", 1 << 16)
    monkeypatch.setattr(calibration, "free_memory", lambda: 1 << 25)
    quantized()
    assert [threads for threads, _ in tried] == [1]


def test_what_takes_more_than_half_of_the_memory_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "free_memory", lambda: 2)
    quantized()


def test_passes_keep_activations_in_half_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelves = []

    class Seen(walk.Shelf):
        def __init__(self, most: int | None = None) -> None:
            super().__init__(most)
            shelves.append(self)

    monkeypatch.setattr(walk, "Shelf", Seen)
    plain, small = [], 1 << 14
    for free in (1 << 30, small):
        monkeypatch.setattr(calibration, "free_memory", lambda free=free: free)
        made = quantized(improve=["rounding"], threads=1)
        plain.append(plan_to_json(made.plan))
        assert {each.most for each in shelves} == {free // 2}
        assert {each._files > 0 for each in shelves} == {free == small}
        shelves.clear()
    assert plain[0] == plain[1]

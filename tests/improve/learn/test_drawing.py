"""Images that are drawn by descent: nearer to what is remembered than noise, and repeatable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import intact
from intact.calibrate.noise import matched_noise
from intact.calibrate.remembered import Remembered, remembered
from intact.data.signature import input_specs
from intact.graph import Graph, normalize
from intact.improve.learn.drawing import Drawing, Drawn, drawn
from tests.flow.test_data_free import trained
from tests.improve.learn.nets import normed


def draw(graph: Graph, options: Drawing, chunk: int = 8) -> Drawn:
    known = remembered(graph)
    (spec,) = input_specs(graph).values()
    sizes = (8, *(size or 1 for size in spec.shape[1:]))
    start = matched_noise(graph, known, spec, sizes)
    return drawn(graph, known, start, chunk, options=options)


def test_statistics_come_nearer_to_what_is_remembered() -> None:
    graph, options = normalize(trained()), Drawing(steps=30)
    found = draw(graph, options)
    assert found.after < 0.5 * found.before
    assert found.steps == 30
    assert np.array_equal(found.images, draw(graph, options).images)


def test_chunks_have_the_statistics_of_the_whole() -> None:
    graph, options = normalize(trained()), Drawing(steps=1, fewest=1)
    whole, parts = draw(graph, options), draw(graph, options, chunk=2)
    assert parts.before == pytest.approx(whole.before, rel=1e-4)


def test_work_bounds_the_steps() -> None:
    assert draw(normalize(trained()), Drawing(work=1, fewest=3)).steps == 3


def test_every_kind_of_layer_and_what_is_not_finite_keep_the_start() -> None:
    graph = normalize(normed())
    found = draw(graph, Drawing(steps=5))
    assert found.after <= found.before
    known = {
        value: Remembered(each.mean, each.deviation * np.nan, each.live)
        for value, each in remembered(graph).items()
    }
    (spec,) = input_specs(graph).values()
    start = matched_noise(graph, remembered(graph), spec, (4, 3, 6, 6))
    kept = drawn(graph, known, start, 4, options=replace(Drawing(), steps=2))
    assert np.isfinite(kept.images).all()


def test_progress_has_a_name_and_counts_steps() -> None:
    told: list[object] = []

    class Bar:
        def __call__(self, done: int, total: int | None) -> None:
            told.append((done, total))

        def phase(self, what: str) -> None:
            told.append(what)

    result = intact.quantize(trained(), data_free=True, samples=4, threads=1, progress=Bar())
    first = told.index("drawing images") + 1
    assert told[first : first + 80] == [(step + 1, 80) for step in range(80)]
    assert result.plan.provenance.drawn == 4
    assert any("drawn in 80 steps" in note.message for note in result.plan.notes)

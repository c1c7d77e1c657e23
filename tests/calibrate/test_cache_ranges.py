"""Ranges of caches: at any place, with room for other texts."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.calibrate.cache_ranges import cache_ranges
from intact.errors import CalibrationError
from intact.graph import normalize
from intact.graph.caches import Rotation, caches_of, rotation_of
from intact.plan import QuantizedGraph, build_plan
from intact.plan.caches import cache_points, with_cache_ranges
from intact.plan.preparation import graphs_for
from intact.targets import Target, load_target
from intact.targets.blockwise import in_float
from intact.targets.caches import CacheScales, with_caches
from tests.models import ModelBuilder
from tests.texts import tiny_decoder


def target(bits: int, scales: CacheScales = CacheScales.CHANNEL) -> Target:
    described = load_target("onnxruntime")
    caches = with_caches(described.cache, described.name, bits, scales)
    return in_float(msgspec.structs.replace(described, cache=caches))


def appending(bits: int = 8, scales: CacheScales = CacheScales.CHANNEL) -> QuantizedGraph:
    """A model that appends what it is given to a cache of one head of two channels."""
    b = ModelBuilder(17)
    past = b.input("past", ["batch", 1, "past", 2])
    b.node("Concat", past, b.input("x", ["batch", 1, "n", 2]), out="present", axis=2)
    b.output("present")
    return build_plan(normalize(ir.from_proto(b.build())), target(bits, scales))


def batches(
    rows: list[npt.NDArray[np.float32]],
) -> list[tuple[dict[str, npt.NDArray[np.float32]], int]]:
    past = np.zeros((1, 1, 0, 2), np.float32)
    return [({"past": past, "x": row[None, None]}, 1) for row in rows]


@settings(max_examples=20)
@given(st.integers(0, 1000), st.booleans(), st.sampled_from([4, 8]))
def test_the_envelope_holds_at_every_place_and_is_reached(
    seed: int, interleaved: bool, turned: int
) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(5, 8)).astype(np.float32)
    rotation = Rotation(turned, interleaved)
    most = rotation.envelope(values)
    first = np.arange(0, turned, 2) if interleaved else np.arange(turned // 2)
    second = first + 1 if interleaved else first + turned // 2
    reached = np.abs(values.astype(np.float64))
    for angle in np.linspace(0, 2 * np.pi, 200):
        at = values.astype(np.float64)
        a, b = at[:, first].copy(), at[:, second].copy()
        at[:, first] = a * np.cos(angle) - b * np.sin(angle)
        at[:, second] = a * np.sin(angle) + b * np.cos(angle)
        assert (np.abs(at) <= most * (1 + 1e-9)).all()
        reached = np.maximum(reached, np.abs(at))
    np.testing.assert_allclose(reached, most, rtol=1e-3)


@pytest.mark.parametrize("form", ["exported", "builder"])
def test_rotations_are_recognized_in_both_forms(form: str) -> None:
    (graph,) = graphs_for(normalize(tiny_decoder(form)), [target(8)])
    caches = [cache for node in graph.nodes for cache in caches_of(node)]
    found = {cache.ports[0]: rotation_of(cache.appended, cache.size) for cache in caches}
    assert len(found) == 4
    for name, rotation in found.items():
        assert (rotation is not None) == name.endswith("key")
        assert rotation is None or (rotation.size, rotation.interleaved) == (16, False)


def test_order_and_batches_change_nothing() -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_t(3, (6, 2)).astype(np.float32) for _ in range(12)]
    plan = appending()
    (one,) = cache_ranges(plan, batches(rows)).values()
    (turned,) = cache_ranges(plan, batches(rows[::-1])).values()
    np.testing.assert_array_equal(one, turned)


def test_ranges_have_the_room_that_other_samples_need() -> None:
    """Of few numbers with long tails the largest is too small; of many even ones it is enough."""
    random = np.random.default_rng(1)
    wide = [random.standard_t(2, (4, 2)).astype(np.float32) for _ in range(16)]
    even = [random.uniform(-1, 1, (400, 2)).astype(np.float32) for _ in range(16)]
    for rows, room in ((wide, True), (even, False)):
        (found,) = cache_ranges(appending(), batches(rows)).values()
        largest = np.abs(np.concatenate(rows)).max(axis=0)
        assert ((found / largest) > 1.5).all() == room
        assert (found >= 0.8 * largest).all()


def test_scales_are_those_of_the_granularity_and_clip_nothing() -> None:
    rows = [np.array([[1.0, 3.0], [-0.1, 0.7]], np.float32)]
    for scales, shape in ((CacheScales.CHANNEL, (2,)), (CacheScales.TENSOR, ())):
        plan = appending(8, scales)
        made = with_cache_ranges(plan, cache_ranges(plan, batches(rows)))
        (point,) = cache_points(made)
        assert point.config.scale is not None
        assert point.config.scale.shape == shape
        codes = point.config.quantize(rows[0][None, None])
        assert codes.max() == 127
        assert np.abs(point.config.dequantize(codes) - rows[0]).max() <= 0.5001 * 3 / 127.5


def test_a_cache_of_zeros_has_a_scale() -> None:
    plan = appending()
    made = with_cache_ranges(plan, cache_ranges(plan, batches([np.zeros((2, 2), np.float32)])))
    (point,) = cache_points(made)
    assert (point.config.quantize(np.zeros((1, 1, 1, 2), np.float32)) == 0).all()


def test_what_is_no_number_is_refused() -> None:
    rows = [np.array([[np.nan, 0.0]], np.float32)]
    with pytest.raises(CalibrationError, match="appends to past holds NaN or infinity"):
        cache_ranges(appending(), batches(rows))

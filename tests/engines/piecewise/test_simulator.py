"""The simulation in pieces gives what the simulation in one session gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.data.sources import open_samples
from intact.engines.integer import IntegerEngine
from intact.engines.limits import largest_sums, needs_integers
from intact.engines.piecewise import PiecewiseSimulator
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import DataError, ModelError, PlanError
from intact.graph import Graph, normalize
from intact.plan import QuantizedGraph, build_plan, quantization_points
from intact.program.lower import lower
from intact.search.plans import Planner
from intact.search.space import Candidate, GroupKind, Space
from intact.targets import Target, load_target
from intact.targets.blockwise import in_blocks
from tests.block_nets import WIDTH, dense_net
from tests.engines.piecewise.narrow import narrow_target
from tests.gallery.catalogue import GALLERY
from tests.models import MODELS, ModelBuilder, depthwise_net, random_inputs, residual_net
from tests.plans import Arrays, calibrated, planned

TARGETS = ("onnxruntime", "tensorrt", "tvm", "integer-pow2")


def same(left: Arrays, right: Arrays) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        np.testing.assert_array_equal(array, right[name], err_msg=name)


class Plans:
    """A model's candidates with scales from one calibration."""

    def __init__(self, name: str, target: str) -> None:
        model = MODELS[name].build(17)
        self.graph: Graph = normalize(model)
        self.target: Target = load_target(target)
        self.space = Space.of(self.graph, self.target)
        self.feeds: Arrays = dict(random_inputs(model, batch=3, seed=5))
        samples = open_samples(dict(random_inputs(model, batch=8, seed=1)), self.graph)
        tensors = {t for plan in self._structures() for t in required_tensors(plan)}
        self._statistics = collect(self.graph, samples, sorted(tensors), threads=1)

    def plan(self, candidate: Candidate) -> QuantizedGraph:
        plan = build_plan(self.graph, self.target, self.space.requests(candidate))
        return assign(plan, self._statistics, Method.of(self.target, "minmax", "minmax"))

    def candidates(self) -> Iterator[Candidate]:
        """Uniform ones, mixed ones, and some with one group in float."""
        yield self.space.default
        yield self.space.uniform(4)
        random = np.random.default_rng(0)
        for _ in range(3):
            yield tuple(int(random.choice(group.choices)) for group in self.space.groups)

    def _structures(self) -> Iterator[QuantizedGraph]:
        for index in (None, *self.space.open):
            candidate = self.space.default
            if index is not None:
                widest = self.space.groups[index].choices[0]
                candidate = self.space.with_choice(candidate, index, widest)
            yield build_plan(self.graph, self.target, self.space.requests(candidate))


@cache
def plans_of(name: str, target: str) -> Plans:
    return Plans(name, target)


@pytest.mark.crossed
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model(name: str, target: str) -> None:
    model = MODELS[name].build(17)
    plan = calibrated(model, target)
    feeds = dict(random_inputs(model, batch=3, seed=4))
    pieces = PiecewiseSimulator(plan.graph)
    same(pieces.run(pieces.prepare(plan), 0, feeds), Simulator(plan, threads=1).run(feeds)[0])


@pytest.mark.parametrize("name", ["mobilenet_v3", "shufflenet", "densenet"])
def test_gallery_models(name: str) -> None:
    model = GALLERY[name].model
    plan = calibrated(model, "onnxruntime")
    feeds = dict(random_inputs(model, batch=2, seed=4))
    pieces = PiecewiseSimulator(plan.graph)
    same(pieces.run(pieces.prepare(plan), 0, feeds), Simulator(plan, threads=1).run(feeds)[0])


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["onnxruntime", "integer-pow2"])
@pytest.mark.parametrize("name", ["residual", "depthwise", "transformer", "detector"])
def test_candidates_share_pieces_and_what_was_computed(name: str, target: str) -> None:
    plans = plans_of(name, target)
    pieces = PiecewiseSimulator(plans.graph)
    for candidate in plans.candidates():
        plan = plans.plan(candidate)
        expected = Simulator(plan, threads=1).run(plans.feeds)[0]
        prepared = pieces.prepare(plan)
        for _ in range(4):  # from the second time on checkpoints are kept, and then used
            same(pieces.run(prepared, 0, plans.feeds), expected)
        other = {key: array + np.float32(0.25) for key, array in plans.feeds.items()}
        same(pieces.run(prepared, 1, other), Simulator(plan, threads=1).run(other)[0])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["residual", "depthwise"]), st.data())
def test_any_candidate_on_powers_of_two_is_the_integer_engine(
    name: str, data: st.DataObject
) -> None:
    plans = plans_of(name, "integer-pow2")
    drawn = data.draw(st.tuples(*(st.sampled_from(group.choices) for group in plans.space.groups)))
    plan = plans.plan(drawn)
    assert all(most < 2**24 for _, most in largest_sums(plan))
    assert not needs_integers(plan)
    engine = IntegerEngine(lower(plan), threads=1)
    pieces = _shared(name)
    same(pieces.run(pieces.prepare(plan), 0, plans.feeds), engine.run(plans.feeds).outputs)


def test_what_stays_float_is_the_integer_engine_to_the_last_bit() -> None:
    """Both let the runtime fuse the convolution, the sum behind it and the Relu."""
    plans = plans_of("residual", "integer-pow2")
    floats = tuple(group.choices[0] for group in plans.space.groups)
    plan = plans.plan(floats)
    engine = IntegerEngine(lower(plan), threads=1)
    pieces = _shared("residual")
    same(pieces.run(pieces.prepare(plan), 0, plans.feeds), engine.run(plans.feeds).outputs)


@cache
def _shared(name: str) -> PiecewiseSimulator:
    return PiecewiseSimulator(plans_of(name, "integer-pow2").graph)


@pytest.mark.parametrize("build", [residual_net, depthwise_net])
@pytest.mark.parametrize("bits", [16, 13, 10])
def test_narrow_accumulators_wrap_as_in_the_engine(
    build: Callable[[int], onnx.ModelProto], bits: int, tmp_path: Path
) -> None:
    model = build(17)
    plan = calibrated(model, narrow_target(tmp_path, bits))
    feeds = dict(random_inputs(model, batch=4, seed=3))
    feeds["image"] *= 4
    engine = IntegerEngine(lower(plan), threads=1)
    expected = engine.run(feeds).outputs
    pieces = PiecewiseSimulator(plan.graph)
    same(pieces.run(pieces.prepare(plan), 0, feeds), expected)
    assert not needs_integers(plan)
    overflows = sum(each.overflows for each in engine.overflows.values())
    same(Simulator(plan, threads=1).run(feeds)[0], expected)
    plain = Simulator(plan.with_exact_sums(), threads=1).run(feeds)[0]
    differs = not np.array_equal(plain["logits"], expected["logits"])
    if bits == 10:
        assert overflows
        assert differs


def test_a_matmul_of_two_activations_wraps(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 6, 40])
    y = b.node("Transpose", x, perm=[0, 2, 1])
    b.node("Relu", b.node("MatMul", x, y), out="y")
    b.output("y")
    model = b.build()
    plan = calibrated(model, narrow_target(tmp_path, 17))
    feeds = {"x": dict(random_inputs(model, batch=2))["x"] * 5}
    engine = IntegerEngine(lower(plan), threads=1)
    pieces = PiecewiseSimulator(plan.graph)
    same(pieces.run(pieces.prepare(plan), 0, feeds), engine.run(feeds).outputs)
    assert sum(each.overflows for each in engine.overflows.values())


def test_what_is_kept_changes_nothing() -> None:
    plans = plans_of("residual", "onnxruntime")
    prepared = {}
    runs: list[list[Arrays]] = []
    for cache_bytes, session_bytes in ((0, 0), (4000, 1 << 17), (1 << 30, 1 << 30)):
        pieces = PiecewiseSimulator(
            plans.graph, cache_bytes=cache_bytes, session_bytes=session_bytes
        )
        prepared = {c: pieces.prepare(plans.plan(c)) for c in plans.candidates()}
        order = [*prepared.values()] * 3
        runs.append([pieces.run(each, 0, plans.feeds) for each in order])
        assert pieces.kept_bytes <= cache_bytes
    for arrays in zip(*runs, strict=True):
        for other in arrays[1:]:
            same(arrays[0], other)


def test_only_what_changed_is_run_again() -> None:
    plans = plans_of("residual", "onnxruntime")
    pieces = PiecewiseSimulator(plans.graph)
    base = plans.space.default
    last = plans.space.open[-1]
    prepared = pieces.prepare(plans.plan(base))
    for _ in range(2):
        pieces.run(prepared, 0, plans.feeds)
    other = pieces.prepare(plans.plan(plans.space.with_choice(base, last, 4)))
    before = pieces.steps_run
    pieces.run(other, 0, plans.feeds)
    assert pieces.steps_run - before == 1
    pieces.run(prepared, 0, plans.feeds)
    assert pieces.steps_run - before == 1  # the outputs are kept as well
    compiled = pieces.compiled
    first = plans.space.open[0]
    pieces.run(pieces.prepare(plans.plan(plans.space.with_choice(base, first, 5))), 0, plans.feeds)
    assert pieces.compiled == compiled + 1  # the bias behind it follows its scale


def test_weights_in_blocks_are_compiled_one_by_one_and_only_some_are_kept() -> None:
    graph, target = normalize(dense_net()), in_blocks(load_target("onnxruntime"), 16)
    space = Space.of(graph, target)
    data = {"x": np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)}
    statistics = collect(graph, open_samples(data, graph), [], threads=1)
    planner = Planner(space, statistics, Method.of(target))
    limit = 3 * 4 * WIDTH * 100 // 2 + 3 * (1 << 16)  # one of two widths of all layers
    pieces = PiecewiseSimulator(graph, session_bytes=limit)
    candidates = list(itertools.product(*(group.choices for group in space.groups)))
    assert len(candidates) == 8
    for candidate in candidates:
        plan = planner.plan(candidate)
        expected = Simulator(plan, threads=1).run(data)[0]
        got = pieces.run(pieces.prepare(plan), 0, data)
        np.testing.assert_allclose(got["y"], expected["y"], rtol=1e-5, atol=1e-6)
        assert pieces.compiled_bytes <= limit
    alike = PiecewiseSimulator(graph)
    for candidate in candidates:
        alike.run(alike.prepare(planner.plan(candidate)), 0, data)
    assert alike.compiled == 6  # three layers at two widths, and not eight models


def test_neighbours_go_on_from_where_they_differ() -> None:
    # Most of its products have no bias, whose scale would tell that the data are others.
    plans = plans_of("transformer", "onnxruntime")
    base, space = plans.space.default, plans.space
    pieces, fresh = PiecewiseSimulator(plans.graph), PiecewiseSimulator(plans.graph, cache_bytes=0)
    prepared = pieces.prepare(plans.plan(base))
    for _ in range(2):
        pieces.run(prepared, 0, plans.feeds)
    activations = [k for k in space.open if space.groups[k].kind is GroupKind.ACTIVATION]
    for index in activations:
        widths = [bits for bits in space.groups[index].choices if bits != base[index]]
        plan = plans.plan(space.with_choice(base, index, widths[-1]))
        expected = fresh.run(fresh.prepare(plan), 0, plans.feeds)
        for _ in range(2):
            same(pieces.run(pieces.prepare(plan), 0, plans.feeds), expected)


def test_integers_that_a_plan_stores_are_other_pieces() -> None:
    plan = calibrated(MODELS["residual"].build(17), "onnxruntime")
    feeds = dict(random_inputs(MODELS["residual"].build(17), batch=2, seed=4))
    pieces = PiecewiseSimulator(plan.graph)
    plain = pieces.run(pieces.prepare(plan), 0, feeds)
    other = plan.copy()
    point = next(p for p in quantization_points(other) if p.is_constant and p.config.bits == 8)
    other.baked[point.end] = -point.constant_codes()
    expected = Simulator(other, threads=1).run(feeds)[0]
    assert not np.array_equal(plain["logits"], expected["logits"])
    for _ in range(3):
        same(pieces.run(pieces.prepare(other), 0, feeds), expected)
        same(pieces.run(pieces.prepare(plan), 0, feeds), plain)


def test_threads_side_by_side() -> None:
    plans = plans_of("depthwise", "onnxruntime")
    chunks = [
        {key: array * np.float32(1 + index / 8) for key, array in plans.feeds.items()}
        for index in range(8)
    ]
    pieces = PiecewiseSimulator(plans.graph, cache_bytes=20_000, session_bytes=1 << 17)
    prepared = [pieces.prepare(plans.plan(candidate)) for candidate in plans.candidates()]
    jobs = [(each, index) for _ in range(3) for each in prepared for index in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda job: pieces.run(job[0], job[1], chunks[job[1]]), jobs))
    alone = PiecewiseSimulator(plans.graph, cache_bytes=0)
    again = [alone.prepare(plans.plan(candidate)) for candidate in plans.candidates()]
    expected = {
        (at, index): alone.run(each, index, chunks[index])
        for at, each in enumerate(again)
        for index in range(8)
    }
    for (each, index), result in zip(jobs, results, strict=True):
        same(result, expected[prepared.index(each), index])


def test_inputs_and_results_are_not_written_to() -> None:
    plans = plans_of("residual", "onnxruntime")
    pieces = PiecewiseSimulator(plans.graph)
    feeds = {key: array.copy() for key, array in plans.feeds.items()}
    for array in feeds.values():
        array.flags.writeable = False
    prepared = pieces.prepare(plans.plan(plans.space.default))
    first = {key: array.copy() for key, array in pieces.run(prepared, 0, feeds).items()}
    for _ in range(3):
        same(pieces.run(prepared, 0, feeds), first)
    same(feeds, plans.feeds)


def test_a_plan_with_nothing_quantized_is_the_float_model() -> None:
    plans = plans_of("residual", "onnxruntime")
    floats = tuple(group.choices[0] for group in plans.space.groups)
    plan = plans.plan(floats)
    pieces = PiecewiseSimulator(plans.graph)
    result = pieces.run(pieces.prepare(plan), 0, plans.feeds)
    expected = Simulator(plan, threads=1).run(plans.feeds)[0]
    same(result, expected)
    float_model = FloatModel(plans.graph, threads=1).run(plans.feeds)
    np.testing.assert_allclose(result["logits"], float_model["logits"], rtol=1e-4, atol=1e-5)


def test_batches_of_any_size() -> None:
    plans = plans_of("residual", "onnxruntime")
    pieces = PiecewiseSimulator(plans.graph)
    prepared = pieces.prepare(plans.plan(plans.space.default))
    whole = pieces.run(prepared, 0, plans.feeds)["logits"]
    image = plans.feeds["image"]
    parts = [pieces.run(prepared, 1 + i, {"image": image[i : i + 1]})["logits"] for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert pieces.run(prepared, 9, {"image": image[:0]})["logits"].shape == (0, 5)


def test_what_cannot_run_is_refused() -> None:
    plans = plans_of("residual", "onnxruntime")
    pieces = PiecewiseSimulator(plans.graph)
    with pytest.raises(PlanError, match="has no scale yet"):
        pieces.prepare(planned(residual_net()))
    with pytest.raises(PlanError, match="another graph"):
        pieces.prepare(calibrated(depthwise_net()))
    prepared = pieces.prepare(plans.plan(plans.space.default))
    with pytest.raises(DataError, match="input 'image' is missing"):
        pieces.run(prepared, 0, {})
    with pytest.raises(ModelError, match="fails on this input"):
        pieces.run(prepared, 0, {"image": np.zeros((2, 5, 8, 8), np.float32)})

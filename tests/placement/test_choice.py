"""What is measured decides what stays float: with a runtime whose clock the tests set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from intact.config import QuantState
from intact.errors import ExportError
from intact.formats.base.format import Deployed, Feeds, Kernel, Runtime, WrittenFiles
from intact.formats.base.report import Verification
from intact.placement.cache import TimingCache
from intact.placement.choice import Fastest, FastestSearch
from intact.placement.pieces import Costs, Line, Pieces
from intact.plan import Overrides, QuantizedGraph
from intact.plan.topology import has_weights_only
from tests.models import ModelBuilder, residual_net
from tests.plans import calibrate, planned

FEEDS = {"image": np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)}
CONVERSION = 1e-4
"""Seconds of any conversion, in the runtime of these tests."""


def keeping(names: Sequence[str]) -> QuantizedGraph:
    """The plan of a small net that keeps nodes in float."""
    return calibrate(planned(residual_net(), overrides=Overrides(keep_float=tuple(names))), FEEDS)


@pytest.fixture(scope="module")
def plan() -> QuantizedGraph:
    return keeping(())


class FakeRuntime(Runtime):
    """A runtime in which each node takes what a table says, and time is what it took.

    Attributes:
        times: Seconds of a node in integers and in float, by name.
        stored: Seconds of a node in float with its weights stored as integers, by name.
        runs: How many runs there were.
        profiles: How many profiles there were.
    """

    def __init__(self, times: Mapping[str, tuple[float, float]], *, shows: bool = True) -> None:
        self.times = times
        self.now = 0.0
        self.runs = self.profiles = 0
        self.refuses_float = False
        self.conversion = CONVERSION
        self.is_profiled = shows
        self.stored: dict[str, float] = {}

    def name(self) -> str:
        return "Fake 1.0"

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        raise NotImplementedError

    def seconds(self, plan: QuantizedGraph) -> float:
        return sum(kernel.seconds for kernel in self._of(plan))

    def _of(self, plan: QuantizedGraph) -> list[Kernel]:
        found = [self._kernel(plan, str(n.name), n.op_type) for n in plan.graph.nodes]
        count = len(Pieces.of(plan).tensors) and sum(
            any(plan.is_quantized(node) != inside for node, _ in plan.graph.consumers(value))
            for value in plan.graph.values
            if value.const_value is None
            for maker in [value.producer()]
            for inside in [maker is not None and plan.is_quantized(maker)]
        )
        conversion = Kernel("x", "QuantizeLinear", self.conversion, (), 64, 64)
        return [*found, *[conversion] * count]

    def _kernel(self, plan: QuantizedGraph, name: str, op_type: str) -> Kernel:
        return Kernel(name, op_type, self._time(plan, name), (name,), 64, 64)

    def _time(self, plan: QuantizedGraph, name: str) -> float:
        quantized = plan.decisions[name].quantized
        if name in self.stored and has_weights_only(plan.decisions[name]):
            return self.stored[name]
        return self.times.get(name, (1e-3, 2e-3))[0 if quantized else 1]

    def runner(self, deployed: Deployed) -> Callable[[Feeds], object]:
        taken = self.seconds(deployed.plan)
        if self.refuses_float and not any(d.quantized for d in deployed.plan.decisions.values()):
            raise ExportError("no floats")

        def run(_: Feeds) -> object:
            self.runs += 1
            self.now += taken
            return {}

        return run

    def profile(self, deployed: Deployed, _: Feeds, runs: int) -> list[Kernel]:
        self.profiles += 1
        self.now += runs * self.seconds(deployed.plan)
        return self._of(deployed.plan)


@pytest.fixture
def search(
    plan: QuantizedGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Fastest]:
    def found(runtime: FakeRuntime | None, **more: Any) -> Fastest:
        if runtime is not None:
            monkeypatch.setattr(time, "perf_counter", lambda: runtime.now)
        return FastestSearch(
            plan,
            keeping,
            lambda _: WrittenFiles({}),
            runtime,
            dict(FEEDS),
            2,
            1,
            10.0,
            TimingCache(tmp_path / "timings.json"),
            **more,
        ).find()

    return found


def convs(plan: QuantizedGraph) -> list[str]:
    return [str(node.name) for node in plan.graph.nodes if node.op_type == "Conv"]


@pytest.mark.parametrize(("stored", "is_float"), [(9e-3, True), (2e-3, False)])
def test_weights_that_are_stored_only_are_floats_where_that_is_faster(
    stored: float, is_float: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = ModelBuilder()
    row = b.input("row", ["n"], onnx.TensorProto.INT64)
    rows = b.node("Gather", b.weight(16, 64), row, name="table")
    b.output(b.node("Gemm", rows, b.weight(64, 4), name="layer"))
    feeds = {"row": np.arange(2)}

    def keep(names: Sequence[str]) -> QuantizedGraph:
        return calibrate(planned(b.build(), overrides=Overrides(keep_float=tuple(names))), feeds)

    plan = keep(())
    assert has_weights_only(plan.decisions["table"])
    runtime = FakeRuntime({"layer": (9e-3, 1e-3)})
    runtime.stored["table"] = stored
    monkeypatch.setattr(time, "perf_counter", lambda: runtime.now)
    cache = TimingCache(tmp_path / "timings.json")
    written = WrittenFiles({})
    search = FastestSearch(plan, keep, lambda _: written, runtime, feeds, 2, 1, 10.0, cache)
    found = search.find()
    assert set(found.kept_float) == {"layer", *(["table"] if is_float else [])}
    assert found.milliseconds["float"] == pytest.approx(3.0)


def test_what_is_faster_in_float_stays_float(
    plan: QuantizedGraph, search: Callable[..., Fastest]
) -> None:
    slow = convs(plan)[1]
    runtime = FakeRuntime({slow: (50e-3, 1e-3)})
    found = search(runtime)
    assert slow in found.kept_float
    assert set(found.kept_float).isdisjoint({convs(plan)[0], convs(plan)[2]})
    times = found.milliseconds
    assert times["chosen"] == pytest.approx(1e3 * runtime.seconds(keeping(found.kept_float)))
    assert times["chosen"] < min(times["float"], times["integers"])
    assert found.predicted == pytest.approx(times["chosen"], rel=0.15)
    assert "stay float" in str(found)


def test_nothing_stays_float_where_integers_are_faster(search: Callable[..., Fastest]) -> None:
    found = search(FakeRuntime({}))
    assert found.kept_float == ()
    assert found.milliseconds["chosen"] == found.milliseconds["integers"]
    assert "no node is faster in float" in str(found)


def test_all_stays_float_where_nothing_else_is_as_fast(
    plan: QuantizedGraph, search: Callable[..., Fastest]
) -> None:
    found = search(FakeRuntime({str(node.name): (5e-3, 1e-3) for node in plan.graph.nodes}))
    assert {name for name, each in plan.decisions.items() if each.quantized} == {*found.kept_float}
    assert found.milliseconds["chosen"] == found.milliseconds["float"]


def test_a_runtime_that_shows_no_kernels_is_measured_by_whole_models(
    plan: QuantizedGraph, search: Callable[..., Fastest]
) -> None:
    runtime = FakeRuntime(dict.fromkeys(convs(plan), (0.05, 0.001)), shows=False)
    found = search(runtime)
    assert set(convs(plan)) <= set(found.kept_float)
    assert runtime.profiles == 0
    assert found.predicted == 0


def test_what_was_found_is_known_the_next_time(
    plan: QuantizedGraph, search: Callable[..., Fastest]
) -> None:
    runtime = FakeRuntime({convs(plan)[1]: (50e-3, 1e-3)})
    first = search(runtime)
    ran = runtime.runs
    second = search(runtime)
    assert runtime.runs == ran
    assert second.known
    assert second.kept_float == first.kept_float


def test_what_is_known_must_keep_the_bound_of_this_plan(search: Callable[..., Fastest]) -> None:
    """Other samples give other scales, with which a choice of before may lose more."""
    first = search(FakeRuntime({}), bound=30.0, decibels=lambda _: 40.0)
    assert first.kept_float == ()
    second = search(FakeRuntime({}), bound=30.0, decibels=lambda _: 20.0)
    assert not second.known
    assert second.kept_float != ()


def test_times_of_pieces_serve_another_bound(
    plan: QuantizedGraph, search: Callable[..., Fastest]
) -> None:
    runtime = FakeRuntime({convs(plan)[1]: (50e-3, 1e-3)})
    search(runtime)
    before = runtime.profiles
    found = search(runtime, bound=10.0, decibels=lambda _: 20.0)
    assert not found.known
    assert runtime.profiles - before < before  # the two whole models are not profiled again


def test_a_bound_keeps_the_noisiest_in_float(
    plan: QuantizedGraph, search: Callable[..., Fastest]
) -> None:
    noisy = convs(plan)[2]

    def decibels(made: QuantizedGraph) -> float:
        return 20.0 if made.decisions[noisy].quantized else 40.0

    found = search(
        FakeRuntime({}), bound=30.0, decibels=decibels, noise=lambda: dict.fromkeys([noisy], 1.0)
    )
    assert noisy in found.kept_float
    assert convs(plan)[0] not in found.kept_float


def test_bound_that_nothing_keeps_is_said_to_be_missed(search: Callable[..., Fastest]) -> None:
    runtime = FakeRuntime({})
    runtime.refuses_float = True
    found = search(runtime, bound=30.0, decibels=lambda _: 20.0)
    assert "--min-sqnr 30 is missed: it has 20.0 dB" in str(found)
    assert "missed" not in str(search(FakeRuntime({}), bound=10.0, decibels=lambda _: 20.0))


def test_what_is_too_small_is_not_timed(
    plan: QuantizedGraph, search: Callable[..., Fastest]
) -> None:
    runtime = FakeRuntime({str(node.name): (1e-7, 1e-7) for node in plan.graph.nodes})
    runtime.conversion = 1e-7
    found = search(runtime)
    assert found.milliseconds == {}
    assert found.kept_float == ()
    assert "too small" in str(found)


def test_a_clock_that_jumps_decides_nothing(
    plan: QuantizedGraph, search: Callable[..., Fastest], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = FakeRuntime({})
    slow = runtime.seconds

    def jumping(made: QuantizedGraph) -> float:
        return slow(made)

    count = iter(range(10_000))
    original = runtime.runner

    def runner(deployed: Deployed) -> Callable[[Feeds], object]:
        run = original(deployed)

        def jumps(feeds: Feeds) -> object:
            if next(count) % 40 == 17:
                runtime.now += 3600.0 if next(count) % 2 else 0.0
            return run(feeds)

        return jumps

    monkeypatch.setattr(runtime, "runner", runner)
    runtime.is_profiled = False
    found = search(runtime)
    assert found.kept_float == ()
    assert found.milliseconds["integers"] == pytest.approx(1e3 * jumping(plan))


def test_without_a_runtime_the_cost_table_of_the_target_decides(
    search: Callable[..., Fastest],
) -> None:
    found = search(None)  # of the target onnxruntime, whose file has one
    assert found.is_from_table
    assert found.milliseconds == {}
    assert "cost table" in str(found)


def test_a_runtime_without_a_float_form_is_measured_in_integers(
    search: Callable[..., Fastest],
) -> None:
    runtime = FakeRuntime({})
    runtime.refuses_float = True
    found = search(runtime)
    assert found.milliseconds["float"] == 0
    assert "in float" not in str(found).split(";")[1]


def test_the_cheapest_placement_is_the_best_of_all(plan: QuantizedGraph) -> None:
    pieces = Pieces.of(plan)
    random = np.random.default_rng(3)
    count = len(pieces.names)
    for _ in range(5):
        costs = Costs(
            random.uniform(0, 1, count),
            random.uniform(0, 1, count),
            Line(0.05, 0.001),
            Line(0.1, 0.0005),
            {tensor.source: int(random.integers(1, 200)) for tensor in pieces.tensors},
        )
        every = (np.array(kept) for kept in product([False, True], repeat=count))
        least = min(costs.total(pieces, kept) for kept in every)
        assert costs.total(pieces, costs.cheapest(pieces)) == pytest.approx(least, abs=1e-6)


def test_fused_nodes_are_one_piece(plan: QuantizedGraph) -> None:
    pieces = Pieces.of(plan)
    fused = [each for each in plan.configs.values() if each.state is QuantState.OVERLAPPED]
    assert fused
    assert any(len(piece) > 1 for piece in pieces.names)

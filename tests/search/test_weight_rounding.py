"""Weights of few bits in a search: rounded once, better than to nearest, and kept with the log."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact import api
from intact.calibrate.assign import Method
from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.config import QuantState
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import DataError, PlanError, SearchError
from intact.graph import Graph, normalize
from intact.improve.refine.rounding import RoundingSite, refine_rounding
from intact.plan import QuantizedGraph, TensorEnd, plan_to_json
from intact.search import weight_rounding as search_rounding
from intact.search.plans import Planner, required
from intact.search.roundings import Place, Roundings, beside
from intact.search.space import Candidate, GroupKind, Space
from intact.search.strategy import Strategy
from intact.search.weight_rounding import Rounding, is_rounded, rounding_of
from intact.targets import load_target
from tests.improve.refine.test_rounding import LAYERS, net, smooth
from tests.plans import lost

WIDTHS = (8, 6, 4)
ENDS = tuple(TensorEnd.input(name, 1) for name in LAYERS)


@cache
def graph() -> Graph:
    return normalize(net())


def samples() -> Samples:
    return open_samples(smooth(40, seed=1), graph())


@cache
def space(target: str = "onnxruntime", widths: tuple[int, ...] = WIDTHS) -> Space:
    return Space.of(graph(), load_target(target), widths=widths, allow_float=False)


@cache
def statistics(target: str) -> Statistics:
    return collect(graph(), samples(), required(space(target)), threads=1)


def planner(roundings: Roundings | None = None, target: str = "onnxruntime") -> Planner:
    method = Method.of(load_target(target))
    return Planner(space(target), statistics(target), method, roundings)


@cache
def rounding(target: str = "onnxruntime") -> Rounding:
    return rounding_of(planner(target=target), space(target), samples(), threads=1)


def candidate(bits: int, *layers: str, target: str = "onnxruntime") -> Candidate:
    """Weights of some layers with so many bits, the others as wide as they can be."""
    return tuple(
        bits
        if group.kind is GroupKind.WEIGHT and group.ends[0].node in (layers or LAYERS)
        else group.default
        for group in space(target).groups
    )


def scales(plan: QuantizedGraph, end: TensorEnd) -> bytes | None:
    scale = plan.configs[end].scale
    return None if scale is None else scale.tobytes()


def same(left: QuantizedGraph, right: QuantizedGraph) -> bool:
    integers = left.baked.keys() == right.baked.keys() and all(
        np.array_equal(codes, right.baked[end]) for end, codes in left.baked.items()
    )
    return integers and all(
        scales(left, end) == scales(right, end)
        and config.state is right.configs[end].state
        and config.observer == right.configs[end].observer
        for end, config in left.configs.items()
    )


def test_less_is_lost_at_four_bits() -> None:
    nearest, better = (each.plan(candidate(4)) for each in (planner(), planner(_roundings())))
    other = smooth(60, seed=7)
    assert lost(better, other) < 0.5 * lost(nearest, other)
    assert all(better.configs[end].state is QuantState.BAKED for end in ENDS)
    assert not nearest.baked


def test_eight_bits_are_rounded_to_nearest() -> None:
    plain, other = (each.plan(space().default) for each in (planner(), planner(_roundings())))
    assert plan_to_json(plain) == plan_to_json(other)
    assert not other.baked


def test_one_layer_is_as_the_pass_rounds_it() -> None:
    """The first layer's inputs are those of the pass: what lies behind it has no part in them."""
    plan = planner(_roundings()).plan(candidate(4, "wide"))
    passed = refine_rounding(planner().plan(candidate(4, "wide")), samples(), threads=1)
    end, bias = TensorEnd.input("wide", 1), TensorEnd.input("wide", 2)
    assert set(plan.baked) == {end, bias}
    for each in (end, bias):
        assert np.array_equal(plan.baked[each], passed.baked[each])
        assert scales(plan, each) == scales(passed, each)
        assert plan.configs[each].state is passed.configs[each].state
        assert plan.configs[each].observer == passed.configs[each].observer


def test_each_layer_and_width_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded: list[tuple[str, int]] = []
    plain = RoundingSite.choose

    def counted(self: RoundingSite, *moments: Any) -> Any:
        rounded.append((str(self.layer.node.name), self.weight.config.bits))
        return plain(self, *moments)

    monkeypatch.setattr(RoundingSite, "choose", counted)
    found = rounding_of(planner(), space(), samples(), threads=1)
    made = planner(found.roundings)
    for bits in (4, 6, 8, 4):
        made.plan(candidate(bits))
        made.plan(candidate(bits, "wide", "dense"))
    assert sorted(rounded) == sorted((name, bits) for name in LAYERS for bits in (4, 6))
    assert found.tried == len(rounded)


def test_nothing_is_run_where_no_weight_can_have_few_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_rounding, "Walk", None)
    found = rounding_of(planner(), space(widths=(8, 7)), samples(), threads=1)
    assert not found.roundings.found
    assert found.remark == ""


def test_the_preset_decides() -> None:
    target = load_target("onnxruntime")
    assert not is_rounded(target, "fast")
    assert is_rounded(target, "balanced")
    assert is_rounded(target, "best")
    assert is_rounded(target, None) is (target.calibration.preset != "fast")


def test_one_sample_leaves_weights_rounded_to_nearest() -> None:
    single = open_samples(smooth(1), graph())
    assert not rounding_of(planner(), space(), single, threads=1).roundings.found


def test_a_scale_that_the_bias_needs_larger_stays() -> None:
    """Rounded integers hold at their own scale alone."""
    plan = planner().plan(candidate(4, "wide"))
    tiny = plan.configs[TensorEnd.input("wide", 0)].dominator
    assert tiny.scale is not None
    tiny.set_params(tiny.scale * np.float32(1e-9), tiny.offset)
    before = plan.configs[TensorEnd.input("wide", 1)].params
    assert not _roundings().apply(plan).baked
    after = plan.configs[TensorEnd.input("wide", 1)]
    assert before is not None
    assert after.observer != _roundings().observer
    assert np.all(np.asarray(after.scale) >= before.scale)


def test_the_file_has_the_same_weights(tmp_path: Path) -> None:
    path = tmp_path / "search.rounding.npz"
    _roundings().save(path)
    again = Roundings.load(path)
    assert again.hash == _roundings().hash
    assert list(again.found) == list(_roundings().found)
    assert same(planner(again).plan(candidate(4)), planner(_roundings()).plan(candidate(4)))
    _roundings().save(tmp_path / "other.npz")
    assert (tmp_path / "other.npz").read_bytes() == path.read_bytes()
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["other.npz", path.name]


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "search.rounding.npz"
    with pytest.raises(DataError, match="missing"):
        Roundings.load(path)
    _roundings().save(path)
    whole = path.read_bytes()
    for content in (b"", b"PK", whole[: len(whole) // 2], whole.replace(b"places", b"palaces")):
        path.write_bytes(content)
        with pytest.raises(DataError, match="rounded weights"):
            Roundings.load(path)


@pytest.mark.parametrize("target", ["onnxruntime", "integer-pow2"])
def test_a_strategy_is_the_same_plan_again(target: str) -> None:
    known = rounding(target).roundings
    made = planner(known, target)
    plan = made.plan(candidate(4, target=target))
    strategy = made.strategy(plan)
    assert set(strategy.rounded) == {str(end) for end in ENDS}
    described = load_target(target)
    assert same(plan, strategy.plan(graph(), described, roundings=known))
    with pytest.raises(PlanError, match="is not given"):
        strategy.plan(graph(), described)


def test_integers_of_another_search_are_refused() -> None:
    made = planner(_roundings())
    strategy = made.strategy(made.plan(candidate(4)))
    place = Place(ENDS[0], 4)
    changed = _roundings().found | {place: _roundings().found[Place(ENDS[0], 6)]}
    with pytest.raises(PlanError, match="wide"):
        strategy.plan(graph(), load_target("onnxruntime"), roundings=Roundings(changed))


class TestSearch:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "out.search.jsonl"

    def found(self, folder: Path | None, **options: Any) -> Any:
        given: Mapping[str, Any] = {
            "sampler": "greedy",
            "budget": "20trials",
            "widths": (8, 4),
            "allow_float": False,
            "minimize": "bytes",
            "max_cost": "90%",
            "objective": "sqnr",
            "threads": 1,
            "output": folder,
        }
        return api.search_strategy(net(), smooth(24, seed=1), **{**given, **options})

    def test_what_was_measured_is_what_is_written_and_replayed(
        self, tmp_path: Path, log: Path
    ) -> None:
        best = self.found(tmp_path / "out")
        assert best.result.plan.baked
        assert any("refined rounding" in remark for remark in best.remarks)
        again = api.replay_strategy(net(), log, output=tmp_path / "again")
        assert same(best.result.plan, again.plan)
        models = [tmp_path / each / "model.int8.onnx" for each in ("out", "again")]
        assert models[0].read_bytes() == models[1].read_bytes()
        beside(log).unlink()
        with pytest.raises(DataError, match="missing"):
            api.replay_strategy(net(), log)

    def test_a_resumed_search_reads_them(
        self, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = self.found(tmp_path / "out")
        monkeypatch.setattr(search_rounding, "Walk", None)
        again = self.found(tmp_path / "more", log=log, resume=True)
        assert same(first.result.plan, again.result.plan)
        with pytest.raises(SearchError, match="an option"):
            self.found(tmp_path / "more", log=log, resume=True, preset="fast")

    def test_fast_leaves_it_out(self, tmp_path: Path, log: Path) -> None:
        fast = self.found(tmp_path / "out", preset="fast")
        assert not fast.result.plan.baked
        assert not fast.strategy.rounded
        assert not beside(log).exists()
        assert fast.best.score < self.found(None).best.score


def _roundings() -> Roundings:
    return rounding().roundings


def test_the_strategy_of_a_plan_without_them_names_none() -> None:
    plan = planner().plan(candidate(4))
    assert Strategy.of(plan).rounded == {}

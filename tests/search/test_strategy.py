"""Strategies: a plan becomes one, and the same plan again, bit for bit."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.calibrate.assign import Method, activate, assign, required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.scales.bias import assign_biases
from intact.data.sources import open_samples
from intact.errors import PlanError, UsageError
from intact.graph import Graph, normalize
from intact.plan import Overrides, QuantizedGraph, TensorEnd, build_plan, plan_to_json
from intact.search.space import FLOAT, Space
from intact.search.strategy import Strategy, Topology
from intact.targets import Target, load_target, target_names
from tests.gallery.catalogue import GALLERY
from tests.models import ModelBuilder, depthwise_net, residual_net
from tests.plans import calibrated, conv, image, own_target, planned


def content(plan: QuantizedGraph) -> dict[str, Any]:
    """What a plan file holds, without what is said about the way to it."""
    document: dict[str, Any] = json.loads(plan_to_json(plan))
    del document["notes"]
    document["provenance"].pop("statistics", None)
    for config in document["configs"]:  # own scales of tensors that share one: not in the log
        config.get("detail", {}).pop("own", None)
        if config.get("detail") == {}:
            del config["detail"]
    return document


def again(
    plan: QuantizedGraph, overrides: Overrides | None = None, **changes: Any
) -> QuantizedGraph:
    """The plan that comes out of the text of its strategy."""
    text = msgspec.json.encode(msgspec.structs.replace(Strategy.of(plan), **changes))
    return msgspec.json.decode(text, type=Strategy).plan(plan.graph, plan.target, overrides)


def candidates(space: Space, seed: int = 0) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    any_width = [tuple(draw.choice(group.choices) for group in space.groups) for _ in range(2)]
    some_float = tuple(
        FLOAT if FLOAT in group.choices and draw.random() < 0.3 else group.default
        for group in space.groups
    )
    return [space.default, *any_width, some_float]


def assigned(graph: Graph, feeds: Any, plans: list[QuantizedGraph]) -> list[QuantizedGraph]:
    needed = tuple(dict.fromkeys(name for plan in plans for name in required_tensors(plan)))
    statistics = collect(graph, open_samples(feeds, graph), needed, threads=1) if needed else None
    return [assign(plan, statistics, Method.of(plan.target)) for plan in plans]


@pytest.mark.crossed
@pytest.mark.parametrize("target", target_names())
@pytest.mark.parametrize("name", ["similarity", "split_net"])
def test_every_candidate_comes_back(name: str, target: str) -> None:
    entry = GALLERY[name]
    graph = normalize(entry.model)
    space = Space.of(graph, load_target(target))
    wanted = [build_plan(graph, space.plan.target, space.requests(c)) for c in candidates(space)]
    for plan in assigned(graph, entry.source(2, 0), wanted):
        assert content(again(plan)) == content(plan)
        assert content(again(plan, scales={})) == content(plan)  # as other tools write it


def test_requests_of_the_user_come_back() -> None:
    model = residual_net()
    conv_node = next(str(n.name) for n in normalize(model).nodes if n.op_type == "Conv")
    asked = Overrides(keep_float=("Gemm",), bits={conv_node: 5}, activation_bits=7)
    plan = calibrated(model, overrides=asked)
    strategy = Strategy.of(plan)
    assert strategy.topology.kept_float == ["Gemm"]
    assert content(again(plan)) == content(again(plan, asked)) == content(plan)


class TestScales:
    """Scales of any size, against exact fractions."""

    model = residual_net()
    graph = normalize(model)

    @pytest.mark.parametrize("target", target_names())
    @given(seed=st.integers(0, 2**32 - 1))
    @settings(max_examples=3, deadline=None)
    def test_any_scale_comes_back(self, target: str, seed: int) -> None:
        described = load_target(target)
        plan = _with_random_scales(build_plan(self.graph, described), seed)
        strategy = Strategy.of(plan)
        for end, threshold in strategy.thresholds.items():
            config = plan.configs[TensorEnd.parse(end)]
            assert config.scale is not None
            sign = 0 if end in strategy.zero_points else 1
            assert sign == (config.grid.symmetric and config.quant_min < 0)
            numbers = threshold if isinstance(threshold, list) else [threshold]
            exact = [Fraction(float(s)) * 2 ** (config.bits - sign) for s in config.scale.flat]
            assert [Fraction(number) for number in numbers] == exact
        found, wanted = content(again(plan)), content(plan)
        for each in (*found["configs"], *wanted["configs"]):
            each.pop("observer", None)  # these scales come from no method
        assert found["configs"] == wanted["configs"]

    @pytest.mark.parametrize("scale", [1e-45, np.finfo(np.float32).tiny, 3.4028235e38])
    def test_the_ends_of_float32(self, scale: float) -> None:
        b = ModelBuilder()
        b.output(conv(b, image(b), "only"))  # without a bias
        plan = planned(b.build())
        for config in plan.configs.values():
            if config.dominator is config and config.state == "initial":
                size = () if config.grid.axis is None else (_size(plan, config),)
                config.set_params(np.full(size, scale, np.float32))
                config.observer = "given"
        activate(plan)
        plan.provenance = plan.provenance.calibrated("given", "given")
        assert content(again(plan)) == content(plan)
        threshold = Strategy.of(plan).thresholds["only.input[1]"]
        assert threshold == [float(np.float32(scale)) * 128] * 4


def _size(plan: QuantizedGraph, config: Any) -> int:
    end = next(end for end, each in plan.configs.items() if each is config)
    value = plan.graph.node(end.node).inputs[end.slot]
    assert value is not None
    assert value.const_value is not None
    return int(value.const_value.shape[config.grid.axis])


def _settled(plan: QuantizedGraph) -> QuantizedGraph:
    for config in plan.configs.values():
        config.dominator.observer = "given"  # no bias changes them
    assign_biases(plan)
    activate(plan)
    return plan


def _with_random_scales(plan: QuantizedGraph, seed: int) -> QuantizedGraph:
    draw = np.random.default_rng(seed)
    for config in plan.configs.values():
        if config.dominator is not config or config.state != "initial":
            continue
        size = () if config.grid.axis is None else (_size(plan, config),)
        scale = np.exp2(draw.uniform(-30, 30, size)).astype(np.float32)
        if config.grid.power_of_two:
            scale = np.exp2(np.rint(np.log2(scale)))
        low, high = (0, 0) if config.grid.symmetric else (config.quant_min, config.quant_max)
        config.set_params(scale, draw.integers(low, high, size, np.int64, endpoint=True))
    return _settled(plan)


def test_the_document_by_hand() -> None:
    plan = calibrated(residual_net(), "tensorrt")
    strategy = Strategy.of(plan)
    assert strategy.model_hash == plan.graph.hash
    assert strategy.topology.node_conds == {n: d.quantized for n, d in plan.decisions.items()}
    assert list(strategy.topology.edge_conds) == [str(end) for end in plan.configs]
    assert set(strategy.bits) == {e for e, there in strategy.topology.edge_conds.items() if there}
    assert set(strategy.thresholds) == set(strategy.scales) <= set(strategy.bits)
    assert not strategy.zero_points  # symmetric everywhere
    first = next(str(node.name) for node in plan.graph.nodes if node.op_type == "Conv")
    config = plan.configs[TensorEnd.input(first, 0)]
    assert config.scale is not None
    assert strategy.bits[f"{first}.input[0]"] == 8
    assert strategy.thresholds[f"{first}.input[0]"] == float(config.scale) * 128
    weights = strategy.thresholds[f"{first}.input[1]"]
    assert isinstance(weights, list)
    assert np.array_equal(np.divide(weights, 128), plan.configs[TensorEnd.input(first, 1)].scale)  # type: ignore[arg-type]
    assert strategy.methods.activations == "minmax"


def test_a_strategy_without_the_reasons() -> None:
    """Another program need not say which float nodes were a choice."""
    plan = calibrated(residual_net(), overrides=Overrides(keep_float=("Gemm", "Relu")))
    strategy = Strategy.of(plan)
    conds = Topology(strategy.topology.node_conds, strategy.topology.edge_conds)
    bare = msgspec.structs.replace(strategy, topology=conds)
    found = bare.plan(plan.graph, plan.target)
    assert content(found)["configs"] == content(plan)["configs"]


def test_a_prescribed_scale_stays(tmp_path: Any) -> None:
    target = own_target(
        tmp_path,
        """
        [[op]]
        ops = ["Conv"]
        [[op]]
        ops = ["Sigmoid"]
        fixed_output = { scale = 0.00390625, offset = 0 }
        """,
    )
    b = ModelBuilder()
    b.output(b.node("Sigmoid", conv(b, image(b), "first"), name="last"))
    plan = calibrated(b.build(), target)
    strategy = Strategy.of(plan)
    assert strategy.thresholds["last.output[0]"] == 1.0
    assert strategy.zero_points["last.output[0]"] == 0
    assert content(again(plan)) == content(plan)
    for odd in (
        {"scales": {**strategy.scales, "last.output[0]": 2.0}},
        {"scales": {}, "thresholds": {**strategy.thresholds, "last.output[0]": 2.0}},
    ):
        with pytest.raises(PlanError, match="prescribes another scale"):
            msgspec.structs.replace(strategy, **odd).plan(plan.graph, target)


class TestRefusals:
    plan = calibrated(residual_net())
    strategy = Strategy.of(plan)
    weight = next(end for end, each in strategy.thresholds.items() if isinstance(each, list))
    single = next(end for end, each in strategy.thresholds.items() if isinstance(each, float))

    def refused(self, match: str, target: Target | None = None, **changes: Any) -> None:
        changed = msgspec.structs.replace(self.strategy, **changes)
        with pytest.raises(PlanError, match=match) as caught:
            changed.plan(self.plan.graph, target or self.plan.target)
        assert str(caught.value).isprintable()

    def test_no_scale(self) -> None:
        with pytest.raises(PlanError, match="INITIAL"):
            Strategy.of(planned(residual_net()))

    def test_another_model(self) -> None:
        other = normalize(depthwise_net())
        with pytest.raises(PlanError, match="strategy is for model"):
            self.strategy.plan(other, self.plan.target)

    def test_another_target(self) -> None:
        self.refused(
            "the strategy's (scales|thresholds|zero points) (lack|have)",
            load_target("integer-pow2"),
        )

    def test_names(self) -> None:
        scales, thresholds = dict(self.strategy.scales), dict(self.strategy.thresholds)
        number = thresholds.pop(self.single)
        self.refused("thresholds lack", scales={}, thresholds=thresholds)
        del scales[self.single]
        self.refused("scales lack", scales=scales)
        unknown = "have 'odd\\\\n', unknown to this plan"
        self.refused(unknown, thresholds={**self.strategy.thresholds, "odd\n": number})
        self.refused(unknown, scales={**self.strategy.scales, "odd\n": number})
        topology = self.strategy.topology
        nodes = dict(topology.node_conds)
        nodes.popitem()
        self.refused("nodes lack", topology=Topology(nodes, topology.edge_conds))
        edges = {**topology.edge_conds, "a": True}
        self.refused("bits lack 'a'", topology=Topology(topology.node_conds, edges))
        self.refused("bits have", bits={**self.strategy.bits, "a.input[0]": 8})
        self.refused("zero points", zero_points={})

    @pytest.mark.parametrize("number", [0.0, -1.0, 1e300, 1e-300, [], [1.0]])
    def test_numbers(self, number: Any) -> None:
        for end in (self.weight, self.single):
            thresholds = {**self.strategy.thresholds, end: number}
            self.refused("threshold at", scales={}, thresholds=thresholds)
            self.refused("scale at", scales={**self.strategy.scales, end: number})

    def test_zero_points(self) -> None:
        for number in (256, -1, [1]):
            zeros = {**self.strategy.zero_points, self.single: number}
            self.refused("scale at", zero_points=zeros)
            self.refused("threshold at", zero_points=zeros, scales={})

    def test_widths(self) -> None:
        bits = {**self.strategy.bits, self.single: 1}
        changed = msgspec.structs.replace(self.strategy, bits=bits)
        with pytest.raises(UsageError, match="1 bits"):
            changed.plan(self.plan.graph, self.plan.target)
        bias = next(end for end, width in self.strategy.bits.items() if width == 32)
        self.refused("31 bits at", bits={**self.strategy.bits, bias: 31})

    def test_a_node_that_cannot(self) -> None:
        topology = self.strategy.topology
        kept = Topology(topology.node_conds, topology.edge_conds, ["Gemm"])
        self.refused("stays float here", topology=kept)

"""The thresholds of strategies: what the methods gave, for the output of every node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from intact.calibrate.assign import Method
from intact.calibrate.collect import collect
from intact.config import QuantState
from intact.data.sources import open_samples
from intact.graph import Graph, normalize
from intact.plan import TensorEnd
from intact.search.plans import Planner, required
from intact.search.space import FLOAT, Space
from intact.search.strategy import Strategy
from intact.targets import load_target
from tests.gallery.catalogue import GALLERY
from tests.models import random_inputs, residual_net

Arrays = dict[str, npt.NDArray[np.float32]]


def every_value(graph: Graph, feeds: Arrays) -> Arrays:
    """All tensors of the float model, computed by ONNX's reference."""
    model = ir.to_proto(graph.model)
    assert isinstance(model, onnx.ModelProto)
    del model.graph.output[:]
    names = [str(value.name) for node in graph.nodes for value in node.outputs]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    found = dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))
    constants = {
        str(value.name): value.const_value.numpy()
        for value in graph.values
        if value.const_value is not None
    }
    return {**constants, **feeds, **found}


def planner_for(target: str, method: str, weights: str = "minmax") -> tuple[Planner, Arrays]:
    model = residual_net()
    graph, described = normalize(model), load_target(target)
    space = Space.of(graph, described)
    feeds = random_inputs(model, batch=8, seed=5)
    statistics = collect(graph, open_samples(feeds, graph), required(space), threads=1)
    planner = Planner(space, statistics, Method.of(described, method, weights))
    return planner, every_value(graph, feeds)


@pytest.mark.parametrize("method", ["minmax", "max_range", "power2_range"])
def test_every_node_output_has_what_the_method_gave(method: str) -> None:
    """Also where it is inside a fused operator, or takes the scale of another."""
    planner, values = planner_for("tvm", method)
    plan = planner.plan(planner.space.default)
    strategy = planner.strategy(plan)
    hidden = 0
    for node in plan.graph.nodes:
        assert plan.is_quantized(node)
        largest = float(np.abs(values[str(node.outputs[0].name)]).max())
        expected = 2.0 ** round(np.log2(largest)) if method == "power2_range" else largest
        assert strategy.thresholds[f"{node.name}.output[0]"] == pytest.approx(expected, rel=1e-5)
        hidden += plan.output_config(node).state is not QuantState.ACTIVATED
    assert hidden > 2
    assert set(strategy.thresholds) <= set(strategy.bits)
    weight = next(node for node in plan.graph.nodes if node.op_type == "Conv")
    expected = float(np.abs(values[str(weight.inputs[1].name)]).max())  # type: ignore[union-attr]
    assert strategy.thresholds[f"{weight.name}.input[1]"] == expected


@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize("method", ["max_range", "power2_range"])
def test_the_documents_formula_gives_the_scales_of_its_methods(method: str, bits: int) -> None:
    planner, _ = planner_for("tvm", method, method)
    plan = planner.plan(planner.space.uniform(bits))
    strategy = planner.strategy(plan)
    own = {place for place in strategy.scales if place in strategy.thresholds}
    tied = {str(end) for end, each in plan.configs.items() if each.detail.get("follows") == "union"}
    masters = {
        str(end)
        for end, config in plan.configs.items()
        if any(plan.configs[TensorEnd.parse(t)].dominator is config for t in tied)
    }
    raised = {end for end in own if end.endswith(".input[1]")}  # for a bias
    assert len(own - tied - masters - raised) > 3
    for place in own - tied - masters - raised:
        width, threshold = strategy.bits[place], strategy.thresholds[place]
        assert isinstance(threshold, float)
        assert strategy.scales[place] == np.float32(threshold / 2.0 ** (width - 1))


def test_minmax_logs_the_largest_value_and_not_what_127_steps_make_of_it() -> None:
    planner, values = planner_for("tvm", "minmax")
    strategy = planner.strategy(planner.plan(planner.space.default))
    first = next(node for node in planner.space.plan.graph.nodes if node.op_type == "Conv")
    place, largest = f"{first.name}.input[0]", np.abs(values[str(first.inputs[0].name)]).max()  # type: ignore[union-attr]
    assert strategy.thresholds[place] == float(largest)
    assert strategy.scales[place] == np.float32(np.float64(largest) / 127)


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["onnxruntime", "ncnn", "tengine-u8", "openvino"])
@pytest.mark.parametrize("name", ["similarity", "split_net"])
def test_thresholds_of_any_candidate_are_there_and_change_no_plan(name: str, target: str) -> None:
    entry = GALLERY[name]
    graph, described = normalize(entry.model), load_target(target)
    space = Space.of(graph, described)
    samples = open_samples(entry.source(2, 0), graph)
    statistics = collect(graph, samples, required(space), threads=1) if required(space) else None
    assert statistics is not None
    planner = Planner(space, statistics, Method.of(described))
    some_float = tuple(
        FLOAT if FLOAT in group.choices and not number % 3 else group.default
        for number, group in enumerate(space.groups)
    )
    for candidate in (space.default, space.uniform(4), some_float):
        plan = planner.plan(candidate)
        strategy = planner.strategy(plan)
        ends = {str(end): plan.configs[end] for end in plan.configs}
        assert set(strategy.thresholds) <= set(ends)
        computed = [str(n.name) for n in graph.nodes if plan.decisions[str(n.name)].quantized]
        with_codes = {f"{n}.output[0]" for n in computed} & set(strategy.bits)
        assert with_codes <= set(strategy.thresholds)
        again = strategy.plan(graph, described)
        assert Strategy.of(again).scales == strategy.scales

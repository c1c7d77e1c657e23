"""The simulated model: one session for every calibration, each layer on its own if asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import PlanError
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from tests.models import MODELS, ModelBuilder, control_flow, random_inputs, residual_net
from tests.plans import Arrays, calibrate, calibrated, config, own_target, planned

OPS = '[[op]]\nops = ["Conv", "Relu", "Add", "Gemm"]\n'


@pytest.fixture(scope="module")
def plan() -> QuantizedGraph:
    return calibrated(residual_net())


@pytest.fixture(scope="module")
def feeds() -> Arrays:
    return dict(random_inputs(residual_net(), batch=3, seed=5))


def test_switched_off_it_is_the_float_model(tmp_path: Path) -> None:
    """With nothing but activations quantized, weights and biases are the model's own."""
    model = residual_net()
    rules = OPS + 'quantize_inputs = "data"\n'
    plan = calibrated(model, own_target(tmp_path, rules))
    simulator, feeds = Simulator(plan, threads=1, switched=True), dict(random_inputs(model))
    outputs, _ = simulator.run(feeds, disabled=frozenset(simulator.points))
    expected = FloatModel(plan.graph, threads=1).run(feeds)
    np.testing.assert_allclose(outputs["logits"], expected["logits"], rtol=1e-5, atol=1e-6)
    quantized, _ = simulator.run(feeds)
    assert np.abs(quantized["logits"] - expected["logits"]).max() > 1e-4


def test_observed_values_lie_on_their_grid(plan: QuantizedGraph, feeds: Arrays) -> None:
    simulator = Simulator(plan, threads=1)
    _, observed = simulator.run(feeds, observe=tuple(simulator.points))
    assert len(observed) == len(simulator.points) > 4
    for end, values in observed.items():
        np.testing.assert_array_equal(plan.configs[end].fake_quantize(values), values)
        assert np.unique(values).size > 3


def test_another_calibration_runs_in_the_same_session(feeds: Arrays) -> None:
    structure = planned(residual_net(), "tensorrt")  # float biases: nothing else is compiled in
    samples = dict(random_inputs(residual_net(), batch=16, seed=9))
    one, two = (calibrate(structure, samples, method) for method in ("minmax", "percentile"))
    end = TensorEnd.parse("Conv_conv_7.output[0]")
    ends = [each for each in Simulator(one).points if each != end]
    simulator = Simulator(one, threads=1)
    switched = simulator.run(feeds, observe=ends, plan=two)
    compiled = Simulator(two, threads=1).run(feeds, observe=ends)
    original = simulator.run(feeds, observe=ends)
    np.testing.assert_array_equal(switched[0]["logits"], compiled[0]["logits"])
    for each in ends:
        np.testing.assert_array_equal(switched[1][each], compiled[1][each])
    assert not np.array_equal(original[0]["logits"], switched[0]["logits"])


def test_plans_of_another_structure_are_refused(plan: QuantizedGraph, feeds: Arrays) -> None:
    simulator = Simulator(plan, threads=1)
    with pytest.raises(PlanError, match="has no scale"):
        simulator.run(feeds, plan=planned(residual_net()))
    with pytest.raises(PlanError, match=r"has no scale|another rounding"):
        simulator.run(feeds, plan=calibrated(residual_net(), "integer-pow2"))
    with pytest.raises(PlanError, match="not simulated on its own"):
        simulator.run(feeds, observe=[TensorEnd.output("nothing")])
    with pytest.raises(PlanError, match="not simulated on its own"):
        simulator.run(feeds, disabled=frozenset({TensorEnd.output("nothing")}))


def test_a_plan_without_scales_is_refused() -> None:
    with pytest.raises(PlanError, match="it has no scale yet"):
        Simulator(planned(residual_net()))


def test_a_teacher_cuts_every_layer_from_the_one_before(plan: QuantizedGraph) -> None:
    feeds = dict(random_inputs(residual_net(), batch=2))
    free = Simulator(plan, threads=1)
    forced = Simulator(plan, threads=1, teacher_forced=True)
    ends = tuple(free.points)
    assert set(forced.teacher_inputs) == set(ends)
    outputs, own = free.run(feeds, observe=ends)
    lessons = {forced.teacher_inputs[end]: values for end, values in own.items()}
    taught_outputs, taught = forced.run(feeds | lessons, observe=ends)
    np.testing.assert_array_equal(taught_outputs["logits"], outputs["logits"])
    for end in ends:
        np.testing.assert_array_equal(taught[end], own[end])
    # A lie in one place is seen by its readers and by nobody behind them.
    first = ends[1]
    lie = lessons | {forced.teacher_inputs[first]: np.zeros_like(own[first])}
    _, fooled = forced.run(feeds | lie, observe=ends)
    changed = {end for end in ends if not np.array_equal(fooled[end], own[end])}
    readers = {str(node.name) for node, _ in free.points[first].readers}
    assert first not in changed
    assert changed
    assert len(changed) <= len(readers)


def two_convolutions(*outputs: str) -> ModelBuilder:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 6, 6]), b.weight(4, 4, 1, 1), name="one", out="a")
    b.node("Conv", x, b.weight(4, 4, 1, 1), name="two", out="b")
    for name in outputs:
        b.output(name)
    return b


def test_graph_outputs_are_handed_out_quantized(tmp_path: Path) -> None:
    model = two_convolutions("b", "a").build()
    plan = calibrated(model, own_target(tmp_path, OPS))
    feeds = dict(random_inputs(model))
    ends = (TensorEnd.output("one"), TensorEnd.output("two"))
    outputs, observed = Simulator(plan, threads=1).run(feeds, observe=ends)
    assert list(outputs) == ["b", "a"]
    for name, end in (("a", ends[0]), ("b", ends[1])):
        np.testing.assert_array_equal(outputs[name], observed[end])
        np.testing.assert_array_equal(plan.configs[end].fake_quantize(outputs[name]), outputs[name])


@pytest.mark.parametrize("shown", [["b"], ["b", "a"]])
@pytest.mark.parametrize("teacher_forced", [False, True])
def test_a_narrower_reader_requantizes_what_the_producer_hands_out(
    tmp_path: Path, shown: list[str], teacher_forced: bool
) -> None:
    model = two_convolutions(*shown).build()
    overrides = Overrides(bits={"two.input": 3})
    plan = calibrated(model, own_target(tmp_path, OPS), overrides)
    simulator = Simulator(plan, threads=1, teacher_forced=teacher_forced)
    feeds = dict(random_inputs(model))
    ends = tuple(simulator.points)
    if teacher_forced:
        _, values = Simulator(plan, threads=1).run(feeds, observe=ends)
        feeds |= {simulator.teacher_inputs[end]: values[end] for end in ends}
    _, observed = simulator.run(feeds, observe=ends)
    wide = observed[TensorEnd.output("one")]
    narrow = observed[TensorEnd.input("two", 0)]
    np.testing.assert_array_equal(narrow, config(plan, "two.input[0]").fake_quantize(wide))
    assert np.unique(narrow).size <= 8


def test_bodies_read_quantized_values(tmp_path: Path) -> None:
    plan = calibrated(control_flow(), own_target(tmp_path, '[[op]]\nops = ["Conv"]\n'))
    simulator, feeds = Simulator(plan, threads=1), dict(random_inputs(control_flow()))
    (end,) = [end for end, point in simulator.points.items() if point.at_output]
    outputs, observed = simulator.run(feeds, observe=[end])
    values = observed[end]
    body = np.maximum(values, 0) if values.max() > 1 else -values
    expected = 1 / (1 + np.exp(-body.astype(np.float64)))
    np.testing.assert_allclose(outputs["result"], expected, rtol=1e-6)


def accuracy(plan: QuantizedGraph, feeds: Arrays) -> float:
    simulated, _ = Simulator(plan, threads=1).run(feeds)
    exact = FloatModel(plan.graph, threads=1).run(feeds)

    def noise(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> float:
        return float(np.abs(left - right).mean() / np.abs(right).mean())

    return max(noise(simulated[name], exact[name]) for name in exact if exact[name].ndim)


@pytest.mark.parametrize("name", ["residual", "depthwise", "detector", "sequence", "batch_norm"])
def test_more_bits_come_closer_to_float(name: str) -> None:
    model = MODELS[name].build(17)
    feeds = dict(random_inputs(model, batch=8))
    errors = [
        accuracy(
            calibrated(model, "onnxruntime", Overrides(weight_bits=b, activation_bits=b)), feeds
        )
        for b in (3, 6, 10)
    ]
    assert errors[0] > 4 * errors[1] > 16 * errors[2] > 0


def test_neither_plan_nor_graph_is_changed(plan: QuantizedGraph) -> None:
    from intact.plan import plan_to_json

    before = plan_to_json(plan)
    Simulator(plan, threads=1, teacher_forced=True)
    assert plan_to_json(plan) == before
    assert type(plan.graph)(plan.graph.model).hash == plan.graph.hash

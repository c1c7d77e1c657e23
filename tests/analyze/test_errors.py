"""Layer errors, against both models run by themselves."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from intact.analyze.errors import LayerError, inspect_graph_statistic, quant_loss
from intact.data.sources import open_samples
from intact.engines.integer import IntegerEngine
from intact.engines.session import FloatModel, make_session, model_of_outputs, run_session
from intact.engines.simulate import Simulator
from intact.numerics.metrics import cosine, mse, sqnr_db
from intact.plan import Overrides, TensorEnd
from intact.program.lower import lower
from tests.models import MODELS, ModelBuilder, depthwise_net, random_inputs, residual_net
from tests.plans import calibrated

RUNNABLE = [name for name in MODELS if name not in ("odd_names", "clutter")]


@pytest.mark.parametrize("integers", [False, True])
def test_the_last_layer_by_hand(integers: bool) -> None:
    model = residual_net()
    plan = calibrated(model, "tengine")
    feeds = random_inputs(model, batch=23, seed=4)  # two whole batches and a padded one
    loss = quant_loss(plan, open_samples(feeds, plan.graph), integers=integers, threads=1)
    assert (loss.samples, loss.executor) == (23, "integer" if integers else "simulate")
    wanted = FloatModel(plan.graph, threads=1).run(feeds)["logits"]
    if integers:
        found = IntegerEngine(lower(plan)).run(feeds).outputs["logits"]
    else:
        found = Simulator(plan, threads=1).run(feeds)[0]["logits"]
    last = loss.layers[-1]
    assert (last.op_type, last.tensor) == ("Gemm", "logits")
    assert last.cosine == pytest.approx(cosine(wanted, found), abs=1e-7)
    assert last.mse == pytest.approx(mse(wanted, found), rel=1e-4)
    assert last.sqnr_db == pytest.approx(sqnr_db(wanted, found), abs=1e-3)
    by_channel = [cosine(a, b) for a, b in zip(wanted.T, found.T, strict=True)]
    np.testing.assert_allclose(last.channel_cosines, by_channel, atol=1e-7)
    assert last.mean_cosine == pytest.approx(np.mean(by_channel), abs=1e-7)
    assert last.worst_channel is not None
    assert last.worst_channel[0] == int(np.argmin(by_channel))
    assert last.worst_channel[1] == pytest.approx(min(by_channel), abs=1e-7)


def test_channels_for_layers_with_weights_only() -> None:
    model = depthwise_net()
    plan = calibrated(model, "tengine")
    loss = quant_loss(plan, open_samples(random_inputs(model, batch=6), plan.graph))
    kinds = {layer.op_type: layer for layer in loss.layers}
    assert len(kinds["Gemm"].channel_cosines) == 3
    convs = [layer for layer in loss.layers if layer.op_type == "Conv"]
    assert [len(layer.channel_cosines) for layer in convs] == [8, 8, 4]
    # A convolution's result is that behind the Clip that is fused to it.
    clips = [str(n.outputs[0].name) for n in plan.graph.nodes if n.op_type == "Clip"]
    assert [layer.tensor for layer in convs[:2]] == clips
    mean = next(layer for layer in loss.layers if "Average" in layer.op_type)
    assert mean.channel_cosines == ()
    assert mean.worst_channel is None
    assert mean.mean_cosine == mean.cosine
    assert not any(layer.op_type == "Reshape" for layer in loss.layers)  # it moves codes


@pytest.mark.crossed
@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("target", ["tengine", "tensorrt"])
@pytest.mark.parametrize("name", RUNNABLE)
def test_every_model(name: str, target: str, integers: bool) -> None:
    model = MODELS[name].build(17)
    plan = calibrated(model, target)
    data = open_samples(random_inputs(model, batch=4, seed=1), plan.graph)
    loss = quant_loss(plan, data, integers=integers, threads=1)
    known = {str(value.name) for value in plan.graph.values}
    for layer in loss.layers:
        assert layer.tensor in known
        assert -1.0 <= layer.cosine <= 1.0
        assert layer.mse >= 0.0
    json.dumps(loss.to_json(), allow_nan=False)


def test_at_most_so_many() -> None:
    model = residual_net()
    plan = calibrated(model, "tengine")
    feeds = random_inputs(model, batch=70, seed=4)
    assert quant_loss(plan, open_samples(feeds, plan.graph)).samples == 50
    first = quant_loss(plan, open_samples(feeds, plan.graph), most=7)
    few = {name: array[:7] for name, array in feeds.items()}
    assert first == quant_loss(plan, open_samples(few, plan.graph))
    assert quant_loss(plan, open_samples(feeds, plan.graph, limit=3)).samples == 3


def test_numbers_that_json_lacks() -> None:
    layer = LayerError("n", "Conv", "t", 1.0, (1.0, math.nan), math.inf, 0.0)
    made = layer.to_json()
    assert made["sqnr_db"] is None
    assert made["channel_cosines"] == [1.0, None]
    assert made["mean_cosine"] is None


class TestGraphStatistic:
    @pytest.mark.parametrize("integers", [False, True])
    def test_every_edge_against_both_models(self, integers: bool) -> None:
        """Sums of padded batches against numpy on what each model gives at once."""
        model = residual_net()
        plan = calibrated(model, "tengine")
        feeds = random_inputs(model, batch=23, seed=4)
        found = inspect_graph_statistic(
            plan, open_samples(feeds, plan.graph), integers=integers, threads=1
        )
        assert (found.samples, found.executor) == (23, "integer" if integers else "simulate")
        simulator = Simulator(plan, threads=1)
        assert {edge.edge for edge in found.edges} == {str(end) for end in simulator.points}
        floats = make_session(
            model_of_outputs(plan.graph, [edge.tensor for edge in found.edges]), threads=1
        )
        wanted = run_session(floats, feeds, [edge.tensor for edge in found.edges])
        if integers:
            program = lower(plan)
            by_end = {str(t.end): t for t in program.tensors() if not t.is_constant and t.end}
            tensors = [by_end[edge.edge] for edge in found.edges]
            codes = IntegerEngine(program).run(feeds, [t.name for t in tensors]).tensors
            actual = []
            for tensor in tensors:
                encoding = tensor.encoding
                assert encoding is not None
                codes_less = codes[tensor.name].astype(np.float64) - encoding.zero_point
                actual.append(tensor.as_in_model(codes_less * encoding.scale))
        else:
            ends = [TensorEnd.parse(edge.edge) for edge in found.edges]
            actual = list(simulator.run(feeds, ends)[1].values())
        for edge, before, after in zip(found.edges, wanted, actual, strict=True):
            for moments, array in ((edge.before, before), (edge.after, after)):
                wide = np.asarray(array, np.float64)
                expected = [wide.mean(), wide.std(), wide.min(), wide.max()]
                got = [moments.mean, moments.std, moments.min, moments.max]
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
            assert edge.sqnr_db == pytest.approx(sqnr_db(before, after), abs=1e-3)
            assert edge.cosine == pytest.approx(cosine(before, after), abs=1e-7)

    def test_the_most_damaged_first(self) -> None:
        model = depthwise_net()
        plan = calibrated(model, "onnxruntime")
        data = open_samples(random_inputs(model, batch=6), plan.graph)
        found = inspect_graph_statistic(plan, data, threads=1).edges
        in_order = inspect_graph_statistic(plan, data, threads=1, topological=True).edges
        ratios = [edge.sqnr_db for edge in found]
        assert ratios == sorted(ratios)
        assert len(set(ratios)) > 3
        assert [edge.position for edge in in_order] == list(range(len(in_order)))
        assert sorted(found, key=lambda edge: edge.position) == list(in_order)

    def test_a_wide_and_a_narrow_edge(self) -> None:
        """Damage stands where it is done: two bits behind the first convolution."""
        model = residual_net()
        names = [str(n.name) for n in calibrated(model, "tensorrt").graph.nodes]
        end = next(TensorEnd.output(name) for name in names if "Relu" in name)
        plan = calibrated(model, "tensorrt", Overrides(widths={end: 2}))
        data = open_samples(random_inputs(model, batch=6), plan.graph)
        edges = inspect_graph_statistic(plan, data, threads=1, topological=True).edges
        at = next(edge.position for edge in edges if edge.edge == str(end))
        assert edges[at].bits == 2
        assert edges[at].sqnr_db < 20 < min(edge.sqnr_db for edge in edges[:at])

    def test_groups_and_float_outputs(self) -> None:
        model = residual_net()
        plan = calibrated(model, "tensorrt", Overrides(keep_float=("Gemm",)))
        data = open_samples(random_inputs(model, batch=3), plan.graph)
        edges = inspect_graph_statistic(plan, data, threads=1, topological=True).edges
        last = edges[-1]
        assert (last.tensor, last.op_type, last.group, last.bits) == ("logits", "Gemm", "", 32)
        assert (last.in_scale, last.in_dtype, last.out_dtype) == ((), "float32", "float32")
        assert last.sqnr_db < 60  # float itself, but of what was quantized before
        known = {str(end) for end in plan.configs}
        for edge in edges[:-1]:
            root = plan.configs[TensorEnd.parse(edge.group)]
            assert plan.configs[TensorEnd.parse(edge.edge)].dominator is root
        assert {edge.edge for edge in edges} <= known

    def test_types_of_what_arrives_and_of_what_is_stored(self) -> None:
        model = residual_net()
        plan = calibrated(model, "tflite", Overrides(bits={"Gemm_logits.output": 4}))
        data = open_samples(random_inputs(model, batch=2), plan.graph)
        edges = inspect_graph_statistic(plan, data, threads=1, topological=True).edges
        first, last = edges[0], edges[-1]
        assert (first.in_scale, first.in_dtype, first.out_dtype) == ((), "float32", "int8")
        gemm = next(node for node in plan.graph.nodes if node.op_type == "Gemm")
        scales = [plan.input_config(gemm, slot).scale for slot in (0, 1)]
        wanted = np.asarray(scales[0], np.float64) * np.asarray(scales[1], np.float64)
        assert last.in_scale == tuple(wanted.reshape(-1))
        assert (last.bits, last.in_dtype, last.out_dtype) == (4, "int32", "int8")
        made = last.to_json()
        assert (made["in_dtype"], made["out_dtype"]) == ("int32", "int8")
        assert made["in_scale"] == list(last.in_scale)

    @pytest.mark.crossed
    @pytest.mark.parametrize("integers", [False, True])
    @pytest.mark.parametrize("target", ["tflite", "onnxruntime"])
    @pytest.mark.parametrize("name", RUNNABLE)
    def test_every_model(self, name: str, target: str, integers: bool) -> None:
        model = MODELS[name].build(17)
        plan = calibrated(model, target)
        data = open_samples(random_inputs(model, batch=3, seed=1), plan.graph)
        found = inspect_graph_statistic(plan, data, integers=integers, threads=1)
        assert len({edge.edge for edge in found.edges}) == len(found.edges)
        for edge in found.edges:
            assert edge.before.min <= edge.before.mean <= edge.before.max
            assert edge.after.min <= edge.after.mean <= edge.after.max
        json.dumps(found.to_json(), allow_nan=False)

    def test_threads_and_batches_leave_no_trace(self) -> None:
        model = residual_net()
        plan = calibrated(model, "onnxruntime")
        feeds = random_inputs(model, batch=60, seed=4)
        first = inspect_graph_statistic(plan, open_samples(feeds, plan.graph), most=7)
        few = {name: array[:7] for name, array in feeds.items()}
        assert first == inspect_graph_statistic(plan, open_samples(few, plan.graph))
        assert inspect_graph_statistic(plan, open_samples(feeds, plan.graph)).samples == 50

    def test_no_quantized_edge(self) -> None:
        model = residual_net()
        every = tuple({node.op_type for node in calibrated(model).graph.nodes})
        plan = calibrated(model, overrides=Overrides(keep_float=every))
        data = open_samples(random_inputs(model, batch=2), plan.graph)
        (only,) = inspect_graph_statistic(plan, data).edges
        assert (only.tensor, only.sqnr_db) == ("logits", math.inf)
        assert only.cosine == pytest.approx(1.0)
        assert only.before == only.after
        assert only.to_json()["sqnr_db"] is None

    def test_numbers_that_are_none(self) -> None:
        """A model that divides by what may be 0."""
        b = ModelBuilder()
        x = b.input("x", ["batch", 4])
        b.output(b.node("Log", b.node("Relu", x, name="positive"), name="log", out="y"))
        plan = calibrated(b.build(), "tensorrt")
        data = open_samples({"x": np.array([[-1.0, 0.0, 1.0, 2.0]], np.float32)}, plan.graph)
        found = inspect_graph_statistic(plan, data, threads=1)
        worst = found.edges[0]
        assert worst.edge == "log.output[0]"
        assert math.isnan(worst.sqnr_db)
        assert worst.before.min == -math.inf
        assert worst.to_json()["before"]["min"] is None

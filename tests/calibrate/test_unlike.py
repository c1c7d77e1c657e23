"""Ties that are broken because the ranges of a join are unlike."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.choice import choose
from intact.calibrate.collect import collect
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.unlike import broken_ties, unlike
from intact.data.sources import open_samples
from intact.engines.simulate import Simulator
from intact.formats.base.format import Io
from intact.formats.c.run import verify_c
from intact.formats.c.write import write_c
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_tflite
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.plan.untie import RequantizeReason, breakable, requantized
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.program.passes.layout import IoLayout
from tests.deployment.networks import lowered, written, wrong
from tests.models import ModelBuilder, run_model
from tests.plans import Arrays, calibrate, config, planned


def recurrent(times: float, *, other: bool = True) -> onnx.ModelProto:
    """A gated state of +-1, joined with what a convolution gives.

    Args:
        times: How many times as large that is, about.
        other: Whether the state is read elsewhere too.
    """
    b = ModelBuilder()
    _add_recurrent(b, times, other=other)
    return b.build()


def _add_recurrent(b: ModelBuilder, times: float, *, other: bool) -> None:
    x, state = b.input("x", ["batch", 4, 8, 8]), b.input("state", ["batch", 4, 8, 8])
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), name="conv", out="conv_out")
    x = b.node("Mul", x, b.scalar(times / 4), name="scaled", out="scaled_out")
    both = b.node("Concat", x, state, name="join", out="both", axis=1)
    gate = b.node("Conv", both, b.weight(4, 8, 1, 1), name="gate", out="gate_out")
    gate = b.node("Sigmoid", gate, name="gated", out="gated_out")
    b.node("Mul", gate, state if other else x, name="new", out="new_state")
    b.output("new_state")


def feeds() -> Arrays:
    random = np.random.default_rng(3)
    return {
        "x": random.normal(size=(16, 4, 8, 8)).astype(np.float32),
        "state": np.tanh(random.normal(size=(16, 4, 8, 8))).astype(np.float32),
    }


def broken(model: onnx.ModelProto, target: str) -> list[str]:
    """The ends at which ties of a model are better broken."""
    plan = planned(model, target)
    apart = planned(model, target, Overrides(apart=breakable(plan)))
    names = tuple(dict.fromkeys((*required_tensors(plan), *required_tensors(apart))))
    statistics = collect(plan.graph, open_samples(feeds(), plan.graph), names, threads=1)
    method = Method.of(plan.target, "minmax", "minmax")
    found = unlike(apart, statistics, method)
    assign(planned(model, target, Overrides(apart=frozenset(found))), statistics, method)
    return sorted(map(str, found))


def decibels(model: onnx.ModelProto, plan: QuantizedGraph) -> float:
    found = Simulator(plan, threads=1).run(feeds())[0]["new_state"]
    return sqnr_db(run_model(model, feeds())["new_state"], found)


@pytest.mark.parametrize(
    ("times", "other", "ends"),
    [
        (14.0, True, ["join.input[1]"]),
        (14.0, False, []),  # a scale of its own gains nothing where only the join reads it
        (1.0, True, []),  # alike
        (0.1, True, ["join.input[0]"]),
    ],
)
def test_a_tie_is_broken_where_others_gain_more(times: float, other: bool, ends: list[str]) -> None:
    model = recurrent(times, other=other)
    if times < 1:  # and another reader of what the convolution gives
        b = onnx.helper.make_node("Abs", ["scaled_out"], ["shown"], name="abs")
        model.graph.node.append(b)
        model.graph.output.append(onnx.helper.make_tensor_value_info("shown", 1, None))
    assert broken(model, "tflite") == ends


def test_of_two_joins_that_tie_a_tensor_one_requantizes() -> None:
    b = ModelBuilder()
    x, state = b.input("x", ["batch", 4, 8, 8]), b.input("state", ["batch", 4, 8, 8])
    wide = b.node("Mul", x, b.scalar(14.0), name="wide", out="wide_out")
    half = b.node("Relu", state, name="half", out="half_out")
    b.node("Add", half, state, name="first", out="z")
    b.node("Add", wide, state, name="second", out="y")
    b.output("y")
    b.output("z")
    assert broken(b.build(), "tvm") == ["second.input[1]"]


def test_quantize_breaks_ties_where_outputs_gain() -> None:
    model = recurrent(14.0)
    result = intact.quantize(model, feeds(), target="tflite", preset="fast")
    assert requantized(config(result.plan, "join.input[1]")) is RequantizeReason.UNLIKE
    tied = calibrate(planned(model, "tflite"), feeds())
    assert decibels(model, result.plan) > decibels(model, tied) + 3
    alike = intact.quantize(recurrent(1.0), feeds(), target="tflite", preset="fast")
    assert not any(requantized(each) for each in alike.plan.configs.values())


TIMES = 127 / 80
"""Times by which the ranges of the second join differ: weights of 1 and of this are exact."""


def two_joins() -> onnx.ModelProto:
    """A tie that costs one output much, and one that is better kept for the other output.

    That is a small difference of what is joined. What reads the state elsewhere counts for nothing.
    """
    b = ModelBuilder()
    _add_recurrent(b, 14.0, other=True)
    x, state = b.input("x2", ["batch", 4, 8, 8]), b.input("state2", ["batch", 4, 8, 8])
    mixed = b.random.normal(size=(4, 4, 1, 1))
    state = b.node("Conv", state, b.constant(mixed.astype(np.float32)), name="narrow", out="narrow")
    x = b.node("Conv", x, b.constant((TIMES * mixed).astype(np.float32)), name="wide", out="wide")
    both = b.node("Concat", x, state, name="join2", out="both2", axis=1)
    weight = np.concatenate([np.eye(4), -TIMES * np.eye(4)], axis=1).reshape(4, 8, 1, 1)
    y = b.node("Conv", both, b.constant(weight.astype(np.float32)), name="sum2", out="y2")
    b.node("Add", y, b.node("Mul", state, b.scalar(1e-4), out="less"), name="add2", out="second")
    b.output("second")
    return b.build()


def test_each_join_is_untied_where_the_outputs_gain_by_that() -> None:
    random = np.random.default_rng(4)
    state = random.uniform(-1, 1, size=(16, 4, 8, 8))
    other = np.clip(state + random.normal(size=state.shape) * 0.03, -1, 1)
    given = feeds() | {"x2": other.astype(np.float32), "state2": state.astype(np.float32)}
    model = two_joins()
    plan = planned(model, "tflite")
    untied = planned(model, "tflite", Overrides(apart=breakable(plan)))
    names = tuple(dict.fromkeys((*required_tensors(plan), *required_tensors(untied))))
    statistics = collect(plan.graph, open_samples(given, plan.graph), names, threads=1)
    method = Method.of(plan.target, "minmax", "minmax")
    found = unlike(untied, statistics, method)
    assert list(map(str, found)) == ["join.input[1]", "join2.input[1]"]  # the most unlike first
    runs = FloatRuns(plan.graph, [(given, 16)], threads=1)
    choice = choose(plan, statistics, [method], runs)

    def apart(ends: Collection[TensorEnd]) -> QuantizedGraph:
        return planned(model, "tflite", Overrides(apart=frozenset(ends)))

    whole = choice.changed(assign(apart(found), statistics, method))
    assert not choice.is_worse_than(whole)  # the other output loses
    assert set(map(str, broken_ties(untied, statistics, choice, apart))) == {"join.input[1]"}


def test_a_search_breaks_the_ties_that_quantize_breaks(tmp_path: Path) -> None:
    onnx.save(recurrent(14.0), tmp_path / "model.onnx")
    log = tmp_path / "log.jsonl"
    found = intact.search_strategy(
        tmp_path / "model.onnx",
        feeds(),
        target="tflite",
        objective="sqnr",
        budget="2trials",
        log=log,
        workers=2,
        threads=1,
    )
    end = TensorEnd.parse("join.input[1]")
    assert requantized(found.result.plan.configs[end]) is RequantizeReason.UNLIKE
    assert found.strategy.topology.apart == [str(end)]
    again = intact.replay_strategy(tmp_path / "model.onnx", log=log, trial=found.best.number)
    assert requantized(again.plan.configs[end]) is RequantizeReason.UNLIKE
    assert again.plan.configs[end].scale == found.result.plan.configs[end].scale


@pytest.mark.runtime_fact("ai-edge-litert")
@pytest.mark.parametrize("io", list(Io))
def test_an_input_on_two_scales_has_the_runtimes_bits(io: Io) -> None:
    apart = Overrides(apart=frozenset({TensorEnd.input("join", 1)}))
    plan = calibrate(planned(recurrent(14.0), "tflite", apart), feeds())
    found = verify_tflite(plan, written(lowered(plan), io), [feeds()], Kernels.REF)
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [each.mismatches for each in found.outputs] == [0]


def test_a_c_program_requantizes_an_input() -> None:
    apart = Overrides(apart=frozenset({TensorEnd.input("join", 1)}))
    plan = calibrate(planned(recurrent(14.0), "tflite-micro", apart), feeds())
    program = write_c(integer_io(lower(plan, layout=IoLayout.CHANNELS_LAST)))
    found = verify_c(plan, program, [feeds()])
    assert [each.mismatches for each in found.outputs] == [0]

"""Weights of float nodes that a plan stores as integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.config import PerChannel, QuantState
from intact.graph import normalize
from intact.plan import Overrides, TensorEnd, load_plan, save_plan
from intact.plan.inspection import inspect_plan
from intact.results.values import refuse_nothing_to_do
from intact.search.cost.structure import Structure
from intact.search.space import Space
from intact.targets import load_target
from tests.models import ModelBuilder
from tests.plans import calibrated, config, floats, planned


def recurrent() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", [5, "batch", 4])
    inputs = [x, b.weight(2, 12, 4), b.weight(2, 12, 3)]
    b.node("LSTM", *inputs, hidden_size=3, direction="bidirectional", out="y", name="lstm")
    b.output("y")
    return b.build()


def embedding() -> onnx.ModelProto:
    b = ModelBuilder()
    b.node(
        "Gather",
        b.weight(9, 16),
        b.input("ids", ["batch", 3], onnx.TensorProto.INT64),
        out="y",
        name="words",
    )
    b.output("y")
    return b.build()


@pytest.mark.parametrize("target", ["onnxruntime", "onnxruntime-avx2"])
def test_the_node_stays_float_and_its_weights_have_eight_bits(target: str) -> None:
    plan = planned(recurrent(), target)
    assert floats("weights only: ", plan) == {"lstm"}
    for slot in (1, 2):
        weight = config(plan, f"lstm.input[{slot}]")
        assert (weight.state, weight.granularity) == (QuantState.INITIAL, PerChannel(1))
        assert (weight.quant_min, weight.quant_max) == (-127, 127)
    for end in ("input[0]", "output[0]"):
        assert config(plan, f"lstm.{end}").state is QuantState.FP32
    assert [(row.quantized, row.weight_bits) for row in inspect_plan(plan).nodes] == [(False, 8)]
    refuse_nothing_to_do(plan)


def test_scales_follow_from_the_rows_without_data() -> None:
    plan = calibrated(recurrent())
    weight = config(plan, "lstm.input[1]")
    value = plan.graph.node("lstm").inputs[1]
    assert value is not None
    assert value.const_value is not None
    largest = np.abs(value.const_value.numpy()).max(axis=(0, 2))
    assert weight.state is QuantState.ACTIVATED
    assert weight.scale is not None
    np.testing.assert_allclose(weight.scale, largest / 127, rtol=1e-6)


def test_a_table_has_a_scale_for_each_row() -> None:
    table = config(planned(embedding()), "words.input[0]")
    assert (table.state, table.granularity) == (QuantState.INITIAL, PerChannel(0))


def test_users_keep_it_float_or_choose_its_width() -> None:
    kept = planned(recurrent(), overrides=Overrides(keep_float=("lstm",)))
    assert config(kept, "lstm.input[1]").state is QuantState.FP32
    narrow = planned(recurrent(), overrides=Overrides(bits={"lstm.weight": 6}))
    assert config(narrow, "lstm.input[2]").bits == 6


def test_targets_without_the_rule_leave_it_float() -> None:
    plan = planned(recurrent(), "tensorrt")
    assert config(plan, "lstm.input[1]").state is QuantState.FP32


def test_plan_files_keep_it(tmp_path: Path) -> None:
    plan = calibrated(recurrent())
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", plan.graph)
    save_plan(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_a_search_leaves_its_width_alone() -> None:
    space = Space.of(normalize(recurrent()), load_target("onnxruntime"))
    assert [group.choices for group in space.groups] == [(8,), (8,)]
    assert Structure(space).bits(TensorEnd.input("lstm", 1), {0: 8, 1: 8}) == 8

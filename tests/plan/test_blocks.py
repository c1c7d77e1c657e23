"""Plans of weights in blocks: what is stored so, with which scales, and read back bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from intact.calibrate.assign import assign
from intact.calibrate.method import Method
from intact.config import PerBlock, QuantState
from intact.errors import PlanError, UsageError
from intact.plan import Overrides, QuantizedGraph, load_plan, plan_to_json, save_plan
from intact.plan.inspection import inspect_plan
from intact.plan.plan_file import SCALES
from intact.results.values import refuse_nothing_to_do
from intact.targets import in_blocks, load_target
from tests.block_nets import decoder, dense_net
from tests.plans import config, floats, planned

RUNTIME = load_target("onnxruntime")


def plan_in_blocks(
    size: int = 32,
    bits: int = 4,
    *,
    zero_points: bool = False,
    method: str = "minmax",
    overrides: Overrides | None = None,
) -> QuantizedGraph:
    """The dense net, with scales."""
    target = in_blocks(RUNTIME, size, bits, zero_points=zero_points)
    plan = planned(dense_net(), target, overrides)
    return assign(plan, None, Method.of(target, weights=method))


def test_products_and_tables_are_stored_and_all_else_is_float() -> None:
    plan = planned(decoder(), in_blocks(RUNTIME, 16))
    assert floats("weights only: ", plan) == {"words", "layer", "head"}
    assert config(plan, "words.input[0]").granularity == PerBlock(axis=1, size=16)
    assert config(plan, "head.input[1]").granularity == PerBlock(axis=0, size=16)
    assert config(plan, "residual.input[0]").state is QuantState.FP32
    rows = {row.node: row for row in inspect_plan(plan).nodes}
    assert (rows["head"].weight_bits, rows["head"].block) == (4, 16)
    refuse_nothing_to_do(plan)


@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("size", "bits"), [(16, 2), (32, 3), (32, 4), (64, 8)])
def test_codes_are_within_half_a_step(size: int, bits: int, zero_points: bool, method: str) -> None:
    plan = plan_in_blocks(size, bits, zero_points=zero_points, method=method)
    for end in ("first.input[1]", "third.input[1]"):
        if end.startswith("third") and size > 48:
            assert config(plan, end).state is QuantState.FP32
            continue
        each = config(plan, end)
        value = plan.graph.node(end.split(".")[0]).inputs[1]
        assert value is not None
        assert value.const_value is not None
        weight = value.const_value.numpy()
        assert each.scale is not None
        assert each.scale.shape == PerBlock(each.grid.axis or 0, size).scales_shape(weight.shape)
        np.testing.assert_array_equal(each.scale, each.scale.astype(np.float16))
        codes = each.quantize(weight)
        if not zero_points:  # the lowest code, which has no counterpart, is used in each block
            assert (codes == each.quant_min).any()
        steps = np.abs(each.dequantize(codes) - weight)
        limit = np.repeat(np.abs(each.scale), size, each.grid.axis or 0)
        limit = limit[: weight.shape[0], : weight.shape[1]]
        within = (steps <= 0.5001 * limit).mean()
        # what saturates: the far side of symmetric codes, and what mse cuts off
        assert within > (0.6 if bits == 2 or method == "mse" else 0.9)


def test_least_error_is_not_above_that_of_the_whole_range() -> None:
    errors = {}
    for method in ("minmax", "mse"):
        plan = plan_in_blocks(16, 3, method=method)
        each = config(plan, "second.input[1]")
        value = plan.graph.node("second").inputs[1]
        assert value is not None
        assert value.const_value is not None
        weight = value.const_value.numpy()
        errors[method] = float(np.square(each.fake_quantize(weight) - weight).sum())
    assert errors["mse"] < 0.95 * errors["minmax"]


@pytest.mark.parametrize("zero_points", [False, True])
def test_they_are_read_back_bit_for_bit(zero_points: bool, tmp_path: Path) -> None:
    overrides = Overrides(bits={"second": 8}, keep_float=("third",))
    plan = plan_in_blocks(zero_points=zero_points, overrides=overrides)
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json", plan.graph)
    assert plan_to_json(loaded) == plan_to_json(plan)
    assert loaded.target == plan.target
    for end, each in plan.configs.items():
        twin = loaded.configs[end]
        assert twin.grid == each.grid
        if each.scale is not None and twin.scale is not None:
            assert twin.scale.tobytes() == each.scale.tobytes()
            np.testing.assert_array_equal(twin.offset, each.offset)
    assert config(loaded, "second.input[1]").bits == 8
    assert config(loaded, "third.input[1]").state is QuantState.FP32


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _exchange(path: Path) -> None:
    save_plan(plan_in_blocks(16), path.with_name("other.json"))


@pytest.mark.parametrize("damage", [_remove, _cut, _exchange])
def test_scales_of_another_plan_are_refused(damage: Callable[[Path], None], tmp_path: Path) -> None:
    plan = plan_in_blocks()
    save_plan(plan, tmp_path / "plan.json")
    damage(tmp_path / SCALES)
    with pytest.raises(PlanError, match=r"scales\.npz"):
        load_plan(tmp_path / "plan.json", plan.graph)


@pytest.mark.parametrize(
    ("target", "size", "bits", "message"),
    [
        ("onnxruntime", 48, 4, "has blocks of 32, 16, 64"),
        ("onnxruntime", 32, 9, "stores codes of 2, 4 or 8 bits"),
        ("nnie", 32, 4, "has no weights in blocks"),
    ],
)
def test_what_a_target_lacks_is_said(target: str, size: int, bits: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        in_blocks(load_target(target), size, bits)


def test_a_width_of_one_node_is_checked() -> None:
    with pytest.raises(UsageError, match="bits first: target onnxruntime stores"):
        plan_in_blocks(overrides=Overrides(bits={"first": 10}))


def test_sums_shorter_than_a_block_stay_float() -> None:
    plan = plan_in_blocks(64)
    assert "less than a block of 64" in plan.decisions["third"].reason
    with pytest.raises(PlanError, match="less than a block of 128"):
        refuse_nothing_to_do(plan_in_blocks(128))


def test_a_layer_has_blocks_of_its_own() -> None:
    """The weight, and what a row of its input is quantized by while the model runs."""
    own = Overrides(blocks={"sec*": 64, "second": 16, "third.weight": 16})
    for dynamic in (False, True):
        target = in_blocks(RUNTIME, 32, dynamic=dynamic)
        plan = assign(planned(dense_net(), target, own), None, Method.of(target))
        for name, size in {"first": 32, "second": 16, "third": 16}.items():
            weight = config(plan, f"{name}.input[1]")
            assert isinstance(weight.granularity, PerBlock)
            assert weight.granularity.size == size
            if dynamic:
                assert config(plan, f"{name}.input[0]").grid.block == size


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"second": 48}, "node_block second=48: target onnxruntime has blocks of 32, 16"),
        ({"relu": 32}, "node_block 'relu': no weight is in blocks there"),
        ({"secnd": 32}, "node_block 'secnd': the model has no such node or op type"),
    ],
)
def test_blocks_that_a_layer_cannot_have_are_refused(blocks: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(dense_net(), in_blocks(RUNTIME, 32), Overrides(blocks=blocks))

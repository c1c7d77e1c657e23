"""Tengine's targets: their rules, and a model against its kernels' arithmetic written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.calibrate.assign import Method
from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.errors import TargetError
from intact.numerics.affine_params import params_from_range
from intact.plan import QuantizedGraph, quantization_points
from intact.program.lower import lower
from intact.targets import (
    FloatInTurn,
    FloatOnce,
    ScaleRule,
    load_target,
    target_from_json,
    target_to_json,
)
from intact.targets.schema import without_in_place
from tests.models import ModelBuilder, random_inputs
from tests.plans import HEADER, calibrate, calibrated, config, own_target, planned

Codes = npt.NDArray[np.int64]
FLOAT = np.float32


def image_net() -> onnx.ModelProto:
    """A convolution with Relu, a depthwise one with Relu6, a residual, pools, a classifier."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Relu", b.conv(x, 3, 8), name="relu", out="stem")
    y = b.clip(b.conv(x, 8, 8, group=8), 0, 6)
    x = b.node("Add", x, b.conv(y, 8, 8, kernel=1), name="add", out="sum")
    x = b.node("Relu", x, name="after", out="rectified")
    x = b.node("MaxPool", x, name="max", out="small", kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("AveragePool", x, name="mean", out="mean", kernel_shape=[4, 4])
    x = b.node("Flatten", x, name="flat", out="features")
    x = b.node("Gemm", x, b.weight(5, 8), b.weight(5), name="dense", out="logits", transB=1)
    b.node("Softmax", x, name="softmax", out="shares", axis=-1)
    b.output("shares", ["batch", 5])
    return b.build()


def scale_of(plan: QuantizedGraph, end: str) -> npt.NDArray[np.float32]:
    scale = config(plan, end).scale
    assert scale is not None
    return scale


# ---- the rules ----------------------------------------------------------------------------------


def test_what_the_file_says() -> None:
    target = load_target("tengine")
    assert (target.activation.quant_min, target.activation.quant_max) == (-127, 127)
    assert (target.weight.quant_min, target.weight.quant_max) == (-127, 127)
    assert target.activation.rounding is Rounding.HALF_AWAY_FROM_ZERO
    assert target.arithmetic_for("Conv").requantize == FloatInTurn()
    assert target.arithmetic_for("Gemm").requantize == FloatOnce()
    assert target.arithmetic_for("Concat").requantize == FloatInTurn(ratio_conversions=True)
    assert not target.topology.prune_without_consumer
    unsigned = load_target("tengine-u8")
    assert not unsigned.activation.symmetric
    assert unsigned.weight.truncated_zero_point
    assert unsigned.weight.granularity == "per_tensor"


@pytest.mark.parametrize(("target", "scale"), [("tengine", 0.007874), ("tengine-u8", 0.003922)])
def test_softmax_is_prescribed(target: str, scale: float) -> None:
    plan = calibrated(image_net(), target)
    assert config(plan, "softmax.output[0]").scale == np.float32(scale)


def test_pass_through_goes_up_to_what_computes() -> None:
    plan = planned(image_net(), "tengine")
    pooled = config(plan, "max.output[0]").dominator
    for end in ("add.output[0]", "after.input[0]", "after.output[0]", "max.input[0]"):
        assert config(plan, end).dominator is pooled
    assert config(plan, "mean.output[0]").dominator is config(plan, "flat.output[0]")
    assert config(plan, "mean.input[0]").dominator is pooled
    # The stem's Relu is the convolution's own activation, and two read it.
    assert config(plan, "relu.output[0]").dominator is config(plan, "relu.output[0]")


def test_pass_through_off() -> None:
    target = without_in_place(load_target("tengine"))
    assert not target.topology.in_place
    assert all(rule.scales is not ScaleRule.INPUT_FOLLOWS_OUTPUT for rule in target.rules)
    assert target_from_json(target_to_json(target)) == target
    plan = planned(image_net(), target)
    ends = ("add.output[0]", "after.output[0]", "max.output[0]", "mean.output[0]")
    assert len({id(config(plan, end).dominator) for end in ends}) == 4
    assert config(plan, "flat.output[0]").dominator is config(plan, "mean.output[0]")
    untouched = load_target("onnxruntime")
    assert without_in_place(untouched) == untouched


def test_the_algorithms_of_its_tool_have_the_users_names() -> None:
    target = load_target("tengine")
    assert Method.of(target).activations == "minmax"
    assert Method.of(target, "kl").activations == "kl_stepwise"
    assert Method.of(target, "aciq").activations == "aciq_maximum"
    exact = load_target("tengine-tool")
    assert Method.of(exact, "kl").activations == "kl_counted"
    assert Method.of(exact, "aciq").activations == "aciq_maximum"
    assert Method.of(load_target("tensorrt"), "kl").activations == "kl"
    plan = calibrate(planned(image_net(), "tengine"), random_inputs(image_net(), batch=8), "aciq")
    assert plan.provenance.method == "aciq_maximum"


# ---- contradictions -----------------------------------------------------------------------------

DECIMAL = '\nscale_precision = "decimal6"\n'
FIXED = "[[op]]\nops = ['Softmax']\nfixed_output = { scale = 0.0078125 }"


@pytest.mark.parametrize(
    ("header", "rules", "message"),
    [
        (
            HEADER,
            DECIMAL + "[[op]]\nops = ['Softmax']\nfixed_output = { scale = 0.0078125 }",
            "7812",
        ),
        (HEADER, "[calibration.variants]\nkl = 'kll'", "did you mean 'kl'"),
        (HEADER, "[calibration.variants]\nklx = 'kl'", "names 'klx'"),
        (HEADER, "[calibration.variants]\nkl = 'mse'", "'kl' is not"),
        (
            HEADER.replace('dtype = "int8"', 'dtype = "int8"\ntruncated_zero_point = true'),
            "",
            "asymmetric",
        ),
        (HEADER, "[[op]]\nops = ['Reshape']\nscales = 'either_follows'", "has no effect"),
    ],
)
def test_contradictions(tmp_path: Path, header: str, rules: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        own_target(tmp_path, rules, header=header)


# ---- u8 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "zero_point"),
    [(-1.0, 1.0, 127), (0.0, 2.0, 0), (-3.0, 0.0, 255), (-0.3, 1.7, 38), (-1.99, 2.0, 127)],
)
def test_the_zero_point_is_cut_off(low: float, high: float, zero_point: int) -> None:
    made = params_from_range(low, high, 0, 255, symmetric=False, truncated_zero_point=True)
    scale = FLOAT((FLOAT(high) - FLOAT(low)) / 255)
    assert made.scale == pytest.approx(scale, rel=1e-7)
    assert made.zero_point == zero_point == int(FLOAT(-low) / made.scale)


def test_u8_zero_points_of_a_plan() -> None:
    plan = calibrated(image_net(), "tengine-u8")
    seen = 0
    for point in quantization_points(plan):
        tensor, params = point.value.const_value, point.config.params
        if point.is_constant and point.config.bits == 8 and tensor is not None and params:
            values = tensor.numpy()
            low, high = min(values.min(), FLOAT(0)), max(values.max(), FLOAT(0))
            assert params.scale == FLOAT((np.float64(high) - np.float64(low)) / 255)
            assert params.zero_point == int(FLOAT(-low) / params.scale)
            seen += 1
    assert seen == 4


# ---- the arithmetic -----------------------------------------------------------------------------


def away(value: npt.NDArray[Any]) -> Codes:
    """C's ``round`` of a float that became a double, clamped to +-127."""
    assert value.dtype == np.float32
    wide = np.asarray(value, np.float64)
    return np.clip(np.copysign(np.floor(np.abs(wide) + 0.5), wide), -127, 127).astype(np.int64)


class Written:
    """The kernels of Tengine's x86 device in NumPy's float32, one operation after another."""

    def __init__(self, plan: QuantizedGraph) -> None:
        self.plan = plan
        self.codes = {
            str(point.value.name): point.constant_codes().astype(np.int64)
            for point in quantization_points(plan)
            if point.is_constant
        }
        self.nodes = {str(node.name): node for node in plan.graph.nodes}

    def scale(self, end: str) -> npt.NDArray[np.float32]:
        return scale_of(self.plan, end)

    def conv(self, name: str, x: Codes, output: str, bounds: tuple[float, float]) -> Codes:
        node = self.nodes[name]
        w, bias = (self.codes[str(value.name)] for value in node.inputs[1:3] if value)
        groups, pad = node.attributes.get_int("group", 1), w.shape[2] // 2
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        rows, columns = x.shape[2:]
        total = np.zeros((len(x), len(w), rows, columns), np.int64)
        for out in range(len(w)):
            first = out // (len(w) // groups) * w.shape[1]
            for c in range(w.shape[1]):
                for i in range(w.shape[2]):
                    for j in range(w.shape[3]):
                        window = padded[:, first + c, i : i + rows, j : j + columns]
                        total[:, out] += w[out, c, i, j] * window
            total[:, out] += bias[out]
        s_x, s_w = self.scale(f"{name}.input[0]"), self.scale(f"{name}.input[1]")
        value = total.astype(np.float32) * FLOAT(s_x) * s_w.reshape(-1, 1, 1)
        value = np.clip(value, FLOAT(bounds[0]), FLOAT(bounds[1]))
        return away(value / FLOAT(self.scale(output)))

    def run(self, image: npt.NDArray[np.float32]) -> dict[str, Codes]:
        convs = [name for name, node in self.nodes.items() if node.op_type == "Conv"]
        clip = next(name for name, node in self.nodes.items() if node.op_type == "Clip")
        x = away(image / FLOAT(self.scale(f"{convs[0]}.input[0]")))
        stem = self.conv(convs[0], x, "relu.output[0]", (0, np.inf))
        y = self.conv(convs[1], stem, f"{clip}.output[0]", (0, 6))
        y = self.conv(convs[2], y, f"{convs[2]}.output[0]", (-np.inf, np.inf))
        left = stem.astype(np.float32) * FLOAT(self.scale("relu.output[0]"))
        right = y.astype(np.float32) * FLOAT(self.scale(f"{convs[2]}.output[0]"))
        summed = away((left + right) / FLOAT(self.scale("add.output[0]")))
        small = np.maximum(summed, 0).reshape(len(x), 8, 4, 2, 4, 2).max(axis=(3, 5))
        mean = small.sum(axis=(2, 3)).astype(np.float32) * FLOAT(self.scale("mean.input[0]"))
        mean = away(mean / FLOAT(16) / FLOAT(self.scale("mean.output[0]")))
        dense = self.nodes["dense"]
        w, bias = (self.codes[str(value.name)] for value in dense.inputs[1:3] if value)
        factor = FLOAT(self.scale("dense.input[0]")) * self.scale("dense.input[1]")
        factor = factor / FLOAT(self.scale("dense.output[0]"))
        logits = away((mean @ w.T + bias).astype(np.float32) * factor)
        real = logits.astype(np.float32) * FLOAT(self.scale("dense.output[0]"))
        below = real - real.max(axis=1, keepdims=True)
        terms = np.exp(below.astype(np.float64)).astype(np.float32)
        total = np.add.accumulate(terms, axis=1)[:, -1:]
        shares = away(terms / total / FLOAT(self.scale("softmax.output[0]")))
        return {"stem": stem, "sum": summed, "mean": mean, "logits": logits, "shares": shares}


@pytest.mark.parametrize("seed", range(3))
def test_the_engine_computes_what_the_kernels_do(seed: int) -> None:
    plan = calibrated(image_net(), "tengine", seed=seed)
    feeds = random_inputs(image_net(), batch=32, seed=100 + seed)
    program = lower(plan)
    assert not program.in_float
    by_value = {t.value: t for t in program.tensors() if t.encoding is not None and t.value}
    expected = Written(plan).run(feeds["image"])
    names = [by_value[name].name for name in expected]
    found = IntegerEngine(program).run(feeds, names).tensors
    for name, codes in expected.items():
        own = by_value[name].as_in_model(found[by_value[name].name]).reshape(codes.shape)
        np.testing.assert_array_equal(own, codes, err_msg=name)


def test_the_simulator_takes_the_same_scales() -> None:
    plan = calibrated(image_net(), "tengine")
    feeds = random_inputs(image_net(), batch=16, seed=5)
    simulated = Simulator(plan).run(feeds)[0]["shares"]
    computed = IntegerEngine(lower(plan)).run(feeds).outputs["shares"]
    step = float(scale_of(plan, "softmax.output[0]"))
    assert np.abs(simulated - computed).max() <= 1.01 * step


def test_concat_is_scaled_by_the_ratio() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 4, 4])
    left, right = (b.node("Conv", x, b.weight(3, 2, 1, 1), name=name) for name in ("l", "r"))
    b.node("Concat", left, right, axis=1, name="join", out="y")
    b.output("y")
    model = b.build()
    plan = calibrated(model, "tengine")
    feeds = random_inputs(model, batch=64, seed=3)
    program = lower(plan)
    engine = IntegerEngine(program)
    wanted = {t.end: t for t in program.tensors() if t.end is not None and t.encoding is not None}
    ends = {str(end): tensor for end, tensor in wanted.items()}
    names = [ends[f"{name}.output[0]"].name for name in ("l", "r", "join")]
    found = engine.run(feeds, names).tensors
    parts = []
    for name in ("l", "r"):
        tensor = ends[f"{name}.output[0]"]
        s_in, s_out = (scale_of(plan, f"{end}.output[0]") for end in (name, "join"))
        ratio = FLOAT(s_in) / FLOAT(s_out)
        parts.append(away(tensor.as_in_model(found[tensor.name]).astype(np.float32) * ratio))
    joined = ends["join.output[0]"]
    np.testing.assert_array_equal(
        joined.as_in_model(found[joined.name]), np.concatenate(parts, axis=1)
    )

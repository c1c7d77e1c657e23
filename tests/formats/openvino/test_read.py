"""Models with FakeQuantize: what was written is read, also what others write, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from intact.config import QuantState
from intact.engines.simulate import Simulator
from intact.errors import ModelError
from intact.formats.base.format import QuantizedSource
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.onnx_qdq.reader.given import Grid
from intact.formats.openvino.dialect import DOMAIN
from intact.formats.openvino.write import write_openvino
from intact.formats.registry import open_model
from intact.numerics.affine_params import QuantParams
from intact.plan import Overrides, QuantizedGraph, QuantPoint, quantization_points
from intact.targets import load_target
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net
from tests.plans import calibrated, config

OPENVINO = load_target("openvino")


def proto_of(model: ir.Model) -> onnx.ModelProto:
    proto = ir.to_proto(model)
    assert isinstance(proto, onnx.ModelProto)
    return proto


def reread(plan: QuantizedGraph) -> QuantizedGraph:
    return read_qdq(proto_of(write_openvino(plan).model), plan.target)


def points_of(plan: QuantizedGraph) -> dict[tuple[str, str], QuantPoint]:
    """The points by value and first reader: an end in front of its one reader is one behind."""
    found = {}
    for point in quantization_points(plan):
        first = f"{point.readers[0][0].name} {point.readers[0][1]}" if point.readers else ""
        found[point.value.name or "", first] = point
    return found


@pytest.mark.parametrize(
    ("name", "target", "bits"),
    [
        ("residual", "openvino", None),
        ("residual", "openvino", 7),
        ("depthwise", "openvino-avx2", None),
        ("depthwise", "openvino", 4),
        ("detector", "openvino", None),
        ("transformer", "openvino-avx2", None),
    ],
)
def test_there_and_back(name: str, target: str, bits: int | None) -> None:
    model = MODELS[name].build(max(17, MODELS[name].since))
    plan = calibrated(model, target, Overrides(weight_bits=bits))
    back = reread(plan)
    ours, theirs = points_of(plan), points_of(back)
    assert ours.keys() == theirs.keys()
    for key, point in ours.items():
        grid, read = point.config, theirs[key].config
        assert (grid.quant_min, grid.quant_max) == (read.quant_min, read.quant_max)
        assert (grid.bits, grid.granularity) == (read.bits, read.granularity)
        assert grid.policy == read.policy
        assert grid.scale is not None
        assert read.scale is not None
        np.testing.assert_array_max_ulp(grid.scale, read.scale, 1)
        np.testing.assert_array_equal(grid.offset, read.offset)
        if point.is_constant:
            codes = theirs[key].constant_codes()
            np.testing.assert_array_equal(point.constant_codes(), codes)
            np.testing.assert_array_equal(grid.scale, read.scale)
    decided = {name: decision.quantized for name, decision in plan.decisions.items()}
    assert {name: each.quantized for name, each in back.decisions.items()} == decided
    again = proto_of(write_openvino(reread(back)).model).SerializeToString(deterministic=True)
    assert again == proto_of(write_openvino(back).model).SerializeToString(deterministic=True)
    feeds = dict(random_inputs(model, batch=3, seed=7))
    for left, right in zip(
        Simulator(plan, threads=1).run(feeds)[0].values(),
        Simulator(back, threads=1).run(feeds)[0].values(),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


def test_an_add_inside_a_convolution_is_one_again() -> None:
    plan = reread(calibrated(residual_net(17), "openvino"))
    add = next(node for node in plan.graph.nodes if node.op_type == "Add")
    assert plan.is_quantized(add)
    states = [plan.input_config(add, slot).state for slot in (0, 1)]
    assert states == [QuantState.OVERLAPPED, QuantState.OVERLAPPED]
    sources = [value.producer() for value in add.inputs if value is not None]
    fused = next(node for node in sources if node is not None and node.op_type == "Conv")
    assert plan.output_config(fused).state is QuantState.OVERLAPPED
    assert plan.output_config(add).state is QuantState.OVERLAPPED
    relu = plan.graph.consumers(add.outputs[0])[0][0]
    assert plan.output_config(fused).dominator is plan.output_config(relu).dominator


# ---- models as others write them --------------------------------------------------------------


class Others(ModelBuilder):
    """Writes quantizers as NNCF does: four inputs of their own each."""

    def quantizer(
        self,
        x: str,
        low: Any,
        high: Any,
        levels: Any = 256,
        *,
        out_low: Any = None,
        out: str | None = None,
    ) -> str:
        self.domains[DOMAIN] = 1
        ends = [np.asarray(end, np.float32) for end in (low, high)]
        ends += [ends[0] if out_low is None else np.asarray(out_low, np.float32), ends[1]]
        return self.node(
            "FakeQuantize",
            x,
            *(self.constant(end) for end in ends),
            domain=DOMAIN,
            levels=levels,
            out=out,
        )


def small(**given: Any) -> onnx.ModelProto:
    """A convolution between two quantizers, of which the first is given."""
    b = Others()
    low, high = given.pop("low", -1.28), given.pop("high", 1.27)
    x = b.quantizer(b.input("image", ["batch", 2, 4, 4]), low, high, **given)
    scales = np.array([0.01, 0.02], np.float32).reshape(2, 1, 1, 1)
    codes = np.arange(-4, 4).reshape(2, 2, 2, 1)
    w = b.quantizer(
        b.constant((codes * scales).astype(np.float32), "w"), -128 * scales, 127 * scales
    )
    b.quantizer(b.node("Conv", x, w, name="conv"), 0.0, 2.55, out="y")
    b.output("y")
    return b.build()


def test_ranges_of_others() -> None:
    plan = read_qdq(small(), OPENVINO)
    first, weight = config(plan, "conv.input[0]"), config(plan, "conv.input[1]")
    output = config(plan, "conv.output[0]")
    assert (first.quant_min, first.quant_max) == (-128, 127)
    assert first.scale == np.float32(0.01)
    assert (output.quant_min, output.quant_max, output.bits) == (0, 255, 8)
    assert (weight.quant_min, weight.quant_max, weight.bits) == (-4, 3, 3)
    assert weight.scale is not None
    assert weight.scale.tolist() == [np.float32(0.01), np.float32(0.02)]
    assert plan.graph.outputs[0].name == "y"
    assert all(node.domain == "" for node in plan.graph.nodes)
    assert plan.keeps_runtime


@pytest.mark.parametrize(
    ("low", "high", "levels", "expected"),
    [
        (-1.27, 1.27, 255, (-127, 127, 0, True)),
        (-1.28, 1.27, 256, (-128, 127, 0, True)),
        (-0.64, 0.63, 128, (-64, 63, 0, True)),
        (-1.0, 1.55, 256, (0, 255, 100, False)),
        (0.0, 2.55, 256, (0, 255, 0, True)),
        (-2.55, 0.0, 256, (0, 255, 255, False)),
        (-327.68, 327.67, 65536, (-32768, 32767, 0, True)),
        (-0.01, 0.01, 3, (-1, 1, 0, True)),
    ],
)
def test_codes_of_a_range(
    low: float, high: float, levels: int, expected: tuple[int, int, int, bool]
) -> None:
    plan = read_qdq(small(low=low, high=high, levels=levels), OPENVINO)
    found = config(plan, "conv.input[0]")
    assert found.offset is not None
    assert (found.quant_min, found.quant_max, int(found.offset), found.grid.symmetric) == expected
    np.testing.assert_allclose(found.scale, 0.01, rtol=1e-6)  # type: ignore[arg-type]


def test_one_scale_a_channel_of_an_activation() -> None:
    high = np.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    plan = read_qdq(small(low=0.0, high=high), OPENVINO)
    found = config(plan, "conv.input[0]")
    assert found.granularity.axis == 1
    np.testing.assert_array_equal(found.scale, np.float32([1, 2]) / np.float32(255))  # type: ignore[arg-type]


def test_ends_of_fewer_dimensions_lie_along_the_last_axes() -> None:
    plan = read_qdq(small(low=0.0, high=np.array([1.0, 2.0]).reshape(2, 1, 1)), OPENVINO)
    assert config(plan, "conv.input[0]").granularity.axis == 1


@pytest.mark.parametrize(
    ("codes", "zero_point", "signed", "expected"),
    [
        ([0, 3], 0, False, (0, 3)),
        ([0, 3], 100, False, (0, 127)),
        ([70, 71], 3, False, (0, 127)),
        ([0, 3], -50, True, (-64, 63)),
        ([-3, 3], 60, True, (-64, 63)),
        ([-3, 127], 0, True, (-128, 127)),
        ([0, 0], 0, True, (-128, 127)),
    ],
)
def test_the_narrowest_width_holds_codes_and_zero_point(
    codes: list[int], zero_point: int, signed: bool, expected: tuple[int, int]
) -> None:
    params = QuantParams(np.asarray(np.float32(1)), np.asarray(zero_point, np.int64))
    wide = Grid(*params, *((-128, 127) if signed else (0, 255)), holds_fewer=True)
    found = wide.narrowed(np.array(codes))
    assert (found.quant_min, found.quant_max) == expected


def test_only_8_bits_may_be_fewer_in_truth() -> None:
    params = QuantParams(np.asarray(np.float32(1)), np.asarray(0, np.int64))
    wide = Grid(*params, -32768, 32767, holds_fewer=True)
    assert wide.narrowed(np.array([1])) is wide


def test_quantized_twice_in_a_row_and_several_ways() -> None:
    b = Others()
    x = b.input("image", ["batch", 2, 4, 4])
    y = b.node("Relu", x, name="relu")
    fine, coarse = b.quantizer(y, 0, 2.55), b.quantizer(y, 0, 5.10)
    again = b.quantizer(fine, 0, 1.275)
    for name, each in (("a", fine), ("b", coarse), ("c", again), ("d", fine)):
        b.node("Neg", each, out=name, name=f"neg_{name}")
        b.output(name)
    model = b.build()
    plan = read_qdq(model, OPENVINO)
    scales = {each: config(plan, f"neg_{each}.input[0]").scale for each in "abcd"}
    expected = {"a": 0.01, "b": 0.02, "c": 0.005, "d": 0.01}
    for each, scale in expected.items():
        np.testing.assert_allclose(scales[each], scale, rtol=1e-6)  # type: ignore[arg-type]
    assert config(plan, "neg_a.input[0]").dominator is config(plan, "neg_d.input[0]").dominator
    values = np.linspace(-1, 6, 32).astype(np.float32).reshape(1, 2, 4, 4)
    found = Simulator(plan, threads=1).run({"image": values})[0]

    def quantized(array: Any, scale: float) -> Any:
        return np.clip(np.rint(array / np.float32(scale)), 0, 255) * np.float32(scale)

    once = quantized(np.maximum(values, 0), 0.01)
    wanted = {
        "a": once,
        "b": quantized(np.maximum(values, 0), 0.02),
        "c": quantized(once, 0.005),
        "d": once,
    }
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], -array, atol=1e-6)


def test_a_quantized_output_and_a_quantized_constant_output() -> None:
    b = Others()
    x = b.quantizer(b.input("image", ["batch", 4]), 0, 2.55, out="y")
    b.quantizer(b.constant(np.array([0.011, 0.5], np.float32)), -1.28, 1.27, out="k")
    b.node("Relu", x, out="z")
    for name in ("y", "z", "k"):
        b.output(name, None if name != "k" else [2])
    plan = read_qdq(b.build(), OPENVINO)
    found = Simulator(plan, threads=1).run({"image": np.array([[0.014, -1, 9, 1]], np.float32)})[0]
    np.testing.assert_allclose(found["y"], [[0.01, 0, 2.55, 1]], rtol=1e-6)
    np.testing.assert_allclose(found["z"], found["y"])
    np.testing.assert_allclose(found["k"], [0.01, 0.5], rtol=1e-5)


def _set(model: onnx.ModelProto, change: Callable[[onnx.NodeProto], None]) -> onnx.ModelProto:
    change(next(node for node in model.graph.node if node.op_type == "FakeQuantize"))
    return model


def _computed(node: onnx.NodeProto) -> None:
    node.input[2] = "image"


def _other_high(node: onnx.NodeProto) -> None:
    node.input[4] = node.input[1]


def _four(node: onnx.NodeProto) -> None:
    del node.input[4]


def _without_levels(node: onnx.NodeProto) -> None:
    del node.attribute[:]


def _levels_as_text(node: onnx.NodeProto) -> None:
    node.attribute[0].CopyFrom(helper.make_attribute("levels", "many"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: small(low=0.5), "a range of it is empty or does not hold 0"),
        (lambda: small(low=1.27), "a range of it is empty"),
        (lambda: small(high=np.nan), "its range is not finite float32"),
        (lambda: small(levels=2), "it has 2 levels"),
        (lambda: small(levels=2**40), "it has 1099511627776 levels"),
        (lambda: small(levels=-5), "it has -5 levels"),
        (lambda: small(low=-1.005, high=1.55), "0 lies between two of its levels"),
        (lambda: small(low=-1.276, high=1.274), "0 lies between two of its levels"),
        (lambda: small(low=0.0, high=0.0), "a range of it is empty"),
        (lambda: small(low=-2.0, high=-1.0), "a range of it is empty or does not hold 0"),
        (lambda: small(low=0.0, high=1e-37), "nearer than normal float32 numbers"),
        (lambda: small(out_low=-1.0), "its output range is not its input range"),
        (lambda: _set(small(), _other_high), "its output range is not its input range"),
        (lambda: small(high=np.ones((2, 2, 1, 1))), "its scales have shape"),
        (lambda: small(high=np.ones((1, 3, 1, 1))), "it has 3 scales along axis 1"),
        (lambda: small(high=np.ones((1, 2, 1, 1, 1))), "its scales have shape"),
        (lambda: small(low=-np.ones(3), high=np.ones(2)), "its ends have different shapes"),
        (lambda: small(low=np.zeros((0,)), high=np.zeros((0,))), "not finite float32"),
        (lambda: _set(small(), _computed), "its high 'image' is computed by the model"),
        (lambda: _set(small(), _four), "it has 4 inputs and 1 outputs"),
        (lambda: _set(small(), _without_levels), "it has no levels"),
        (lambda: _set(small(), _levels_as_text), "its levels is no number"),
        (lambda: residual_net(17), "the model is not quantized"),
    ],
)
def test_refusals(model: Callable[[], onnx.ModelProto], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_qdq(model(), OPENVINO)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_quantizer_in_a_body_is_refused() -> None:
    b = Others()
    x = b.input("image", ["batch", 4])
    body = helper.make_graph(
        [
            helper.make_node(
                "FakeQuantize", [x, "lo", "hi", "lo", "hi"], ["t"], domain=DOMAIN, levels=256
            )
        ],
        "then",
        [],
        [helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array(v, np.float32), n)
            for n, v in (("lo", 0.0), ("hi", 1.0))
        ],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", [x], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, None)],
    )
    condition = b.input("condition", [], onnx.TensorProto.BOOL)
    b.domains[DOMAIN] = 1
    b.node("If", condition, out="y", then_branch=body, else_branch=other)
    b.output("y")
    with pytest.raises(ModelError, match="it stands in the body of another node"):
        read_qdq(b.build(), OPENVINO)


def test_which_models_are_fake_quantized(tmp_path: Path) -> None:
    source = open_model(small())
    assert isinstance(source, QuantizedSource)
    assert source.target == "openvino"
    assert not isinstance(open_model(residual_net(17)), QuantizedSource)
    path = tmp_path / "model.onnx"
    onnx.save(small(), path)
    assert read_qdq(path, OPENVINO).graph.inputs[0].name == "image"

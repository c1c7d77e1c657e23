"""What a quantized model says is what its plan says, and ONNX Runtime gives the same bits again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import to_array

from intact.config import PerChannel, PerTensor, QuantState
from intact.formats.onnx_qdq.read import is_quantized, read_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.graph import load_model
from intact.plan import quantization_points
from intact.plan.provenance import Provenance
from intact.targets import load_target
from tests.formats.onnx_qdq.pairs import (
    PairBuilder,
    assert_exact,
    finish,
    image,
    proto,
    read,
)
from tests.models import MODELS
from tests.plans import calibrated, config

I8 = np.int8(0)


def like_onnxruntime(opset: int = 17) -> PairBuilder:
    """u8 activations, s8 weights per channel, int32 biases: what its own quantizer writes."""
    b = PairBuilder(opset)
    x = b.pair(image(b), 0.03, np.uint8(128))
    x = b.node("Conv", x, b.stored((5, 4, 3, 3)), b.bias(5, 0.03), name="first")
    x = b.pair(x, 0.02, np.uint8(90))
    x = b.pair(b.node("MaxPool", x, kernel_shape=[2, 2], name="pool"), 0.02, np.uint8(90))
    x = b.node("Conv", x, b.stored((3, 5, 1, 1)), b.bias(3, 0.02), name="second")
    b.pair(b.node("Relu", x, name="relu"), 0.01, np.uint8(0), out="y")
    b.output("y")
    return b


def like_pytorch(opset: int = 17) -> PairBuilder:
    """Float weights in front of a pair of their own, per channel; a float bias."""
    b = PairBuilder(opset)
    x = b.pair(image(b), 0.03, np.uint8(128))
    scale, zero = b.random.uniform(0.002, 0.02, 5).astype(np.float32), np.zeros(5, np.int8)
    weight = b.pair(b.weight(5, 4, 3, 3, name="w"), scale, zero, axis=0)
    x = b.pair(b.node("Conv", x, weight, b.weight(5, name="b"), name="conv"), 0.02, np.uint8(90))
    x = b.node("Flatten", x, name="flatten")
    weight = b.pair(b.weight(3, 80, name="v"), np.float32(0.01), I8)
    x = b.node("Gemm", x, weight, b.weight(3), transB=1, name="gemm", out="y")
    b.output(x)
    return b


def like_aimet(opset: int = 13) -> PairBuilder:
    """Symmetric int8 everywhere; the Relu before its quantizer."""
    b = PairBuilder(opset)
    x = b.pair(image(b), 0.03, I8)
    scale, zero = b.random.uniform(0.002, 0.02, 4).astype(np.float32), np.zeros(4, np.int8)
    for name in ("one", "two"):
        weight = b.pair(b.weight(4, 4, 3, 3), scale, zero, axis=-4)
        x = b.node("Conv", x, weight, b.weight(4), name=name, pads=[1] * 4)
        x = b.pair(b.node("Relu", x, name=f"{name}_relu"), 0.02, I8)
    b.pair(b.node("Add", x, b.pair("x", 0.03, I8), name="add"), 0.04, I8, out="y")
    b.output("y")
    return b


def like_nncf(opset: int = 17) -> PairBuilder:
    """int8 and uint8 activations in turn, stored weights along an axis from the end, float bias."""
    b = PairBuilder(opset)
    x = b.pair(image(b), 0.03, np.int8(2))
    x = b.node("Conv", x, b.stored((5, 4, 3, 3), axis=-4), b.weight(5), name="conv", pads=[1] * 4)
    left = b.pair(b.node("Relu", x, name="relu"), 0.02, np.uint8(0))
    x = b.node("Conv", left, b.stored((5, 5, 1, 1)), b.weight(5), name="beside")
    x = b.node("Add", left, b.pair(x, 0.028, np.int8(-45)), name="add")
    x = b.pair(b.node("GlobalAveragePool", x, name="pool"), 0.026, np.int8(-128))
    x = b.node("Flatten", x, name="flatten")
    x = b.node("Gemm", x, b.stored((3, 5), axis=-2), b.weight(3), transB=1, name="gemm", out="y")
    b.output(x)
    return b


SHAPES: dict[str, Callable[[int], PairBuilder]] = {
    "onnxruntime": like_onnxruntime,
    "pytorch": like_pytorch,
    "nncf": like_nncf,
    "aimet": like_aimet,
}


@pytest.mark.crossed
@pytest.mark.parametrize("opset", [13, 19, 21, 23])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_of_other_quantizers(shape: str, opset: int) -> None:
    model = SHAPES[shape](opset).build()
    plan, exported = assert_exact(model)
    assert is_quantized(load_model(model))
    assert not is_quantized(plan.graph.model)
    assert exported.model.opset_imports[""] == opset
    again, rewritten = assert_exact(proto(exported.model))
    assert len(list(quantization_points(again))) == len(list(quantization_points(plan)))
    assert proto(rewritten.model) == proto(exported.model)


def test_the_configs_say_what_the_pairs_said() -> None:
    plan = read(like_onnxruntime().build())
    first, weight = config(plan, "first.input[0]"), config(plan, "first.input[1]")
    assert first.scale == np.float32(0.03)
    assert first.offset == 128
    assert first.bits == 8
    assert (first.quant_min, first.quant_max, first.granularity) == (0, 255, PerTensor())
    assert not first.grid.symmetric
    assert (first.state, weight.state) == (QuantState.ACTIVATED, QuantState.BAKED)
    assert (weight.quant_min, weight.quant_max) == (-128, 127)
    assert weight.granularity == PerChannel(0)
    assert weight.grid.symmetric
    bias = config(plan, "first.input[2]")
    assert (bias.state, bias.bits) == (QuantState.PASSIVE_BAKED, 32)
    assert config(plan, "second.output[0]").state is QuantState.OVERLAPPED
    assert config(plan, "second.output[0]").dominator is config(plan, "relu.output[0]")
    assert config(plan, "pool.output[0]").dominator is config(plan, "first.output[0]")
    passed_on = {str(p.end) for p in quantization_points(plan) if p.is_passed_on}
    assert passed_on == {"pool.output[0]"}
    assert all(decision.quantized for decision in plan.decisions.values())
    assert plan.provenance == Provenance(source="quantized model")


def test_integers_are_kept_where_a_float_could_not() -> None:
    b = PairBuilder()
    x = b.node("Conv", b.pair(image(b)), b.stored((64, 4, 1, 1)), b.bias(64, most=2**30), name="c")
    b.pair(x, 5000.0, out="y")
    plan, exported = assert_exact(finish(b, "y"))
    (wide,) = [array for t in b.initializers if (array := to_array(t)).dtype == np.int32]
    points = {str(point.end): point for point in quantization_points(plan)}
    bias = points["c.input[2]"]
    np.testing.assert_array_equal(bias.constant_codes(), wide)
    as_float = bias.value.const_value
    assert as_float is not None
    assert (bias.config.quantize(as_float.numpy().astype(np.float64)) != wide).any()
    written = [to_array(t) for t in proto(exported.model).graph.initializer]
    assert any(array.dtype == np.int32 and (array == wide).all() for array in written)


def test_a_float_bias_stays_as_it_is() -> None:
    model = like_pytorch().build()
    plan, exported = assert_exact(model)
    assert config(plan, "conv.input[2]").state is QuantState.FP32
    (bias,) = [t for t in model.graph.initializer if t.name == "b"]
    kept = exported.model.graph.initializers["b"].const_value
    assert kept is not None
    assert kept.numpy().tobytes() == bias.raw_data


def test_the_names_of_float_weights_are_kept() -> None:
    plan = read(like_pytorch().build())
    assert {"w", "v", "b"} <= {value.name for value in plan.graph.values}


# ---- types --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zero", "domain", "opset"),
    [
        (np.int16(0), "", 21),
        (np.uint16(30000), "", 21),
        (np.int16(-5), "com.microsoft", 17),
        (np.uint16(30000), "com.microsoft", 13),
        (np.uint8(3), "com.microsoft", 17),
        (None, "", 17),
        (None, "", 21),
        (np.int8(-90), "", 10),
        (np.array([7], np.uint8), "", 13),
    ],
)
def test_types_of_activations(zero: Any, domain: str, opset: int) -> None:
    b = PairBuilder(opset)
    b.domain = domain
    wide = np.asarray(zero).dtype.itemsize == 2
    scale = np.full(np.shape(zero), 0.0001 if wide else 0.004, np.float32)
    x = b.node("Sigmoid", b.pair(b.input("x", ["n", 40]), scale, zero), name="sigmoid")
    b.pair(x, scale, zero, out="y")
    plan, _ = assert_exact(finish(b, "y"))
    found = config(plan, "sigmoid.output[0]")
    kind = np.dtype(np.uint8) if zero is None else np.asarray(zero).dtype
    assert (found.quant_min, found.quant_max) == (np.iinfo(kind).min, np.iinfo(kind).max)
    assert found.offset == (0 if zero is None else int(np.asarray(zero).reshape(())))


@pytest.mark.parametrize(
    ("dtype", "opset", "span"), [("int4", 21, 7), ("uint4", 23, 15), ("uint8", 13, 200)]
)
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_types_of_weights(dtype: str, opset: int, span: int, axis: int | None) -> None:
    b = PairBuilder(opset)
    kind: Any = getattr(ml_dtypes, dtype) if dtype.endswith("4") else getattr(np, dtype)
    codes = b.random.integers(0, span, (16, 12)).astype(kind)
    channels = () if axis is None else (codes.shape[axis],)
    scale = b.random.uniform(0.01, 0.02, channels).astype(np.float32)
    zero = b.random.integers(0, 7, channels).astype(kind)
    more: dict[str, Any] = {} if axis is None else {"axis": axis}
    weight = b.dequantize(b.constant(codes), scale, zero, **more)
    x = b.node("MatMul", b.pair(b.input("x", ["n", 16])), weight, name="product")
    b.pair(x, out="y")
    plan, _ = assert_exact(finish(b, "y"))
    ((_, stored),) = plan.baked.items()
    np.testing.assert_array_equal(stored, codes.astype(np.int64))
    assert config(plan, "product.input[1]").bits == int(dtype.removeprefix("u")[3:])


def test_one_scale_for_each_channel_of_an_activation() -> None:
    b = PairBuilder()
    scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    x = b.pair(image(b), scale, np.array([1, 2, 3, 100], np.uint8), axis=1)
    b.pair(b.node("Relu", x, name="relu"), scale, np.zeros(4, np.uint8), axis=-3, out="y")
    plan, _ = assert_exact(finish(b, "y"))
    assert config(plan, "relu.output[0]").granularity == PerChannel(1)


# ---- integer ports ------------------------------------------------------------------------------


def test_integer_inputs_and_outputs_stay() -> None:
    b = PairBuilder()
    codes = b.input("x", ["n", 4, 6, 6], TensorProto.UINT8)
    x = b.node("Conv", b.dequantize(codes, 0.03, np.uint8(128)), b.stored((3, 4, 1, 1)), name="c")
    b.quantize(x, 0.02, np.uint8(128), out="y")
    b.outputs.append(helper.make_tensor_value_info("y", TensorProto.UINT8, None))
    batches = [{"x": b.random.integers(0, 256, (2, 4, 6, 6)).astype(np.uint8)} for _ in range(3)]
    plan, _ = assert_exact(b.build(), batches)
    assert plan.decisions["c"].quantized
    reasons = {d.reason for d in plan.decisions.values() if not d.quantized}
    assert reasons == {"turns the model's integers into numbers, or numbers into integers"}


# ---- models as a whole --------------------------------------------------------------------------


def test_the_source_is_not_changed() -> None:
    model = like_pytorch().build()
    before = model.SerializeToString()
    read(model)
    assert model.SerializeToString() == before


def test_a_file_is_read(tmp_path: Any) -> None:
    onnx.save(like_aimet().build(), tmp_path / "m.onnx")
    plan = read_qdq(tmp_path / "m.onnx", load_target("tensorrt"))
    assert plan.target.name == "tensorrt"


@pytest.mark.parametrize("name", sorted(MODELS))
def test_float_models_are_not_quantized(name: str) -> None:
    assert not is_quantized(load_model(MODELS[name].build(17)))


def test_the_producer_is_remembered() -> None:
    model = like_aimet().build()
    model.producer_name, model.producer_version = "someone", "1.2"
    assert read(model).provenance.producer == "someone 1.2"


def test_our_own_models_are_read_as_they_were_written() -> None:
    for name in ("residual", "transformer", "detector"):
        plan = calibrated(MODELS[name].build(17))
        exported = write_qdq(plan)
        found, _ = assert_exact(proto(exported.model))
        wanted = {
            str(p.value.name): p.constant_codes()
            for p in quantization_points(plan)
            if p.is_constant
        }
        for point in quantization_points(found):
            if point.is_constant:
                np.testing.assert_array_equal(point.constant_codes(), wanted[str(point.value.name)])

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("ai_edge_litert")

from ai_edge_litert import schema_py_generated as schema

from intact.errors import ExportError, MissingExtraError
from intact.formats.tflite.runtime import Kernels, TfliteRuntime
from intact.formats.tflite.write import Io, program_to_tflite, tflite_refusals, write_tflite
from intact.program import Encoding, Program, Step, Tensor
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Bounds,
    Convolution,
    Dequantize,
    Elementwise,
    FloatNodes,
    FullyConnected,
    Function,
    Pad,
    Pool,
    PoolKind,
    PRelu,
    Quantize,
    Reshape,
    Resize,
    ResizeMode,
    Softmax,
    TransposedConvolution,
    Unary,
)
from tests.formats.tflite.cases import (
    ARITHMETIC,
    CASES,
    OUT,
    X,
    codes_for,
    convolution,
    on_data,
    transposed,
    weighted,
)
from tests.formats.tflite.files import data_of, input_of, model_of, operator_of, operators_of
from tests.program.one_step import int8, int32, one_step, uint8

CONV = CASES["conv_relu"]


def classifier(batch: int | None = None) -> Program:
    """Float input, quantise, convolution, reshape, product, softmax, dequantise, float output."""
    weights = np.random.default_rng(0).integers(-127, 128, (10, 3 * 3 * 4)).astype(np.int8)
    kernel = np.random.default_rng(1).integers(-127, 128, (4, 3, 3, 2)).astype(np.int8)
    scale, narrow = int8(0.003), int8(1 / 256, -128)
    image = Tensor("image", (batch, 6, 6, 2))
    codes = Tensor("image_codes", (batch, 6, 6, 2), X)
    features = Tensor("features", (batch, 3, 3, 4), OUT)
    flat = Tensor("flat", (batch, 36), OUT)
    logits = Tensor("logits", (batch, 10), int8(0.1, 4))
    shares = Tensor("shares", (batch, 10), narrow)
    floats = Tensor("probabilities", (batch, 10))
    conv = Convolution((2, 2), ((1, 1), (1, 1)), (1, 1), bounds=Bounds(0))

    def step(name: str, operation: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Step:
        return Step(name, operation, inputs, (output,), ARITHMETIC)

    steps = (
        step("q", Quantize(), (image,), codes),
        step("c", conv, (codes, Tensor("kernel", kernel.shape, scale, kernel)), features),
        step("r", Reshape((-1, 36)), (features,), flat),
        step("m", FullyConnected(), (flat, Tensor("w", weights.shape, scale, weights)), logits),
        step("s", Softmax(1), (logits,), shares),
        step("d", Dequantize(), (shares,), floats),
    )
    return Program({"image": image}, {"probabilities": floats}, steps)


# ---- the file ---------------------------------------------------------------------------------


def test_equal_programs_give_equal_bytes() -> None:
    assert write_tflite(classifier()) == write_tflite(classifier())


def test_the_head_is_what_readers_look_for() -> None:
    content = write_tflite(classifier())
    model = model_of(content)
    assert content[4:8] == b"TFL3"
    assert model.version == 3
    assert model.buffers[0].data is None
    assert len(model.subgraphs) == 1


def test_constants_are_aligned() -> None:
    content = write_tflite(classifier())
    model = schema.Model.GetRootAs(content, 0)
    places = []
    for k in range(model.BuffersLength()):
        table = model.Buffers(k)._tab
        field = table.Offset(4)
        if field:
            places.append(table.Vector(field))
    assert len(places) >= 6
    assert {place % 16 for place in places} == {0}


def test_equal_constants_are_stored_once() -> None:
    model = model_of(program_to_tflite(CASES["conv_clip"]))
    contents = [bytes(each.data) for each in model.buffers[1:]]
    assert len(set(contents)) == len(contents)


@pytest.mark.parametrize(("name", "code", "old"), [("add", 0, 0), ("gelu", 150, 127)])
def test_operators_have_both_codes(name: str, code: int, old: int) -> None:
    (found,) = model_of(program_to_tflite(CASES[name])).operatorCodes
    assert (found.builtinCode, found.deprecatedBuiltinCode) == (code, old)


def test_the_signature_has_the_names_of_the_model() -> None:
    model = model_of(write_tflite(classifier()))
    (signature,) = model.signatureDefs
    tensors = model.subgraphs[0].tensors
    assert signature.signatureKey == b"serving_default"
    found = {each.name: tensors[each.tensorIndex].name for each in signature.inputs}
    assert found == {b"image": b"image_codes"}
    found = {each.name: tensors[each.tensorIndex].name for each in signature.outputs}
    assert found == {b"probabilities": b"shares"}


def test_without_the_extra_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("ai_edge_litert"):
            raise ImportError(name)
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r'pip install "intact\[tflite\]"'):
        write_tflite(classifier())


# ---- inputs, outputs, batches -----------------------------------------------------------------


def test_integers_at_the_ends() -> None:
    content = write_tflite(classifier(), io=Io.INT8)
    assert operators_of(content) == [
        "PAD",
        "CONV_2D",
        "RESHAPE",
        "FULLY_CONNECTED",
        "SOFTMAX",
    ]


def test_floats_at_the_ends_give_the_same_numbers() -> None:
    content = write_tflite(classifier(), io=Io.FLOAT)
    operators = operators_of(content)
    assert (operators[0], operators[-1], len(operators)) == ("QUANTIZE", "DEQUANTIZE", 7)
    codes = np.random.default_rng(2).integers(-128, 128, (1, 6, 6, 2)).astype(np.int8)
    floats = ((codes - np.int64(3)) * np.float32(0.05)).astype(np.float32)
    of_floats, _ = TfliteRuntime(content).run({"image": floats})
    of_codes, _ = TfliteRuntime(write_tflite(classifier())).run({"image": codes})
    shares = (of_codes["probabilities"] + np.float32(128)) / np.float32(256)
    np.testing.assert_array_equal(of_floats["probabilities"], shares)


@pytest.mark.parametrize("kernels", Kernels)
def test_an_open_batch_can_be_resized(kernels: Kernels) -> None:
    content = write_tflite(classifier())
    tensors = model_of(content).subgraphs[0].tensors
    assert list(tensors[0].shape) == [1, 6, 6, 2]
    assert list(tensors[0].shapeSignature) == [-1, 6, 6, 2]
    codes = np.random.default_rng(2).integers(-128, 128, (3, 6, 6, 2)).astype(np.int8)
    runtime = TfliteRuntime(content, kernels=kernels)
    together = runtime.run({"image": codes})[0]["probabilities"]
    alone = [runtime.run({"image": codes[k : k + 1]})[0]["probabilities"] for k in range(3)]
    assert len(np.unique(together, axis=0)) == 3
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_a_reshape_that_names_the_batch_of_one_can_be_resized() -> None:
    """The -1 moves to the axis that grows."""
    program = on_data(Reshape((1, -1)), (None, 2, 3), (None, 6))
    codes = np.arange(24, dtype=np.int8).reshape(4, 2, 3)
    outputs, _ = TfliteRuntime(program_to_tflite(program)).run({"in0": codes})
    np.testing.assert_array_equal(outputs["out0"], codes.reshape(4, 6))


def test_an_input_may_be_an_output() -> None:
    data = Tensor("codes", (2, 3), X)
    content = program_to_tflite(Program({"x": data}, {"y": data}, ()))
    codes = np.arange(6, dtype=np.int8).reshape(2, 3)
    outputs, _ = TfliteRuntime(content).run({"x": codes})
    np.testing.assert_array_equal(outputs["y"], codes)


# ---- pads and activations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "operators", "same"),
    [
        ("conv", ["CONV_2D"], False),
        ("conv_same", ["CONV_2D"], True),
        ("conv_stride_same", ["CONV_2D"], True),
        ("conv_same_upper", ["CONV_2D"], True),
        ("conv_unused_pads", ["CONV_2D"], True),
        ("conv_stride_pads_before", ["PAD", "CONV_2D"], False),
        ("conv_dilated_same", ["CONV_2D"], True),
    ],
)
def test_pads_are_named_where_they_can_be(name: str, operators: list[str], same: bool) -> None:
    content = program_to_tflite(CASES[name])
    assert operators_of(content) == operators
    assert operator_of(content, "CONV_2D").builtinOptions.padding == (0 if same else 1)


def test_only_the_pads_that_are_used_are_added() -> None:
    content = program_to_tflite(CASES["conv_stride_pads_before"])
    pads = data_of(content, input_of(content, "PAD", 1), np.int32)
    assert pads.tolist() == [[0, 0], [1, 0], [1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("bounds", "zero_point", "operators", "fused"),
    [
        (Bounds(), 0, ["CONV_2D"], 0),
        (Bounds(0), 0, ["CONV_2D"], 1),
        (Bounds(0), -128, ["CONV_2D"], 1),
        (Bounds(-1, 1), 0, ["CONV_2D"], 2),
        (Bounds(0, 6), 0, ["CONV_2D"], 3),
        (Bounds(0, 6.01), 0, ["CONV_2D"], 3),  # the same codes
        (Bounds(0, 25.5), -128, ["CONV_2D"], 0),  # the ends of the codes
        (Bounds(-100, 100), 0, ["CONV_2D"], 0),
        (Bounds(0, 5), 0, ["CONV_2D", "MAXIMUM", "MINIMUM"], 0),
        (Bounds(-2), 0, ["CONV_2D", "MAXIMUM"], 0),
        (Bounds(high=2), 0, ["CONV_2D", "MINIMUM"], 0),
    ],
)
def test_bounds(bounds: Bounds, zero_point: int, operators: list[str], fused: int) -> None:
    program = convolution((1, 5, 5, 2), (3, 3, 3, 2), (1, 3, 3, 3), bounds=bounds)
    (step,) = program.steps
    output = replace(step.outputs[0], encoding=int8(0.1, zero_point))
    content = program_to_tflite(
        replace(program, steps=(replace(step, outputs=(output,)),), outputs={"out0": output})
    )
    assert operators_of(content) == operators
    options = operator_of(content, "CONV_2D").builtinOptions
    assert options.fusedActivationFunction == fused


# ---- weights ----------------------------------------------------------------------------------


def test_a_missing_bias_is_zeros_with_the_scales_of_the_products() -> None:
    content = program_to_tflite(CASES["conv_no_bias"])
    bias = input_of(content, "CONV_2D", 2)
    weight = input_of(content, "CONV_2D", 1)
    np.testing.assert_array_equal(data_of(content, bias, np.int32), np.zeros(4))
    scales = np.asarray(weight.quantization.scale, np.float32) * np.float32(0.05)
    np.testing.assert_array_equal(np.asarray(bias.quantization.scale, np.float32), scales)
    assert bias.quantization.quantizedDimension == 0
    assert list(bias.quantization.zeroPoint) == [0] * 4


def test_depthwise_weights_have_their_channels_last() -> None:
    program = CASES["depthwise_twice"]
    stored = program.steps[0].inputs[1]
    assert stored is not None
    assert stored.data is not None
    content = program_to_tflite(program)
    weight = input_of(content, "DEPTHWISE_CONV_2D", 1)
    assert list(weight.shape) == [1, 3, 3, 6]
    assert weight.quantization.quantizedDimension == 3
    data = data_of(content, weight, np.int8)
    np.testing.assert_array_equal(data[0, 2, 1], stored.data[:, 2, 1, 0])
    assert operator_of(content, "DEPTHWISE_CONV_2D").builtinOptions.depthMultiplier == 2


def test_weights_shared_by_two_steps_are_one_tensor() -> None:
    (first,) = CONV.steps
    output = Tensor("other", first.outputs[0].shape, OUT)
    steps = (first, replace(first, name="second", outputs=(output,)))
    content = program_to_tflite(replace(CONV, steps=steps, outputs={"other": output}))
    one, two = model_of(content).subgraphs[0].operators
    assert list(one.inputs) == list(two.inputs)


def test_a_name_that_a_new_tensor_would_take_is_kept_for_its_owner() -> None:
    program = CASES["conv_stride_pads_before"]
    (step,) = program.steps
    taken = Tensor("in0_padded", (1, 6, 8, 3), X)
    steps = (replace(step, inputs=(taken, *step.inputs[1:])),)
    content = program_to_tflite(replace(program, inputs={"in0": taken}, steps=steps))
    names = [each.name for each in model_of(content).subgraphs[0].tensors]
    assert len(set(names)) == len(names)


# ---- refusals ---------------------------------------------------------------------------------


def changed(program: Program, slot: int, **fields: Any) -> Program:
    """Return a one-step program with another constant."""
    (step,) = program.steps
    inputs = list(step.inputs)
    constant = inputs[slot]
    assert constant is not None
    inputs[slot] = replace(constant, **fields)
    return program.with_steps((replace(step, inputs=tuple(inputs)),))


def wide() -> Program:
    codes = np.full((5, 7), -128, np.int8)
    return changed(CASES["fully_connected"], 1, data=codes)


def of(
    operation: Any, shape: Any, encoding: Encoding = X, result: Encoding | None = None
) -> Program:
    return on_data(operation, shape, shape, encoding, result)


def float_nodes() -> Program:
    node = ir.Node("", "LSTM", [])
    return on_data(FloatNodes((node,), (), ()), (1, 2), (1, 2))


def pool_of_two_scales() -> Program:
    pool = Pool(PoolKind.AVERAGE, (2, 2), (2, 2), ((0, 0), (0, 0)))
    return on_data(pool, (1, 4, 4, 2), (1, 2, 2, 2), X, OUT)


def uncounted_pads() -> Program:
    pool = Pool(PoolKind.AVERAGE, (3, 3), (2, 2), ((1, 0), (1, 0)))
    return on_data(pool, (1, 6, 6, 2), (1, 3, 3, 2))


def two_scales(kind: Binary) -> Program:
    return one_step(Elementwise(kind), ARITHMETIC, [((2,), X), ((2,), OUT)], [((2,), OUT)])


SYMMETRIC = Encoding(np.asarray(0.1, np.float32), np.asarray(0, np.int64), -127, 127)
VOLUME = Convolution((1,) * 3, ((0, 0),) * 3, (1,) * 3)
DEPTHWISE_UP = TransposedConvolution((1, 1), ((0, 0), (0, 0)), (1, 1), (0, 0), 2)
DILATED_UP = TransposedConvolution((1, 1), ((0, 0), (0, 0)), (2, 2), (0, 0))


def scaled(name: str, factor: float) -> Program:
    """Return a case with other scales of its activations' inputs."""
    program = CASES[name]
    (step,) = program.steps

    def coarser(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.is_constant or tensor.encoding is None:
            return tensor
        scale = (tensor.encoding.scale * np.float32(factor)).astype(np.float32)
        return replace(tensor, encoding=replace(tensor.encoding, scale=scale))

    step = replace(step, inputs=tuple(coarser(each) for each in step.inputs))
    return Program({t.name: t for t in step.activations}, program.outputs, (step,))


LIMITS: dict[str, float] = {
    "add": 0.09 / 0.05 * 2**19,
    "squared_difference": (0.4 / 0.05**2 * 2**12) ** 0.5,
    "conv_no_bias": 0.09 / (0.05 * 0.0035) * 256,
    "fully_connected_3d": 0.09 / (0.05 * 0.003) * 256,
    "hard_swish": 0.09 / 0.05 * 128,
    "softmax": 2**-26 / 0.05,
    "log_softmax": 2**-26 / 0.05,
}
"""Factors of the inputs' scales at which a kernel gives up."""


@pytest.mark.parametrize("name", LIMITS)
def test_scales_too_far_apart_are_refused(name: str) -> None:
    """LiteRT would end the process for some of them, so that only the other side is run."""
    outward = -1 if "softmax" in name else 1
    with pytest.raises(ExportError, match="too far apart"):
        program_to_tflite(scaled(name, LIMITS[name] * 1.001**outward))
    inside = scaled(name, LIMITS[name] / 1.001**outward)
    content = program_to_tflite(inside)
    for kernels in Kernels:
        TfliteRuntime(content, kernels=kernels).run(codes_for(inside))


REFUSED: dict[str, tuple[Program, str]] = {
    "uint8": (of(Reshape((1, 2)), (1, 2), uint8(0.1, 128)), "0..255"),
    "narrow": (of(Reshape((1, 2)), (1, 2), SYMMETRIC), "-127..127"),
    "by channel": (of(Reshape((1, 2)), (1, 2), int8([0.1, 0.2], axis=1)), "by channel"),
    "weight of -128": (wide(), "-128..-128 beyond -127..127"),
    "weight zero point": (
        changed(CASES["fully_connected"], 1, encoding=int8(0.003, 1)),
        "zero point",
    ),
    "weight by input": (
        changed(CASES["conv"], 1, encoding=int8([0.1, 0.2, 0.3], axis=3)),
        "along axis 3",
    ),
    "bias scale": (
        changed(CASES["fully_connected"], 2, encoding=int32(0.004)),
        "data times weight",
    ),
    "softmax": (of(Softmax(1), (1, 4), X, OUT), "scale 0.0900000036 and zero point -11"),
    "log_softmax": (of(Softmax(1, log=True), (1, 4), X, OUT), "0.0625 and 127"),
    "sigmoid": (of(Function(Unary.SIGMOID), (1, 4), X, OUT), "0.00390625 and -128"),
    "tanh": (of(Function(Unary.TANH), (1, 4), X, OUT), "0.0078125 and 0"),
    "average": (pool_of_two_scales(), "differ in scale"),
    "minimum": (two_scales(Binary.MINIMUM), "differ in scale"),
    "linear": (
        on_data(Resize(ResizeMode.LINEAR, (2, 2)), (1, 1, 1, 2), (1, 2, 2, 2), X, OUT),
        "differ in scale",
    ),
    "uncounted pads": (uncounted_pads(), "neither SAME nor VALID"),
    "volumes": (
        weighted(VOLUME, (1, 4, 4, 4, 2), (2, 1, 1, 1, 2), (1, 4, 4, 4, 2)),
        "not 3",
    ),
    "grouped up": (
        weighted(DEPTHWISE_UP, (1, 4, 4, 2), (2, 1, 1, 1), (1, 4, 4, 2)),
        "no groups",
    ),
    "dilated up": (
        weighted(DILATED_UP, (1, 4, 4, 2), (2, 1, 1, 2), (1, 4, 4, 2)),
        "no dilations",
    ),
    "division": (two_scales(Binary.DIV), "in float only"),
    "erf": (of(Function(Unary.ERF), (1, 4)), "no operator for erf"),
    "reciprocal": (of(Function(Unary.RECIPROCAL), (1, 4)), "no operator for reciprocal"),
    "elu": (of(Function(Unary.ELU, 0.5), (1, 4)), "alpha of 0.5"),
    "float nodes": (float_nodes(), "LSTM"),
    "negative pads": (on_data(Pad(((0, 0), (-1, 0))), (1, 4), (1, 3)), "negative pads"),
    "axes": (of(BatchMatMul(), (1,) * 6), "6 axes"),
    "open axes": (of(Softmax(2), (None, None, 4), X, int8(1 / 256, -128)), "[?, ?, 4]"),
    "slope by channel": (
        changed(CASES["prelu"], 1, encoding=int8([0.1, 0.2, 0.3], axis=2)),
        "by channel",
    ),
    "slope of int32": (changed(CASES["prelu"], 1, encoding=int32(0.1)), "int32, not int8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_tflite_cannot_hold_is_refused(name: str) -> None:
    program, reason = REFUSED[name]
    with pytest.raises(ExportError, match=r"--keep-float") as caught:
        program_to_tflite(program)
    assert reason in str(caught.value)
    assert any(reason in each.reason for each in tflite_refusals(program))


def test_every_refusal_is_listed() -> None:
    first, second = REFUSED["softmax"][0], REFUSED["weight of -128"][0]
    steps = (replace(first.steps[0], name="one"), CONV.steps[0], second.steps[0])
    program = Program(first.inputs, first.outputs, steps)
    assert [each.step for each in tflite_refusals(program)] == ["one", "step"]
    with pytest.raises(ExportError, match=r"one: .*; step: .*-128\.\.-128"):
        program_to_tflite(program)


def test_many_refusals_are_counted() -> None:
    step = REFUSED["softmax"][0].steps[0]
    program = Program({}, {}, tuple(replace(step, name=f"s{k}") for k in range(30)))
    with pytest.raises(ExportError, match=r"30 things.*and 22 more"):
        program_to_tflite(program)


def test_codes_are_rescaled_before_they_are_moved() -> None:
    assert operators_of(program_to_tflite(CASES["concat_rescaled"])) == [
        "QUANTIZE",
        "QUANTIZE",
        "CONCATENATION",
    ]


def test_a_slope_may_have_the_range_of_weights() -> None:
    program = changed(CASES["prelu"], 1, encoding=SYMMETRIC)
    assert isinstance(program.steps[0].operation, PRelu)
    TfliteRuntime(program_to_tflite(program))


def test_per_channel_products_have_the_version_that_knows_them() -> None:
    (code,) = model_of(program_to_tflite(CASES["fully_connected_per_channel"])).operatorCodes
    assert code.version == 12


def test_a_transposed_convolution_of_an_open_batch_runs_sample_by_sample() -> None:
    program = transposed((None, 3, 4, 3), (2, 2, 2, 3), (None, 6, 8, 2), 2, (0, 0))
    codes = np.random.default_rng(0).integers(-128, 128, (3, 3, 4, 3)).astype(np.int8)
    runtime = TfliteRuntime(program_to_tflite(program))
    together = runtime.run({"in0": codes})[0]["out0"]
    alone = [runtime.run({"in0": codes[k : k + 1]})[0]["out0"] for k in range(3)]
    assert together.shape == (3, 6, 8, 2)
    np.testing.assert_array_equal(together, np.concatenate(alone))

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from ai_edge_litert import schema_py_generated as schema

from intact.errors import MissingExtraError
from intact.formats.base.format import Io
from intact.formats.tflite.run import Kernels, TfliteRuntime
from intact.formats.tflite.write import program_to_tflite, write_tflite
from intact.program import Program, Tensor
from intact.program.operations import (
    Reshape,
)
from tests.formats.tflite.cases import (
    CASES,
    OUT,
    X,
    codes_for,
    on_data,
    transposed,
)
from tests.formats.tflite.classifier import classifier
from tests.formats.tflite.files import data_of, input_of, model_of, operator_of, operators_of

CONV = CASES["conv_relu"]


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
    (first,) = CONV.steps
    weight = first.inputs[1]
    assert weight is not None
    output = Tensor("other", first.outputs[0].shape, OUT)
    inputs = (first.inputs[0], replace(weight, name="copy"), *first.inputs[2:])
    steps = (first, replace(first, name="second", inputs=inputs, outputs=(output,)))
    model = model_of(program_to_tflite(CONV.with_steps(steps)))
    places = {t.name: t.buffer for t in model.subgraphs[0].tensors}
    assert places[b"copy"] == places[weight.name.encode()] > 0
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
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[tflite\]"'):
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
    content = program_to_tflite(program)
    assert data_of(content, input_of(content, "RESHAPE", 1), np.int32).tolist() == [-1, 6]
    outputs, _ = TfliteRuntime(content).run({"in0": codes})
    np.testing.assert_array_equal(outputs["out0"], codes.reshape(4, 6))


def test_an_input_may_be_an_output() -> None:
    data = Tensor("codes", (2, 3), X)
    content = program_to_tflite(Program({"x": data}, {"y": data}, ()))
    codes = np.arange(6, dtype=np.int8).reshape(2, 3)
    outputs, _ = TfliteRuntime(content).run({"x": codes})
    np.testing.assert_array_equal(outputs["y"], codes)


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
    taken = replace(step.outputs[0], name="in0_padded")
    steps = (replace(step, outputs=(taken,)),)
    content = program_to_tflite(replace(program, outputs={"out": taken}, steps=steps))
    names = [each.name for each in model_of(content).subgraphs[0].tensors]
    assert len(set(names)) == len(names)
    outputs, _ = TfliteRuntime(content).run(codes_for(program))
    plain, _ = TfliteRuntime(program_to_tflite(program)).run(codes_for(program))
    np.testing.assert_array_equal(outputs["out"], plain["out0"])


def test_codes_are_rescaled_before_they_are_moved() -> None:
    assert operators_of(program_to_tflite(CASES["concat_rescaled"])) == [
        "QUANTIZE",
        "QUANTIZE",
        "CONCATENATION",
    ]


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

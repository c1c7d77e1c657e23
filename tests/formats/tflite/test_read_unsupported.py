"""What cannot be read is listed whole, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from intact.errors import ModelError
from intact.formats.tflite.read import read_tflite
from intact.targets import Target, load_target
from tests.formats.tflite.read_layers import SAME, VALID, conv, dense
from tests.formats.tflite.small_files import FileBuilder

TARGET = load_target("tflite")
SHAPE = (1, 4, 4, 2)

Make = Callable[[FileBuilder], int]


def _image(b: FileBuilder, kind: str = "int8", **more: Any) -> int:
    return b.input(SHAPE, kind, **({"scale": 0.05} | more))


def _refusal(data: bytes, target: Target = TARGET) -> str:
    with pytest.raises(ModelError) as caught:
        read_tflite(data, target)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_all_operators_are_listed_and_not_those_behind_them() -> None:
    b = FileBuilder()
    x = _image(b)
    first = b.op("SVDF", [x], b.tensor(SHAPE))
    behind = b.op("LOGISTIC", [first], b.tensor(SHAPE, scale=1 / 256, zero=-128))
    second = b.op("SVDF", [x], b.tensor(SHAPE))
    third = b.op("SOFTMAX", [x], b.tensor(SHAPE), "SoftmaxOptions", beta=2.0)
    message = _refusal(b.build(behind, second, third))
    assert "3 of 4 operators cannot be read" in message
    assert "SVDF (0, 2): operators of this kind are not read" in message
    assert "SOFTMAX (3): its beta is 2" in message
    assert "LOGISTIC" not in message


def test_custom_operators_are_called_by_their_name() -> None:
    b = FileBuilder()
    out = b.op("CUSTOM", [_image(b)], b.tensor(SHAPE))
    b.model.operatorCodes[0].customCode = "TFLite_Detection_PostProcess"
    assert "CUSTOM TFLite_Detection_PostProcess (0)" in _refusal(b.build(out))


def _hybrid_uint8(b: FileBuilder) -> int:
    x = b.input(SHAPE, "float32")
    weight = b.codes((3, 1, 1, 2), "uint8", scale=0.02, zero=128)
    fields = {"padding": SAME, "strideH": 1, "strideW": 1}
    out = b.tensor((1, 4, 4, 3), "float32")
    fields |= {"dilationHFactor": 1, "dilationWFactor": 1}
    return b.op("CONV_2D", [x, weight, -1], out, "Conv2DOptions", **fields)


def _sixteen_bits(b: FileBuilder) -> int:
    return b.op("LOGISTIC", [_image(b, "int16")], b.tensor(SHAPE, "int16", scale=1 / 32768))


def _top_of_too_many(b: FileBuilder) -> int:
    outputs = [b.tensor((1, 4, 4, 3), scale=0.05), b.tensor((1, 4, 4, 3), "int32", None)]
    return b.op("TOPK_V2", [_image(b), b.ints(3, shape=())], outputs, "TopKV2Options")


def _sums_of_codes(b: FileBuilder) -> int:
    out = b.tensor(SHAPE, scale=0.05)
    return b.op("CUMSUM", [_image(b), b.ints(1, shape=())], out, "CumsumOptions")


def _place_outside(b: FileBuilder) -> int:
    places = b.ints(0, -1, shape=(1, 2))
    return b.op("GATHER_ND", [_image(b), places], b.tensor((1, 4, 2), scale=0.05))


def _codes_added(b: FileBuilder) -> int:
    places, out = b.ints(1, 1, shape=(2, 1)), b.tensor((3, 2), scale=0.05)
    return b.op("SCATTER_ND", [places, b.input((2, 2), scale=0.05), b.ints(3, 2)], out)


def _powers_of_codes(b: FileBuilder) -> int:
    out = b.tensor(SHAPE, scale=0.05)
    return b.op("POW", [_image(b), b.codes(SHAPE, scale=0.05)], out, "PowOptions")


def _choice_of_scales(b: FileBuilder) -> int:
    mask = b.tensor(SHAPE, "bool", data=np.ones(SHAPE))
    out = b.tensor(SHAPE, scale=0.07)
    return b.op("SELECT_V2", [mask, _image(b), b.codes(SHAPE, scale=0.05)], out)


def _operand_left_out(b: FileBuilder) -> int:
    mask = b.tensor(SHAPE, "bool", data=np.ones(SHAPE))
    return b.op("SELECT_V2", [mask, _image(b)], b.tensor(SHAPE, scale=0.05))


def _choice_of_types(b: FileBuilder) -> int:
    mask = b.tensor((4,), "bool", data=np.ones(4))
    inputs = [mask, b.input((1, 4), "int32", scale=None), b.input((1, 4), "float32")]
    return b.op("SELECT_V2", inputs, b.tensor((1, 4), "float32"))


def _conditions_of_numbers(b: FileBuilder) -> int:
    x = b.input((1, 4), "float32")
    return b.op("LOGICAL_AND", [x, x], b.tensor((1, 4), "float32"))


def _row_outside(b: FileBuilder) -> int:
    _image(b)
    rows = b.codes((4, 2), scale=0.05)
    return b.op("EMBEDDING_LOOKUP", [b.ints(4), rows], b.tensor((1, 2), scale=0.05))


def _table_with_zero_points(b: FileBuilder) -> int:
    ids = b.input((1,), "int32", scale=None)
    rows = b.codes((4, 2), scale=0.05, zero=3)
    return b.op("EMBEDDING_LOOKUP", [ids, rows], b.tensor((1, 2), "float32"))


def _gathered_by_sample(b: FileBuilder) -> int:
    places, out = b.ints(0, shape=(1, 1)), b.tensor((1, 4, 1, 2), scale=0.05)
    return b.op("GATHER", [_image(b), places], out, "GatherOptions", axis=2, batchDims=1)


def _sparse_like(b: FileBuilder) -> int:
    from ai_edge_litert import schema_py_generated as schema

    out = conv(b, _image(b), (1, 4, 4, 3))
    b.graph.tensors[1].sparsity = schema.SparsityParametersT()
    return out


def _sparse(change: Callable[[Any], None]) -> Make:
    def make(b: FileBuilder) -> int:
        sparse = b.sparse([[1, 0, 2, 0], [0, 0, 3, 4]], scale=0.05)
        change(b.graph.tensors[sparse].sparsity)
        full = b.op("DENSIFY", [sparse], b.tensor((2, 4)), "DensifyOptions")
        x = b.input((1, 4))
        return b.op("FULLY_CONNECTED", [x, full], b.tensor((1, 2)), "FullyConnectedOptions")

    return make


def _set_indices(*numbers: int) -> Callable[[Any], None]:
    def change(sparsity: Any) -> None:
        sparsity.dimMetadata[1].arrayIndices.values = np.array(numbers, np.uint8)

    return change


def _set_segments(*numbers: int) -> Callable[[Any], None]:
    def change(sparsity: Any) -> None:
        sparsity.dimMetadata[1].arraySegments.values = np.array(numbers, np.int32)

    return change


def _set_length(sparsity: Any) -> None:
    sparsity.dimMetadata[0].denseSize = 1 << 30


def _computed_weight(b: FileBuilder) -> int:
    x = _image(b)
    weight = b.op("RESHAPE", [x], b.tensor((16, 2), scale=0.05))
    row = b.input((1, 2), scale=0.05)
    return b.op("FULLY_CONNECTED", [row, weight], b.tensor((1, 16)), "FullyConnectedOptions")


def _moved_scale(b: FileBuilder) -> int:
    return b.op("RESHAPE", [_image(b)], b.tensor((1, 32), scale=0.06))


def _float_bias(b: FileBuilder) -> int:
    out = conv(b, _image(b), (1, 4, 4, 3), biased=False)
    operator = b.graph.operators[-1]
    bias = b.tensor((3,), "float32", data=[1, 2, 3])
    operator.inputs = [*operator.inputs[:2], bias]
    return out


def _short_weight(b: FileBuilder) -> int:
    out = conv(b, _image(b), (1, 4, 4, 3))
    b.model.buffers[1].data = b.model.buffers[1].data[:-1]
    return out


def _wrong_axis(b: FileBuilder) -> int:
    out = conv(b, _image(b), (1, 4, 4, 3))
    b.graph.tensors[1].quantization.quantizedDimension = 1
    return out


def _wrong_scale_count(b: FileBuilder) -> int:
    out = conv(b, _image(b), (1, 4, 4, 3))
    b.graph.tensors[1].quantization.scale = np.array([0.1, 0.2], np.float32)
    b.graph.tensors[1].quantization.zeroPoint = np.array([0, 0], np.int64)
    return out


def _zero_point_count(b: FileBuilder) -> int:
    out = conv(b, _image(b), (1, 4, 4, 3))
    b.graph.tensors[1].quantization.zeroPoint = np.array([0, 0], np.int64)
    return out


def _scale(value: float) -> Make:
    def make(b: FileBuilder) -> int:
        return conv(b, _image(b), (1, 4, 4, 3), scale=value)

    return make


def _zero_point(b: FileBuilder) -> int:
    return conv(b, _image(b), (1, 4, 4, 3), zero=200)


def _no_scale(b: FileBuilder) -> int:
    return b.op("TANH", [_image(b)], b.tensor(SHAPE, scale=None))


def _stride(b: FileBuilder) -> int:
    return conv(b, _image(b), (1, 4, 4, 3), stride=0)


def _wrong_windows(b: FileBuilder) -> int:
    return conv(b, _image(b), (1, 3, 3, 3), padding=VALID, kernel=(3, 3, 0))


def _twice(b: FileBuilder) -> int:
    x = _image(b)
    out = b.op("TANH", [x], b.tensor(SHAPE, scale=1 / 128))
    return b.op("TANH", [x], out)


def _too_early(b: FileBuilder) -> int:
    later = b.tensor(SHAPE)
    out = b.op("ADD", [_image(b), later], b.tensor(SHAPE), "AddOptions")
    b.op("TANH", [out], later)
    return out


def _negative_size(b: FileBuilder) -> int:
    return b.op("TANH", [_image(b)], b.tensor((1, -4, 4, 2)))


def _huge(b: FileBuilder) -> int:
    return b.op("TANH", [_image(b)], b.tensor((1, 2**30, 2**30, 2)))


def _computed_axes(b: FileBuilder) -> int:
    axes = b.input((2,), "int32", scale=None)
    return b.op("MEAN", [_image(b), axes], b.tensor((1, 2)), "ReducerOptions")


def _fused(b: FileBuilder) -> int:
    return conv(b, _image(b), (1, 4, 4, 3), fused=4)


def _does_not_broadcast(b: FileBuilder) -> int:
    return b.op("ADD", [_image(b), b.codes((3,))], b.tensor(SHAPE), "AddOptions")


def _variable(b: FileBuilder) -> int:
    x = _image(b)
    b.graph.tensors[x].isVariable = False
    out = b.tensor(SHAPE, scale=1 / 128)
    b.graph.tensors[out].isVariable = True
    return b.op("TANH", [x], out)


def _elsewhere(b: FileBuilder) -> int:
    out = conv(b, _image(b), (1, 4, 4, 3))
    b.graph.tensors[1].externalBuffer = 1
    return out


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_hybrid_uint8, "mixes float tensors with integer ones"),
        (_top_of_too_many, "it takes 3 of [1, 4, 4, 2]"),
        (_sums_of_codes, "it sums codes"),
        (_place_outside, "an index lies outside its axis"),
        (_codes_added, "it adds codes or conditions, as places are equal"),
        (_powers_of_codes, "it computes with codes, which is not read"),
        (_choice_of_scales, "another scale than its input, which it only moves"),
        (_operand_left_out, "its input 2 is absent"),
        (_choice_of_types, "it takes bool, int32, float32 and gives float32"),
        (_conditions_of_numbers, "it takes float32, float32 and gives float32"),
        (_row_outside, "an index lies outside its axis"),
        (_table_with_zero_points, "its table has zero points"),
        (_gathered_by_sample, "it gathers along another axis than the first behind those"),
        (_sparse_like, "a sparse tensor: its order of axes is []"),
        (_sparse(_set_indices(0, 2, 2, 9)), "an index of axis 1 lies outside it"),
        (_sparse(_set_indices(0, 2, 2)), "its segments do not fit its indices"),
        (_sparse(_set_segments(0, 5, 4)), "its segments do not fit its indices"),
        (_sparse(_set_segments(0, 4)), "its segments do not fit its indices"),
        (_sparse(_set_length), "axis 0 has 1073741824 places"),
        (_computed_weight, "its weight is computed"),
        (_moved_scale, "another scale than its input, which it only moves"),
        (_float_bias, "mixes float tensors"),
        (_short_weight, "has 53 bytes, not 54"),
        (_wrong_axis, "do not lie along its output channels"),
        (_wrong_scale_count, "2 scales along axis 0"),
        (_zero_point_count, "3 scales and 2 zero points"),
        (_scale(0.0), "not positive and finite"),
        (_scale(-1.0), "not positive and finite"),
        (_scale(float("nan")), "not positive and finite"),
        (_scale(float("inf")), "not positive and finite"),
        (_zero_point, "is no code of its type"),
        (_no_scale, "integers without a scale"),
        (_stride, "its stride_h and stride_w are [0, 0]"),
        (_wrong_windows, "its windows give 2 elements where its output has 3"),
        (_twice, "is there already"),
        (_too_early, "is read before it is computed"),
        (_negative_size, "its shape is [1, -4, 4, 2]"),
        (_huge, "its shape is"),
        (_computed_axes, "is computed"),
        (_fused, "its fused activation is TANH"),
        (_does_not_broadcast, "operands [1, 4, 4, 2] and [3] do not give [1, 4, 4, 2]"),
        (_variable, "keeps its value from one run to the next"),
        (_elsewhere, "in another file"),
    ],
)
def test_unsupported_operators_have_a_reason(make: Make, says: str) -> None:
    b = FileBuilder()
    assert says in _refusal(b.build(make(b)))


def test_inputs_of_a_kind_that_is_not_read() -> None:
    b = FileBuilder()
    out = b.op("LOGISTIC", [_image(b, "uint16")], b.tensor(SHAPE, "uint16"))
    assert "an input: tensor 't0' is uint16" in _refusal(b.build(out))


def test_widths_are_those_of_the_target() -> None:
    b = FileBuilder()
    content = b.build(_sixteen_bits(b))
    assert "its codes have 16 bits, those of the target 8: try target tflite-16x8" in _refusal(
        content
    )
    wide = load_target("tflite-16x8")
    assert read_tflite(content, wide).decisions
    b = FileBuilder()
    narrow = b.op("LOGISTIC", [_image(b)], b.tensor(SHAPE, scale=1 / 256, zero=-128))
    assert "its codes have 8 bits" in _refusal(b.build(narrow), wide)


def _wide_of_other_form(b: FileBuilder) -> int:
    return b.op("HARD_SWISH", [_image(b, "int16")], b.tensor(SHAPE, "int16"), "HardSwishOptions")


def _wide_zero_point(b: FileBuilder) -> int:
    return b.op("TANH", [_image(b, "int16")], b.tensor(SHAPE, "int16", zero=3))


def _wide_shifts(b: FileBuilder) -> int:
    x = _image(b, "int16", scale=0.5)
    return b.op("ADD", [x, x], b.tensor(SHAPE, "int16", 0.5), "AddOptions", potScaleInt16=True)


def _wide_slopes(b: FileBuilder) -> int:
    slopes = b.tensor((2,), "int16", 0.001, data=[1, 2])
    return b.op("PRELU", [_image(b, "int16"), slopes], b.tensor(SHAPE, "int16"))


def _wide_bias(size: int, kind: str) -> Make:
    def make(b: FileBuilder) -> int:
        x, weight = b.input((1, 4), "int16", scale=0.05), b.codes((2, 4))
        bias = b.tensor((2,), kind, data=[size, 0])
        out = b.tensor((1, 2), "int16")
        return b.op("FULLY_CONNECTED", [x, weight, bias], out, "FullyConnectedOptions")

    return make


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_wide_of_other_form, "HARD_SWISH (0): its int16 form is not read"),
        (_wide_zero_point, "is int16 with a zero point"),
        (_wide_shifts, "it shifts int16 codes, as all scales are powers of two"),
        (_wide_slopes, "its slopes are int16"),
        (_wide_bias(1, "int32"), "its bias is int32"),
        (_wide_bias(1 << 50, "int64"), "its bias leaves the 48 bits of the kernels' sums"),
        (_wide_bias(-(1 << 63), "int64"), "its bias leaves the 48 bits of the kernels' sums"),
    ],
)
def test_unsupported_int16_operators_have_a_reason(make: Make, says: str) -> None:
    b = FileBuilder()
    assert says in _refusal(b.build(make(b)), load_target("tflite-16x8"))


def test_a_float_model_is_not_quantized() -> None:
    b = FileBuilder()
    out = b.op("TANH", [b.input(SHAPE, "float32")], b.tensor(SHAPE, "float32"))
    assert "the model is not quantized" in _refusal(b.build(out))


def test_nearly_equal_scales_are_one() -> None:
    b = FileBuilder()
    out = b.op("RESHAPE", [_image(b)], b.tensor((1, 32), scale=0.05 * (1 + 1e-6)))
    read_tflite(b.build(out), TARGET)


def test_a_shared_weight_is_read_once_however_often() -> None:
    b = FileBuilder()
    x = b.input((1, 64), scale=0.05)
    first = dense(b, x, (1, 64))
    weight = b.graph.operators[0].inputs[1]
    for _ in range(50):
        first = dense(b, first, (1, 64))
        b.graph.operators[-1].inputs[1] = weight
    plan = read_tflite(b.build(first), TARGET)
    shapes = [value.shape for value in plan.graph.model.graph.initializers.values()]
    assert sum(str(shape) == "[64,64]" for shape in shapes) == 1


def test_constants_that_share_their_data_do_not_take_memory() -> None:
    b = FileBuilder()
    x = b.input((1, 1000), scale=0.05)
    out = dense(b, x, (1, 1000))
    weight = b.graph.operators[0].inputs[1]
    for _ in range(40):
        copy = b.tensor((1000, 1000), scale=0.02)
        b.graph.tensors[copy].buffer = b.graph.tensors[weight].buffer
        out = dense(b, out, (1, 1000))
        b.graph.operators[-1].inputs[1] = copy
    for tensor in b.graph.tensors:
        if tensor.shape == [1000, 1000] and tensor.buffer != b.graph.tensors[weight].buffer:
            tensor.buffer = b.graph.tensors[weight].buffer
    used = {0, *(tensor.buffer for tensor in b.graph.tensors)}
    for number, buffer in enumerate(b.model.buffers):
        if number not in used:
            buffer.data = None
    assert "share their data too often" in _refusal(b.build(out))


def test_a_long_chain_of_reshapes_is_read() -> None:
    b = FileBuilder()
    x = _image(b)
    shape = b.ints(1, 32)
    for _ in range(1500):
        x = b.op("RESHAPE", [x, shape], b.tensor((1, 32), scale=0.05))
    assert len(read_tflite(b.build(x), TARGET).graph.nodes) == 1500


def test_lists_that_many_operators_share_take_no_time() -> None:
    b = FileBuilder()
    x = b.input((1, 2), scale=0.05)
    long = b.ints(*[1] * 50_000)
    outputs = [b.op("TILE", [x, long], b.tensor((1, 2), scale=0.05)) for _ in range(40)]
    assert "share their data too often" in _refusal(b.build(*outputs))

"""Floats behind integers that several nodes read come out right in OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from intact.formats.openvino.run import OpenVinoRuntime
from intact.formats.openvino.write import OpenVinoModel, write_openvino
from intact.numerics.metrics import sqnr_db
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import calibrated

PRODUCTS: dict[str, Callable[[ModelBuilder, str], str]] = {
    "Conv": lambda b, x: b.node("Conv", x, b.weight(4, 4, 3, 3)),
    "zeros as bias": lambda b, x: b.node(
        "Conv", x, b.weight(4, 4, 3, 3), b.constant(np.zeros(4, np.float32))
    ),
    "ConvTranspose": lambda b, x: b.node("ConvTranspose", x, b.weight(4, 4, 3, 3)),
    "Mul": lambda b, x: b.node("Mul", b.node("Conv", x, b.weight(4, 4, 1, 1)), b.scalar(2)),
}
READERS: dict[str, Callable[[ModelBuilder, str], str]] = {
    "Relu": lambda b, y: b.node("Relu", y),
    "GlobalAveragePool": lambda b, y: b.node("GlobalAveragePool", y),
    "Sub": lambda b, y: b.node("Sub", y, b.scalar(0.3)),
    "Floor": lambda b, y: b.node("Floor", y),
}


def written(b: ModelBuilder, results: list[str]) -> tuple[OpenVinoModel, dict[str, np.ndarray]]:
    """What is written of a model with these results, and what the float model gives.

    Sums of the target never saturate, on any processor.
    """
    for result in results:
        b.output(result)
    model = b.build()
    return write_openvino(calibrated(model, "openvino-avx2")), run_model(
        model, random_inputs(model)
    )


def assert_agrees(
    b: ModelBuilder, model: OpenVinoModel, expected: dict[str, np.ndarray], folder: Path
) -> None:
    model.save(folder)
    runtime = OpenVinoRuntime(folder / "model.fq.onnx", threads=1)
    outputs, _ = runtime.run(random_inputs(b.build()))
    for name, array in expected.items():
        # -64 to 9 dB where it is wrong; the next integer by Floor costs most of the rest
        assert sqnr_db(array, outputs[name]) > (12 if name.startswith("floor") else 25), name


def kept(model: OpenVinoModel) -> int:
    return sum(node.op_type == "Max" for node in model.model.graph)


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_reader_gets_the_result_once_multiplied(product: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    y = PRODUCTS[product](b, b.input("image", ["batch", 4, 8, 8]))
    model, expected = written(b, [make(b, y) for make in READERS.values()])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


def test_a_product_of_two_activations_is_once_multiplied() -> None:
    """Where such products are integers: with AVX2 alone their pairs would saturate."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    y = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 1, 3, 2]))
    for make in READERS.values():
        b.output(make(b, y))
    assert kept(write_openvino(calibrated(b.build(), "openvino"))) == 1


TWICE: dict[str, Callable[[ModelBuilder, str], str]] = {
    "Celu": lambda b, y: b.node("Celu", y, alpha=0.5),
    "ReduceSumSquare": lambda b, y: b.node("ReduceSumSquare", y, axes=[2]),
    "ReduceLogSumExp": lambda b, y: b.node("ReduceLogSumExp", y),
    "MeanVarianceNormalization": lambda b, y: b.node("MeanVarianceNormalization", y, axes=[2, 3]),
}


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("reader", TWICE)
def test_an_operator_that_reads_twice_gets_the_result_once_multiplied(
    reader: str, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    y = PRODUCTS["Conv"](b, b.input("image", ["batch", 4, 8, 8]))
    model, expected = written(b, [TWICE[reader](b, y)])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


REDUCED: dict[str, Callable[[ModelBuilder, str], str]] = {
    "ReduceSum": lambda b, y: b.node("ReduceSum", y, b.ints(2), keepdims=0),
    "ReduceMax": lambda b, y: b.node("ReduceMax", y, axes=[2]),
    "ReduceMin": lambda b, y: b.node("ReduceMin", y, axes=[2], keepdims=0),
    "ReduceMean": lambda b, y: b.node("ReduceMean", b.node("Relu", y), axes=[2]),
    "Transpose": lambda b, y: b.node(
        "ReduceSum", b.node("Transpose", y, perm=[0, 2, 1]), b.ints(1), keepdims=0
    ),
    "MaxPool": lambda b, y: b.node(
        "ReduceSum", b.node("MaxPool", y, kernel_shape=[2]), b.ints(2), keepdims=0
    ),
}


@pytest.mark.crossed
@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("reader", REDUCED)
@pytest.mark.parametrize("product", ["Conv", "ConvTranspose"])
def test_reduced_rows_have_their_scales(product: str, reader: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    x = b.input("rows", ["batch", 4, 8])
    model, expected = written(b, [REDUCED[reader](b, b.node(product, x, b.weight(4, 4, 3)))])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


ROWS: dict[str, Callable[[ModelBuilder, str], str]] = {
    "ReduceMin": lambda b, y: b.node("ReduceMin", y, axes=[2], keepdims=0),
    "ReduceMax": lambda b, y: b.node("ReduceMax", y, axes=[2], keepdims=0),
    "ReduceL2": lambda b, y: b.node("ReduceL2", y, axes=[2], keepdims=0),
    "ReduceProd": lambda b, y: b.node("ReduceProd", y, axes=[2], keepdims=0),
    "keepdims": lambda b, y: b.node("ReduceMean", y, axes=[2], keepdims=1),
    "GlobalAveragePool": lambda b, y: b.node("GlobalAveragePool", y),
}


@pytest.mark.crossed
@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("reduction", ROWS)
@pytest.mark.parametrize("behind", ["Mul", "Add"])
@pytest.mark.parametrize("convolution", ["before", "beside"])
def test_reduced_rows_keep_their_places(
    reduction: str, behind: str, convolution: str, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    x = b.input("rows", ["batch", 4, 8])
    y = b.node("Conv", x, b.weight(4, 4, 3), b.weight(4))
    is_before = convolution == "before"
    reduced = ROWS[reduction](b, b.node("Tanh", y if is_before else x))
    constant = b.weight(4, 1) if reduction in ("keepdims", "GlobalAveragePool") else b.weight(4)
    result = b.node(behind, reduced, constant)
    model, expected = written(b, [result] if is_before else [y, result])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


BY_CHANNEL: dict[str, Callable[[ModelBuilder, str], str]] = {
    "Add": lambda b, y: b.node("Add", y, b.weight(4, 1)),
    "Mul": lambda b, y: b.node("Mul", y, b.weight(4, 1)),
    "PRelu": lambda b, y: b.node("PRelu", y, b.weight(4, 1)),
    "Mul behind": lambda b, y: b.node(
        "Mul", b.node("Add", y, b.constant(np.float32(2))), b.weight(4, 1)
    ),
    "BatchNormalization": lambda b, y: b.node(
        "BatchNormalization",
        y,
        *(b.constant(b.random.uniform(0.5, 2, 4).astype(np.float32)) for _ in range(4)),
    ),
}


@pytest.mark.crossed
@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("reduction", ["keepdims", "GlobalAveragePool"])
@pytest.mark.parametrize("behind", BY_CHANNEL)
def test_reduced_rows_keep_their_places_without_a_convolution(
    reduction: str, behind: str, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    reduced = ROWS[reduction](b, b.input("rows", ["batch", 4, 8]))
    model, expected = written(b, [BY_CHANNEL[behind](b, reduced)])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


def test_reduced_rows_that_are_scaled_all_alike_need_nothing() -> None:
    b = ModelBuilder()
    x = b.input("rows", ["batch", 4, 8])
    mean = b.node("ReduceMean", x, axes=[2], keepdims=1)
    scaled = b.node("Mul", mean, b.constant(np.float32(2)))
    centred = b.node("Mul", b.node("Sub", x, mean), b.weight(4, 1))
    model, _ = written(b, [scaled, centred])
    assert kept(model) == 0


def test_rows_with_a_bias_or_a_quantizer_need_nothing() -> None:
    b = ModelBuilder()
    x = b.input("rows", ["batch", 4, 8])
    biased = b.node("Conv", x, b.weight(4, 4, 3), b.weight(4))
    between = b.node("Conv", b.node("Conv", x, b.weight(4, 4, 3)), b.weight(4, 4, 3), b.weight(4))
    model, _ = written(b, [b.node("ReduceMax", y, axes=[2]) for y in (biased, between)])
    assert kept(model) == 0


def test_a_bias_or_a_single_reader_needs_nothing() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    once = b.node("Relu", b.node("Conv", x, b.weight(4, 4, 3, 3)))
    biased = b.node("Conv", x, b.weight(4, 4, 3, 3), b.weight(4))
    dense = b.node("MatMul", x, b.weight(8, 8))
    readers = [make(b, y) for y in (biased, dense) for make in READERS.values()]
    model, _ = written(b, [once, *readers])
    assert kept(model) == 0


EXTREMES: dict[str, Callable[[ModelBuilder, str], str]] = {
    "ReduceMax": lambda b, x: b.node("ReduceMax", x, axes=[2], keepdims=1),
    "ReduceMin": lambda b, x: b.node("ReduceMin", x, axes=[2], keepdims=1),
    "GlobalMaxPool": lambda b, x: b.node("GlobalMaxPool", x),
    "Abs behind": lambda b, x: b.node("Abs", b.node("ReduceMin", x, axes=[2], keepdims=1)),
}


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("extreme", EXTREMES)
def test_the_quantizer_behind_an_extreme_is_not_fused_with_it(extreme: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    y = EXTREMES[extreme](b, b.input("image", ["batch", 4, 8, 8]))
    model, expected = written(b, [b.node("Conv", y, b.weight(4, 4, 1, 1))])
    model.save(tmp_path)
    runtime = OpenVinoRuntime(tmp_path / "model.fq.onnx", threads=1)
    outputs, _ = runtime.run(random_inputs(b.build()))
    for name, array in expected.items():
        assert sqnr_db(array, outputs[name]) > 30
    assert kept(model) == 1


SIGNS = np.array([0.56, -0.19, 0.64, -1.82], np.float32).reshape(4, 1, 1)
ZEROS, ONES = np.zeros(4, np.float32), np.ones(4, np.float32)


def turned(b: ModelBuilder, x: str) -> str:
    return b.node("Mul", x, b.constant(SIGNS))


def normalized(b: ModelBuilder, x: str, bias: np.ndarray) -> str:
    arrays = (SIGNS.ravel(), bias, ZEROS, ONES)
    return b.node("BatchNormalization", x, *(b.constant(array) for array in arrays))


TURNS: dict[str, Callable[[ModelBuilder, str], str]] = {
    "Mul": turned,
    "Div": lambda b, x: b.node("Div", x, b.constant(SIGNS)),
    "BatchNormalization": lambda b, x: normalized(b, x, ZEROS),
    "Neg before": lambda b, x: b.node("Mul", b.node("Neg", x), b.constant(np.abs(SIGNS))),
    "Neg behind": lambda b, x: b.node("Neg", b.node("Mul", x, b.constant(np.abs(SIGNS)))),
    "Add behind": lambda b, x: b.node("Add", turned(b, x), b.scalar(0.5)),
    "Transpose behind": lambda b, x: b.node("Transpose", turned(b, x), perm=[0, 1, 3, 2]),
    "Relu behind": lambda b, x: b.node("Relu", turned(b, x)),
    "Concat behind": lambda b, x: b.node("Concat", turned(b, x), b.node("Exp", x), axis=1),
}


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("turn", TURNS)
def test_each_channel_is_multiplied_by_its_own_number(turn: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    y = TURNS[turn](b, b.input("image", ["batch", 4, 8, 8]))
    channels = 8 if turn.startswith("Concat") else 4
    conv = b.node("Conv", y, b.weight(4, channels, 1, 1))
    model, expected = written(b, [conv])
    model.save(tmp_path)
    runtime = OpenVinoRuntime(tmp_path / "model.fq.onnx", threads=1)
    outputs, _ = runtime.run(random_inputs(b.build()))
    for name, array in expected.items():
        assert sqnr_db(array, outputs[name]) > 20  # at most 11 with the first channel's
    assert kept(model) == 1


STRAIGHT: dict[str, Callable[[ModelBuilder, str], str]] = {
    "positive": lambda b, x: b.node("Mul", x, b.constant(np.abs(SIGNS))),
    "one number": lambda b, x: b.node("Mul", x, b.scalar(-2)),
    "of columns": lambda b, x: b.node("Mul", x, b.constant(SIGNS.reshape(1, 1, 4))),
    "own shifts": lambda b, x: normalized(b, x, SIGNS.ravel()),
}


@pytest.mark.parametrize("turn", STRAIGHT)
def test_other_factors_need_nothing(turn: str) -> None:
    b = ModelBuilder()
    y = STRAIGHT[turn](b, b.input("image", ["batch", 4, 8, 4]))
    model, _ = written(b, [b.node("Conv", y, b.weight(4, 4, 1, 1))])
    assert kept(model) == 0


def test_factors_that_no_quantizer_reads_need_nothing() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    model, _ = written(b, [turned(b, x), b.node("Conv", x, b.weight(4, 4, 1, 1))])
    assert kept(model) == 0


SPREAD: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one tap": ((1, 1), (2, 2)),
    "two taps": ((2, 2), (3, 3)),
    "along one axis": ((1, 3), (2, 1)),
    "rows": ((1,), (2,)),
}


def upsampled(
    b: ModelBuilder,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    group: int = 1,
    channels: int = 4,
) -> str:
    """A transposed convolution whose result is quantized, through a Relu."""
    x = b.input("image", ["batch", 4, *(6, 5)[: len(kernel)]])
    weight, bias = b.weight(4, channels // group, *kernel), b.weight(channels)
    y = b.node("ConvTranspose", x, weight, bias, strides=list(strides), group=group)
    last = b.weight(2, channels, *(1 for _ in kernel))
    return b.node("Conv", b.node("Relu", y), last, b.weight(2))


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("spread", SPREAD)
def test_places_without_a_tap_get_their_own_bias(spread: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    model, expected = written(b, [upsampled(b, *SPREAD[spread])])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


@pytest.mark.parametrize(
    ("kernel", "strides", "group", "channels"),
    [((2, 2), (2, 2), 1, 4), ((1, 1), (2, 2), 4, 4), ((1, 1), (2, 2), 1, 1)],
)
def test_other_transposed_convolutions_need_nothing(
    kernel: tuple[int, ...], strides: tuple[int, ...], group: int, channels: int
) -> None:
    b = ModelBuilder()
    model, _ = written(b, [upsampled(b, kernel, strides, group, channels)])
    assert kept(model) == 0


WINDOWS: dict[str, Callable[[ModelBuilder, str], str]] = {
    "MaxPool": lambda b, y: b.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool of the same size": lambda b, y: b.node(
        "MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1]
    ),
    "AveragePool": lambda b, y: b.node("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2]),
    "Resize": lambda b, y: b.node(
        "Resize", y, "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest"
    ),
    "Mul before": lambda b, y: WINDOWS["MaxPool"](b, b.node("Mul", y, b.scalar(2))),
}


def dense(b: ModelBuilder) -> str:
    """A matrix product whose columns differ in size, [batch, 3, 6, 8]."""
    columns = np.exp2(np.arange(8)).astype(np.float32)
    weight = b.constant(np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32) * columns)
    return b.node("MatMul", b.input("image", ["batch", 3, 6, 8]), weight)


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_over_columns_of_a_product_are_computed(window: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    model, expected = written(b, [WINDOWS[window](b, dense(b))])
    model.save(tmp_path)
    runtime = OpenVinoRuntime(tmp_path / "model.fq.onnx", threads=1)
    outputs, _ = runtime.run(random_inputs(b.build()))
    for name, array in expected.items():
        assert sqnr_db(array, outputs[name]) > 25  # or OpenVINO refuses the model
    assert kept(model) == 1


def test_windows_behind_a_bias_or_relu_need_nothing() -> None:
    b = ModelBuilder()
    y = dense(b)
    results = [
        WINDOWS["MaxPool"](b, each)
        for each in (b.node("Relu", y), b.node("Add", y, b.constant(np.ones(8, np.float32))))
    ]
    model, _ = written(b, results)
    assert kept(model) == 0


DENSE: dict[str, Callable[[ModelBuilder, str], str]] = {
    "MatMul": lambda b, x: b.node("MatMul", x, b.weight(8, 6)),
    "with a bias": lambda b, x: b.node("Add", b.node("MatMul", x, b.weight(8, 6)), b.weight(6)),
}
BY_ROW: dict[str, Callable[[ModelBuilder, str], str]] = {
    "by element": lambda b, y: b.node("Mul", y, b.weight(4, 8, 6)),
    "by row": lambda b, y: b.node("Mul", y, b.weight(8, 1)),
    "divided": lambda b, y: b.node(
        "Div", y, b.constant(np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1))
    ),
    "by column before": lambda b, y: b.node(
        "Mul", b.node("Mul", y, b.weight(6)), b.weight(4, 1, 1)
    ),
}


@pytest.mark.crossed
@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("dense", DENSE)
@pytest.mark.parametrize("scaled", BY_ROW)
def test_rows_of_a_product_are_scaled_by_their_own_numbers(
    dense: str, scaled: str, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    y = DENSE[dense](b, b.input("image", ["batch", 4, 8, 8]))
    model, expected = written(b, [BY_ROW[scaled](b, y)])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


@pytest.mark.runtime_fact("openvino")
def test_weights_of_three_axes_are_read_by_several_nodes(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    y = b.node("MatMul", b.input("image", ["batch", 4, 8, 8]), b.weight(4, 8, 6))
    model, expected = written(b, [make(b, y) for make in READERS.values()])
    assert_agrees(b, model, expected, tmp_path)
    assert kept(model) == 1


def test_columns_of_a_product_that_are_scaled_need_nothing() -> None:
    b = ModelBuilder()
    y = b.node("MatMul", b.input("image", ["batch", 4, 8, 8]), b.weight(8, 6))
    results = [b.node("Mul", y, b.weight(6)), b.node("Mul", y, b.scalar(2))]
    model, _ = written(b, results)
    assert kept(model) == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_what_keeps_a_result_has_its_type(dtype: type[np.floating], tmp_path: Path) -> None:
    """A probability is weighted in double precision, as the frequency of a pitch is."""
    pytest.importorskip("openvino")
    number = {np.float64: TensorProto.DOUBLE, np.float16: TensorProto.FLOAT16}[dtype]
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    wide = b.node("Cast", b.node("Conv", x, b.weight(4, 4, 3, 3)), to=number)
    largest = b.node("ReduceMax", wide, axes=[3], keepdims=1)
    turned = b.node("Mul", largest, b.constant(np.array([1, -2, 3, -4], dtype).reshape(4, 1, 1)))
    y = b.node("Cast", turned, to=TensorProto.FLOAT)
    b.output(b.node("Conv", y, b.weight(4, 4, 3, 1)))
    model = b.build()
    made = write_openvino(calibrated(model, "openvino-avx2"))
    assert kept(made) > 0
    assert_agrees(b, made, run_model(model, random_inputs(model)), tmp_path)

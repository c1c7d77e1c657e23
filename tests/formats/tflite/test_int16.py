"""16x8 files that are written: what stands in them, and what LiteRT computes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact
from intact.numerics.fixed_point_kernel import multiply_wide
from intact.program.arithmetic.functions import interpolate, table_of
from intact.results.result import Result
from tests.formats.tflite.files import model_of, operators_of
from tests.formats.tflite.small_files import TYPES
from tests.models import ModelBuilder


def network(path: Path) -> Path:
    """Write a float model of convolutions, a residual, a mean, a product and a softmax."""
    random = np.random.default_rng(0)

    def constant(name: str, *shape: int, scale: float = 0.3) -> TensorProto:
        return numpy_helper.from_array(random.normal(0, scale, shape).astype(np.float32), name)

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1], group=6),
        node("Sigmoid", ["c2"], ["s2"]),
        node("Mul", ["c2", "s2"], ["m2"]),
        node("Add", ["r1", "m2"], ["a2"]),
        node("MaxPool", ["a2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p2"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["d"], transB=1),
        node("Tanh", ["d"], ["t"]),
        node("Softmax", ["t"], ["y"]),
    ]
    constants = [
        constant("w1", 6, 3, 3, 3), constant("b1", 6), constant("w2", 6, 1, 3, 3),
        constant("b2", 6), constant("w3", 5, 6), constant("b3", 5),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("wide")
    data = {"x": np.random.default_rng(1).normal(size=(16, 3, 8, 8)).astype(np.float32)}
    return intact.quantize(
        network(folder / "m.onnx"), data, target="tflite-16x8", output=folder / "out"
    )


def test_what_is_written_computes_the_integers_of_the_plan(result: Result) -> None:
    data = {"x": np.random.default_rng(2).normal(size=(4, 3, 8, 8)).astype(np.float32)}
    found = intact.verify(result, data)
    assert len(found.layers) >= 9
    assert [layer.mismatches for layer in found.layers] == [0] * len(found.layers)
    assert found.float_nodes == {}


def test_activations_have_16_bits_weights_8_and_biases_64(result: Result) -> None:
    (content,) = (path.read_bytes() for path in Path(str(result.folder)).glob("*.tflite"))
    model = model_of(content)
    graph, places = model.subgraphs[0], operators_of(content)
    operator = graph.operators[places.index("CONV_2D")]
    kinds = [graph.tensors[index].type for index in (*operator.inputs, *operator.outputs)]
    assert kinds == [TYPES[kind] for kind in ("int16", "int8", "int64", "int16")]
    versions = [model.operatorCodes[op.opcodeIndex].version for op in graph.operators]
    assert versions[places.index("CONV_2D")] == 4
    assert versions[places.index("SOFTMAX")] == 3
    addition = graph.operators[places.index("ADD")]
    assert addition.builtinOptions.potScaleInt16 is False


def test_a_written_file_is_read_again(result: Result) -> None:
    (path,) = Path(str(result.folder)).glob("*.tflite")
    images = np.random.default_rng(3).normal(size=(4, 8, 8, 3)).astype(np.float32)
    found = intact.verify(path, {"x": images}, target="tflite-16x8")
    assert len(found.layers) >= 9
    assert not any(layer.mismatches for layer in found.layers)


def test_a_wide_product_rounds_its_multiplier_to_15_bits() -> None:
    """An accumulator of 40 bits, which 32 would wrap."""
    value, multiplier, shift = np.int64(1 << 40), np.int64(0x60000001), np.int64(-30)
    assert int(multiply_wide(value, multiplier, shift)) == (1 << 40) * 0x6000 >> 45
    assert int(multiply_wide(np.int64(1), np.int64(0x7FFFFFFF), np.int64(0))) == 1


def test_a_table_of_lines_is_near_its_function() -> None:
    codes = np.arange(-(1 << 15), 1 << 15)
    found = interpolate(table_of(np.exp, (1e-4, 1e-3)), codes)
    wanted = np.clip(np.exp(codes * 1e-4) / 1e-3, -(1 << 15), (1 << 15) - 1)
    assert np.abs(found - wanted).max() < 4


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "two tensors"])
def test_long_sums_that_cancel_are_exact_where_floats_are_not(is_constant: bool) -> None:
    """20,000 products: the kernels add in 64 bits; sums of float32 are hundreds of steps beside."""
    random, count = np.random.default_rng(0), 20_000
    half = random.normal(size=(count // 2, 16)).astype(np.float32)
    factor = np.concatenate([half, -half])
    base = random.uniform(0.5, 1, (16, 8, count // 2)).astype(np.float32)
    near = base * (1 + random.normal(size=base.shape).astype(np.float32) * np.float32(1e-4))
    data = {"x": np.concatenate([base, near], axis=2)}
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 8, count])
    if is_constant:
        other = b.constant(factor)
    else:
        other = b.input("w", ["batch", count, 16])
        data["w"] = np.repeat(factor[None], 16, axis=0)
    b.output(b.node("MatMul", x, other), ["batch", 8, 16])
    made = intact.quantize(b.build(), data, target="tflite-16x8")
    verified = intact.verify(made, data)
    assert not any(each.mismatches for each in verified.layers)
    assert not any(each.mismatches for each in verified.outputs)
    steps = data["x"] / (np.abs(data["x"]).max() / np.float32(32767))
    weights = factor / (np.abs(factor).max(axis=0) / np.float32(127))
    codes, coded = (np.rint(each).astype(np.int64) for each in (steps, weights))
    exact = codes[0] @ coded
    rounded = (codes[0] / 32767).astype(np.float32) @ (coded / 127).astype(np.float32)
    error = np.abs(rounded * 32767.0 * 127 - exact).max()
    assert error / (np.abs(exact).max() / 32767) > 100

"""Constants by channel behind a linear node go into its weight and bias."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.errors import ModelError
from intact.graph import normalize
from intact.graph.batch_norm import METADATA_KEY
from tests.graph.test_normalize import assert_same_results
from tests.models import ModelBuilder


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in normalize(model).nodes]


def constant(b: ModelBuilder, *shape: int) -> str:
    return b.constant(b.random.uniform(0.5, 2, shape).astype(np.float32))


@pytest.mark.crossed
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_convolutions_take_the_constants_in(
    op_type: str, bias: bool, shape: tuple[int, ...]
) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 5, 5])
    weight = b.weight(*((6, 2, 3, 3) if op_type == "Conv" else (4, 3, 3, 3)))
    extra = [b.weight(6)] if bias else []
    x = b.node(op_type, x, weight, *extra, group=2, name="product")
    x = b.node("Mul", constant(b, *shape), x)
    x = b.node("Add", x, constant(b, *shape))
    b.node("Sub", x, constant(b, *shape), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [node.name for node in graph.nodes] == ["product"]
    assert_same_results(b.build(), graph)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemms_take_the_constants_in(transposed: int) -> None:
    b = ModelBuilder()
    weight = b.weight(*((6, 4) if transposed else (4, 6)))
    x = b.node("Gemm", b.input("x", ["batch", 4]), weight, transB=transposed, alpha=0.5)
    b.node("Add", b.node("Mul", x, constant(b, 6)), constant(b, 1, 6), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [node.op_type for node in graph.nodes] == ["Gemm"]
    assert_same_results(b.build(), graph)


def test_constants_that_differ_within_a_channel_or_add_axes_stay() -> None:
    for shape in ((5, 5), (6, 5, 1), (2, 6, 1, 1), (1, 1, 1, 1, 1)):
        b = ModelBuilder()
        x = b.node("Conv", b.input("x", [2, 4, 5, 5]), b.weight(6, 4, 1, 1))
        b.node("Add", x, constant(b, *shape), out="y")
        b.output("y")
        assert op_types(b.build()) == ["Conv", "Add"], shape


def test_products_that_others_read_stay() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 5, 5]), b.weight(6, 4, 1, 1))
    b.node("Add", b.node("Mul", x, constant(b, 6, 1, 1)), x, out="y")
    b.output("y")
    assert op_types(b.build()) == ["Conv", "Mul", "Add"]


def test_a_constant_minus_the_product_stays() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 5, 5]), b.weight(6, 4, 1, 1))
    b.node("Sub", constant(b, 6, 1, 1), x, out="y")
    b.output("y")
    assert op_types(b.build()) == ["Conv", "Sub"]


def test_the_memory_of_batch_normalization_follows() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 5, 5]), b.weight(3, 4, 1, 1), name="conv")
    gamma, beta = (b.constant(np.array(v, np.float32)) for v in ([1, 2, 3], [0, 1, -1]))
    mean, variance = (b.constant(np.array(v, np.float32)) for v in ([0, 0, 1], [1, 1, 4]))
    x = b.node("BatchNormalization", x, gamma, beta, mean, variance)
    x = b.node("Mul", x, b.constant(np.array([2, 3, 4], np.float32).reshape(3, 1, 1)))
    b.node("Add", x, b.constant(np.array([[[5]]], np.float32)), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [node.op_type for node in graph.nodes] == ["Conv"]
    norm = graph.batch_norms["conv"]
    assert norm.gamma.tolist() == [2, 6, 12]
    assert norm.beta.tolist() == [5, 8, 1]
    assert_same_results(b.build(), graph)


def test_constants_and_normalizations_fold_in_any_order() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 5, 5]), b.weight(6, 4, 1, 1))
    for _ in range(2):
        x = b.batch_norm(b.node("Add", x, constant(b, 6, 1, 1)), 6)
    b.node("Mul", x, constant(b, 6, 1, 1), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [node.op_type for node in graph.nodes] == ["Conv"]
    assert_same_results(b.build(), graph)


def test_a_memory_of_other_channels_is_refused() -> None:
    b = ModelBuilder()
    x = b.batch_norm(b.conv(b.input("x", ["batch", 4, 5, 5]), 4, 3), 3)
    b.node("Relu", x, out="y")
    b.output("y")
    memory = normalize(b.build()).nodes[0].metadata_props[METADATA_KEY]
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 5, 5]), b.weight(6, 4, 1, 1), name="conv")
    b.node("Mul", x, constant(b, 6, 1, 1), out="y")
    b.output("y")
    model = b.build()
    model.graph.node[0].metadata_props.add(key=METADATA_KEY, value=memory)
    with pytest.raises(ModelError, match="'conv': metadata"):
        normalize(model)


def between(kind: str, transposed: int = 0, size: int = 6) -> onnx.ModelProto:
    """A Relu, what is between, and a dense layer."""
    b = ModelBuilder(seed=3)
    x = b.node("Relu", b.input("x", ["batch", 6]))
    if kind == "BatchNormalization":
        rows = [b.constant(b.random.uniform(0.5, 2, 6).astype(np.float32)) for _ in range(4)]
        x = b.node(kind, x, *rows)
    else:
        for each in kind.split():
            x = b.node(each, x, constant(b, size))
    weight = constant(b, *((4, 6) if transposed else (6, 4)))
    b.node("Gemm", x, weight, constant(b, 4), out="y", transB=transposed)
    b.output("y")
    return b.build()


@pytest.mark.parametrize("kind", ["Mul", "Add", "Sub", "Mul Add", "BatchNormalization"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_dense_layers_take_in_what_stands_in_front(kind: str, transposed: int) -> None:
    model = between(kind, transposed)
    graph = normalize(model)
    assert [node.op_type for node in graph.nodes] == ["Relu", "Gemm"]
    assert_same_results(model, graph)


def test_one_factor_for_all_stays_in_front_of_a_dense_layer() -> None:
    """It may be a part of a function that is written out, such as HardSwish."""
    graph = normalize(between("Mul", size=1))
    assert [node.op_type for node in graph.nodes] == ["Relu", "Mul", "Gemm"]


def test_what_brings_inputs_to_one_range_stays() -> None:
    """Codes of the columns of a table as they are would be those of the largest one."""
    b = ModelBuilder(seed=3)
    x = b.node("Mul", b.node("Sub", b.input("x", ["batch", 6]), constant(b, 6)), constant(b, 6))
    b.node("Gemm", x, constant(b, 6, 4), out="y")
    b.output("y")
    assert op_types(b.build()) == ["Sub", "Mul", "Gemm"]

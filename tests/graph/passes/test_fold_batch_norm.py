"""BatchNormalization goes into linear nodes, is remembered, and stays where it must."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from intact.graph import Graph, normalize
from tests import models
from tests.models import ModelBuilder


def conv_and_norm(builder: ModelBuilder, **attributes: Any) -> onnx.ModelProto:
    x = builder.input("x", ["batch", 2, 4, 4])
    builder.node("Conv", x, builder.weight(3, 2, 1, 1, name="w"), out="c", name="conv")
    gamma = builder.constant(np.array([1, -2, 0], dtype=np.float32))
    beta = builder.constant(np.array([0, 1, -1], dtype=np.float32))
    mean = builder.constant(np.array([3, 0, -3], dtype=np.float32))
    variance = builder.constant(np.array([0, 4, 1e-30], dtype=np.float32))
    builder.node("BatchNormalization", "c", gamma, beta, mean, variance, out="y", **attributes)
    builder.output("y")
    return builder.build()


def folded(graph: Graph) -> bool:
    return all(node.op_type != "BatchNormalization" for node in graph.nodes)


def test_parameters_are_remembered_with_the_node() -> None:
    graph = normalize(conv_and_norm(ModelBuilder()))
    assert folded(graph)
    norm = graph.batch_norms["conv"]
    assert norm.gamma.tolist() == [1, -2, 0]
    assert norm.beta.tolist() == [0, 1, -1]
    assert norm.mean.tolist() == [3, 0, -3]
    assert norm.variance.tolist() == pytest.approx([0, 4, 1e-30])
    assert norm.epsilon == pytest.approx(1e-5)
    assert graph.node("conv").outputs[0].name == "y"
    assert [value.name for value in graph.node("conv").inputs if value] == ["x", "w", "conv_bias"]


def test_bias_is_the_closed_form() -> None:
    graph = normalize(conv_and_norm(ModelBuilder()))
    conv, norm = graph.node("conv"), graph.batch_norms["conv"]
    ratio = norm.gamma.astype(float) / np.sqrt(norm.variance.astype(float) + norm.epsilon)
    bias = graph.constant(conv.inputs[2])
    assert bias is not None
    np.testing.assert_allclose(bias, norm.beta - ratio * norm.mean, rtol=1e-6)


def test_training_mode_stays() -> None:
    assert not folded(normalize(conv_and_norm(ModelBuilder(17), training_mode=1)))


def test_computed_weights_stay() -> None:
    builder = ModelBuilder()
    builder.input("w2", [3, 2, 1, 1])
    model = conv_and_norm(builder)
    model.graph.node[0].input[1] = "w2"
    assert not folded(normalize(model))


def test_convolutions_that_others_read_stay() -> None:
    builder = ModelBuilder()
    builder.output("c")
    assert not folded(normalize(conv_and_norm(builder)))


def test_parameters_that_are_no_numbers_stay() -> None:
    for bad in (-1.0, np.nan, -1e-5):
        model = conv_and_norm(ModelBuilder())
        variance = model.graph.initializer[4]
        variance.raw_data = np.array([bad, 1, 1], dtype=np.float32).tobytes()
        assert not folded(normalize(model)), bad


def test_shared_weights_are_folded_apart() -> None:
    graph = normalize(models.batch_norm_net())
    weights = [node.inputs[1] for node in graph.nodes if node.op_type == "Conv"]
    shared = [value for value in weights if value and value.name == "shared_weight"]
    assert len(shared) == 1  # the convolution without BatchNormalization
    assert len(set(weights)) == len(weights)
    kept = [node.name for node in graph.nodes if node.op_type == "BatchNormalization"]
    assert len(kept) == 2  # in front of everything, and behind a convolution that is read twice
    assert len(graph.batch_norms) == 5


def test_the_last_of_two_is_remembered() -> None:
    source = models.batch_norm_net()
    graph = normalize(source)
    tensors = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in source.graph.initializer
    }
    last = next(n for n in source.graph.node if n.output[0] == "batchnormalization_26")
    np.testing.assert_array_equal(graph.batch_norms["Conv_conv_16"].beta, tensors[last.input[2]])


def test_gemm_with_a_bias_matrix_stays() -> None:
    builder = ModelBuilder()
    x = builder.input("x", [2, 3])
    gemm = builder.node("Gemm", x, builder.weight(3, 4), builder.weight(2, 4))
    builder.batch_norm(gemm, 4, out="y")
    builder.output("y")
    graph = normalize(builder.build())
    assert not folded(graph)


def test_parameters_of_different_lengths_stay() -> None:
    builder = ModelBuilder()
    x = builder.conv(builder.input("x", ["batch", 2, 4, 4]), 2, 6)
    parameters = [builder.weight(size) for size in (6, 6, 6, 3)]
    builder.node("BatchNormalization", x, *parameters, out="y")
    builder.output("y")
    assert [node.op_type for node in normalize(builder.build()).nodes][-1] == "BatchNormalization"

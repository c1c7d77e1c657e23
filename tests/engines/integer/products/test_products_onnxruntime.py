"""Convolutions and products against ONNX Runtime's integer operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.engines.integer import IntegerEngine
from intact.program import Array, Encoding
from intact.program.operations import Convolution
from intact.targets import Arithmetic, FloatOnce, PairSaturate, Wrap
from tests.program.one_step import int8, int32, one_step, uint8

pytestmark = pytest.mark.runtime_fact("onnxruntime")

FLOAT32 = Arithmetic(requantize=FloatOnce(), accumulator=Wrap())
PAIRS = Arithmetic(requantize=FloatOnce(), accumulator=PairSaturate(pair_bits=16, rows=True))

X_SCALE, Y_SCALE = np.float32(0.021), np.float32(0.9)


def layer(groups: int, channels: int = 16) -> tuple[Array, Array, Array, Array]:
    """Return data NHWC, weights OHWI, their scales and a bias; many products are extreme."""
    rng = np.random.default_rng(groups)
    data = rng.choice(np.array([0, 30, 128, 250, 255], np.uint8), (2, 9, 9, channels))
    weights = rng.integers(-127, 128, (8, 3, 3, channels // groups)).astype(np.int8)
    scales = rng.uniform(2e-3, 9e-3, 8).astype(np.float32)
    return data, weights, scales, rng.integers(-5000, 5000, 8).astype(np.int32)


def qlinear_conv(groups: int, channels: int = 16) -> onnx.ModelProto:
    """Return ONNX's integer convolution with the constants of `layer`."""
    _, weights, scales, bias = layer(groups, channels)
    constants = {
        "xs": X_SCALE, "xz": np.uint8(7), "w": weights.transpose(0, 3, 1, 2), "ws": scales,
        "wz": np.zeros(8, np.int8), "ys": Y_SCALE, "yz": np.uint8(120), "b": bias,
    }  # fmt: skip
    node = helper.make_node(
        "QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"],
        pads=[1, 1, 1, 1], group=groups,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [2, channels, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def engine(groups: int, arithmetic: Arithmetic, channels: int = 16) -> Array:
    """Return what the engine computes."""
    data, weights, scales, bias = layer(groups, channels)
    operation = Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), groups)
    output: Encoding = uint8(Y_SCALE, 120)
    program = one_step(
        operation,
        arithmetic,
        [
            (data.shape, uint8(X_SCALE, 7)),
            (weights, int8(scales, 0, 0)),
            (bias, int32(X_SCALE * scales, 0)),
        ],
        [((2, 9, 9, 8), output)],
    )
    return np.asarray(IntegerEngine(program).run({"in0": data}).outputs["out0"])


@pytest.mark.parametrize(
    ("groups", "channels"), [(1, 16), (2, 16), (1, 1), (1, 3), (2, 6), (4, 4), (8, 8), (8, 16)]
)
def test_convolution(groups: int, channels: int) -> None:
    """Processors without 8-bit dot products saturate pairs; all others are exact.

    Pairs cross from tap to tap, and kernels of depthwise convolutions do not saturate.
    """
    session = onnxruntime.InferenceSession(
        qlinear_conv(groups, channels).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    data = layer(groups, channels)[0]
    expected = np.asarray(session.run(None, {"x": data.transpose(0, 3, 1, 2)})[0])
    expected = expected.transpose(0, 2, 3, 1)
    exact, saturated = (engine(groups, each, channels) for each in (FLOAT32, PAIRS))
    assert np.any(exact != saturated) != (groups == channels == 8)
    assert np.array_equal(exact, expected) or np.array_equal(saturated, expected)

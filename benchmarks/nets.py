"""Small nets with random weights, for `latency.py` and `by_hand.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 96
"""Rows and columns of their images."""


class Net:
    """A net with random weights, as exporters of PyTorch write it."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{op_type.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], f"node_{name}", **attributes))
        return name

    def weight(self, array: npt.NDArray[Any]) -> str:
        """Add a constant and return its name."""
        name = f"w_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(
        self,
        x: str,
        ins: int,
        outs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        gain: float = 1.0,
    ) -> str:
        """Add a convolution of a bias, padded to the same size, its results times a gain."""
        fan = ins // groups * kernel * kernel
        spread = gain * (2.0 / fan) ** 0.5
        w = self._random.normal(0, spread, (outs, ins // groups, kernel, kernel))
        b = self._random.normal(0, 0.1 * gain, outs)
        names = [self.weight(each.astype(np.float32)) for each in (w, b)]
        pad = kernel // 2
        return self.add(
            "Conv",
            x,
            *names,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=groups,
        )

    def squeeze_excite(self, x: str, channels: int) -> str:
        """Multiply channels by a gate of their means."""
        s = self.add("GlobalAveragePool", x)
        s = self.add("Relu", self.conv(s, channels, max(channels // 4, 8)))
        s = self.conv(s, max(channels // 4, 8), channels)
        return self.add("Mul", x, self.add("HardSigmoid", s, alpha=1 / 6, beta=0.5))

    def head(self, x: str, channels: int, classes: int = 100) -> onnx.ModelProto:
        """Close the net with classes."""
        x = self.add("Flatten", self.add("GlobalAveragePool", x))
        w = self._random.normal(0, channels**-0.5, (classes, channels)).astype(np.float32)
        bias = self.weight(np.zeros(classes, np.float32))
        x = self.add("Gemm", x, self.weight(w), bias, transB=1)
        return self.close(x, (3, SIDE, SIDE), (classes,))

    def close(self, x: str, given: Sequence[int], taken: Sequence[int]) -> onnx.ModelProto:
        """Make a model of input `x` and this output; shapes are those of one sample."""
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
            for name, shape in (("x", given), (x, taken))
        ]
        graph = helper.make_graph(self._nodes, "net", ends[:1], ends[1:], self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        return model


def mobilenet_v3() -> onnx.ModelProto:
    """Make a small MobileNetV3: hard swish, depthwise convolutions, squeeze and excitation."""
    net = Net(1)
    x = net.add("HardSwish", net.conv("x", 3, 16, 3, 2))
    ins = 16
    for outs, wide, kernel, stride, gated, act in (
        (16, 16, 3, 2, True, "Relu"),
        (24, 72, 3, 2, False, "Relu"),
        (24, 88, 3, 1, False, "Relu"),
        (40, 96, 5, 2, True, "HardSwish"),
        (40, 240, 5, 1, True, "HardSwish"),
        (48, 120, 5, 1, True, "HardSwish"),
        (48, 144, 5, 1, True, "HardSwish"),
        (96, 288, 5, 2, True, "HardSwish"),
        (96, 576, 5, 1, True, "HardSwish"),
    ):
        y = net.add(act, net.conv(x, ins, wide))
        y = net.add(act, net.conv(y, wide, wide, kernel, stride, wide))
        y = net.squeeze_excite(y, wide) if gated else y
        y = net.conv(y, wide, outs)
        x = net.add("Add", x, y) if stride == 1 and ins == outs else y
        ins = outs
    x = net.add("HardSwish", net.conv(x, ins, 576))
    return net.head(x, 576)


def pp_lcnet() -> onnx.ModelProto:
    """Make a PP-LCNet: depthwise and pointwise convolutions, each with a hard swish."""
    net = Net(2)
    x = net.add("HardSwish", net.conv("x", 3, 16, 3, 2))
    ins = 16
    for outs, kernel, stride, gated in (
        (32, 3, 1, False),
        (64, 3, 2, False),
        (64, 3, 1, False),
        (128, 3, 2, False),
        (128, 3, 1, False),
        (256, 3, 2, False),
        (256, 5, 1, False),
        (256, 5, 1, False),
        (512, 5, 2, True),
        (512, 5, 1, True),
    ):
        x = net.add("HardSwish", net.conv(x, ins, ins, kernel, stride, ins))
        x = net.squeeze_excite(x, ins) if gated else x
        x = net.add("HardSwish", net.conv(x, ins, outs))
        ins = outs
    return net.head(x, ins)


def squeeze_excite_resnet() -> onnx.ModelProto:
    """Make a ResNet with a squeeze and excitation in each block."""
    net = Net(3)
    x = net.add("Relu", net.conv("x", 3, 32, 3, 2))
    ins = 32
    for outs, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        y = net.add("Relu", net.conv(x, ins, outs, 3, stride))
        y = net.squeeze_excite(net.conv(y, outs, outs, 3), outs)
        x = x if stride == 1 and ins == outs else net.conv(x, ins, outs, 1, stride)
        x, ins = net.add("Relu", net.add("Add", x, y)), outs
    return net.head(x, ins)

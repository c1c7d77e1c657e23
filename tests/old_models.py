"""Models in the dialects of opsets 7 to 10: attributes where newer opsets have inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (7, 8, 9, 10)
IMAGE = (2, 3, 8, 8)


@dataclass
class OldModel:
    """Nodes between input "x" and output "y", float32.

    Attributes:
        name: What is tested.
        shape: Shape of x.
        nodes: Operator, inputs, outputs, attributes.
        constants: Initializers by name.
    """

    name: str
    shape: tuple[int, ...]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def node(self, op_type: str, inputs: str, outputs: str, **attributes: Any) -> OldModel:
        """Add a node; inputs and outputs are names with spaces between."""
        node = helper.make_node(
            op_type, inputs.split(), outputs.split(), name=f"my {op_type}", **attributes
        )
        self.nodes.append(node)
        return self

    def constant(self, name: str, values: npt.ArrayLike) -> OldModel:
        """Add an initializer; floats are float32, integers int64."""
        array = np.asarray(values)
        wanted = np.float32 if array.dtype.kind == "f" else np.int64
        self.constants[name] = array.astype(wanted)
        return self

    def weights(self, **shapes: Sequence[int]) -> OldModel:
        """Add random positive weights."""
        random = np.random.default_rng(len(self.constants))
        for name, shape in shapes.items():
            self.constant(name, random.uniform(0.1, 0.5, shape))
        return self

    def build(self, opset: int, *, weights_are_inputs: bool = False) -> onnx.ModelProto:
        """Return the model; before IR version 4 every initializer had to be an input as well."""
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        if weights_are_inputs:
            inputs += [
                helper.make_tensor_value_info(each.name, each.data_type, list(each.dims))
                for each in tensors
            ]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "old", inputs, [output], tensors)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=3 if weights_are_inputs else 5,
        )


def old_models(opset: int) -> Iterator[OldModel]:
    """Return models of operators that changed their form since, for one opset."""
    for make in (_convolutions, _attributes, _dense, _shapes, _recurrent, _versioned):
        yield from make(opset)


def _norm(model: OldModel, x: str, y: str, channels: int) -> OldModel:
    size = [channels]
    model.weights(gamma=size, beta=size, mean=size, variance=size)
    return model.node("BatchNormalization", f"{x} gamma beta mean variance", y, epsilon=1e-3)


def _convolutions(_: int) -> Iterator[OldModel]:
    model = OldModel("convolution", IMAGE).weights(w=[4, 3, 3, 3], b=[4], slope=[4, 1, 1])
    model.node("Conv", "x w b", "a", pads=[1, 1, 1, 1])
    _norm(model, "a", "n", 4).node("PRelu", "n slope", "p").node(
        "Clip", "p", "c", min=-1.0, max=1.0
    )
    yield model.node("MaxPool", "c", "y", kernel_shape=[2, 2], strides=[2, 2])
    model = OldModel("transposed", IMAGE).weights(w=[3, 2, 2, 2])
    yield model.node("ConvTranspose", "x w", "y", strides=[2, 2])
    model = OldModel("pools", IMAGE).node(
        "AveragePool", "x", "a", kernel_shape=[3, 3], pads=[1] * 4
    )
    model.node("LRN", "a", "l", size=3).node("GlobalAveragePool", "l", "y")
    yield model
    model = OldModel("instance_norm", IMAGE).weights(scale=[3], bias=[3])
    yield model.node("InstanceNormalization", "x scale bias", "y")


def _attributes(_: int) -> Iterator[OldModel]:
    model = OldModel("padding", IMAGE).weights(w=[4, 3, 3, 3])
    model.node("Pad", "x", "p", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.0)
    yield model.node("Conv", "p w", "y")
    yield OldModel("clip", (3, 4)).node("Clip", "x", "c", min=0.0).node("Clip", "c", "y", max=0.5)
    yield OldModel("dropout", (3, 4)).node("Dropout", "x", "d", ratio=0.5).node("Relu", "d", "y")


def _dense(_: int) -> Iterator[OldModel]:
    model = OldModel("gemm", (2, 3, 4)).weights(w=[5, 12], b=[5]).constant("shape", [-1, 12])
    model.node("Reshape", "x shape", "r").node("Gemm", "r w b", "g", alpha=0.5, beta=2.0, transB=1)
    yield model.node("Softmax", "g", "y")
    model = OldModel("gemm_norm", (2, 4)).weights(w=[4, 4], b=[4]).node("Gemm", "x w b", "g")
    yield _norm(model, "g", "y", 4)
    model = OldModel("matmul", (2, 4)).weights(w=[4, 4], b=[4]).node("MatMul", "x w", "m")
    yield model.node("Add", "m b", "a").node("LeakyRelu", "a", "y", alpha=0.1)
    yield OldModel("softmax_over_the_rest", (2, 3, 4, 5)).node("Softmax", "x", "y", axis=1)
    yield OldModel("log_softmax", (2, 3, 4)).node("LogSoftmax", "x", "y")
    yield OldModel("hardmax", (2, 4)).node("Hardmax", "x", "y")
    yield OldModel("hardmax_over_the_rest", (2, 3, 4)).node("Hardmax", "x", "y")


def _shapes(_: int) -> Iterator[OldModel]:
    model = OldModel("squeeze", (2, 4)).node("Unsqueeze", "x", "u", axes=[1])
    yield model.node("Relu", "u", "r").node("Squeeze", "r", "y", axes=[1])
    model = OldModel("split", (2, 4)).node("Split", "x", "a b", axis=1, split=[1, 3])
    yield model.node("Concat", "b a", "y", axis=1)
    yield OldModel("halves", (2, 4)).node("Split", "x", "a b", axis=1).node("Sub", "b a", "y")
    model = OldModel("reduce", IMAGE).node("ReduceMean", "x", "m", axes=[2, 3], keepdims=0)
    yield model.node("ReduceSum", "m", "y", axes=[1], keepdims=1)
    model = OldModel("gather", (2, 4)).constant("places", [0, 2]).constant("two", 2.0)
    yield model.node("Gather", "x places", "g", axis=1).node("Pow", "g two", "y")
    model = OldModel("argmax", (2, 4)).node("ArgMax", "x", "a", axis=1, keepdims=0)
    yield model.node("Cast", "a", "y", to=TensorProto.FLOAT)


def _recurrent(_: int) -> Iterator[OldModel]:
    model = OldModel("lstm", (5, 2, 4)).weights(w=[1, 12, 4], r=[1, 12, 3])
    model.node("LSTM", "x w r", "all h c", hidden_size=3)
    yield model.node("Squeeze", "h", "y", axes=[0])


def _versioned(opset: int) -> Iterator[OldModel]:
    """Return what changed its form between opsets 7 and 10."""
    for mode, factor in (("nearest", 2.0), ("nearest", 1.5), ("linear", 2.0)):
        scales = [1.0, 1.0, factor, factor]
        model = OldModel(f"upsample_{mode}_{factor}", IMAGE)
        if opset < 9:
            yield model.node("Upsample", "x", "u", mode=mode, scales=scales).node("Relu", "u", "y")
        else:
            op_type = "Upsample" if opset < 10 else "Resize"
            model.constant("s", scales).node(op_type, "x s", "u", mode=mode)
            yield model.node("Relu", "u", "y")
    if opset < 10:
        model = OldModel("slice", IMAGE)
        yield model.node("Slice", "x", "s", axes=[1, 2], starts=[0, 1], ends=[2, 7]).node(
            "Relu", "s", "y"
        )
        yield OldModel("top", (2, 4)).node("TopK", "x", "y i", k=2, axis=1)
        return
    model = OldModel("resize_down", IMAGE).constant("s", [1.0, 1.0, 0.6, 0.5])
    yield model.node("Resize", "x s", "y", mode="nearest")
    model = OldModel("slice", IMAGE).constant("axes", [1, 2]).constant("starts", [0, 1])
    yield model.constant("ends", [2, 7]).node("Slice", "x starts ends axes", "y")
    yield OldModel("top", (2, 4)).constant("k", [2]).node("TopK", "x k", "y i", axis=1)

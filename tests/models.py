"""Small ONNX models for tests, one function each, for any opset from 11 on.

`MODELS` lists those that ONNX Runtime can run, with the oldest opset each is valid for. All take
float32 input with a dynamic batch, and weights from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (11, 13, 17, 18, 21, 26)
"""The opsets that tests go through, all of which ONNX Runtime runs from 1.31 on."""

_IR_VERSION = 8
_NEW_IR_VERSION = 10  # from opset 21 on


class ModelBuilder:
    """Writes a model node by node; every method returns the name of what it made."""

    def __init__(self, opset: int = 17, *, seed: int = 0) -> None:
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.domains: dict[str, int] = {}
        self._count = 0

    def input(
        self, name: str, shape: Sequence[int | str | None], dtype: int = TensorProto.FLOAT
    ) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(
        self,
        name: str,
        shape: Sequence[int | str] | None = None,
        dtype: int = TensorProto.FLOAT,
    ) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def constant(self, array: npt.ArrayLike, name: str | None = None) -> str:
        name = name or self._fresh("constant")
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, name: str | None = None) -> str:
        values = self.random.normal(size=shape) / float(np.sqrt(np.prod(shape[1:])))
        return self.constant(values.astype(np.float32), name)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float) -> str:
        return self.constant(np.float32(value))

    def node(
        self,
        op_type: str,
        *inputs: str,
        out: str | None = None,
        name: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        out = self._fresh(op_type.lower()) if out is None else out
        self.nodes.append(
            helper.make_node(
                op_type,
                inputs,
                [out],
                name=f"{op_type}_{out}" if name is None else name,
                domain=domain,
                **attributes,
            )
        )
        return out

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        *,
        kernel: int = 3,
        group: int = 1,
        bias: bool = True,
    ) -> str:
        weight = self.weight(outputs, inputs // group, kernel, kernel)
        extra = [self.weight(outputs)] if bias else []
        pads = [kernel // 2] * 4
        return self.node("Conv", x, weight, *extra, group=group, pads=pads)

    def batch_norm(self, x: str, channels: int, *, out: str | None = None) -> str:
        gamma = self.constant(self.random.normal(1, 0.3, channels).astype(np.float32))
        beta, mean = self.weight(channels), self.weight(channels)
        variance = self.constant(self.random.uniform(0.1, 2, channels).astype(np.float32))
        return self.node(
            "BatchNormalization", x, gamma, beta, mean, variance, out=out, epsilon=1e-3
        )

    def clip(self, x: str, low: float, high: float) -> str:
        return self.node("Clip", x, self.scalar(low), self.scalar(high))

    def with_axes(
        self,
        op_type: str,
        x: str,
        axes: Sequence[int],
        *,
        input_since: int = 13,
        **attributes: Any,
    ) -> str:
        """Add a node whose axes are an attribute in older opsets and an input in newer ones."""
        if self.opset >= input_since:
            return self.node(op_type, x, self.ints(*axes), **attributes)
        return self.node(op_type, x, axes=list(axes), **attributes)

    def mean(self, x: str, axes: Sequence[int], *, keepdims: int) -> str:
        return self.with_axes("ReduceMean", x, axes, input_since=18, keepdims=keepdims)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        outs = [self._fresh("split") for _ in sizes]
        if self.opset >= 13:
            node = helper.make_node("Split", [x, self.ints(*sizes)], outs, axis=axis)
        else:
            node = helper.make_node("Split", [x], outs, axis=axis, split=list(sizes))
        node.name = f"Split_{outs[0]}"
        self.nodes.append(node)
        return outs

    def build(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "test", self.inputs, self.outputs, initializer=self.initializers
        )
        domains = {"": self.opset, **self.domains}
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, each) for domain, each in domains.items()],
            functions=self.functions,
            ir_version=_NEW_IR_VERSION if self.opset >= 21 else _IR_VERSION,
        )

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"


def residual_net(opset: int = 17) -> onnx.ModelProto:
    """Convolutions around an Add, a mean over the image, and a Gemm."""
    b = ModelBuilder(opset)
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 8))
    y = b.conv(b.node("Relu", b.conv(x, 8, 8)), 8, 8)
    x = b.node("Relu", b.node("Add", x, y))
    x = b.mean(x, [2, 3], keepdims=0)
    b.node("Gemm", x, b.weight(5, 8), b.weight(5), out="logits", transB=1)
    b.output("logits", ["batch", 5])
    return b.build()


def depthwise_net(opset: int = 17) -> onnx.ModelProto:
    """An inverted residual block with Clip(0, 6), a kept mean, Reshape and Gemm with factors."""
    b = ModelBuilder(opset)
    x = b.clip(b.conv(b.input("image", ["batch", 4, 8, 8]), 4, 8, kernel=1), 0, 6)
    x = b.clip(b.conv(x, 8, 8, group=8), 0, 6)
    x = b.conv(x, 8, 4, kernel=1, bias=False)
    x = b.mean(x, [-1, -2], keepdims=1)
    x = b.node("Reshape", x, b.ints(0, -1))
    b.node("Gemm", x, b.weight(4, 3), b.weight(1, 3), out="logits", alpha=0.5, beta=2.0)
    b.output("logits", ["batch", 3])
    return b.build()


def transposed_net(opset: int = 17) -> onnx.ModelProto:
    """ConvTranspose with one group, two groups and depthwise, each with BatchNormalization."""
    b = ModelBuilder(opset)
    x = b.input("image", ["batch", 4, 5, 5])
    for channels, group, per_group in ((6, 1, 6), (4, 2, 2), (4, 4, 1)):
        inputs = {6: 4, 4: 6 if group == 2 else 4}[channels]
        weight = b.weight(inputs, per_group, 3, 3)
        x = b.node("ConvTranspose", x, weight, group=group, strides=[2, 2])
        x = b.node("LeakyRelu", b.batch_norm(x, channels), alpha=0.1)
    b.node("Tanh", x, out="pixels")
    b.output("pixels")
    return b.build()


def batch_norm_net(opset: int = 17) -> onnx.ModelProto:
    """BatchNormalization wherever it can stand: folded, shared, standing alone, twice."""
    b = ModelBuilder(opset)
    x = b.batch_norm(b.input("image", ["batch", 3, 6, 6]), 3)
    x = b.node("Relu", b.batch_norm(b.conv(x, 3, 4), 4))
    x = b.batch_norm(b.batch_norm(b.conv(x, 4, 4, bias=False), 4), 4)
    shared = b.weight(4, 4, 1, 1, name="shared_weight")
    left = b.batch_norm(b.node("Conv", x, shared), 4)
    right = b.batch_norm(b.node("Conv", x, shared), 4)
    plain = b.node("Conv", x, shared)
    branching = b.conv(x, 4, 4)
    x = b.node("Sum", left, right, plain, branching, b.batch_norm(branching, 4))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    gemm = b.node("Gemm", x, b.weight(4, 6), b.weight(6), alpha=0.5, beta=2.0)
    b.batch_norm(gemm, 6, out="logits")
    b.output("logits", ["batch", 6])
    return b.build()


def transformer_block(opset: int = 17) -> onnx.ModelProto:
    """Attention with batched MatMuls and Softmax, LayerNormalization, Gelu written with Erf."""
    b = ModelBuilder(opset)
    tokens, width, heads = 5, 8, 2
    x = b.input("tokens", ["batch", tokens, width])
    y = _layer_norm(b, x, width)
    parts = []
    for _ in range(3):
        part = b.node("Add", b.node("MatMul", y, b.weight(width, width)), b.weight(width))
        part = b.node("Reshape", part, b.ints(0, tokens, heads, width // heads))
        parts.append(b.node("Transpose", part, perm=[0, 2, 1, 3]))
    query, key, value = parts
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
    scores = b.node("Softmax", b.node("Mul", scores, b.scalar(0.5)), axis=-1)
    y = b.node("Transpose", b.node("MatMul", scores, value), perm=[0, 2, 1, 3])
    y = b.node("Reshape", y, b.ints(0, tokens, width))
    x = b.node("Add", x, b.node("MatMul", y, b.weight(width, width)))
    y = b.node("MatMul", _layer_norm(b, x, width), b.weight(width, 2 * width))
    erf = b.node("Erf", b.node("Div", y, b.scalar(np.sqrt(2))))
    y = b.node("Mul", b.node("Mul", y, b.node("Add", erf, b.scalar(1))), b.scalar(0.5))
    b.node("Add", x, b.node("MatMul", y, b.weight(2 * width, width)), out="features")
    b.output("features", ["batch", tokens, width])
    return b.build()


def _layer_norm(b: ModelBuilder, x: str, width: int) -> str:
    scale, shift = b.weight(width), b.weight(width)
    if b.opset >= 17:
        return b.node("LayerNormalization", x, scale, shift, axis=-1)
    centred = b.node("Sub", x, b.mean(x, [-1], keepdims=1))
    square = b.mean(b.node("Pow", centred, b.scalar(2)), [-1], keepdims=1)
    deviation = b.node("Sqrt", b.node("Add", square, b.scalar(1e-12)))
    return b.node("Add", b.node("Mul", b.node("Div", centred, deviation), scale), shift)


def detector(opset: int = 17) -> onnx.ModelProto:
    """Two scales joined by Resize and Concat, a Split, and heads shaped by computed sizes."""
    b = ModelBuilder(opset)
    image = b.input("image", ["batch", 3, 8, 8])
    fine = b.node("Relu", b.conv(image, 3, 4))
    coarse = b.node("MaxPool", fine, kernel_shape=[2, 2], strides=[2, 2])
    coarse = b.node("Sigmoid", b.conv(coarse, 4, 4))
    scales = b.constant(np.array([1, 1, 2, 2], dtype=np.float32))
    region = "" if opset >= 13 else b.constant(np.zeros(0, dtype=np.float32))
    bigger = b.node(
        "Resize",
        coarse,
        region,
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
    )
    joined = b.node("Concat", fine, bigger, axis=1)
    boxes, scores = b.split(b.conv(joined, 8, 6), [4, 2], axis=1)
    batch = b.node("Gather", b.node("Shape", boxes), b.ints(0), axis=0)
    target = b.node("Concat", batch, b.ints(4, -1), axis=0)
    b.node("Reshape", boxes, target, out="boxes")
    b.node("Sigmoid", b.node("Flatten", scores), out="scores")
    b.output("boxes", ["batch", 4, "places"])
    b.output("scores", ["batch", 128])
    return b.build()


def clutter(opset: int = 17) -> onnx.ModelProto:
    """What exporters leave behind: Constant nodes, no-ops, paddings, pairs of moves, epsilons."""
    b = ModelBuilder(opset)
    x = b.node("Identity", b.input("image", ["batch", 2, 8, 8]))
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=np.int64)
    pads_value = b.node("Constant", value=numpy_helper.from_array(pads))
    x = b.node("Pad", b.node("Dropout", x), pads_value)
    x = b.node("Conv", x, b.weight(4, 2, 3, 3))
    x = b.node("Conv", x, b.weight(4, 4, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2])
    x = b.node("Conv", x, b.weight(4, 4, 2, 2), auto_pad="SAME_UPPER")
    x = b.node("Mul", b.node("Add", x, b.scalar(0)), b.scalar(1))
    x = b.node("Cast", x, to=TensorProto.FLOAT)
    x = b.node("Transpose", b.node("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])
    x = b.node("Slice", x, b.ints(0), b.ints(2**62), b.ints(1), b.ints(1))
    x = b.node("Reshape", b.node("Reshape", x, b.ints(0, 4, -1)), b.ints(0, 4, 4, 4))
    norm = b.with_axes("ReduceSum", b.node("Mul", x, b.scalar(0)), [1], keepdims=1)
    x = b.node("Div", x, b.node("Add", norm, b.scalar(1e-12)))
    x = b.node("Mul", x, b.node("Expand", b.scalar(1e-12), b.ints(1, 4, 1, 1)))
    x = b.with_axes("Unsqueeze", b.with_axes("Unsqueeze", x, [0]), [0])
    x = b.with_axes("Squeeze", x, [0, 1])
    y = b.node("Transpose", b.weight(4, 6), perm=[1, 0])
    x = b.node("MatMul", b.mean(x, [2, 3], keepdims=0), b.node("Transpose", y, perm=[1, 0]))
    b.node("Identity", x, out="logits")
    b.output("logits")
    return b.build()


def sequence_net(opset: int = 17) -> onnx.ModelProto:
    """One- and three-dimensional convolutions, each with a mean over its spatial axes."""
    b = ModelBuilder(opset)
    x = b.node("Conv", b.input("signal", ["batch", 2, 16]), b.weight(4, 2, 3))
    b.node("Relu", b.mean(b.node("Relu", x), [2], keepdims=0), out="pooled_signal")
    y = b.node("Conv", b.input("volume", ["batch", 1, 4, 4, 4]), b.weight(3, 1, 2, 2, 2))
    b.node("Relu", b.mean(y, [2, 3, 4], keepdims=1), out="pooled_volume")
    b.output("pooled_signal")
    b.output("pooled_volume")
    return b.build()


def odd_names(opset: int = 17) -> onnx.ModelProto:
    """Empty, equal, blank and non-ASCII names, and names that generated ones resemble."""
    b = ModelBuilder(opset)
    x = b.input("ein Bild/0:1", ["batch", 2, 4, 4])
    x = b.node("Relu", x, out="größe π 🙂", name="")
    x = b.node("Neg", x, out="a", name="same")
    x = b.node("Abs", x, out="b", name="same")
    x = b.node("Exp", x, out="val_0", name="same_1")
    x = b.node("Relu", x, out="val_1", name="")
    x = b.node("Identity", x, out=" ", name=" ")
    x = b.node("Relu", x, out="Relu_output", name="Relu")
    b.node("Neg", x, out="out put", name="Relu_1")
    b.output("out put")
    return b.build()


def control_flow(opset: int = 17) -> onnx.ModelProto:
    """An If on a computed condition whose branches read an outer tensor."""
    b = ModelBuilder(opset)
    x = b.conv(b.input("image", ["batch", 2, 4, 4]), 2, 2)
    total = b.node("ReduceMax", x, keepdims=0)
    condition = b.node("Greater", total, b.scalar(1.0))
    branches = {}
    for name, op_type in (("then_branch", "Relu"), ("else_branch", "Neg")):
        node = helper.make_node(op_type, [x], [f"{name}_out"], name=f"{name}_node")
        result = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([node], name, [], [result])
    b.node("Sigmoid", b.node("If", condition, **branches), out="result")
    b.output("result")
    return b.build()


def local_function(opset: int = 17) -> onnx.ModelProto:
    """A call of a function that the model brings along."""
    b = ModelBuilder(opset)
    b.domains["local"] = 1
    body = [
        helper.make_node("Sigmoid", ["x"], ["s"], name="gate"),
        helper.make_node("Mul", ["x", "s"], ["y"], name="product"),
    ]
    imports = [helper.make_opsetid("", opset)]
    b.functions.append(helper.make_function("local", "Swish", ["x"], ["y"], body, imports))
    x = b.conv(b.input("image", ["batch", 2, 4, 4]), 2, 2)
    b.node("Relu", b.node("Swish", x, domain="local"), out="result")
    b.output("result")
    return b.build()


def shared_ports(opset: int = 17) -> onnx.ModelProto:
    """Graph outputs that are copies of inputs, constants and other outputs."""
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 3])
    b.node("Relu", x, out="first")
    b.node("Identity", "first", out="second")
    b.node("Identity", "second", out="third")
    b.node("Identity", x, out="copy")
    b.node("Identity", b.scalar(7), out="seven")
    b.node("Identity", b.node("Neg", "third"), out="negative")
    for name in ("first", "second", "third", "copy", "seven", "negative"):
        b.output(name)
    return b.build()


def custom_domain(opset: int = 17) -> onnx.ModelProto:
    """A convolution between operators that nobody knows; ONNX Runtime cannot run it."""
    b = ModelBuilder(opset)
    b.domains["my.ops"] = 3
    x = b.node("Warp", b.input("image", ["batch", 2, 4, 4]), domain="my.ops", name="warp", power=2)
    x = b.node("Relu", b.conv(x, 2, 2))
    b.node("NoSuchOperator", x, out="result", name="mystery")
    b.output("result")
    return b.build()


@dataclass(frozen=True)
class TestModel:
    """A builder and the oldest opset its model is valid for."""

    __test__ = False
    build: Callable[[int], onnx.ModelProto]
    since: int = 11


MODELS: Mapping[str, TestModel] = {
    "residual": TestModel(residual_net),
    "depthwise": TestModel(depthwise_net),
    "transposed": TestModel(transposed_net),
    "batch_norm": TestModel(batch_norm_net),
    "transformer": TestModel(transformer_block),
    "detector": TestModel(detector),
    "clutter": TestModel(clutter),
    "sequence": TestModel(sequence_net),
    "odd_names": TestModel(odd_names),
    "control_flow": TestModel(control_flow),
    "local_function": TestModel(local_function, since=15),
    "shared_ports": TestModel(shared_ports),
}
"""The models that ONNX Runtime runs."""


def random_inputs(
    model: onnx.ModelProto, *, batch: int = 2, seed: int = 1
) -> dict[str, npt.NDArray[np.float32]]:
    """Return normal random inputs for a model, with every dynamic dimension set to ``batch``."""
    random = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name not in constants:
            dimensions = value.type.tensor_type.shape.dim
            shape = [dimension.dim_value or batch for dimension in dimensions]
            feeds[value.name] = random.normal(size=shape).astype(np.float32)
    return feeds


def run_model(
    model: onnx.ModelProto,
    feeds: Mapping[str, npt.NDArray[Any]],
    outputs: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Run a model in ONNX Runtime without its optimizer.

    Args:
        model: The model.
        feeds: Inputs by name.
        outputs: Tensors to return, inner ones too; None for the graph outputs.
    """
    import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        node.name = ""  # the runtime refuses equal ones
    present = {value.name for value in copy.graph.output}
    copy.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in outputs or () if name not in present
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        copy.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = list(outputs) if outputs is not None else [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))

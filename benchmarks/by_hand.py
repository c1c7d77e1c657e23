"""Small nets of one pattern each, and Q/DQ placed in them by hand, for `placement.py`.

Each net names its tensors by their role while it is built. A variant lists the roles that get a
pair, as someone who knows ONNX Runtime's fusions would choose them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from intact.engines.cpu import detect_cpu
from nets import Net

_WEIGHT_LIMIT = 63 if detect_cpu().saturates_pairs else 127
_SIDE, _TOKENS, _WIDE, _HEADS = 48, 64, 128, 4
_MOVES = {"Flatten", "MaxPool", "Reshape", "Resize", "Transpose"}
"""Codes go through these as they are, where both sides have one scale."""
_WEIGHTED = {"Conv": 0, "Gemm": 0, "MatMul": 1}
"""The axis of the output's channels in the weight; of a Gemm with transB."""

# ---- nets ----------------------------------------------------------------------------------------


class Marked(Net):
    """A net that notes which tensors have which role; `input` is that of `x`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.roles: dict[str, list[str]] = {"input": ["x"]}

    def mark(self, role: str, x: str) -> str:
        """Note the role of a tensor, and return it."""
        self.roles.setdefault(role, []).append(x)
        return x

    def relu(self, x: str) -> str:
        """Add a Relu, which the operator before it computes."""
        return self.mark("layer", self.add("Relu", x))

    def swish(self, x: str) -> str:
        """Add a HardSwish."""
        return self.mark("act", self.add("HardSwish", self.mark("layer", x)))

    def linear(self, x: str, ins: int, outs: int) -> str:
        """Add a MatMul with the Add of its bias, as exporters write a dense layer of tokens."""
        w = self._random.normal(0, ins**-0.5, (ins, outs)).astype(np.float32)
        b = self._random.normal(0, 0.1, outs).astype(np.float32)
        product = self.mark("product", self.add("MatMul", x, self.weight(w)))
        return self.add("Add", product, self.weight(b))

    def gelu(self, x: str) -> str:
        """Add a Gelu written out with Erf."""
        one, two, root = (self.weight(np.array(each, np.float32)) for each in (1.0, 0.5, 2**0.5))
        gate = self.add("Add", self.add("Erf", self.add("Div", x, root)), one)
        return self.mark("act", self.add("Mul", self.add("Mul", x, gate), two))

    def normalized(self, x: str) -> str:
        """Add a LayerNormalization."""
        scale, bias = (self.weight(np.full(_WIDE, each, np.float32)) for each in (1.0, 0.0))
        return self.mark("norm", self.add("LayerNormalization", x, scale, bias, axis=-1))

    def shaped(self, x: str, *shape: int) -> str:
        """Add a Reshape."""
        return self.mark("moved", self.add("Reshape", x, self.weight(np.array(shape, np.int64))))

    def turned(self, x: str, *perm: int) -> str:
        """Add a Transpose."""
        return self.mark("moved", self.add("Transpose", x, perm=perm))

    def stem(self, channels: int) -> str:
        """Begin with a convolution of images."""
        return self.relu(self.conv("x", 3, channels, 3, 2))

    def classes(self, x: str, channels: int) -> onnx.ModelProto:
        """Close a net of images with a pooling and a dense layer."""
        x = self.mark("pooled", self.add("GlobalAveragePool", x))
        x = self.mark("moved", self.add("Flatten", x))
        w = self._random.normal(0, channels**-0.5, (100, channels)).astype(np.float32)
        bias = self.weight(np.zeros(100, np.float32))
        x = self.add("Gemm", x, self.weight(w), bias, transB=1)
        return self.close(x, (3, _SIDE, _SIDE), (100,))


def residual(net: Marked) -> onnx.ModelProto:
    """Blocks of two convolutions with a sum."""
    x = net.stem(64)
    for _ in range(4):
        y = net.relu(net.conv(x, 64, 64, 3))
        y = net.mark("branch", net.conv(y, 64, 64, 3))
        x = net.mark("sum", net.add("Relu", net.add("Add", x, y)))
    return net.classes(x, 64)


def concat(net: Marked) -> onnx.ModelProto:
    """Branches whose ranges differ by ten times, joined."""
    x = net.stem(64)
    for _ in range(3):
        wide = net.relu(net.conv(net.relu(net.conv(x, 64, 32)), 32, 32, 3))
        small = net.relu(net.conv(x, 64, 16, gain=0.1))
        pool = net.mark("moved", net.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4))
        branches = wide, small, net.relu(net.conv(pool, 64, 16))
        x = net.add("Concat", *(net.mark("branch", each) for each in branches), axis=1)
        net.mark("joined", x)
    return net.classes(x, 64)


def squeeze_excite(net: Marked) -> onnx.ModelProto:
    """Blocks that are multiplied by a gate of their channels' means."""
    x = net.stem(64)
    for _ in range(4):
        y = net.relu(net.conv(x, 64, 64, 3))
        s = net.mark("mean", net.add("GlobalAveragePool", y))
        s = net.mark("squeezed", net.add("Relu", net.conv(s, 64, 16)))
        s = net.mark("excited", net.conv(s, 16, 64))
        s = net.mark("gate", net.add("HardSigmoid", s, alpha=1 / 6, beta=0.5))
        x = net.mark("scaled", net.add("Mul", y, s))
    return net.classes(x, 64)


def separable(net: Marked) -> onnx.ModelProto:
    """Depthwise and pointwise convolutions, each with a HardSwish."""
    x = net.swish(net.conv("x", 3, 32, 3, 2))
    ins = 32
    for outs in (64, 64, 128, 128):
        x = net.conv(x, ins, ins, 3, 1, ins)
        x = net.mark("act", net.add("HardSwish", net.mark("depthwise", x)))
        x, ins = net.swish(net.conv(x, ins, outs)), outs
    return net.classes(x, ins)


def channels_last(net: Marked) -> onnx.ModelProto:
    """Convolutions between transposes, sums with channels last, a Reshape behind them."""
    x = net.mark("moved", net.add("Transpose", "x", perm=[0, 3, 1, 2]))
    x = net.turned(net.relu(net.conv(x, 3, 64, 3, 2)), 0, 2, 3, 1)
    for _ in range(4):
        y = net.turned(x, 0, 3, 1, 2)
        y = net.mark("branch", net.conv(net.relu(net.conv(y, 64, 64)), 64, 64, 3))
        y = net.turned(y, 0, 2, 3, 1)
        x = net.mark("sum", net.add("Relu", net.add("Add", x, y)))
    x = net.shaped(net.relu(net.conv(net.turned(x, 0, 3, 1, 2), 64, 8)), 0, -1)
    ins = 8 * (_SIDE // 2) ** 2
    w = net.weight(np.random.default_rng(5).normal(0, 0.02, (100, ins)).astype(np.float32))
    x = net.add("Gemm", x, w, net.weight(np.zeros(100, np.float32)), transB=1)
    return net.close(x, (_SIDE, _SIDE, 3), (100,))


def perceptron(net: Marked) -> onnx.ModelProto:
    """The dense half of transformers: LayerNormalization, Gelu written out with Erf, a sum."""
    x = "x"
    for _ in range(3):
        y = net.linear(net.normalized(x), _WIDE, 4 * _WIDE)
        y = net.gelu(net.mark("hidden", y))
        y = net.mark("branch", net.linear(y, 4 * _WIDE, _WIDE))
        x = net.mark("sum", net.add("Add", x, y))
    x = net.linear(net.normalized(x), _WIDE, 64)
    return net.close(x, (_TOKENS, _WIDE), (_TOKENS, 64))


def attention(net: Marked) -> onnx.ModelProto:
    """The other half: products of activations, and Softmax."""
    x, each = "x", _WIDE // _HEADS
    for _ in range(3):
        n = net.normalized(x)
        heads = []
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
            y = net.mark("projected", net.linear(n, _WIDE, _WIDE))
            heads.append(net.turned(net.shaped(y, 0, _TOKENS, _HEADS, each), *perm))
        scores = net.mark("scores", net.add("MatMul", *heads[:2]))
        scores = net.mark(
            "scores", net.add("Div", scores, net.weight(np.array(each**0.5, np.float32)))
        )
        weights = net.mark("softmax", net.add("Softmax", scores, axis=-1))
        y = net.mark("mixed", net.add("MatMul", weights, heads[2]))
        y = net.shaped(net.turned(y, 0, 2, 1, 3), 0, _TOKENS, _WIDE)
        y = net.mark("branch", net.linear(y, _WIDE, _WIDE))
        x = net.mark("sum", net.add("Add", x, y))
    x = net.linear(net.normalized(x), _WIDE, 64)
    return net.close(x, (_TOKENS, _WIDE), (_TOKENS, 64))


def pooling(net: Marked) -> onnx.ModelProto:
    """Average pooling and Resize between convolutions, a global pooling behind them."""
    x = net.stem(64)
    scales = net.weight(np.array([1, 1, 2, 2], np.float32))
    for _ in range(3):
        y = net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        y = net.relu(net.conv(net.mark("pooled", y), 64, 64, 3))
        how = {"mode": "nearest", "nearest_mode": "floor"}
        how |= {"coordinate_transformation_mode": "asymmetric"}
        y = net.mark("moved", net.add("Resize", y, "", scales, **how))
        x = net.relu(net.conv(y, 64, 64, 3))
    return net.classes(x, 64)


# ---- placed by hand ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """Roles of the tensors that get a pair, and those of them that share one scale.

    `averages_as_convolutions`: poolings are written as depthwise convolutions, whose kernel is
    faster.
    """

    roles: str
    one_scale: str = ""
    averages_as_convolutions: bool = False


@dataclass(frozen=True)
class Pattern:
    """A net, the shape of one sample, and the variants to try, by name."""

    make: Callable[[Marked], onnx.ModelProto]
    variants: Mapping[str, Variant]

    def build(self) -> tuple[onnx.ModelProto, Mapping[str, list[str]]]:
        """Return the float model, and its tensors by role."""
        net = Marked(11)
        return self.make(net), net.roles


_IMAGE = "input layer pooled moved"
_TOKEN = "norm act"
PATTERNS: Mapping[str, Pattern] = {
    "residual": Pattern(
        residual,
        {
            "every tensor": Variant(f"{_IMAGE} branch sum"),
            "classifier in float": Variant("input layer branch sum"),
        },
    ),
    "concat": Pattern(
        concat,
        {
            "scales of branches": Variant(f"{_IMAGE} branch joined"),
            "one scale": Variant(f"{_IMAGE} branch joined", "branch joined"),
        },
    ),
    "squeeze-excite": Pattern(
        squeeze_excite,
        {
            "every tensor": Variant(f"{_IMAGE} mean squeezed excited gate scaled"),
            "gate in float": Variant(f"{_IMAGE} gate scaled"),
            "convolutions of the gate in float": Variant(f"{_IMAGE} mean gate scaled"),
            "product in float": Variant(f"{_IMAGE} mean squeezed excited scaled"),
        },
    ),
    "separable": Pattern(
        separable,
        {
            "pairs around HardSwish": Variant(f"{_IMAGE} depthwise act"),
            "depthwise in float": Variant(f"{_IMAGE} act"),
            "classifier in float": Variant("input layer depthwise act"),
        },
    ),
    "channels-last": Pattern(
        channels_last,
        {
            "every tensor": Variant(f"{_IMAGE} branch sum"),
            "transposes without pairs of their own": Variant("input layer branch sum"),
        },
    ),
    "perceptron": Pattern(
        perceptron,
        {
            "inputs of products": Variant(_TOKEN),
            "products": Variant(f"{_TOKEN} product hidden"),
            "products and sums": Variant(f"{_TOKEN} product hidden branch sum input"),
            "products without hidden": Variant(f"{_TOKEN} branch sum input product"),
        },
    ),
    "attention": Pattern(
        attention,
        {
            "projections": Variant("norm mixed"),
            "inputs of products": Variant("norm projected moved softmax mixed"),
            "products": Variant("norm product projected moved scores softmax mixed"),
            "every tensor": Variant(
                "input norm product projected moved scores softmax mixed branch sum"
            ),
        },
    ),
    "pooling": Pattern(
        pooling,
        {
            "every tensor": Variant(_IMAGE),
            "averages as convolutions": Variant(_IMAGE, averages_as_convolutions=True),
        },
    ),
}


def ranges(
    model: onnx.ModelProto, samples: npt.NDArray[np.float32]
) -> dict[str, tuple[float, float]]:
    """Return minimum and maximum of every tensor on the samples, with 0 between them."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output]
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = zip(("x", *names), (samples, *session.run(None, {"x": samples})), strict=True)
    return {name: (min(0.0, float(a.min())), max(0.0, float(a.max()))) for name, a in found}


def place(
    model: onnx.ModelProto,
    limits: Mapping[str, tuple[float, float]],
    roles: Mapping[str, list[str]],
    variant: Variant,
) -> onnx.ModelProto:
    """Return the model with pairs at the tensors of a variant.

    Weights of what reads and writes codes get one scale a channel, biases the product of scales.
    A MatMul or Gemm may write floats.
    """
    placed = {tensor for role in variant.roles.split() for tensor in roles.get(role, ())}
    if variant.averages_as_convolutions:
        model = _averages_as_convolutions(model)
    hand = _Hand(model, dict(limits), placed)
    shared = [t for role in variant.one_scale.split() for t in roles[role]]
    if shared:
        both = min(limits[t][0] for t in shared), max(limits[t][1] for t in shared)
        hand.limits |= dict.fromkeys(shared, both)
    return hand.placed_model()


def _averages_as_convolutions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each AveragePool as a convolution of its channels."""
    made = onnx.shape_inference.infer_shapes(model)
    shapes = {v.name: v.type.tensor_type.shape.dim for v in made.graph.value_info}
    for node in made.graph.node:
        if node.op_type != "AveragePool":
            continue
        kernel = next(each.ints for each in node.attribute if each.name == "kernel_shape")
        channels = shapes[node.input[0]][1].dim_value
        weight = np.full((channels, 1, *kernel), 1 / np.prod(kernel), np.float32)
        name = f"{node.output[0]}_mean"
        made.graph.initializer.append(numpy_helper.from_array(weight, name))
        node.op_type = "Conv"
        node.input.append(name)
        node.attribute.append(helper.make_attribute("group", channels))
    return made


class _Hand:
    """Places the pairs of one model."""

    def __init__(
        self, model: onnx.ModelProto, limits: dict[str, tuple[float, float]], placed: set[str]
    ) -> None:
        self._model, self.limits, self._placed = model, limits, placed
        self._constants = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
        self._added: dict[str, onnx.TensorProto] = {}
        self._scales: dict[str, npt.NDArray[np.float32]] = {}

    def placed_model(self) -> onnx.ModelProto:
        """Return the model with its pairs."""
        made = onnx.ModelProto()
        made.CopyFrom(self._model)
        del made.graph.node[:]
        made.graph.node.extend(self._nodes())
        made.graph.initializer.extend(self._added.values())
        return made

    def _nodes(self) -> Iterator[onnx.NodeProto]:
        yield from self._pair("x")
        for each in self._model.graph.node:
            node = onnx.NodeProto()
            node.CopyFrom(each)
            if node.op_type in _MOVES and node.input[0] in self._placed:
                self.limits[node.output[0]] = self.limits[node.input[0]]
            for slot, name in enumerate(each.input):
                if name in self._placed:
                    node.input[slot] = f"{name}_read"
            yield from self._constants_of(each, node)
            yield node
            yield from self._pair(each.output[0])

    def _pair(self, name: str) -> Iterator[onnx.NodeProto]:
        if name not in self._placed:
            return
        low, high = self.limits[name]
        scale = np.float32((high - low) / 255 or 1.0)
        zero = np.uint8(round(-low / float(scale)))
        self._scales[name] = np.asarray(scale)
        ends = [self._store(f"{name}_{what}", v) for what, v in (("scale", scale), ("zero", zero))]
        yield helper.make_node("QuantizeLinear", [name, *ends], [f"{name}_codes"], f"{name}_q")
        yield helper.make_node(
            "DequantizeLinear", [f"{name}_codes", *ends], [f"{name}_read"], f"{name}_dq"
        )

    def _constants_of(self, each: onnx.NodeProto, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield what dequantizes the constants of a node that computes with codes."""
        if self._reads_codes(each.input[0]) is None:
            return
        writes = self._writes_codes(each.output[0])
        if each.op_type in _WEIGHTED and each.input[1] in self._constants:
            if writes or each.op_type != "Conv":
                yield from self._weighted(each, node)
        elif each.op_type in {"Add", "Mul", "Div"} and writes:
            for slot, name in enumerate(each.input):
                if name in self._constants:
                    yield self._operand(name, self._constants[name])
                    node.input[slot] = f"{name}_read"

    def _operand(self, name: str, array: npt.NDArray[np.float32]) -> onnx.NodeProto:
        low, high = float(min(0.0, array.min())), float(max(0.0, array.max()))
        scale = np.float32((high - low) / 255 or 1.0)
        zero = round(-low / float(scale))
        codes = np.clip(np.rint(array / scale) + zero, 0, 255).astype(np.uint8)
        return self._dequantize(name, codes, np.asarray(scale), np.uint8(zero))

    def _weighted(self, each: onnx.NodeProto, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        weight, axis = self._constants[each.input[1]], _WEIGHTED[each.op_type]
        others = tuple(at for at in range(weight.ndim) if at != axis)
        scale = (np.abs(weight).max(others) / _WEIGHT_LIMIT).astype(np.float32)
        spread = scale.reshape([-1 if at == axis else 1 for at in range(weight.ndim)])
        codes = np.rint(weight / spread).astype(np.int8)
        zeros = np.zeros(scale.shape, np.int8)
        yield self._dequantize(each.input[1], codes, scale, zeros, axis)
        node.input[1] = f"{each.input[1]}_read"
        if len(each.input) > 2:
            source = self._reads_codes(each.input[0])
            assert source is not None
            product = (scale * self._scales[source]).astype(np.float32)
            bias = np.rint(self._constants[each.input[2]] / product).astype(np.int32)
            yield self._dequantize(each.input[2], bias, product, np.zeros(scale.shape, np.int32), 0)
            node.input[2] = f"{each.input[2]}_read"

    def _dequantize(
        self,
        name: str,
        codes: npt.NDArray[np.integer],
        scale: npt.NDArray[np.float32],
        zero: npt.NDArray[np.integer] | np.integer,
        axis: int | None = None,
    ) -> onnx.NodeProto:
        parts = (("codes", codes), ("scale", scale), ("zero", zero))
        ends = [self._store(f"{name}_{what}", value) for what, value in parts]
        more: dict[str, Any] = {} if axis is None else {"axis": axis}
        return helper.make_node("DequantizeLinear", ends, [f"{name}_read"], f"{name}_dq", **more)

    def _reads_codes(self, name: str) -> str | None:
        """Return the tensor with a pair that a tensor is, or is moved from."""
        if name in self._placed:
            return name
        made = next((node for node in self._model.graph.node if name in node.output), None)
        moved = made is not None and made.op_type in _MOVES
        return self._reads_codes(made.input[0]) if made is not None and moved else None

    def _writes_codes(self, name: str) -> bool:
        """Check whether a pair stands behind a tensor, or what alone reads it and only moves it."""
        if name in self._placed:
            return True
        readers = [node for node in self._model.graph.node if name in node.input]
        return (
            len(readers) == 1
            and readers[0].op_type in {"Relu", *_MOVES}
            and self._writes_codes(readers[0].output[0])
        )

    def _store(self, name: str, array: npt.ArrayLike) -> str:
        self._added.setdefault(name, numpy_helper.from_array(np.asarray(array), name))
        return name

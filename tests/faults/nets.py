"""Nets that tell the demo's digits apart, trained in closed form: random features, fitted readout.

Each `BatchNormalization` gets the mean and variance of what reaches it, as training leaves them,
and the last `Gemm` is a ridge regression on the features. So accuracy means something, the same
net comes out each time, and none takes longer than some tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from intact import demo
from tests.gallery.layers import Layers

Floats: TypeAlias = npt.NDArray[np.float32]

MEAN, DEVIATION = 80.0, 96.0
"""Of the digits' pixels, 0..255: nets want ``(pixel - MEAN) / DEVIATION``."""
FITTED = 300
"""Test images that nets are fitted to beside the calibration images; the others test them."""
_CLASSES = 10
_RIDGE = 0.1
IMAGE = ("batch", 1, 8, 8)
LOGITS = ("batch", _CLASSES)


@dataclass(frozen=True)
class Digits:
    """Digits: pixels float32 ``[N, 1, 8, 8]`` from 0 to 255, labels int64 ``[N]``."""

    pixels: Floats
    labels: npt.NDArray[np.int64]

    @property
    def ready(self) -> Floats:
        """As the nets want them."""
        return np.asarray((self.pixels - MEAN) / DEVIATION, np.float32)


def digits(part: str) -> Digits:
    """Read the images that calibrate (``"calib"``), fit (``"fit"``) or test (``"test"``)."""
    path = demo.calibration_path() if part == "calib" else demo.test_path()
    with np.load(path) as arrays:
        pixels = np.rint(arrays["image"] * (255 / 16)).astype(np.float32)
        labels = arrays["labels"].astype(np.int64)
    if part == "calib":
        return Digits(pixels, labels)
    chosen = slice(None, FITTED) if part == "fit" else slice(FITTED, None)
    return Digits(pixels[chosen], labels[chosen])


class Net:
    """A model whose constants can be read and replaced by name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._tensors = {each.name: each for each in model.graph.initializer}

    def __getitem__(self, name: str) -> Floats:
        return np.array(numpy_helper.to_array(self._tensors[name]))

    def __setitem__(self, name: str, array: npt.ArrayLike) -> None:
        ready = np.asarray(array, self[name].dtype)
        self._tensors[name].CopyFrom(numpy_helper.from_array(ready, name))

    def values(self, name: str, images: Floats) -> Floats:
        """Run the net up to a tensor."""
        part = onnx.ModelProto()
        part.CopyFrom(self.model)
        del part.graph.output[:]
        part.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(part.SerializeToString(), options)
        (found,) = session.run(None, {session.get_inputs()[0].name: images})
        return np.asarray(found, np.float32)


def convolution(b: Layers, x: str, name: str, inputs: int, outputs: int, **given: int) -> str:
    """A convolution without bias; its weight is ``name.weight``, its result ``name.out``."""
    kernel, group = given.get("kernel", 3), given.get("group", 1)
    shape = outputs, inputs // group, kernel, kernel
    values = b.random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    weight = b.constant(values.astype(np.float32), f"{name}.weight")
    pads = [kernel // 2] * 4
    return b.node("Conv", x, weight, out=f"{name}.out", name=name, pads=pads, group=group)


def batch_norm(b: Layers, x: str, name: str, channels: int) -> str:
    """A BatchNormalization whose memory is filled by `fitted`."""
    arrays = {
        "gamma": b.random.normal(1, 0.15, channels),
        "beta": b.random.normal(0.2, 0.2, channels),
        "mean": np.zeros(channels),
        "variance": np.ones(channels),
    }
    names = [b.constant(v.astype(np.float32), f"{name}.{key}") for key, v in arrays.items()]
    return b.node("BatchNormalization", x, *names, out=f"{name}.out", name=name, epsilon=1e-12)


def block(b: Layers, x: str, at: int, inputs: int, outputs: int, **given: int) -> str:
    """Conv, BatchNormalization and Relu with the number ``at``."""
    x = convolution(b, x, f"conv{at}", inputs, outputs, **given)
    x = batch_norm(b, x, f"bn{at}", outputs)
    return b.node("Relu", x, out=f"relu{at}.out", name=f"relu{at}")


def dense(b: Layers, x: str, name: str, inputs: int, outputs: int) -> str:
    """A Gemm with the weight ``name.weight`` [outputs, inputs] and the bias ``name.bias``."""
    values = b.random.normal(size=(outputs, inputs)) / np.sqrt(inputs)
    weight = b.constant(values.astype(np.float32), f"{name}.weight")
    bias = b.constant(b.random.normal(0, 0.1, outputs).astype(np.float32), f"{name}.bias")
    return b.node("Gemm", x, weight, bias, out=f"{name}.out", name=name, transB=1)


def readout(b: Layers, x: str, features: int, *, flat: bool = False) -> None:
    """The last layer, which `fitted` fits, and the output."""
    x = x if flat else b.node("Flatten", x, name="flatten")
    dense(b, x, "fc", features, _CLASSES)
    b.nodes[-1].output[0] = "logits"
    b.output("logits", LOGITS)


def fitted(model: onnx.ModelProto) -> Net:
    """Fill the memory of each BatchNormalization, and fit the last layer."""
    net, parts = Net(model), (digits("calib"), digits("fit"))
    images = np.concatenate([part.ready for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            values = net.values(node.input[0], images)
            axes = tuple(axis for axis in range(values.ndim) if axis != 1)
            net[node.input[3]], net[node.input[4]] = values.mean(axes), values.var(axes)
        elif node.name.startswith("dense"):
            _standardize(net, node.name, net.values(node.output[0], images))
    (last,) = (node for node in model.graph.node if node.name == "fc")
    features = net.values(last.input[0], images).astype(np.float64)
    mean = features.mean(0)
    centred = features - mean
    ridge = _RIDGE * np.square(centred).mean(0).sum() * np.eye(len(mean))
    wanted = np.eye(_CLASSES)[labels] - 1 / _CLASSES
    weight = np.linalg.solve(centred.T @ centred + ridge, centred.T @ wanted).T
    net["fc.weight"], net["fc.bias"] = weight, -weight @ mean
    return net


def _standardize(net: Net, name: str, values: Floats) -> None:
    """Give the results of a dense layer a mean of 0.3 and a deviation of 1."""
    deviation = values.std(0)
    net[f"{name}.weight"] = net[f"{name}.weight"] / deviation[:, None]
    net[f"{name}.bias"] = (net[f"{name}.bias"] - values.mean(0)) / deviation + 0.3


def plain() -> Net:
    """Three convolutions with BatchNormalization, an average and a dense layer."""
    b = Layers()
    x = block(b, b.input("image", IMAGE), 1, 1, 16)
    x = block(b, x, 2, 16, 24)
    x = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    readout(b, block(b, x, 3, 24, 24, kernel=1), 384)
    return fitted(b.build())


def perceptron() -> Net:
    """Two dense layers, each with a Relu and a BatchNormalization behind that."""
    b = Layers(seed=1)
    x, width = b.node("Flatten", b.input("image", IMAGE), name="flat"), 64
    for at, outputs in ((1, 96), (2, 96)):
        x = b.node("Relu", dense(b, x, f"dense{at}", width, outputs), out=f"relu{at}.out")
        x, width = batch_norm(b, x, f"bn{at}", outputs), outputs
    readout(b, x, width, flat=True)
    return fitted(b.build())


def residual() -> Net:
    """Two residual blocks."""
    b = Layers(seed=2)
    x = block(b, b.input("image", IMAGE), 1, 1, 16)
    for at in (2, 4):
        y = block(b, x, at, 16, 16)
        y = batch_norm(b, convolution(b, y, f"conv{at + 1}", 16, 16), f"bn{at + 1}", 16)
        x = b.relu(b.node("Add", x, y, name=f"add{at}"))
    x = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    readout(b, x, 256)
    return fitted(b.build())


def islands() -> Net:
    """Depthwise convolutions between functions that stay float, on large maps; a usual block."""
    b = Layers(seed=9)
    x, inputs = b.resize(b.input("image", IMAGE), 8), 1
    for at in range(1, 7):
        x, inputs = convolution(b, x, f"conv{at}", inputs, 4, kernel=1, group=inputs), 4
        x = b.node("Sin", x, name=f"sin{at}")
    x = b.node("AveragePool", x, kernel_shape=[8, 8], strides=[8, 8], name="pool")
    readout(b, block(b, x, 7, 4, 8), 512)
    return fitted(b.build())


def depthwise() -> Net:
    """Depthwise separable convolutions."""
    b = Layers(seed=3)
    x = block(b, b.input("image", IMAGE), 1, 1, 16)
    x = block(b, x, 2, 16, 16, group=16)
    x = block(b, x, 3, 16, 24, kernel=1)
    x = block(b, x, 4, 24, 24, group=24)
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    readout(b, block(b, x, 5, 24, 24, kernel=1), 384)
    return fitted(b.build())


def branches() -> Net:
    """Branches of one range that are joined by Concat."""
    b = Layers(seed=4)
    x = block(b, b.input("image", IMAGE), 1, 1, 16)
    x = b.node("Concat", block(b, x, 2, 16, 12), block(b, x, 3, 16, 12, kernel=1), axis=1)
    x = block(b, x, 4, 24, 24)
    x = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    readout(b, x, 384)
    return fitted(b.build())


def recurrent() -> Net:
    """An LSTM over the rows of the image."""
    b, hidden = Layers(seed=5), 48
    x = b.node("Squeeze", b.input("image", IMAGE), b.ints(1))
    x = b.node("Transpose", x, perm=[1, 0, 2])
    weights = [
        b.constant((b.random.normal(size=(1, 4 * hidden, n)) / np.sqrt(n)).astype(np.float32))
        for n in (8, hidden)
    ]
    b.node("LSTM", x, *weights, out="states", hidden_size=hidden)
    x = b.node("Transpose", b.node("Squeeze", "states", b.ints(1)), perm=[1, 0, 2])
    readout(b, b.node("Reshape", x, b.ints(0, 8 * hidden)), 8 * hidden, flat=True)
    return fitted(b.build())


def attention(mask: float = 0.0, *, masked: int = 3) -> Net:
    """Self-attention over the rows of the image; the last rows are masked where there is a mask."""
    b, width = Layers(seed=6), 32
    x = b.node("Squeeze", b.input("image", IMAGE), b.ints(1))
    x = b.linear(x, 8, width)
    given = ""
    if mask:
        row = np.where(np.arange(8) < 8 - masked, 0, mask).astype(np.float32)
        given = b.constant(row.reshape(1, 1, 1, 8), "mask")
    x = b.layer_norm(b.node("Add", x, b.attention(x, 8, width, 4, given)), width)
    readout(b, b.relu(b.linear(x, width, width, gain=1.4)), 8 * width)
    return fitted(b.build())


def spiked(times: float = 0.0) -> Net:
    """Features of which the few that exceed 4.5 are ``times`` as far beyond it.

    They are cut off behind the next layer: what the net computes does not change.
    """
    b = Layers(seed=7)
    x = block(b, b.input("image", IMAGE), 1, 1, 16)
    x = batch_norm(b, convolution(b, x, "conv2", 16, 24), "bn2", 24)
    beyond = b.relu(b.node("Sub", x, b.constant(np.float32(_FAR))))
    x = b.node("Add", x, b.node("Mul", beyond, b.constant(np.float32(times))), out="spikes")
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    # A Clip written out: of one, the plan would know that nothing tells larger values apart.
    each = np.eye(24, dtype=np.float32)[..., None, None]
    far = b.constant(np.full(24, -_FAR, np.float32))
    excess = b.relu(b.node("Conv", x, b.constant(each), far, name="excess"))
    less = b.node("Conv", excess, b.constant(-each), name="less")
    near = b.relu(b.node("Add", x, less, name="near"))
    readout(b, block(b, near, 3, 24, 24, kernel=1), 384)
    return fitted(b.build())


_FAR = 4.5


def unlike(size: float = 1.0) -> Net:
    """Scores, and boxes from 0 to ``size``, joined by Concat and taken apart again."""
    b = Layers(seed=8)
    x = block(b, block(b, b.input("image", IMAGE), 1, 1, 16), 2, 16, 24)
    x = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    x = b.node("Flatten", x, name="flatten")
    scores = b.node("Sigmoid", dense(b, x, "fc", 384, _CLASSES), name="scores")
    boxes = b.node("Sigmoid", dense(b, x, "dense_boxes", 384, 4))
    boxes = b.node("Mul", boxes, b.constant(np.float32(size)))
    joined = b.node("Concat", scores, boxes, axis=1, out="joined", name="join")
    for name, start, stop in (("logits", 0, _CLASSES), ("corners", _CLASSES, _CLASSES + 4)):
        ends = (b.ints(each) for each in (start, stop, 1))
        b.node("Slice", joined, *ends, out=name)
        b.output(name, ("batch", stop - start))
    return fitted(b.build())


def gates(steepness: float = 1.0, steep: int = 3) -> Net:
    """Convolutions cut off at 1 and 0, of which some channels are steep: they are 0 or 1."""
    b = Layers(seed=9)
    x = block(b, b.input("image", IMAGE), 1, 1, 16)
    x = batch_norm(b, convolution(b, x, "conv2", 16, 24), "bn2", 24)
    x = b.node("MaxPool", b.clip(x, 0, 1), kernel_shape=[2, 2], strides=[2, 2], name="pool")
    readout(b, block(b, x, 3, 24, 24, kernel=1), 384)
    net = Net(b.build())
    net["bn2.gamma"] = np.where(np.arange(24) < steep, steepness, 1) * net["bn2.gamma"]
    return fitted(net.model)


Builder: TypeAlias = Callable[[], Net]

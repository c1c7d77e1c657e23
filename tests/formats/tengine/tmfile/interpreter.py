"""Quantized int8 files run by what Tengine's kernels compute, from nothing but the file.

Convolution is that of its x86 kernels, the others are its reference kernels; floats are float32
throughout, and ``round`` goes away from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.formats.tengine.tmfile.file import FileNode, FileTensor, TmFile

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


def codes_of(numbers: Array) -> Array:
    """Round away from zero and clamp to int8, as every kernel ends."""
    wide = numbers.astype(np.float64)
    rounded = np.where(wide < 0, np.ceil(wide - 0.5), np.floor(wide + 0.5))
    return np.clip(rounded, -127, 127).astype(np.int64)


def scale_of(tensor: FileTensor) -> np.float32:
    """The one scale of an activation."""
    assert tensor.quantization is not None
    (scale,) = tensor.quantization.scale
    return np.float32(scale)


class Interpreter:
    """A file and the codes of its tensors."""

    def __init__(self, file: TmFile, images: Array) -> None:
        self.file = file
        self.codes: dict[int, Array] = {}
        for number, tensor in enumerate(file.tensors):
            if tensor.data is not None:
                self.codes[number] = tensor.data.astype(np.int64)
        (source,) = (file.nodes[number].outputs[0] for number in file.inputs)
        self.codes[source] = codes_of(images / scale_of(file.tensors[source]))

    def run(self) -> Floats:
        """Return the output in numbers."""
        for node in self.file.nodes:
            if node.operator not in ("Const", "InputOp"):
                (output,) = node.outputs
                self.codes[output] = KERNELS[node.operator](self, node)
        (last,) = (self.file.nodes[number].outputs[0] for number in self.file.outputs)
        return self.numbers(last)

    def numbers(self, index: int) -> Floats:
        """Dequantize in float32."""
        return self.codes[index].astype(np.float32) * scale_of(self.file.tensors[index])

    def requantized(self, node: FileNode, numbers: Floats) -> Array:
        """Divide by the scale of the output."""
        assert numbers.dtype == np.float32
        return codes_of(numbers / scale_of(self.file.tensors[node.outputs[0]]))


def convolution(run: Interpreter, node: FileNode) -> Array:
    """``((float(acc) * s_x) * s_w`` clamped by the activation, then divided by ``s_y``."""
    options, image = node.options, run.codes[node.inputs[0]]
    weight = run.codes[node.inputs[1]]
    bias = run.codes[node.inputs[2]] if len(node.inputs) > 2 else np.zeros(len(weight), np.int64)
    edges = (options["pad_top"], options["pad_bottom"]), (options["pad_left"], options["pad_right"])
    padded = np.pad(image, ((0, 0), (0, 0), *edges))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], (2, 3))
    windows = windows[:, :, :: options["stride_h"], :: options["stride_w"]]
    parts = zip(
        np.split(windows, options["group"], axis=1),
        np.split(weight, options["group"]),
        strict=True,
    )
    sums = np.concatenate([np.einsum("nchwij,ocij->nohw", *part) for part in parts], axis=1)
    sums += bias[:, None, None]
    quantization = run.file.tensors[node.inputs[1]].quantization
    assert quantization is not None
    assert quantization.scale.size == len(weight)
    floats = sums.astype(np.float32) * scale_of(run.file.tensors[node.inputs[0]])
    floats = floats * quantization.scale[:, None, None]
    low, high = {-1: (-np.inf, np.inf), 0: (0, np.inf), 6: (0, 6)}[options["activation"]]
    return run.requantized(node, np.clip(floats, np.float32(low), np.float32(high)))


def fully_connected(run: Interpreter, node: FileNode) -> Array:
    """``acc * ((s_x * s_w) / s_y)``."""
    rows, weight, bias = (run.codes[index] for index in node.inputs)
    quantization = run.file.tensors[node.inputs[1]].quantization
    assert quantization is not None
    factors = scale_of(run.file.tensors[node.inputs[0]]) * quantization.scale
    factors = factors / scale_of(run.file.tensors[node.outputs[0]])
    return codes_of((rows @ weight.T + bias).astype(np.float32) * factors)


def pooling(run: Interpreter, node: FileNode) -> Array:
    """The mean of whole images: the sum times ``s_x``, by the count, by ``s_y``."""
    assert node.options["is_global"]
    assert node.options["method"] == 1
    image = run.codes[node.inputs[0]]
    sums = image.sum(axis=(2, 3), keepdims=True).astype(np.float32)
    floats = sums * scale_of(run.file.tensors[node.inputs[0]])
    return run.requantized(node, floats / np.float32(image[0, 0].size))


def relu(run: Interpreter, node: FileNode) -> Array:
    """In float32."""
    return run.requantized(node, np.maximum(run.numbers(node.inputs[0]), np.float32(0)))


def eltwise(run: Interpreter, node: FileNode) -> Array:
    """A sum in float32."""
    assert node.options["type"] == 2
    left, right = (run.numbers(index) for index in node.inputs)
    return run.requantized(node, left + right)


def copied(run: Interpreter, node: FileNode) -> Array:
    """Codes in the shape of the output; Tengine copies memory."""
    before, after = (scale_of(run.file.tensors[each[0]]) for each in (node.inputs, node.outputs))
    assert before == after
    codes = run.codes[node.inputs[0]]
    return codes.reshape(len(codes), *run.file.tensors[node.outputs[0]].shape[1:])


KERNELS: Mapping[str, Callable[[Interpreter, FileNode], Array]] = {
    "Convolution": convolution,
    "FullyConnected": fully_connected,
    "Pooling": pooling,
    "ReLu": relu,
    "Eltwise": eltwise,
    "Flatten": copied,
    "Reshape": copied,
}
"""By operator."""

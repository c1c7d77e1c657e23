"""Layers that the gallery's models are made of, on top of the test builder.

Weights are drawn so that activations stay of order one from layer to layer, as training leaves
them: then an error of a percent is an error of a percent at the output too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.models import ModelBuilder

HE_GAIN = float(np.sqrt(2))  # a Relu halves the variance


class Layers(ModelBuilder):
    """A builder with whole layers; every method returns the name of what it made."""

    def typed_output(self, name: str, shape: Sequence[int | str], dtype: int) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def scaled_weight(self, *shape: int, fan_in: int, gain: float = 1.0) -> str:
        """Normal weights whose products with inputs of variance one have variance ``gain``²."""
        values = self.random.normal(size=shape) * gain / np.sqrt(fan_in)
        return self.constant(values.astype(np.float32))

    def small_bias(self, count: int) -> str:
        return self.constant(self.random.normal(0, 0.1, count).astype(np.float32))

    def convolution(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: Sequence[int] = (3, 3),
        *,
        stride: int = 1,
        group: int = 1,
        pads: Sequence[int] | None = None,
        dilation: int = 1,
        gain: float = HE_GAIN,
        out: str | None = None,
    ) -> str:
        """A convolution of any rank with bias; without ``pads`` the size is kept."""
        per_group = inputs // group
        weight = self.scaled_weight(
            outputs, per_group, *kernel, fan_in=per_group * prod(kernel), gain=gain
        )
        return self.node(
            "Conv",
            x,
            weight,
            self.small_bias(outputs),
            out=out,
            group=group,
            pads=[dilation * (size // 2) for size in kernel] * 2 if pads is None else list(pads),
            strides=[stride] * len(kernel),
            dilations=[dilation] * len(kernel),
        )

    def transposed_convolution(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: Sequence[int],
        *,
        stride: int,
        group: int = 1,
        out: str | None = None,
    ) -> str:
        """A ConvTranspose of any rank with bias."""
        taps = prod(kernel) / stride ** len(kernel)  # that reach one output
        weight = self.scaled_weight(
            inputs,
            outputs // group,
            *kernel,
            fan_in=max(1, round(inputs // group * taps)),
            gain=HE_GAIN,
        )
        return self.node(
            "ConvTranspose",
            x,
            weight,
            self.small_bias(outputs),
            out=out,
            group=group,
            strides=[stride] * len(kernel),
        )

    def relu(self, x: str) -> str:
        return self.node("Relu", x)

    def silu(self, x: str) -> str:
        """Sigmoid(x) * x, as exporters write Swish."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """The exact form with Erf, as exporters write it."""
        erf = self.node("Erf", self.node("Div", x, self.scalar(np.sqrt(2))))
        scaled = self.node("Mul", x, self.node("Add", erf, self.scalar(1)))
        return self.node("Mul", scaled, self.scalar(0.5))

    def linear(
        self, x: str, inputs: int, outputs: int, *, gain: float = 1.0, out: str | None = None
    ) -> str:
        """MatMul and Add, as exporters write a linear layer on inputs of any rank."""
        product = self.node(
            "MatMul", x, self.scaled_weight(inputs, outputs, fan_in=inputs, gain=gain)
        )
        return self.node("Add", product, self.small_bias(outputs), out=out)

    def gemm(
        self, x: str, inputs: int, outputs: int, *, gain: float = 1.0, out: str | None = None
    ) -> str:
        weight = self.scaled_weight(outputs, inputs, fan_in=inputs, gain=gain)
        return self.node("Gemm", x, weight, self.small_bias(outputs), out=out, transB=1)

    def norm_scale(self, count: int) -> str:
        return self.constant(self.random.uniform(0.7, 1.3, count).astype(np.float32))

    def layer_norm(self, x: str, width: int) -> str:
        return self.node(
            "LayerNormalization", x, self.norm_scale(width), self.small_bias(width), axis=-1
        )

    def decomposed_layer_norm(self, x: str, width: int) -> str:
        """As exporters write it before opset 17."""
        centred = self.node("Sub", x, self.mean(x, [-1], keepdims=1))
        variance = self.mean(self.node("Pow", centred, self.scalar(2)), [-1], keepdims=1)
        deviation = self.node("Sqrt", self.node("Add", variance, self.scalar(1e-5)))
        normal = self.node("Div", centred, deviation)
        scaled = self.node("Mul", normal, self.norm_scale(width))
        return self.node("Add", scaled, self.small_bias(width))

    def attention(self, x: str, tokens: int, width: int, heads: int, mask: str = "") -> str:
        """Self-attention of ``[batch, tokens, width]``; the mask is added to the scores."""
        parts = []
        for _ in range(3):
            part = self.node(
                "Reshape", self.linear(x, width, width), self.ints(0, tokens, heads, width // heads)
            )
            parts.append(self.node("Transpose", part, perm=[0, 2, 1, 3]))
        query, key, value = parts
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.node("Div", scores, self.scalar(np.sqrt(width // heads)))
        if mask:
            scores = self.node("Add", scores, mask)
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        mixed = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", mixed, self.ints(0, tokens, width))
        return self.linear(mixed, width, width)

    def max_pool(self, x: str, kernel: int, *, stride: int = 1, rank: int = 2) -> str:
        """Max pooling with ``kernel // 2`` of padding."""
        return self.node(
            "MaxPool",
            x,
            kernel_shape=[kernel] * rank,
            strides=[stride] * rank,
            pads=[kernel // 2] * 2 * rank,
        )

    def resize(self, x: str, factor: int, *, mode: str = "nearest") -> str:
        scales = self.constant(np.array([1, 1, factor, factor], dtype=np.float32))
        transform = "asymmetric" if mode == "nearest" else "half_pixel"
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
        return self.node(
            "Resize", x, "", scales, mode=mode, coordinate_transformation_mode=transform, **extra
        )

    def pooled(self, x: str) -> str:
        """Global average pooling and Flatten: ``[batch, channels]``."""
        return self.node("Flatten", self.node("GlobalAveragePool", x))

    def last_as(self, name: str, shape: Sequence[int | str]) -> onnx.ModelProto:
        """Name the last node's result, make it the model's only output and build."""
        self.nodes[-1].output[0] = name
        self.output(name, shape)
        return self.build()


INT64 = TensorProto.INT64

"""Models with fake quantizers by hand, as training tools write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tests.formats.onnx_qdq.pairs import PairBuilder

Floats = npt.NDArray[np.float32]


def floats(values: list[float]) -> Floats:
    return np.asarray(values, np.float32)


class Trained(PairBuilder):
    """Writes fake quantizers as training tools do."""

    def given(self, *values: Any) -> list[str]:
        return [self.constant(np.asarray(value)) for value in values]

    def fake(
        self,
        op_type: str,
        x: str,
        *values: Any,
        domain: str = "",
        name: str | None = None,
        **more: Any,
    ) -> str:
        if domain:
            self.domains[domain] = 1
        return self.node(op_type, x, *self.given(*values), domain=domain, name=name, **more)

    def tensor(self, x: str, scale: float, zero_point: float, low: int, high: int) -> str:
        scales, zeros = floats([scale]), floats([zero_point])
        return self.fake("FixedPerTensorAffine", x, scales, zeros, low, high)


def mqbench_net(low: int = -64, high: int = 63) -> onnx.ModelProto:
    """Two convolutions as MQBench exports them; one scale is negative, one zero point broken."""
    b = Trained()
    ints = np.asarray
    x = b.input("image", ["batch", 3, 6, 6])
    x = b.fake("LearnablePerTensorAffine", x, floats([0.02]), floats([-3.3]), ints(-128), ints(127))
    steps = np.linspace(0.004, 0.02, 4, dtype=np.float32)
    span: dict[str, Any] = {"quant_min": low, "quant_max": high}
    per_channel = "FakeQuantizeLearnablePerchannelAffine"
    w = b.fake(per_channel, b.weight(4, 3, 3, 3, name="w1"), steps, 0 * steps, **span)
    y = b.node("Conv", x, w, b.weight(4, name="b1"), pads=[1] * 4)
    y = b.node("Relu", y, out="relu")
    y = b.fake("LearnablePerTensorAffine", y, floats([-0.01]), floats([0]), ints(0), ints(255))
    steps = np.full(5, 0.01, np.float32)
    w = b.fake(per_channel, b.weight(5, 4, 1, 1, name="w2"), steps, 0 * steps, **span)
    b.constant(np.zeros(7, np.float32), "nobody_reads")
    b.output(b.node("Conv", y, w, b.weight(5, name="b2"), out="y"))
    return b.build()


class Saved(Trained):
    """Writes pairs as newer versions of MQBench save them.

    Attributes:
        says: How a pair says its range: by attributes, by a Clip of the codes, or not at all.
    """

    says = "nothing"

    def ranged(self, x: str, scale: Any, zero: Any, low: int, high: int) -> str:
        numbers = self.given(np.float32(scale), zero)
        span: dict[str, Any] = {"axis": 0}
        if self.says == "attributes":
            span |= {"quant_min": low, "quant_max": high}
        codes = self.node("QuantizeLinear", x, *numbers, **span)
        if self.says == "clips":
            kind = np.asarray(zero).dtype.type
            codes = self.node("Clip", codes, *self.given(kind(low), kind(high)))
        return self.node("DequantizeLinear", codes, *numbers, **span)


def saved_net(
    bits: int, says: str = "nothing", *, activations: int = 8, factor: float = 1.0
) -> onnx.ModelProto:
    """Two convolutions, whose weights have the scales of extremes times a factor.

    A factor of less than 1 clips weights, as learned scales do.
    """
    b = Saved()
    b.says = says
    x = b.ranged(b.input("image", ["batch", 3, 6, 6]), 0.02, np.int8(0), -128, 127)
    span, top = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), 2**activations - 1
    for index, (inputs, outputs) in enumerate(((3, 8), (8, 6))):
        name = b.weight(outputs, inputs, 3, 3, name=f"w{index}")
        weight = onnx.numpy_helper.to_array(b.initializers[-1])
        scale = np.abs(weight).max((1, 2, 3)) / ((2**bits - 1) / 2) * factor
        w = b.ranged(name, scale, np.zeros(outputs, np.int8), *span)
        x = b.node("Relu", b.node("Conv", x, w, pads=[1] * 4, name=f"conv{index}"))
        x = b.ranged(x, 0.5 / top, np.uint8(0), 0, top)
    b.output(b.node("Identity", x, out="y"), ["batch", 6, 6, 6])
    return b.build()

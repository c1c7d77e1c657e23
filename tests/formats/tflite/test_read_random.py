"""Windows of random shapes give LiteRT's reference integers, alone in a file."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from intact.engines.integer.engine import IntegerEngine
from intact.formats.tflite.read import read_tflite
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.targets import load_target
from tests.formats.tflite.read_layers import SAME, some_scales
from tests.formats.tflite.small_files import FileBuilder, random_feeds, reference

_KINDS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "MAX_POOL_2D", "AVERAGE_POOL_2D")


def _length(size: int, width: int, stride: int, padding: int) -> int:
    return -(-size // stride) if padding == SAME else (size - width) // stride + 1


def _window(kind: str, seed: int) -> bytes:
    """Return a file of one operator; windows that are larger than the image get SAME padding."""
    random, b = Random(f"{kind} {seed}"), FileBuilder(seed)
    sizes = [random.randint(1, 9) for _ in range(2)]
    kernel = [random.randint(1, 5) for _ in range(2)]
    strides = [random.randint(1, 3) for _ in range(2)]
    channels, zero = random.choice((1, 2, 3, 8)), random.randint(-128, 127)
    fits = all(width <= size for width, size in zip(kernel, sizes, strict=True))
    padding = random.randint(0, 1) if fits else SAME
    x = b.input((1, *sizes, channels), scale=0.05, zero=zero)
    fields = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
    if kind == "TRANSPOSE_CONV":
        return _transposed(b, x, kernel, strides, fields)
    lengths = [_length(*each, padding) for each in zip(sizes, kernel, strides, strict=True)]
    fields["fusedActivationFunction"] = random.randint(0, 3)
    if kind.endswith("POOL_2D"):
        fields |= {"filterHeight": kernel[0], "filterWidth": kernel[1]}
        out = b.tensor((1, *lengths, channels), scale=0.05, zero=zero)
        return b.build(b.op(kind, [x], out, "Pool2DOptions", **fields))
    fields |= {"dilationHFactor": 1, "dilationWFactor": 1}
    is_depthwise = kind != "CONV_2D"
    outputs = channels * random.randint(1, 2) if is_depthwise else random.randint(2, 5)
    scales = some_scales(outputs)
    shape = (1, *kernel, outputs) if is_depthwise else (outputs, *kernel, channels)
    weight = b.codes(shape, scale=scales, axis=3 if is_depthwise else 0)
    bias = b.bias(outputs, [0.05 * scale for scale in scales])
    out = b.tensor((1, *lengths, outputs), scale=random.choice((0.02, 0.3)), zero=-zero // 2)
    options = "DepthwiseConv2DOptions" if is_depthwise else "Conv2DOptions"
    return b.build(b.op(kind, [x, weight, bias], out, options, **fields))


def _transposed(
    b: FileBuilder, x: int, kernel: list[int], strides: list[int], fields: dict[str, int]
) -> bytes:
    _, *sizes, channels = b.graph.tensors[x].shape
    lengths = [
        size * stride if fields["padding"] == SAME else (size - 1) * stride + width
        for size, stride, width in zip(sizes, strides, kernel, strict=True)
    ]
    weight = b.codes((3, *kernel, channels), scale=some_scales(3))
    out = b.tensor((1, *lengths, 3), scale=0.1, zero=5)
    inputs = [b.ints(1, *lengths, 3), weight, x]
    return b.build(b.op("TRANSPOSE_CONV", inputs, out, "TransposeConvOptions", **fields))


@pytest.mark.parametrize("kind", _KINDS)
def test_windows(kind: str) -> None:
    for seed in range(12):
        data = _window(kind, seed)
        interpreter = reference(data)
        ((index, codes),) = random_feeds(interpreter, seed).items()
        interpreter.set_tensor(index, codes)
        interpreter.invoke()
        plan = read_tflite(data, load_target("tflite"))
        program = integer_io(lower(plan))
        assert not program.in_float
        (found,) = IntegerEngine(program).run({"t0": codes}).outputs.values()
        expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_array_equal(found, expected, err_msg=f"{kind} {seed}")

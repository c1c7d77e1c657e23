"""[tengine]: its loops written out, for what `tests/formats/tengine/test_published.py` leaves."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import intact
from intact.data.images.decode import place
from intact.data.images.reader import open_folder
from intact.data.images.steps import ImageSteps, Size
from intact.data.preprocess import Preprocess
from intact.data.signature import InputSpec
from intact.formats.tengine.format import MODEL_FILE
from intact.formats.tengine.tmfile.codec import open_tmfile
from intact.formats.tengine.tmfile.file import FileTensor
from tests.models import ModelBuilder
from tests.plans import config, files_of, planned

F = np.float32


def single(value: float) -> float:
    """The nearest float32, by way of its bytes."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def letterboxed(rows: int, columns: int, room: int) -> tuple[int, int]:
    """`get_input_data_cv` with a square letterbox."""
    if rows > columns:
        return room, int(single(columns * single(room / rows)))
    return int(single(rows * single(room / columns))), room


def focused(rows: int, columns: int, room: int) -> tuple[int, int]:
    """The same function with focus."""
    factor = single(min(room / rows, room / columns))
    return int(single(factor * rows)), int(single(factor * columns))


def beside_256(rows: int, columns: int) -> tuple[int, int]:
    """The same function with centre crop."""
    if rows < columns:
        return 256, int(columns * (256.0 / rows))
    return int(rows * (256.0 / columns)), 256


def dense(weight: list[list[float]], bias: list[float]) -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3])
    w, c = b.constant(np.array(weight, F), "w"), b.constant(np.array(bias, F), "c")
    b.node("Gemm", x, w, c, name="dense", out="y", transB=1)
    b.output("y", ["batch", len(bias)])
    return b.build()


def tensors(result: Any) -> dict[str, FileTensor]:
    file = open_tmfile(files_of(result, "tengine")[MODEL_FILE])
    return {tensor.name: tensor for tensor in file.tensors}


def away(value: float) -> int:
    """C's `round`."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def test_a_dense_layer_by_hand() -> None:
    weight = [[1.27, -0.635, 0.005], [0.0, 2.54, -2.54]]
    bias = [0.4, -1.0]
    data = np.array([[1.0, -2.54, 0.5], [0.25, 1.27, -1.0]], F)
    result = intact.quantize(dense(weight, bias), {"x": data}, target="tengine")
    found = tensors(result)
    input_scale = F(F(2.54) / F(127))
    assert files_of(result, "tengine")["table_minmax.scale"].splitlines()[0] == b"x 0.020000 0"
    for channel, row in enumerate(weight):
        scale = F(max(abs(F(max(row))), abs(F(min(row)))) / F(127))
        assert found["w"].quantization is not None
        assert found["w"].quantization.scale[channel] == scale
        codes = [max(-127, min(127, away(float(F(value) / scale)))) for value in row]
        assert np.asarray(found["w"].data)[channel].tolist() == codes
        bias_scale = F(scale * F(0.02))
        assert abs(input_scale - F(0.02)) < 1e-8
        assert found["c"].quantization is not None
        assert found["c"].quantization.scale[channel] == bias_scale
        assert int(np.asarray(found["c"].data)[channel]) == away(
            float(F(bias[channel]) / bias_scale)
        )
        assert found["w"].quantization.zero_point.tolist() == [0, 0]
        assert found["c"].quantization.zero_point.tolist() == [0, 0]
    # 0.005 / 0.01 is a tie: half away from zero.
    assert np.asarray(found["w"].data)[0].tolist() == [127, -64, 1]


@pytest.mark.parametrize(
    ("steps", "tool"),
    [
        (ImageSteps(letterbox=(416, 416), side_rounding="truncated"), letterboxed),
        (ImageSteps(letterbox=(640, 640), side_rounding="truncated", focus=True), focused),
        (ImageSteps(shorter_side=256, side_rounding="truncated"), beside_256),
    ],
)
def test_images_get_the_sizes_of_the_tool(
    steps: ImageSteps, tool: Callable[..., tuple[int, int]]
) -> None:
    canvas, plain = steps.image_size or Size(224, 224), replace(steps, side_rounding="exact")
    room = () if steps.letterbox is None else (canvas.rows,)
    images = [(360, 640), *((each, each + more) for each in range(200, 700, 3) for more in (0, 77))]
    others = 0
    for image in (*images, *((columns, rows) for rows, columns in images)):
        found = place(Size(*image), canvas, steps)
        assert found.resized == tool(*image, *room), image
        assert found[1:] == tuple(
            (frame - side) // 2 if steps.letterbox else -(side // 2 - frame // 2)
            for frame, side in zip(canvas, found.resized, strict=True)
        )
        others += found.resized != place(Size(*image), canvas, plain).resized
    assert others > 10


def test_a_letterbox_is_padded_with_what_becomes_a_half(tmp_path: Path) -> None:
    """The tool pads its float canvas with ``0.5 / scale + mean``."""
    mean, scale = (104.007, 116.669, 122.679), (0.017, 0.017, 0.0039)
    pad = tuple(0.5 / by + center for by, center in zip(scale, mean, strict=True))
    assert pad[2] > 250
    pixels = np.random.default_rng(5).integers(0, 256, (9, 16, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    steps = ImageSteps(letterbox=(16, 16), pad=pad, order="bgr", side_rounding="truncated")
    specs = {"x": InputSpec(np.dtype(F), (None, 3, 16, 16))}
    (batch,) = open_folder(tmp_path, specs, Preprocess(mean, scale, steps))
    for channel, (center, by) in enumerate(zip(mean, scale, strict=True)):
        canvas = np.full((16, 16), F(pad[channel]))
        canvas[3:12] = pixels[..., 2 - channel]
        assert np.array_equal(batch["x"][0, channel], (canvas - F(center)) * F(by))


def behind(operator: str) -> onnx.ModelProto:
    """A convolution, an Add (so that nothing is fused), an operator, a convolution."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), name="first")
    x = b.node("Add", x, b.input("other", ["batch", 4, 8, 8]), name="sum")
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    more: dict[str, tuple[list[str], dict[str, Any]]] = {
        "MaxPool": ([], pool),
        "AveragePool": ([], pool),
        "LeakyRelu": ([], {"alpha": 0.1}),
        "Clip": ([b.scalar(0), b.scalar(6)], {}),
        "Reshape": ([b.ints(0, 4, 4, 16)], {}),
        "Slice": ([b.ints(0), b.ints(4), b.ints(2)], {}),
        "Flatten": ([], {}),
    }
    extra, attributes = more.get(operator, ([], {}))
    b.node(operator, x, *extra, name="here", out="y", **attributes)
    b.output("y")
    return b.build()


@pytest.mark.parametrize("operator", ["MaxPool", "Relu", "Clip", "Flatten", "Reshape", "Slice"])
def test_operators_in_place_give_their_scale_to_their_input(operator: str) -> None:
    plan = planned(behind(operator), "tengine")
    assert config(plan, "sum.output[0]").dominator is config(plan, "here.output[0]").dominator


@pytest.mark.parametrize("operator", ["AveragePool", "LeakyRelu", "Sigmoid"])
def test_other_pools_and_slopes_do_not(operator: str) -> None:
    plan = planned(behind(operator), "tengine")
    assert config(plan, "sum.output[0]").dominator is not config(plan, "here.output[0]").dominator


def test_activations_have_one_scale_and_weights_one_a_channel() -> None:
    plan = planned(behind("Relu"), "tengine")
    assert config(plan, "first.input[0]").grid.axis is None
    assert config(plan, "first.output[0]").grid.axis is None
    assert config(plan, "first.input[1]").grid.axis == 0


def test_three_kinds_of_layers_have_quantized_weights() -> None:
    """Convolution, Deconvolution, FullyConnected: int8, -127..127, by output channel."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    x = b.node("Conv", x, b.weight(6, 4, 1, 1), b.weight(6), name="first")
    x = b.node("ConvTranspose", x, b.weight(6, 3, 2, 2), b.weight(3), name="up", strides=[2, 2])
    x = b.node("Flatten", x)
    b.node("Gemm", x, b.weight(5, 768), b.weight(5), name="dense", out="y", transB=1)
    b.output("y")
    plan = planned(b.build(), "tengine")
    for name, axis in (("first", 0), ("up", 1), ("dense", None)):
        weight, bias = (config(plan, f"{name}.input[{slot}]") for slot in (1, 2))
        assert (weight.quant_min, weight.quant_max) == (-127, 127)
        assert weight.grid.axis is not None
        assert axis in {weight.grid.axis, None}
        assert (bias.bits, bias.quant_min) == (32, -(2**31))

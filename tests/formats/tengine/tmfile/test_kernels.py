"""What Tengine's kernels do not compute, or compute otherwise, is refused; its neighbour is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from intact.errors import ExportError
from intact.formats.tengine.tmfile.read import read_tmfile
from intact.formats.tengine.tmfile.write import write_float, write_int8
from intact.graph import normalize
from intact.plan import QuantizedGraph
from tests.formats.tengine.tmfile.files import bytes_of
from tests.formats.tengine.tmfile.networks import run
from tests.models import ModelBuilder
from tests.plans import calibrated, config, own_target

HEADER = """
format = 2
name = "mine"
formats = ["tengine"]
[activation]
dtype = "int8"
quant_min = -127
symmetric = true
[weight]
dtype = "int8"
quant_min = -127
symmetric = true
[arithmetic]
requantize = { kind = "float_once" }
"""


def one(op_type: str, *constants: Any, shape: tuple[int | str, ...] = ("batch", 4, 6, 6),
        **attributes: Any) -> onnx.ModelProto:  # fmt: skip
    """A convolution, if there are images, and one node."""
    b = ModelBuilder(18)
    x = b.input("image", list(shape))
    if len(shape) == 4:
        x = b.node("Conv", x, b.weight(4, 4, 1, 1), name="conv")
    inputs = ["" if each is None else b.constant(each) for each in constants]
    b.node(op_type, x, *inputs, out="y", name="odd", **attributes)
    b.output("y")
    return b.build()


def integer(model: onnx.ModelProto, folder: Path, op_type: str) -> QuantizedGraph:
    rules = f'[[op]]\nops = ["Conv", "{op_type}"]\n'
    return calibrated(model, own_target(folder, rules, header=HEADER))


@pytest.mark.parametrize("op_type", ["Elu", "Tanh", "Mish", "Softplus"])
def test_functions_without_a_kernel_for_int8(op_type: str, tmp_path: Path) -> None:
    model = one(op_type)
    assert write_float(normalize(model))
    with pytest.raises(ExportError, match=r"'odd': Tengine has no kernel for it in INT8"):
        write_int8(integer(model, tmp_path, op_type))
    assert write_int8(integer(one("Sigmoid"), tmp_path, "Sigmoid"))


def test_a_mean_over_axes_has_no_kernel_for_int8(tmp_path: Path) -> None:
    model = one("ReduceMean", np.array([3]), keepdims=1)
    assert write_float(normalize(model))
    with pytest.raises(ExportError, match="'odd': Tengine has no kernel for it in INT8"):
        write_int8(integer(model, tmp_path, "ReduceMean"))


@pytest.mark.parametrize("op_type", ["Mish", "Softplus"])
def test_functions_of_one_image(op_type: str) -> None:
    for shape in ((3, 4, 6, 6), ("batch", 5)):
        with pytest.raises(ExportError, match="'odd'"):
            write_float(normalize(one(op_type, shape=shape)))
    assert write_float(normalize(one("Tanh", shape=(3, 4, 6, 6))))


CHANNELS = np.linspace(0.5, 1, 4).astype(np.float32).reshape(4, 1, 1)


def test_the_larger_of_two_is_not_spread() -> None:
    for constant in (CHANNELS, CHANNELS[:1]):
        with pytest.raises(ExportError, match="'odd': it joins"):
            write_float(normalize(one("Max", constant)))
        assert write_float(normalize(one("Mul", constant)))
    assert write_float(normalize(one("Max", np.ones((1, 4, 6, 6), np.float32))))


@pytest.mark.parametrize("constant", [CHANNELS, CHANNELS[:1]])
def test_quotients_by_constants_are_products(constant: np.ndarray, tmp_path: Path) -> None:
    assert write_float(normalize(one("Div", constant)))
    assert write_int8(integer(one("Div", constant), tmp_path, "Mul"))


def test_slopes_of_other_tensors_than_images(tmp_path: Path) -> None:
    slopes = CHANNELS[:, 0]
    with pytest.raises(ExportError, match="'odd': its input has 3 dimensions"):
        write_float(normalize(one("PRelu", slopes, shape=("batch", 4, 5))))
    rows = one("PRelu", slopes[:, 0], shape=("batch", 4))
    assert write_float(normalize(rows))
    with pytest.raises(ExportError, match="'odd': its input has 2 dimensions"):
        write_int8(integer(rows, tmp_path, "PRelu"))


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.5), (float("nan"), 1.0)])
def test_a_clip_of_nothing(low: float, high: float) -> None:
    with pytest.raises(ExportError, match="'odd': it clips to"):
        write_float(normalize(one("Clip", np.float32(low), np.float32(high))))


def test_a_clip_whose_codes_would_wrap_around(tmp_path: Path) -> None:
    """Its kernel casts to int8 what lies beyond 127."""
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 4, 6, 6]), b.weight(4, 4, 1, 1), name="conv")
    x = b.node("Sigmoid", x, name="before")
    b.node("Clip", x, b.scalar(-0.5), b.scalar(0.5), out="y", name="odd")
    b.output("y")
    rules = '[[op]]\nops = ["Conv", "Sigmoid", "Clip"]\n'
    plan = calibrated(b.build(), own_target(tmp_path, rules, header=HEADER))
    before, after = (config(plan, f"{name}.output[0]").dominator for name in ("before", "odd"))
    for scale, wraps in ((0.5 / 127, False), (0.5 / 127.4, False), (0.5 / 127.6, True)):
        before.set_params(1 / 127, 0)
        after.set_params(scale, 0)
        if wraps:
            with pytest.raises(ExportError, match="'odd': its output has a smaller range"):
                write_int8(plan)
        else:
            assert write_int8(plan)
    before.set_params(0.5 / 127.6, 0)  # nor does what comes in reach beyond
    assert write_int8(plan)


def test_a_copy_keeps_its_scale(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Conv", b.input("image", ["batch", 4, 6, 6]), b.weight(4, 4, 1, 1), out="y")
    b.node("Identity", "y", out="again", name="odd")
    b.output("y")
    b.output("again")
    rules = '[[op]]\nops = ["Conv", "Identity"]\n'
    plan = calibrated(b.build(), own_target(tmp_path, rules, header=HEADER))
    config(plan, "odd.output[0]").dominator.set_params(0.5, 0)
    with pytest.raises(ExportError, match="'odd': 'again' has another scale than 'y'"):
        write_int8(plan)


def linear(shape: tuple[int | str, ...], factor: float) -> onnx.ModelProto:
    scales = np.array([1, 1, factor, factor], np.float32)
    return one(
        "Resize",
        None,
        scales,
        shape=shape,
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    )


def test_between_pixels_the_factors_follow_from_the_lengths() -> None:
    assert write_float(normalize(linear(("batch", 4, 6, 6), 1.5)))
    for shape, factor in ((("batch", 4, 6, 7), 1.5), ((3, 4, 6, 6), 2), (("batch", 4, 1, 6), 2)):
        with pytest.raises(ExportError, match="'odd': "):
            write_float(normalize(linear(shape, factor)))


def test_what_is_read_computes_between_pixels_by_the_lengths() -> None:
    """Tengine cuts 5 * 1.5 to 7 and steps by 5 / 7, not by 1 / 1.5."""
    image = np.arange(10, dtype=np.float32).reshape(1, 1, 2, 5)
    options = {"type": 2, "scale_w": 1.5, "scale_h": 1.0, "output_w": 0, "output_h": 0}
    model = read_tmfile(bytes_of("Interp", options, image.shape))
    (found,) = run(model, {"x": image})
    at = np.arange(7) * 5 / 7
    rows = np.interp(np.minimum(at, 4), np.arange(5), image[0, 0, 0])
    np.testing.assert_allclose(found[0, 0], [rows, rows + 5], rtol=1e-6)


def test_nodes_of_one_reason_are_named_together(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 6, 6])
    for number in range(3):
        x = b.node("Conv", x, b.weight(4, 4, 1, 1), name=f"conv{number}")
    b.output(x)
    header = HEADER.replace(
        '[weight]\ndtype = "int8"\nquant_min = -127', '[weight]\ndtype = "int16"'
    )
    plan = calibrated(b.build(), own_target(tmp_path, '[[op]]\nops = ["Conv"]\n', header=header))
    with pytest.raises(ExportError, match="'conv0', 'conv1', 'conv2': input 1 has 16 bits"):
        write_int8(plan)

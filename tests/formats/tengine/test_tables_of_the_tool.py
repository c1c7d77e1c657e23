"""Tables where a plan has other scales than Tengine's tool writes, or other tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.formats.tengine.tables import BIASES_FILE, WEIGHTS_FILE
from tests.formats.tengine import published
from tests.formats.tengine.test_published import DATA, MODEL, SCALES
from tests.formats.tengine.tmfile.files import bytes_of
from tests.formats.tengine.tmfile.test_operators import conv
from tests.models import ModelBuilder, random_inputs
from tests.plans import files_of


def test_without_in_place_a_fused_convolution_has_its_own_scale() -> None:
    """Inside of the convolution nothing has a scale; the tool's model has the tensor."""
    result = intact.quantize(
        MODEL, DATA, target="tengine", in_place=False, formats=["tengine", "tengine_effective"]
    )
    assert SCALES["c1"] != SCALES["r1"]
    wanted = published.table(MODEL, SCALES)
    assert files_of(result, "tengine_effective")["table_effective.scale"].decode() == wanted
    assert files_of(result, "tengine")["table_minmax.scale"].decode() == wanted


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 6), (6, 4)])
def test_a_deconvolution_has_a_scale_for_each_index_of_the_first_axis(
    inputs: int, outputs: int
) -> None:
    net, data = deconvolution(inputs, outputs)
    weight = published.constants(net)["up_w"]
    result = intact.quantize(net, data, target="tengine")
    scales = [np.abs(each).max() / np.float32(127) for each in weight]
    read = published.decimals(published.minmax(data["x"]))
    files = files_of(result, "tengine")
    assert files[WEIGHTS_FILE].decode() == published.line("up_w", scales)
    assert files[BIASES_FILE].decode() == published.line("up_b", [each * read for each in scales])
    assert any("each input channel of 'up'" in note.message for note in result.plan.notes)


@pytest.mark.parametrize("outputs", [6, 4])
def test_tables_of_a_deconvolution_are_read_back(outputs: int, tmp_path: Path) -> None:
    """Also where it has as many outputs as inputs, so that numbers do not tell them apart."""
    net, data = deconvolution(4, outputs)
    result = intact.quantize(net, data, target="tengine")
    result.save(tmp_path)
    given = [tmp_path / name for name in ("table_minmax.scale", WEIGHTS_FILE, BIASES_FILE)]
    again = intact.quantize(net, target="tengine", scales=given)
    assert [*files_of(again, "tengine").values()] == [*files_of(result, "tengine").values()]
    left_out = [n.message for n in again.plan.notes if "2 encoding(s) left out" in n.message]
    assert len(left_out) == 1
    assert "a scale for each input channel" in left_out[0]


def test_scales_of_a_deconvolutions_outputs_are_taken(tmp_path: Path) -> None:
    net, data = deconvolution(4, 6)
    (tmp_path / "w.txt").write_text("up_w " + "0.5 " * 6 + "\n")
    result = intact.quantize(net, data, target="tengine", scales=tmp_path / "w.txt")
    weight = result.plan.input_config(result.plan.graph.node("up"), 1)
    assert weight.scale is not None
    assert weight.scale.tolist() == [0.5] * 6


def deconvolution(inputs: int, outputs: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    weight = np.random.default_rng(3).normal(size=(inputs, outputs, 2, 2)).astype(np.float32)
    b = ModelBuilder()
    x = b.input("x", ["batch", inputs, 4, 4])
    b.node("ConvTranspose", x, b.constant(weight, "up_w"), b.constant(weight[0, :, 0, 0], "up_b"),
           name="up", strides=[2, 2], out="y")  # fmt: skip
    b.output("y")
    net = b.build()
    return net, random_inputs(net, batch=4)


@pytest.mark.parametrize("activation", [0, 6])
def test_what_is_inside_of_a_node_of_the_file_has_no_line(tmp_path: Path, activation: int) -> None:
    """A fused Relu: its sums are no tensor of the file, nor of the tool's table."""
    data = np.random.default_rng(4).normal(size=(8, 1, 5, 5)).astype(np.float32)
    kernel = np.full((1, 1, 3, 3), 0.5, np.float32)
    path = tmp_path / "fused.tmfile"
    path.write_bytes(bytes_of("Convolution", conv(activation=activation), (1, 1, 5, 5), kernel))
    result = intact.quantize(path, {"x": data}, formats=["tengine", "tengine_effective"])
    result.save(tmp_path / "out")
    for name in ("table_minmax.scale", "table_effective.scale"):
        lines = (tmp_path / "out" / name).read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["x", "y0"]
    found = intact.verify(tmp_path / "out")
    assert not any(found.rules.values())

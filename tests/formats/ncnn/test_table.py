"""The calibration table: its exact text, and back to scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.errors import DataError
from intact.formats.ncnn.table import TableEntry, table_text
from intact.formats.scales import read_scales
from intact.graph import normalize
from intact.plan import quantization_points
from tests.formats.ncnn.cases import written_from
from tests.models import MODELS, ModelBuilder
from tests.plans import calibrated

WEIGHTS = np.array([127, 1 / 3], np.float32)
TEXT = "conv_param_0 127.000000 0.333333\nfc_param_0 2.500000\nconv 31.750000\nfc 0.498039\n"


def model() -> ModelBuilder:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 3, 4, 4]), b.weight(2, 3, 1, 1), name="conv")
    b.output(b.node("Gemm", b.node("Flatten", x, out="flat"), b.weight(32, 5), name="the fc"))
    return b


def test_table_text_is_that_of_ncnn2table() -> None:
    entries = [
        TableEntry("conv", WEIGHTS, 31.75),
        TableEntry("fc", np.array([2.5], np.float32), float(np.float32(127 / 255))),
    ]
    assert table_text(entries) == TEXT


def test_written_table_is_read_back_to_six_decimals(tmp_path: Path) -> None:
    for name in ("residual", "depthwise"):
        plan = calibrated(MODELS[name].build(17), "ncnn")
        path = tmp_path / f"{name}.table"
        path.write_text(written_from(plan).table)
        read = read_scales(path, plan.graph)
        points = {str(point.value.name): point for point in quantization_points(plan)}
        assert set(read.scales) == set(points)
        for tensor, point in points.items():
            assert point.config.params is not None
            expected = np.float64(1) / point.config.params.scale.astype(np.float64)
            np.testing.assert_allclose(
                1 / read[tensor].scale.astype(np.float64), expected, 1e-6, 1e-6
            )
            assert not read[tensor].zero_point.any()


def test_table_with_comments_and_spaces_is_read(tmp_path: Path) -> None:
    graph = normalize(model().build())
    path = tmp_path / "x.table"
    path.write_text("conv_param_0 4 0.5\r\n\n#the_fc_param_0 1\n the_fc 8 \nconv 2.0\n")
    read = read_scales(path, graph)
    assert read["constant_1"].scale.tolist() == [0.25, 2.0]
    assert read["x"].scale.tolist() == 0.5
    assert read["flat"].scale.tolist() == 0.125
    assert set(read.scales) == {"constant_1", "x", "flat"}
    assert sum(read.ignored.values()) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("conv", "line 2: neither"),
        ("conv 1.0 x", "line 2: neither"),
        ("convs 1.0", "no convolution or dense layer 'convs'; did you mean 'conv'"),
        ("conv 0.000000", "a scale is 0"),
        ("conv -1.0", "not a positive"),
        ("conv nan", "not a positive"),
        ("the_fc_param_0 1e-60", "not a positive"),
        ("conv_param_0 3 3", "a second, different scale"),
    ],
)
def test_wrong_lines_are_named(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.table"
    path.write_text(f"conv_param_0 4 0.5\n{line}\n")
    with pytest.raises(DataError, match=reason) as found:
        read_scales(path, normalize(model().build()))
    assert "\n" not in str(found.value)


def test_table_without_a_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.table"
    path.write_text(TEXT)
    with pytest.raises(DataError, match="names layers of a model"):
        read_scales(path)


def test_table_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.table"
    path.write_bytes(b"conv_param_0 4\n\xff\xfe\n")
    with pytest.raises(DataError, match="not a text file"):
        read_scales(path, normalize(model().build()))

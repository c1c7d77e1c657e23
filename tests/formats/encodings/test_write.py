"""Plans as encodings: what is written is read back to the same scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intact
from intact import demo
from intact.errors import ExportError
from intact.formats.encodings.read import parse_encodings
from intact.formats.encodings.write import write_encodings
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.untie import is_requantized
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net
from tests.plans import calibrated

TARGETS = ("onnxruntime", "tflite", "integer-pow2", "tensorrt")


def scales_of(plan: QuantizedGraph) -> dict[str, tuple[Any, ...]]:
    """Return bits, scales and unsigned codes of zero by tensor, biases left out."""
    found = {}
    for point in quantization_points(plan):
        config = point.config
        if config.bits <= 16 and config.params is not None and not is_requantized(config):
            found[str(point.value.name)] = (
                config.bits,
                np.atleast_1d(config.params.scale).tolist(),
                _unsigned(config.params.zero_point, config.bits, signed=config.quant_min < 0),
            )
    return found


def _unsigned(zero_point: np.ndarray, bits: int, *, signed: bool) -> list[int]:
    shift = 1 << (bits - 1) if signed else 0
    return [int(zero) + shift for zero in np.atleast_1d(zero_point)]


@pytest.mark.crossed
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "clutter"])
def test_what_is_written_is_read_back(name: str, target: str) -> None:
    plan = calibrated(MODELS[name].build(17), target)
    wanted, written = scales_of(plan), write_encodings(plan)
    if not wanted:
        assert json.loads(written["0.6.1"])["activation_encodings"] == {}
        return
    for version, content in written.items():
        table = parse_encodings(content, version)
        narrow = {name for name, given in table.scales.items() if given.bits <= 16}
        assert narrow == set(wanted)
        assert narrow == set(table.scales) or version == "2.0.0"  # which has biases
        for tensor, (bits, scale, zero_point) in wanted.items():
            given = table.scales[tensor]
            assert given.bits == bits
            assert np.atleast_1d(given.scale).tolist() == scale
            assert _unsigned(given.zero_point, bits, signed=given.signed) == zero_point


def test_the_figures_of_one_tensor_by_hand() -> None:
    plan = calibrated(residual_net(), "tflite")
    table = json.loads(write_encodings(plan)["0.6.1"])
    assert table["version"] == "0.6.1"
    (image,) = table["activation_encodings"]["image"]
    point = next(p for p in quantization_points(plan) if p.value.name == "image")
    assert point.config.params is not None
    scale, zero = float(point.config.params.scale), int(point.config.params.zero_point)
    assert image == {
        "bitwidth": 8,
        "dtype": "int",
        "is_symmetric": "False",
        "max": (127 - zero) * scale,
        "min": (-128 - zero) * scale,
        "offset": -128 - zero,
        "scale": scale,
    }
    weights = [each for each in table["param_encodings"].values() if len(each) > 1]
    assert weights
    for channel in weights[0]:
        assert channel["offset"] == -127
        assert channel["is_symmetric"] == "True"
        assert channel["min"] == -channel["max"] == -127 * channel["scale"]


def test_equal_plans_give_equal_bytes() -> None:
    first, second = (write_encodings(calibrated(residual_net(), "tflite")) for _ in range(2))
    assert first == second


def test_a_tensor_on_two_grids_is_named() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4])
    b.node("Gemm", x, b.weight(4, 4), out="a", name="first")
    b.node("Gemm", x, b.weight(4, 4), out="b", name="second")
    b.output("a")
    b.output("b")
    model = b.build()
    overrides = intact.Overrides(bits={"second.input": 4})
    plan = calibrated(model, "onnxruntime", overrides)
    assert random_inputs(model)
    with pytest.raises(ExportError, match="'x': it is quantized in several ways"):
        write_encodings(plan)


@pytest.mark.parametrize("target", [*TARGETS, "openvino"])
def test_a_table_calibrates_another_plan(target: str, tmp_path: Path) -> None:
    """The whole way: written by one quantization, taken by the next instead of samples."""
    model, data, formats = demo.model_path(), demo.calibration_path(), ["encodings"]
    first = intact.quantize(
        model, data, target=target, formats=formats, output=tmp_path / "a", threads=1
    )
    table = tmp_path / "a" / "model.encodings"
    second = intact.quantize(model, target=target, scales=[str(table)], formats=formats, threads=1)
    assert scales_of(second.plan) == scales_of(first.plan)
    assert write_encodings(second.plan)["0.6.1"] == table.read_bytes()

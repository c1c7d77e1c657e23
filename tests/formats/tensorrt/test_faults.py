"""What TensorRT has no form for: all of it is told before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.errors import ExportError, PlanError
from intact.formats.base.format import Io
from intact.formats.registry import FORMATS
from intact.plan import Overrides
from intact.targets import Target, load_target
from tests.models import MODELS, ModelBuilder
from tests.plans import calibrated, planned

WRITE = FORMATS["tensorrt"].writer.write


def variant(folder: Path, text: str) -> Target:
    path = folder / "variant.toml"
    path.write_text('extends = "tensorrt"\nname = "variant"\n' + text)
    return load_target(path)


def test_unsigned_asymmetric_activations_and_integer_biases_are_listed_together() -> None:
    plan = calibrated(MODELS["residual"].build(17), "onnxruntime")
    with pytest.raises(ExportError, match="TensorRT cannot compute ") as caught:
        WRITE(plan, Io.INT8)
    message = str(caught.value)
    assert ": unsigned codes;" in message
    assert ": biases as integers, it adds floats;" in message
    assert message.endswith("quantize for target tensorrt, and take 8 bits throughout")


def test_zero_points_are_listed() -> None:
    with pytest.raises(ExportError, match="zero points other than 0") as caught:
        WRITE(calibrated(MODELS["residual"].build(17), "tflite"), Io.INT8)
    assert "unsigned" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (Overrides(weight_bits=4), "4 bits, it computes with 8"),
        (Overrides(activation_bits=16), "16 bits, it computes with 8"),
    ],
)
def test_other_widths_are_listed(overrides: Overrides, told: str) -> None:
    plan = calibrated(MODELS["residual"].build(17), "tensorrt", overrides)
    with pytest.raises(ExportError, match=told):
        WRITE(plan, Io.INT8)


def test_each_place_is_listed() -> None:
    plan = calibrated(MODELS["residual"].build(17), "tensorrt", Overrides(weight_bits=4))
    with pytest.raises(ExportError) as caught:
        WRITE(plan, Io.INT8)
    weights = [n for n in plan.graph.nodes if n.op_type in ("Conv", "Gemm")]
    assert len(weights) == 4
    assert all(f"{node.name}.input[1]" in str(caught.value) for node in weights)


def test_places_too_many_for_one_line_are_counted() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 6, 6])
    for number in range(40):
        x = b.node("Conv", x, b.weight(4, 4, 1, 1), name=f"convolution_{number}")
    b.output(x)
    with pytest.raises(ExportError) as caught:
        WRITE(calibrated(b.build(), "tensorrt", Overrides(weight_bits=4)), Io.INT8)
    first = ", ".join(f"convolution_{k}.input[1]" for k in range(3))
    assert f"40 places ({first}, ...): 4 bits, it computes with 8" in str(caught.value)
    assert not caught.value.unsaid


def transposed() -> ModelBuilder:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 6, 6])
    b.node("ConvTranspose", x, b.weight(4, 3, 3, 3), out="y", name="up")
    b.output("y")
    return b


def test_a_transposed_convolution_has_one_scale(tmp_path: Path) -> None:
    plan = calibrated(transposed().build(), "tensorrt")
    WRITE(plan, Io.INT8)
    by_channel = variant(
        tmp_path, '[[op]]\nops = ["ConvTranspose"]\nweight = { granularity = "per_channel" }\n'
    )
    with pytest.raises(ExportError, match="weights of a ConvTranspose with one scale a channel"):
        WRITE(calibrated(transposed().build(), by_channel), Io.INT8)


def test_logarithmic_levels_are_listed(tmp_path: Path) -> None:
    target = variant(tmp_path, '[weight]\nspacing = "exponential"\n')
    with pytest.raises(ExportError, match=r"up\.input\[1\]: logarithmic levels"):
        WRITE(calibrated(transposed().build(), target), Io.INT8)


def test_a_plan_without_scales_is_refused() -> None:
    with pytest.raises(PlanError, match="has no scale yet"):
        WRITE(planned(transposed().build(), "tensorrt"), Io.INT8)

"""[mqbench]: its formulas and listings written out, and intact on the same numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from intact.config import TensorQuantConfig
from intact.formats.openvino.write import write_openvino
from intact.numerics.affine import fake_quantize
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import Quantization, ends_of_codes
from intact.targets import load_target
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrate, calibrated, config, conv, image, planned

Floats = npt.NDArray[np.float64]
CODES = [(-128, 127), (-64, 63), (0, 255), (0, 127), (-8, 7)]


def published_ends(scale: float, zero_point: float, low: int, high: int) -> tuple[float, float]:
    """The listing "conversion code"."""
    number = np.abs(np.asarray(scale, np.float64))
    zero = np.asarray(np.round(zero_point), np.int64)
    level_range = np.round(high) - np.round(low)
    input_range = number * level_range
    input_high = (np.round(high).astype(np.int64) - zero).astype(np.float64) * input_range
    input_high = input_high / level_range
    return float(input_high - input_range), float(input_high)


def published_inverse(low: float, high: float, codes: tuple[int, int]) -> tuple[float, float]:
    """The two lines of the inverse."""
    level_low, level_high = codes
    scale = (high - low) / (level_high - level_low)
    return scale, (level_low * high - level_high * low) / (high - low)


def published_fake_quantize(x: Floats, q_low: float, q_high: float, levels: int) -> Floats:
    """round(s (clip(x, q_low, q_high) - q_low)) / s + q_low."""
    s = (levels - 1) / (q_high - q_low)
    return np.asarray(np.rint(s * (np.clip(x, q_low, q_high) - q_low)) / s + q_low)


SCALES = st.floats(2.0**-12, 2.0**6, width=32)


@given(SCALES, st.sampled_from(CODES), st.data())
def test_ranges_of_a_scale(scale: float, codes: tuple[int, int], data: st.DataObject) -> None:
    zero_point = data.draw(st.integers(*codes))
    low, high = published_ends(scale, zero_point, *codes)
    params = QuantParams(np.asarray(scale, np.float32), np.asarray(zero_point))
    for found, wanted in zip(ends_of_codes(params, *codes), (low, high), strict=True):
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-30)
    back = published_inverse(low, high, codes)
    assert back == pytest.approx((scale, zero_point), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("scale", "zero_point", "codes", "ends"),
    [
        (0.01, 0, (-128, 127), (-1.28, 1.27)),
        (0.01, 0, (-64, 63), (-0.64, 0.63)),
        (0.01, 0, (0, 255), (0.0, 2.55)),
        (0.5, -28, (-128, 127), (-50.0, 77.5)),
    ],
)
def test_worked_ranges(
    scale: float, zero_point: int, codes: tuple[int, int], ends: tuple[float, float]
) -> None:
    assert published_ends(scale, zero_point, *codes) == pytest.approx(ends)
    found = Quantization.of_scale(scale, zero_point, *codes)
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-6)
    assert published_inverse(*ends, codes) == pytest.approx((scale, zero_point))
    back = Quantization.of_range(*ends, *codes, symmetric=False)
    assert (back.scale, back.zero_point) == (np.float32(scale), zero_point)


@settings(deadline=None)
@given(st.sampled_from(CODES), st.integers(-6, 6), st.integers(0, 2**16), st.data())
def test_both_formulas_of_fake_quantize_agree(
    codes: tuple[int, int], exponent: int, seed: int, data: st.DataObject
) -> None:
    """Scales are powers of two, so that nothing is rounded but the quotient.

    Of an odd zero point the two formulas round ties to another side: there x / s + z is even
    where x / s is odd. Away from ties they are one.
    """
    zero_point = data.draw(st.integers(*codes))
    scale = 2.0**exponent
    low, high = published_ends(scale, zero_point, *codes)
    steps = np.random.default_rng(seed).integers(-(2**12), 2**12, 200) + 0.25
    x: Floats = np.asarray(steps * scale, np.float64)
    wanted = published_fake_quantize(x, low, high, codes[1] - codes[0] + 1)
    ours = fake_quantize(
        x.astype(np.float32), np.asarray(scale, np.float32), np.asarray(zero_point), *codes
    )
    np.testing.assert_array_equal(ours, wanted)


def test_zero_points_are_clipped_integers() -> None:
    for wrong in (-129, 128):
        with pytest.raises(Exception, match="give a code: -128 to 127"):
            Quantization.of_scale(0.1, wrong, -128, 127)
    found = Quantization.of_range(2.0, 3.0, -128, 127, symmetric=False)
    assert found.zero_point == -128  # that of 0, which the range does not hold


def test_a_scale_is_positive() -> None:
    for wrong in (0.0, -0.1):
        with pytest.raises(Exception, match="give a positive number"):
            Quantization.of_scale(wrong, 0, -128, 127)


def written_weight(target: str) -> tuple[TensorQuantConfig, ir.Node]:
    """The config of a weight, and its FakeQuantize."""
    b = ModelBuilder()
    conv(b, image(b), "one")
    b.output("one_out")
    plan = calibrated(b.build(), target)
    found = next(
        node
        for node in write_openvino(plan).model.graph
        if node.op_type == "FakeQuantize" and str(node.inputs[0].name).endswith("_on_grid")  # type: ignore[union-attr]
    )
    return config(plan, "one.input[1]"), found


def ends_of(node: ir.Node) -> list[npt.NDArray[np.float32]]:
    return [value.const_value.numpy() for value in node.inputs[1:] if value and value.const_value]


def test_channels_of_a_weight_lie_along_its_first_axis() -> None:
    """new_shape = [-1, 1, 1, 1], float32; output_low = input_low, output_high = input_high."""
    _, weight = written_weight("openvino")
    assert weight.domain == "org.openvinotoolkit"
    ends = ends_of(weight)
    assert [end.shape for end in ends] == [(4, 1, 1, 1)] * 4
    assert {end.dtype for end in ends} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(ends[0], ends[2])
    np.testing.assert_array_equal(ends[1], ends[3])


def test_levels_of_7_bits_are_stored_as_those_of_8() -> None:
    """NNCF's half range: level_low is doubled, level_high is doubled plus 1, the step is kept."""
    level_low, level_high = -64, 63
    doubled = 2 * level_low, 2 * level_high + 1
    grid, weight = written_weight("openvino-avx2")
    assert (grid.quant_min, grid.quant_max) == (level_low, level_high)
    assert weight.attributes["levels"].as_int() == doubled[1] - doubled[0] + 1 == 256
    assert grid.scale is not None
    # The number that level_high stood for, times level_high' / level_high; the lower in proportion.
    highs = doubled[1] / level_high * (level_high * grid.scale.astype(np.float64))
    lows = highs * doubled[0] / doubled[1]
    found = [end.reshape(-1) for end in ends_of(weight)]
    np.testing.assert_allclose(found[0], lows, rtol=1e-6)
    np.testing.assert_allclose(found[1], highs, rtol=1e-6)


def test_7_bits_cannot_overflow_a_pair_and_8_can() -> None:
    """Two products of unsigned 8-bit data and a weight are added in 16 bits on AVX2, AVX-512."""
    assert 2 * 255 * 127 > 2**15 - 1 >= 2 * 255 * 63
    assert 2 * 255 * -128 < -(2**15) <= 2 * 255 * -64
    narrow, wide = load_target("openvino-avx2").weight, load_target("openvino").weight
    numbers = 8
    assert (narrow.quant_min, narrow.quant_max) == (-(2 ** (numbers - 2)), 2 ** (numbers - 2) - 1)
    assert (wide.quant_min, wide.quant_max) == (-128, 127)


def test_unsigned_codes_use_all_levels() -> None:
    """[0, 2^8 - 1] behind a Relu: the step is the largest value over 255."""
    b = ModelBuilder()
    x = b.node("Relu", conv(b, image(b), "one"), out="r", name="relu")
    conv(b, x, "two")
    b.output("two_out")
    model = b.build()
    feeds = random_inputs(model, batch=4, seed=3)
    grid = config(calibrate(planned(model, "openvino"), feeds), "relu.output[0]")
    assert (grid.quant_min, grid.quant_max) == (0, 2**8 - 1)
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.append(onnx.ValueInfoProto(name="r"))
    (found,) = ReferenceEvaluator(shown).run(["r"], feeds)
    assert grid.scale is not None
    assert float(grid.scale) == pytest.approx(
        float(np.max(np.asarray(found, np.float64))) / 255, rel=1e-5
    )


def test_behind_an_upsampling_of_a_relu_codes_are_unsigned() -> None:
    b = ModelBuilder()
    x = b.node("Relu", conv(b, image(b), "one"), name="relu")
    x = b.node(
        "Resize", x, "", b.constant(np.array([1, 1, 2, 2], np.float32)), name="up", mode="nearest"
    )
    conv(b, x, "two")
    b.output("two_out")
    plan = planned(b.build(), "openvino")
    for end in ("relu.output[0]", "up.output[0]", "two.input[0]"):
        grid = config(plan, end)
        assert (grid.quant_min, grid.quant_max) == (0, 255), end

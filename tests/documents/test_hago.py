"""[tvm]: its formulas and listings written out in NumPy, and intact on the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from intact.graph import normalize
from intact.numerics.simulated_quantize import simulated_quantize
from intact.plan.inference import infer_scale
from intact.search.space import FLOAT, Space
from intact.targets import Shift, load_target
from tests.models import ModelBuilder, residual_net
from tests.plans import conv, image, own_target

Floats = npt.NDArray[np.float32]
SIGN_BIT = 1


def published(  # the listing "Simulated Quantize"
    data: Floats,
    in_scale: float,
    out_scale: float,
    clip_min: int,
    clip_max: int,
    in_dtype: str,
    out_dtype: str,
    *,
    slip: bool = False,
) -> Floats:
    if in_dtype == out_dtype == "float32":
        return data
    if in_dtype != "float32":
        sums = np.rint(data.astype(np.float64) / in_scale).astype(np.int64)
        data = (sums.astype(in_dtype) * in_scale).astype(np.float32)  # a cast wraps
    scaled = data / np.float32(out_scale)
    clipped = np.clip(scaled, clip_min, clip_max)
    rounded = np.rint(scaled if slip else clipped)
    return np.asarray(rounded.astype(np.int64).astype(out_dtype) * np.float32(out_scale))


def parameters(bit: int, threshold: float) -> tuple[float, int, int]:
    """Of bit and threshold: out_scale, clip_min, clip_max."""
    integer_range = 2 ** (bit - SIGN_BIT)
    return threshold / integer_range, -(integer_range - 1), integer_range - 1


@pytest.mark.parametrize("in_dtype", ["float32", "int32", "int16", "int8"])
@pytest.mark.parametrize("bit", [8, 6, 4])
def test_simulated_quantize(bit: int, in_dtype: str) -> None:
    """Sums that the type of the accumulator does not hold wrap; codes saturate."""
    out_scale, low, high = parameters(bit, 4.0)
    in_scale = 2.0**-3
    data = (np.random.default_rng(bit).integers(-40000, 40000, 500) * in_scale).astype(np.float32)
    wanted = published(data, in_scale, out_scale, low, high, in_dtype, "int8")
    found = simulated_quantize(data, in_scale, out_scale, low, high, in_dtype, "int8")
    np.testing.assert_array_equal(found, wanted)
    assert np.abs(found).max() == high * out_scale


def test_the_value_that_is_rounded_is_the_clipped_one() -> None:
    """The listing rounds `scaled_data` and leaves `clipped_data` unused: 130 would become -126."""
    out_scale, low, high = parameters(8, 4.0)
    data = np.array([130 * out_scale], np.float32)
    (slip,) = published(data, 1.0, out_scale, low, high, "float32", "int8", slip=True)
    assert slip == -126 * out_scale
    found = simulated_quantize(data, 1.0, out_scale, low, high, "float32", "int8")
    assert found.tolist() == [127 * out_scale]


def test_float_data_pass() -> None:
    data = np.array([0.123, 1e30], np.float32)
    found = simulated_quantize(data, 1.0, 1.0, -127, 127, "float32", "float32")
    np.testing.assert_array_equal(found, data)


def test_the_scale_of_a_convolutions_sums() -> None:
    node = next(node for node in normalize(residual_net()).nodes if node.op_type == "Conv")
    found = infer_scale(node, [np.asarray(0.03125), np.asarray(0.0078125)])
    assert found is not None
    assert float(found) == 0.03125 * 0.0078125


def test_codes_of_tvm_have_no_lowest_one() -> None:
    target = load_target("tvm")
    for scheme in (target.activation, target.weight):
        assert (scheme.quant_min, scheme.quant_max) == (-127, 127)  # as clip_min has it
        assert scheme.symmetric


def test_hardware_that_shifts_has_powers_of_two() -> None:
    for name in ("vta", "integer-pow2"):
        target = load_target(name)
        assert target.activation.power_of_two
        assert target.weight.power_of_two
        assert target.arithmetic.requantize == Shift()
    assert not load_target("tvm").activation.power_of_two


@pytest.mark.parametrize(
    ("inputs", "widest"), [('["int8", "int8"]', 8), ('["int16", "int16"]', 16)]
)
def test_the_choice_of_bits_comes_from_the_types(inputs: str, widest: int, tmp_path: Path) -> None:
    b = ModelBuilder()
    conv(b, conv(b, image(b), "one"), "two")
    b.output("two_out")
    header = """
format = 2
name = "mine"
formats = ["onnx_qdq"]
[activation]
dtype = "DTYPE"
symmetric = true
[weight]
dtype = "int8"
symmetric = true
[arithmetic]
requantize = { kind = "float_once" }
""".replace("DTYPE", f"int{widest}")
    rules = f'[[op]]\nops = ["Conv"]\ninputs = {inputs}\noutputs = ["int32"]\n'
    target = own_target(tmp_path, rules, header=header)
    space = Space.of(normalize(b.build()), target)
    widths = [choice for group in space.groups for choice in group.choices if choice != FLOAT]
    assert max(widths) == widest

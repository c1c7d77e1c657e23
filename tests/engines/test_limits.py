from __future__ import annotations

import numpy as np
import pytest

from intact.engines import limits
from intact.engines.limits import largest_sums, limits_of_simulation, needs_integers
from intact.plan.overflows import WrappingSums
from tests.models import ModelBuilder, residual_net
from tests.plans import calibrated


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("onnxruntime", "zero_point = before_rounding"),
        ("onnxruntime-avx2", "accumulator = pair_saturate"),
        ("integer-pow2", "requantize = shift"),
    ],
)
def test_arithmetic_that_float32_does_not_follow_is_said(target: str, says: str) -> None:
    lines = limits_of_simulation(calibrated(residual_net(), target))
    assert any(says in line for line in lines)
    assert not any("2**24" in line for line in lines)


def test_sums_beyond_float32_are_named() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 2000])
    weight = np.ones((2000, 3), np.float32)
    weight[:, 0] = 1e-3
    weight[0, 0] = 1.0
    b.node("Gemm", x, b.constant(weight), out="y", name="wide")
    b.output("y", ["batch", 3])
    plan = calibrated(b.build())
    ((name, most),) = largest_sums(plan)
    assert name == "wide"
    data = next(c for e, c in plan.configs.items() if str(e) == "wide.input[0]")
    assert data.params is not None
    zero_point = int(data.params.zero_point)
    assert most == 2000 * 127 * max(zero_point, 255 - zero_point) > 2**24
    assert any("2**24" in line and "wide" in line for line in limits_of_simulation(plan))


def test_sums_are_of_weights_less_their_zero_point() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 8, 6, 6])
    weight = np.full((4, 8, 3, 3), -1, np.float32)
    b.node("Conv", x, b.constant(weight), out="y", name="conv")
    b.output("y")
    plan = calibrated(b.build(), "tengine-u8")
    ((_, most),) = largest_sums(plan)
    params = {str(end): config.params for end, config in plan.configs.items()}
    data, own = params["conv.input[0]"], params["conv.input[1]"]
    assert data is not None
    assert own is not None
    zero_point = int(data.zero_point)
    assert int(own.zero_point) == 254  # and the code of each weight is 0
    assert most == 8 * 9 * 254 * max(zero_point, 255 - zero_point)


def test_sums_run_over_one_output_channel() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 8, 6, 6])
    b.node("Conv", x, b.constant(np.ones((500, 8, 3, 3), np.float32)), out="y", name="conv")
    b.output("y")
    ((_, most),) = largest_sums(calibrated(b.build(), "integer-pow2"))
    assert most <= 8 * 9 * 255 * 255


@pytest.mark.parametrize(
    ("largest", "scale", "needed"),
    [(2**24 - 1, 0.5, False), (2**24, 0.5, True), (None, 0.5, True), (100, None, True)],
)
def test_float32_follows_sums_that_it_holds(
    monkeypatch: pytest.MonkeyPatch, largest: int | None, scale: float | None, needed: bool
) -> None:
    plan = calibrated(residual_net(), "onnxruntime")
    node = plan.graph.nodes[0]
    units = None if scale is None else np.array(scale)
    sums = WrappingSums(node, 8, largest, units, None)
    monkeypatch.setattr(limits, "wrapping_sums", lambda _: iter([sums]))
    assert needs_integers(plan) is needed

"""Which sums may leave their accumulator, against the engine's own sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.engines.integer import IntegerEngine
from intact.engines.limits import largest_sums, needs_integers
from intact.graph import bias_slot
from intact.plan import overflows as overflow
from intact.plan.overflows import pairs_may_saturate, wrapping_sums
from intact.program.lower import lower
from tests.engines.piecewise.narrow import narrow_target
from tests.models import ModelBuilder, depthwise_net, random_inputs, residual_net
from tests.plans import calibrate, calibrated, planned


def test_wide_accumulators_hold_everything() -> None:
    for target in ("integer-pow2", "onnxruntime", "tensorrt", "tvm"):
        plan = calibrated(residual_net(), target)
        assert list(wrapping_sums(plan)) == []
        assert not needs_integers(plan)


@pytest.mark.parametrize("build", [residual_net, depthwise_net])
def test_no_sum_is_larger_than_its_bound(
    build: Callable[[int], onnx.ModelProto], tmp_path: Path
) -> None:
    model = build(17)
    plan = calibrated(model, narrow_target(tmp_path, 8))
    bounds = {str(each.node.name): each for each in wrapping_sums(plan)}
    without_bias = dict(largest_sums(plan))
    assert bounds.keys() == without_bias.keys()
    engine = IntegerEngine(lower(plan), threads=1)
    engine.run({key: array * 30 for key, array in random_inputs(model, batch=8).items()})
    steps = {step.name: step for step in engine.program.steps}
    assert engine.overflows
    for name, counted in engine.overflows.items():
        (node,) = bounds.keys() & set(steps[name].nodes)
        bound = bounds[node]
        assert bound.bits == 8
        assert bound.largest is not None
        assert counted.largest <= bound.largest
        assert without_bias[node] <= bound.largest
        assert bound.scale is not None


def dense(weights: list[list[float]], *bias: float) -> onnx.ModelProto:
    b = ModelBuilder()
    constants = [b.constant(np.array(weights, np.float32))]
    constants += [b.constant(np.array(bias, np.float32))] if bias else []
    b.node("Gemm", b.input("x", ["batch", len(weights)]), *constants, out="y")
    b.output("y", ["batch", len(weights[0])])
    return b.build()


def test_bounds_are_those_of_the_codes(tmp_path: Path) -> None:
    """Weights in steps of 1/64: columns of 127 + 64 and of 1; inputs reach 127."""
    plan = calibrated(dense([[127 / 64, 1 / 64], [-1.0, 0.0]]), narrow_target(tmp_path, 8))
    (sums,) = wrapping_sums(plan)
    assert sums.largest == (127 + 64) * 127
    (data,) = (c.scale for end, c in plan.configs.items() if str(end).endswith("input[0]"))
    assert sums.scale is not None
    assert data is not None
    assert sums.scale == data / 64
    enough = calibrated(dense([[127 / 64, 1 / 64], [-1.0, 0.0]]), narrow_target(tmp_path, 16))
    assert list(wrapping_sums(enough)) == []


def test_a_bias_is_in_the_sum(tmp_path: Path) -> None:
    plain = calibrated(dense([[1.0], [1.0]]), narrow_target(tmp_path, 8))
    biased = calibrated(dense([[1.0], [1.0]], -50.0), narrow_target(tmp_path, 8))
    (one,), (two,) = wrapping_sums(plain), wrapping_sums(biased)
    assert one.largest is not None
    assert two.largest is not None
    assert two.scale is not None
    assert two.largest == one.largest + round(50 / float(two.scale))


def test_what_float32_cannot_follow_needs_integers(tmp_path: Path) -> None:
    for bits, needed in ((8, False), (24, False)):
        assert needs_integers(calibrated(residual_net(), narrow_target(tmp_path, bits))) == needed
    huge = dense([[1.0]] * 1500)  # 1500 * 64 * 127: as 12 million in 8 bits, beyond 2**24 with bias
    assert not needs_integers(calibrated(huge, narrow_target(tmp_path, 16)))
    huge = dense([[1.0]] * 3000)
    assert needs_integers(calibrated(huge, narrow_target(tmp_path, 16)))
    assert not needs_integers(calibrated(huge, narrow_target(tmp_path, 32)))


def test_pairs_that_saturate_need_integers(tmp_path: Path) -> None:
    pairs = '"pair_saturate", pair_bits = 16'
    plan = calibrated(residual_net(), narrow_target(tmp_path, 32, pairs))
    assert not pairs_may_saturate(plan)  # 2 * 127 * 127 fits 16 bits
    plan = calibrated(residual_net(), narrow_target(tmp_path, 32, pairs.replace("16", "15")))
    assert pairs_may_saturate(plan)
    assert needs_integers(plan)
    # The weights of this target have 7 bits so that u8 activations cannot saturate.
    assert not needs_integers(calibrated(residual_net(), "onnxruntime-avx2"))


def test_float_products_do_not_wrap(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Gemm", b.input("x", ["batch", 8]), b.weight(8, 4), b.input("c", ["batch", 4]), out="y")
    b.output("y")
    plan = calibrated(b.build(), narrow_target(tmp_path, 8))
    assert list(wrapping_sums(plan)) == []  # it stays float on hardware that adds integers only


def test_lengths_that_are_not_known_need_integers_on_narrow_hardware(tmp_path: Path) -> None:
    b = ModelBuilder()
    x, y = b.input("x", ["batch", 4, "k"]), b.input("y", ["batch", "k", 4])
    b.node("MatMul", x, y, out="z")
    b.output("z")
    model = b.build()
    feeds = {"x": np.ones((2, 4, 3), np.float32), "y": np.ones((2, 3, 4), np.float32)}
    narrow = calibrate(planned(model, narrow_target(tmp_path, 20)), feeds)
    (sums,) = wrapping_sums(narrow)
    assert sums.largest is None
    assert needs_integers(narrow)
    assert not needs_integers(calibrate(planned(model, "integer-pow2"), feeds))


@pytest.mark.parametrize("target", ["integer-pow2", "tvm", "tflite"])
def test_the_rough_bound_of_a_bias_holds_its_integers(target: str) -> None:
    plan = calibrated(residual_net(), target)
    nodes = [n for n in plan.graph.nodes if plan.is_quantized(n) and bias_slot(n) is not None]
    assert nodes
    for node in nodes:
        most = int(overflow._bias_codes(plan, node).max())
        assert 0 < most <= overflow._largest_bias(plan, node)

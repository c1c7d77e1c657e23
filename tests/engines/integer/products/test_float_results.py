"""Products that hand out floats with a float bias, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from intact.engines.integer.engine import IntegerEngine
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.program.operations import Convolution, FullyConnected, Quantize
from tests.models import ModelBuilder, random_inputs
from tests.numerics.test_fused import nearest
from tests.plans import calibrated


def plan_of(op_type: str, *, bias: bool = True) -> tuple[QuantizedGraph, dict[str, np.ndarray]]:
    b = ModelBuilder()
    extra = [b.weight(5)] if bias else []
    if op_type == "Conv":
        x = b.input("x", ["batch", 40, 1, 1])
        b.output(b.node("Conv", x, b.weight(5, 40, 1, 1), *extra))
    else:
        b.output(b.node("Gemm", b.input("x", ["batch", 40]), b.weight(5, 40), *extra, transB=1))
    model = b.build()
    return calibrated(model, "ncnn"), random_inputs(model, batch=64, seed=3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("op_type", "fused"), [("Conv", True), ("Gemm", False)])
def test_reciprocals_and_a_bias_that_is_fused_or_not(op_type: str, fused: bool, bias: bool) -> None:
    plan, feeds = plan_of(op_type, bias=bias)
    program = lower(plan)
    assert not program.in_float
    product = next(
        s for s in program.steps if isinstance(s.operation, Convolution | FullyConnected)
    )
    codes = next(s.outputs[0] for s in program.steps if isinstance(s.operation, Quantize))
    run = IntegerEngine(program).run(feeds, [codes.name, product.outputs[0].name])
    _, weight, added = (*product.inputs, None)[:3]
    assert weight is not None
    assert weight.data is not None
    assert weight.encoding is not None
    assert codes.encoding is not None
    one = np.float32(1)
    units = one / ((one / codes.encoding.scale) * (one / weight.encoding.scale))
    rows = run.tensors[codes.name].reshape(64, 40).astype(np.int64)
    sums = rows @ weight.data.reshape(5, 40).astype(np.int64).T
    floats = np.zeros(5, np.float32) if added is None else added.data
    assert floats is not None
    found = run.tensors[product.outputs[0].name].reshape(64, 5)
    for row in range(64):
        for channel in range(5):
            scaled = Fraction(int(sums[row, channel])) * Fraction(float(units[channel]))
            addend = Fraction(float(floats[channel]))
            first = scaled if fused or not bias else Fraction(float(nearest(scaled)))
            assert found[row, channel] == nearest(first + addend)


def test_the_codes_are_made_with_the_reciprocal() -> None:
    plan, feeds = plan_of("Gemm")
    program = lower(plan)
    codes = next(s.outputs[0] for s in program.steps if isinstance(s.operation, Quantize))
    assert codes.encoding is not None
    found = IntegerEngine(program).run(feeds, [codes.name]).tensors[codes.name]
    scaled = feeds["x"] * (np.float32(1) / codes.encoding.scale)
    expected = np.trunc(scaled.astype(np.float64) + np.copysign(0.5, scaled)).clip(-127, 127)
    np.testing.assert_array_equal(found, expected.astype(np.int8))

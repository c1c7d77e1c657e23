"""The arithmetic of target ``tvm`` against TVM's own fixed-point multiplication."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from intact.numerics.fixed_point import quantize_multiplier
from intact.program import Encoding
from intact.program.arithmetic.requantize import Requantizer
from intact.targets import load_target
from tests.program.one_step import int32

pytestmark = pytest.mark.runtime_fact("apache-tvm")

tvm = pytest.importorskip("tvm")

CODES = 2**30
"""Sums below it: TVM adds the half of a shift in 32 bits."""


def in_tvm(values: npt.NDArray[np.int32], multiplier: int, shift: int) -> npt.NDArray[np.int32]:
    """Multiply by ``multiplier * 2**(shift - 31)`` with TVM's operator."""
    data = tvm.te.placeholder(values.shape, "int32", "data")
    result = tvm.topi.fixed_point_multiply(data, multiplier, shift)
    function = tvm.te.create_prim_func([data, result])
    compiled = tvm.compile(function, target=tvm.target.Target({"kind": "llvm"}))
    output = tvm.runtime.empty(values.shape, "int32")
    compiled(tvm.runtime.tensor(values), output)
    return np.asarray(output.numpy())


@pytest.mark.parametrize("real", [0.5, 0.25, 0.3, 0.0123, 1.7, 1e-5, 0.99999999])
def test_a_multiplication_rounds_as_the_target_says(real: float) -> None:
    arithmetic = load_target("tvm").arithmetic_for("Conv")
    rng = np.random.default_rng(7)
    ties = np.arange(-2001, 2001)
    drawn = rng.integers(-(2**24), 2**24, 2000)
    values = np.concatenate([ties, drawn, [CODES - 1, 1 - CODES]]).astype(np.int32)
    multiplier, shift = (int(part) for part in quantize_multiplier(real))
    output: Encoding = int32(1.0)
    wanted = Requantizer(arithmetic, np.asarray(real), output)(values)
    np.testing.assert_array_equal(in_tvm(values, multiplier, shift), wanted)

"""Every operation in TVM, compiled for this processor, against the integer engine."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.formats.tvm.run import TvmRuntime
from intact.formats.tvm.write import write_tvm
from intact.program import Program
from intact.program import operations as ops
from intact.targets import Product, Wrap
from tests.formats.c import cases, window_cases
from tests.program.one_step import int8, int32, one_step, with_options

pytestmark = pytest.mark.runtime_fact("apache-tvm")

pytest.importorskip("tvm")

COUNT = 5
POWERS, ANY = cases.Scales(powers=True), cases.Scales()
SINGLE = with_options(cases.DOUBLE, product=Product.SINGLE)


def differences(programs: Mapping[str, Program]) -> dict[str, int]:
    """Run all as one module, sample by sample; return how many codes differ, where any do."""
    program = cases.joined(programs)
    fed = cases.feeds(program, COUNT)
    runtime = TvmRuntime(write_tvm(program))
    samples = [runtime.run({k: v[at : at + 1] for k, v in fed.items()}) for at in range(COUNT)]
    wrong = {}
    for name, codes in IntegerEngine(program).run(fed).outputs.items():
        found = np.concatenate([sample[name] for sample in samples])
        assert (found.dtype, found.shape) == (codes.dtype, codes.shape)
        if not np.array_equal(found, codes):
            wrong[name] = int(np.count_nonzero(found != codes))
    return wrong


def some(programs: Mapping[str, Program], *names: str) -> dict[str, Program]:
    return {name: programs[name] for name in names}


def test_layers_that_shift() -> None:
    programs = cases.convolutions(cases.SHIFT, POWERS)
    assert differences(some(programs, "dilated", "depthwise", "dense")) == {}


def test_layers_that_multiply() -> None:
    assert differences(some(cases.convolutions(SINGLE, ANY), "strided", "matmul")) == {}


@pytest.mark.parametrize("rounding", sorted(set(Rounding) - {Rounding.NEAREST}))
def test_roundings(rounding: Rounding) -> None:
    arithmetic = msgspec.structs.replace(cases.SHIFT, rounding=rounding)
    assert differences(some(cases.pairs(arithmetic, POWERS), "mul_crossed")) == {}


def test_sums_that_leave_32_bits_wrap() -> None:
    weight = np.full((2, 140_000), 127, np.int8)
    weight[1] = -127
    arithmetic = msgspec.structs.replace(cases.SHIFT, accumulator=Wrap())
    bias = np.array([7, -9], np.int32)
    program = one_step(
        ops.FullyConnected(),
        arithmetic,
        [((None, 140_000), int8(1.0)), (weight, int8(1.0)), (bias, int32(1.0))],
        [((None, 2), int8(2.0**25))],
    )
    codes = np.full((1, 140_000), 127, np.int8)
    found = TvmRuntime(write_tvm(program)).run({"in0": codes})["out0"]
    wanted = IntegerEngine(program).run({"in0": codes}).outputs["out0"]
    np.testing.assert_array_equal(found, wanted)
    assert wanted.tolist() == [[-61, 61]]  # of +-2258060000, wrapped


@pytest.mark.slow
@pytest.mark.parametrize("make", [cases.convolutions, cases.pairs, window_cases.windows])
def test_all_that_shifts(make: object) -> None:
    assert callable(make)
    assert differences(make(cases.SHIFT, POWERS)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("make", [cases.convolutions, cases.pairs, window_cases.windows])
def test_all_that_multiplies(make: object) -> None:
    assert callable(make)
    assert differences(make(cases.DOUBLE, ANY)) == {}


@pytest.mark.slow
def test_moves() -> None:
    assert differences(window_cases.moves()) == {}


@pytest.mark.slow
def test_functions() -> None:
    programs = window_cases.functions().items()
    assert differences({n: each for n, each in programs if not n.startswith("log_softmax")}) == {}

"""Every C kernel against the integer engine's, compiled with all warnings and sanitizers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.errors import ExportError
from intact.formats.c.run import CRuntime
from intact.formats.c.write import write_c
from intact.program import Program
from intact.program import operations as ops
from intact.targets import Requantize, ScalePrecision, ZeroPointOrder
from tests.engines.integer.pointwise.test_softmax import peaked
from tests.formats.c import cases, window_cases
from tests.program.one_step import int8, one_step

STRICT = (
    *("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow"),
    *("-Wpedantic", "-Werror"),
)
SANITIZED = (*STRICT, "-g", "-fsanitize=undefined,address", "-fno-sanitize-recover=all")


def differences(programs: Mapping[str, Program], count: int = 20) -> dict[str, int]:
    """Run all as one C program; return how many codes differ from the engine's, where any do."""
    program = cases.joined(programs)
    fed = cases.feeds(program, count)
    with CRuntime(write_c(program), flags=SANITIZED) as runtime:
        found = runtime.run(fed)
    wanted = IntegerEngine(program).run(fed).outputs
    wrong = {}
    for name, codes in wanted.items():
        assert found[name].shape == codes.shape, name
        if not np.array_equal(found[name], codes):
            wrong[name] = int(np.count_nonzero(found[name] != codes))
        assert len(np.unique(codes)) > 3, f"{name} can hardly fail"
    return wrong


@pytest.mark.parametrize("make", [cases.convolutions, cases.pairs, window_cases.windows])
def test_fixed_point(make: object) -> None:
    assert callable(make)
    assert differences(make(cases.DOUBLE, cases.Scales())) == {}


@pytest.mark.parametrize("make", [cases.convolutions, cases.pairs, window_cases.windows])
def test_shifts(make: object) -> None:
    assert callable(make)
    assert differences(make(cases.SHIFT, cases.Scales(powers=True))) == {}


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (window_cases.windows, {"zero_point": ZeroPointOrder.BEFORE_ROUNDING}),
        (cases.convolutions, {"rounding": Rounding.HALF_UP}),
        (cases.convolutions, {"requantize": Requantize.FIXED_POINT_SINGLE}),
        (cases.convolutions, {"multiplier_precision": ScalePrecision.FLOAT32}),
    ],
)
def test_other_arithmetic(make: object, fields: dict[str, object]) -> None:
    assert callable(make)
    arithmetic = msgspec.structs.replace(cases.DOUBLE, **fields)
    assert differences(make(arithmetic, cases.Scales())) == {}


@pytest.mark.parametrize("make", [window_cases.moves, window_cases.functions])
def test_moves_and_functions(make: object) -> None:
    assert callable(make)
    assert differences(make()) == {}


@pytest.mark.parametrize("length", [4096, 6625, 8191])
def test_long_rows_of_softmax(length: int) -> None:
    """Flat rows, whose sums take every bit, and peaked ones."""
    slots = [((None, length), int8(0.3, 4))]
    shares = [((None, length), int8(2.0**-8, -128))]
    program = one_step(ops.Softmax(1), cases.DOUBLE, slots, shares)
    codes = np.concatenate([np.full((1, length), 9, np.int8), peaked(length)])
    (name,) = program.inputs
    with CRuntime(write_c(program), flags=SANITIZED) as runtime:
        (found,) = runtime.run({name: codes}).values()
    (wanted,) = IntegerEngine(program).run({name: codes}).outputs.values()
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 3


@pytest.mark.parametrize(("log", "length"), [(False, 8192), (True, 4096)])
def test_longer_rows_are_refused(log: bool, length: int) -> None:
    ends = [((None, length), int8(1 / 16, 127) if log else int8(1 / 256, -128))]
    program = one_step(ops.Softmax(1, log), cases.DOUBLE, [((None, length), int8(0.1))], ends)
    with pytest.raises(ExportError, match=f"its rows have {length} elements"):
        write_c(program)

"""Every C kernel against the integer engine's, compiled with all warnings and sanitizers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.formats.c.run import CRuntime
from intact.formats.c.write import write_c
from intact.program import Program
from intact.targets import Requantize, ScalePrecision, ZeroPointOrder
from tests.formats.c import cases, window_cases

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

"""Every C kernel against the integer engine's, compiled with all warnings and sanitizers.

Grids walk over the same elements in the same order as the axes that they were made of, and scales
become the same integers here and in the integer engine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.errors import ExportError, Unsupported
from intact.formats.c import requantization as scaling
from intact.formats.c.library import AXES
from intact.formats.c.moves import Grid, broadcast_strides, contiguous, grid
from intact.formats.c.run import CRuntime
from intact.formats.c.write import write_c
from intact.program import Program
from intact.program import operations as ops
from intact.targets import (
    Arithmetic,
    FixedPoint,
    Multiplier,
    Product,
    Shift,
    ZeroPointOrder,
)
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
        (
            cases.convolutions,
            {"requantize": FixedPoint(Product.SINGLE, multiplier=Multiplier.FLOAT64)},
        ),
        (cases.convolutions, {"requantize": FixedPoint(Product.DOUBLE)}),
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


def visited(cells: Grid, operand: int) -> Iterator[int]:
    """Yield the places that an operand is read at, in the order in which the kernels do it."""
    for place in itertools.product(*map(range, cells.lengths)):
        strides = cells.strides[operand]
        start = sum(index * stride for index, stride in zip(place, strides, strict=True))
        for index in range(cells.length):
            yield start + index * cells.steps[operand]


@st.composite
def axes(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    lengths = draw(st.lists(st.integers(1, 4), max_size=6))
    some = st.lists(st.integers(-6, 6), min_size=len(lengths), max_size=len(lengths))
    dense = list(contiguous(lengths))
    return lengths, [draw(some | st.just(dense)), dense]


@given(axes())
def test_the_same_elements_are_visited(given_axes: tuple[list[int], list[list[int]]]) -> None:
    lengths, operands = given_axes
    cells = grid(lengths, operands)
    assert len(cells.lengths) <= AXES
    for index, strides in enumerate(operands):
        wanted = [
            sum(at * stride for at, stride in zip(place, strides, strict=True))
            for place in itertools.product(*map(range, lengths))
        ]
        assert list(visited(cells, index)) == wanted


def test_contiguous_axes_become_one_run() -> None:
    lengths = (2, 1, 3, 4)
    cells = grid(lengths, [contiguous(lengths)] * 3)
    assert cells.is_run
    assert cells.length == 24
    assert not grid((3, 4), [(4, 1), (1, 3)]).is_run


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_broadcast_strides(target: Sequence[int], data: st.DataObject) -> None:
    own = [data.draw(st.sampled_from([1, length])) for length in target]
    own = own[data.draw(st.integers(0, len(own) - 1)) :]
    array = np.arange(math.prod(own)).reshape(own)
    strides = broadcast_strides(own, target)
    places = itertools.product(*map(range, target))
    found = [sum(i * s for i, s in zip(place, strides, strict=True)) for place in places]
    assert found == np.broadcast_to(array, target).reshape(-1).tolist()


def test_grids_of_too_many_axes_are_unsupported() -> None:
    lengths = [2] * (AXES + 2)
    with pytest.raises(Unsupported, match="axes"):
        grid(lengths, [[3**at for at in range(len(lengths))], contiguous(lengths)])


fixed_points = st.builds(
    FixedPoint,
    st.sampled_from([Product.DOUBLE, Product.SINGLE]),
    st.sampled_from(list(Multiplier)),
    st.none() | st.integers(4, 20),
)
arithmetics = st.builds(
    Arithmetic,
    requantize=fixed_points | st.just(Shift()),
    rounding=st.sampled_from(list(Rounding)),
)
scales = st.floats(2.0**-20, 2.0**10, width=32)


def test_multipliers_shifted_beyond_32_bits_are_zero() -> None:
    arithmetic = Arithmetic(requantize=FixedPoint(Product.DOUBLE))
    multiplier, shift = scaling.fixed_point(arithmetic, np.array([2.0**31, 2.0**30, 2.0**-40]))
    assert multiplier.tolist() == [0, 2**30, 0]
    assert shift.tolist() == [0, 31, 0]
    single = msgspec.structs.replace(arithmetic, requantize=FixedPoint(Product.SINGLE))
    multiplier, shift = scaling.fixed_point(single, 2.0**30)
    assert (multiplier.item(), shift.item()) == (2**31 - 1, 30)


def test_non_finite_scales_are_unsupported() -> None:
    arithmetic = Arithmetic(requantize=FixedPoint(Product.DOUBLE))
    with pytest.raises(Unsupported, match="not finite"):
        scaling.fixed_point(arithmetic, math.inf)
    with pytest.raises(Unsupported, match="power of two"):
        scaling.right_shift(0.3)

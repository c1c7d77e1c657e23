"""The kernels' arithmetic in C against that of ``numerics``, on random and extreme numbers."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from intact.config import Rounding
from intact.formats.c.library import Library
from intact.formats.c.requantization import DIVISIONS, SHIFTS
from intact.numerics.fixed_point import (
    multiply_by_quantized_multiplier,
    rounding_right_shift,
    saturating_rounding_doubling_high_mul,
)
from intact.numerics.fixed_point_functions import log_of_at_least_one, one_over_one_plus_x
from intact.numerics.rounding import round_to_integer
from tests.formats.c.test_kernels import SANITIZED

CALLS = {
    "high": ("high_multiply", "a, b"),
    "double": ("requantize_double", "a, b, c"),
    "double_half_up": ("requantize_double_half_up", "a, b, c"),
    "single": ("requantize_single", "a, b, c"),
    "reciprocal": ("one_over_one_plus", "a"),
    "logarithm": ("log_of_sum", "a"),
    **{kind.name: (f"requantize_{kind.name}", "a, c") for kind in SHIFTS.values()},
    **{f"by_{kind.name}": (f"divide_{kind.name}", "a, b") for kind in DIVISIONS.values()},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program that applies the function of a number to triples."""
    library = Library()
    cases = []
    for index, (function, arguments) in enumerate(CALLS.values()):
        library.use(function)
        cases.append(f"        case {index}: r = {function}({arguments}); break;")
    lines = "\n".join(cases)
    path: Path = tmp_path_factory.mktemp("arithmetic")
    (path / "a.c").write_text(
        f"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
{library.text()}
int main(int count, char **words)
{{
    const long which = (count > 1) ? strtol(words[1], NULL, 10) : -1;
    int32_t row[3];
    while (fread(row, 4, 3, stdin) == 3) {{
        const int32_t a = row[0];
        const int32_t b = row[1];
        const int32_t c = row[2];
        int32_t r = 0;
        switch (which) {{
{lines}
        default: return 1;
        }}
        if (fwrite(&r, 4, 1, stdout) != 1) {{
            return 2;
        }}
    }}
    return 0;
}}
"""
    )
    subprocess.run(["cc", *SANITIZED, "a.c", "-o", "a"], cwd=path, check=True)
    return path


def run(folder: Path, name: str, *columns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    rows = np.zeros((len(np.asarray(columns[0])), 3), np.int32)
    for index, column in enumerate(columns):
        rows[:, index] = column
    command = [str(folder / "a"), str(list(CALLS).index(name))]
    done = subprocess.run(command, input=rows.tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.int32).astype(np.int64)


def numbers(seed: int, count: int = 4000, bits: int = 31) -> npt.NDArray[np.int64]:
    """Return integers of every size, with extremes, ties and zero."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, bits + 1, count)
    values = (rng.uniform(-1, 1, count) * 2.0**sizes).astype(np.int64)
    powers = 2 ** rng.integers(0, bits, count // 4)
    values[: len(powers)] = powers * rng.choice([-3, -1, 1, 3], len(powers))
    edge = 2**bits
    values[-8:] = [0, 1, -1, edge - 1, 1 - edge, -edge, edge - 2, 2 - edge]
    return np.clip(values, -edge, edge - 1)


def test_high_multiply(folder: Path) -> None:
    first, second = numbers(1), numbers(2)
    second[-6:] = second[-6:][::-1]
    second[-1] = first[-1] = -(2**31)
    wanted = saturating_rounding_doubling_high_mul(first, second)
    np.testing.assert_array_equal(run(folder, "high", first, second), wanted)
    exact = [
        (Fraction(int(a) * int(b), 2**31) + Fraction(1, 2)).__floor__()
        for a, b in zip(first, second, strict=True)
    ]
    assert np.array_equal(np.minimum(exact, 2**31 - 1), wanted)


@pytest.mark.parametrize("name", ["double", "double_half_up", "single"])
def test_fixed_point(folder: Path, name: str) -> None:
    values, multipliers = numbers(3), np.abs(numbers(4)).clip(0, 2**31 - 1)
    shifts = np.random.default_rng(5).integers(-31, 31, len(values))
    rounding = Rounding.HALF_UP if name == "double_half_up" else Rounding.HALF_AWAY_FROM_ZERO
    wanted = multiply_by_quantized_multiplier(
        values, multipliers, shifts, single=name == "single", rounding=rounding
    )
    assert np.array_equal(run(folder, name, values, multipliers, shifts), wanted)


@pytest.mark.parametrize("rounding", list(SHIFTS))
def test_shifts(folder: Path, rounding: Rounding) -> None:
    values, shifts = numbers(6), np.random.default_rng(7).integers(-31, 40, 4000)
    wanted = rounding_right_shift(values, shifts, rounding).clip(-(2**31), 2**31 - 1)
    zeros = np.zeros_like(values)
    found = run(folder, SHIFTS[rounding].name, values, zeros, shifts)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("rounding", list(DIVISIONS))
def test_quotients(folder: Path, rounding: Rounding) -> None:
    sums, counts = numbers(8, bits=29), np.random.default_rng(9).integers(1, 130, 4000)
    wanted = round_to_integer(sums / counts, rounding)  # exact: ties are, and the rest is far
    found = run(folder, f"by_{DIVISIONS[rounding].name}", sums, counts)
    assert np.array_equal(found, wanted)


def test_reciprocal(folder: Path) -> None:
    values = np.linspace(0, 2**31 - 1, 5000).astype(np.int64)
    assert np.array_equal(run(folder, "reciprocal", values), one_over_one_plus_x(values))


def test_logarithm(folder: Path) -> None:
    powers = 2 ** np.arange(19, 31, dtype=np.int64)
    values = np.concatenate([np.geomspace(2**19, 2**31 - 1, 5000).astype(np.int64), powers])
    found = run(folder, "logarithm", values)
    assert np.array_equal(found, log_of_at_least_one(values, 12, 5))
    assert np.abs(found / 2.0**26 - np.log(values / 2.0**19)).max() < 1e-6

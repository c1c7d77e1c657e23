from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("ai_edge_litert")


from intact.formats.tflite.write import program_to_tflite
from intact.formats.tflite.writer.clamps import code_range
from intact.program.operations import (
    Bounds,
)
from tests.formats.tflite.cases import (
    CASES,
    convolution,
)
from tests.formats.tflite.files import data_of, input_of, operator_of, operators_of
from tests.program.one_step import int8


@pytest.mark.parametrize(
    ("name", "operators", "same"),
    [
        ("conv", ["CONV_2D"], False),
        ("conv_same", ["CONV_2D"], True),
        ("conv_stride_same", ["CONV_2D"], True),
        ("conv_same_upper", ["CONV_2D"], True),
        ("conv_unused_pads", ["CONV_2D"], True),
        ("conv_stride_pads_before", ["PAD", "CONV_2D"], False),
        ("conv_dilated_same", ["CONV_2D"], True),
    ],
)
def test_pads_are_named_where_they_can_be(name: str, operators: list[str], same: bool) -> None:
    content = program_to_tflite(CASES[name])
    assert operators_of(content) == operators
    assert operator_of(content, "CONV_2D").builtinOptions.padding == (0 if same else 1)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("transposed", ["TRANSPOSE_CONV"]),
        ("transposed_valid", ["TRANSPOSE_CONV"]),
        ("transposed_same", ["TRANSPOSE_CONV"]),
        ("transposed_cut", ["TRANSPOSE_CONV"]),
        ("transposed_before", ["TRANSPOSE_CONV", "SLICE"]),
        ("transposed_relu", ["TRANSPOSE_CONV", "RELU"]),
        ("transposed_1d", ["RESHAPE", "TRANSPOSE_CONV", "RESHAPE"]),
    ],
)
def test_only_pads_that_have_no_name_are_cut_off(name: str, operators: list[str]) -> None:
    assert operators_of(program_to_tflite(CASES[name])) == operators


def test_only_the_pads_that_are_used_are_added() -> None:
    content = program_to_tflite(CASES["conv_stride_pads_before"])
    pads = data_of(content, input_of(content, "PAD", 1), np.int32)
    assert pads.tolist() == [[0, 0], [1, 0], [1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("bounds", "zero_point", "operators", "fused"),
    [
        (Bounds(), 0, ["CONV_2D"], 0),
        (Bounds(0), 0, ["CONV_2D"], 1),
        (Bounds(0), -128, ["CONV_2D"], 1),
        (Bounds(-1, 1), 0, ["CONV_2D"], 2),
        (Bounds(0, 6), 0, ["CONV_2D"], 3),
        (Bounds(0, 6.01), 0, ["CONV_2D"], 3),  # the same codes
        (Bounds(0, 25.5), -128, ["CONV_2D"], 0),  # the ends of the codes
        (Bounds(-100, 100), 0, ["CONV_2D"], 0),
        (Bounds(0, 5), 0, ["CONV_2D", "MAXIMUM", "MINIMUM"], 0),
        (Bounds(-2), 0, ["CONV_2D", "MAXIMUM"], 0),
        (Bounds(high=2), 0, ["CONV_2D", "MINIMUM"], 0),
    ],
)
def test_bounds(bounds: Bounds, zero_point: int, operators: list[str], fused: int) -> None:
    program = convolution((1, 5, 5, 2), (3, 3, 3, 2), (1, 3, 3, 3), bounds=bounds)
    (step,) = program.steps
    output = replace(step.outputs[0], encoding=int8(0.1, zero_point))
    content = program_to_tflite(
        replace(program, steps=(replace(step, outputs=(output,)),), outputs={"out0": output})
    )
    assert operators_of(content) == operators
    options = operator_of(content, "CONV_2D").builtinOptions
    assert options.fusedActivationFunction == fused


@given(
    real=st.floats(-20, 20, width=32),
    scale=st.floats(2**-10, 1, width=32),
    zero_point=st.integers(-128, 127),
)
@example(real=0.25, scale=0.5, zero_point=3)  # ties go away from zero
@example(real=-0.25, scale=0.5, zero_point=3)
@example(real=0.0, scale=0.5, zero_point=-128)
def test_bounds_become_codes(real: float, scale: float, zero_point: int) -> None:
    ratio = Fraction(float(np.float32(real) / np.float32(scale)))
    magnitude = int(abs(ratio) + Fraction(1, 2))
    code = min(max((magnitude if ratio >= 0 else -magnitude) + zero_point, -128), 127)
    encoding = int8(scale, zero_point)
    assert code_range(Bounds(low=real), encoding) == (code, 127)
    assert code_range(Bounds(high=real), encoding) == (-128, code)


def test_ties_of_bounds() -> None:
    assert code_range(Bounds(-0.25, 0.25), int8(0.5, 3)) == (2, 4)
    assert code_range(Bounds(), int8(0.5, 3)) == (-128, 127)

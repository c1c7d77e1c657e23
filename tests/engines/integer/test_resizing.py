"""Resize against the kernels of TFLite, XNNPACK and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from intact.formats.tflite.write import program_to_tflite
from intact.program.operations import Resize, ResizeMode
from intact.targets import Arithmetic
from tests.engines.integer.hardware import (
    AFTER,
    DOUBLE,
    SHIFT,
    SINGLE,
    as_int8,
    computed,
    onnxruntime,
    random_codes,
    run_step,
)
from tests.engines.integer.one_op import REFERENCE, XNNPACK, litert, micro
from tests.program.one_step import int8, one_step, uint8

SIZES = [
    ((4, 4), (8, 8)),
    ((5, 7), (13, 10)),
    ((7, 9), (3, 2)),
    ((1, 1), (3, 4)),
    ((3, 3), (1, 1)),
    ((6, 5), (6, 5)),
    ((12, 10), (31, 29)),
]
SAMPLING = [(False, False), (True, False), (False, True)]
ENCODING = int8(0.1, 7)


@pytest.mark.crossed
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("mode", list(ResizeMode))
def test_images_are_those_of_the_runtimes(
    sizes: tuple[tuple[int, int], tuple[int, int]], sampling: tuple[bool, bool], mode: ResizeMode
) -> None:
    codes = random_codes((2, *sizes[0], 3), ENCODING)
    operation = Resize(mode, sizes[1], *sampling)
    ends = [(codes.shape, ENCODING)], [((2, *sizes[1], 3), ENCODING)]
    program = one_step(operation, DOUBLE, *ends)
    ours, model = computed(program, codes), program_to_tflite(program)
    np.testing.assert_array_equal(ours, litert(model, codes, kernels=REFERENCE))
    np.testing.assert_array_equal(ours, micro(model, codes))
    ours = computed(one_step(operation, SINGLE, *ends), codes)
    np.testing.assert_array_equal(ours, litert(model, codes, kernels=XNNPACK))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("transformation", "sampling"),
    list(zip(["asymmetric", "align_corners", "half_pixel"], SAMPLING, strict=True)),
)
def test_floats_are_interpolated_as_onnxruntime_does_it(
    sizes: tuple[tuple[int, int], tuple[int, int]],
    transformation: str,
    sampling: tuple[bool, bool],
) -> None:
    encoding = uint8(0.1, 7)
    codes = random_codes((2, *sizes[0], 3), encoding)
    attributes = {"mode": "linear", "coordinate_transformation_mode": transformation}
    channels_first = np.ascontiguousarray(codes.transpose(0, 3, 1, 2))
    lengths = np.asarray([2, 3, *sizes[1]], np.int64)
    given = [(channels_first, encoding)]
    theirs = onnxruntime("Resize", given, encoding, attributes, [None, None, lengths])
    operation = Resize(ResizeMode.LINEAR, sizes[1], *sampling)
    ends = [(codes.shape, encoding)], ((2, *sizes[1], 3), encoding)
    ours = run_step(operation, AFTER, *ends, codes).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("mode", list(ResizeMode))
@pytest.mark.parametrize("arithmetic", [DOUBLE, SINGLE, SHIFT, AFTER])
def test_one_and_three_axes_and_no_sample(mode: ResizeMode, arithmetic: Arithmetic) -> None:
    for shape, sizes in (((2, 3, 2), (6,)), ((1, 2, 2, 2, 1), (4, 4, 2)), ((0, 2, 2, 1), (4, 4))):
        encoding = int8(0.5)
        codes = random_codes(shape, encoding)
        ends = [(shape, encoding)], ((), encoding)
        ours = run_step(Resize(mode, sizes), arithmetic, *ends, codes)
        assert ours.shape == (shape[0], *sizes, shape[-1])
        # What lies on an input element is that element.
        places = tuple(slice(None, None, o // n) for o, n in zip(sizes, shape[1:-1], strict=True))
        np.testing.assert_array_equal(ours[(slice(None), *places)], codes)


def test_interpolation_rounds_ties_as_the_hardware_does() -> None:
    codes = as_int8([[[1], [2]], [[-1], [-2]]])
    ends = [(codes.shape, int8(1.0))], ((), int8(1.0))
    between = {
        "double": run_step(Resize(ResizeMode.LINEAR, (4,)), DOUBLE, *ends, codes)[:, 1, 0],
        "single": run_step(Resize(ResizeMode.LINEAR, (4,)), SINGLE, *ends, codes)[:, 1, 0],
    }
    assert between["double"].tolist() == [2, -2]
    assert between["single"].tolist() == [2, -1]


def test_another_scale_is_reached_after_interpolation() -> None:
    codes = as_int8([[[4], [8]]])
    ends = [(codes.shape, int8(0.5))], ((), int8(1.0, 1))
    for arithmetic in (DOUBLE, AFTER):
        ours = run_step(Resize(ResizeMode.LINEAR, (4,)), arithmetic, *ends, codes)
        assert ours.reshape(-1).tolist() == [3, 4, 5, 5]

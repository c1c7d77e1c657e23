"""Inputs of whole numbers in TensorFlow Lite Micro, which has kernels of int32 only."""

from __future__ import annotations

import numpy as np
import pytest

import intact
from tests.formats.c.test_whole_inputs import samples, tokens

pytest.importorskip("tflite_micro")


def test_indices_and_masks_are_int32() -> None:
    data = samples(masked=True)
    result = intact.quantize(tokens(masked=True), data, target="tflite-micro")
    verified = intact.verify(result, data)
    assert [(each.values, each.mismatches) for each in verified.outputs] == [(288, 0)]
    by_litert = intact.verify(result, data, kernels="ref")  # whose sums are rounded otherwise
    assert [each.values for each in by_litert.outputs] == [288]
    assert sum(each.mismatches for each in by_litert.outputs) < 5


def test_other_targets_take_them_as_the_model_does() -> None:
    from intact.formats.tflite.run import TfliteRuntime

    result = intact.quantize(tokens(), samples(), target="tflite")
    (content,) = result.exports["tflite"].files.values()  # type: ignore[attr-defined]
    assert TfliteRuntime(content).inputs["ids"].dtype == np.int64

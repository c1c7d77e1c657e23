"""Inputs of whole numbers; TensorFlow Lite Micro has kernels of int32 only."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

import intact
from intact.errors import DataError
from tests.formats.c.test_whole_inputs import LENGTH, pixels, samples, tokens
from tests.models import ModelBuilder

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


@pytest.mark.parametrize("target", ["tflite", "tflite-micro"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_narrow_ones_become_floats(dtype: str, target: str) -> None:
    model, data = pixels(dtype)
    verified = intact.verify(intact.quantize(model, data, target=target), data)
    assert [(each.values, each.mismatches) for each in verified.outputs] == [(48, 0)]


def test_micro_refuses_what_int32_does_not_hold() -> None:
    data = samples()
    made = intact.quantize(tokens(), data, target="tflite-micro")
    with pytest.raises(DataError, match="'ids' is int64, the program takes int32"):
        intact.verify(made, {"ids": data["ids"] + 2**32})


def test_litert_looks_up_before_a_cast_to_int32() -> None:
    """A Cast that cuts is refused, and a look-up needs none."""
    b = ModelBuilder(17)
    ids = b.node("Cast", b.input("ids", ["batch", LENGTH], TensorProto.INT64), to=TensorProto.INT32)
    b.node("MatMul", b.node("Gather", b.weight(20, 8), ids), b.weight(8, 4), out="y")
    b.output("y", ["batch", LENGTH, 4])
    verified = intact.verify(intact.quantize(b.build(), samples(), target="tflite"), samples())
    assert [(each.values, each.mismatches) for each in verified.outputs] == [(288, 0)]


def test_litert_takes_long_long() -> None:
    """It equals int64, and has another number in NumPy."""
    data = {name: array.astype(np.longlong) for name, array in samples().items()}
    assert data["ids"].dtype.char == "q"
    made = intact.quantize(tokens(), samples(), target="tflite")
    from intact.formats.tflite.run import TfliteRuntime

    (content,) = made.exports["tflite"].files.values()  # type: ignore[attr-defined]
    (found,) = TfliteRuntime(content).run(data)[0].values()
    assert found.shape[0] == len(data["ids"])

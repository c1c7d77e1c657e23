"""Inputs of whole numbers in C: tables that they index, and codes that are made of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import intact
from intact.config import Rounding
from intact.errors import DataError, ExportError, Unsupported
from intact.formats.c.format import c_program
from intact.formats.c.run import CRuntime
from intact.formats.c.write import codes_of_whole
from intact.numerics.affine import quantize
from intact.program import Encoding
from intact.results.result import Result
from tests.models import ModelBuilder

ENTRIES, LENGTH = 20, 6


def tokens(dtype: int = TensorProto.INT64, *, masked: bool = False) -> onnx.ModelProto:
    """Embed tokens, add positions, and mask what is padded."""
    b = ModelBuilder(17)
    ids = b.input("ids", ["batch", LENGTH], dtype)
    ids = b.node("Squeeze", b.node("Unsqueeze", ids, b.ints(1)), b.ints(1))
    ids = b.node("Cast", ids, to=TensorProto.INT64)
    x = b.node("Add", b.node("Gather", b.weight(ENTRIES, 8), ids), b.weight(1, LENGTH, 8))
    if masked:
        mask = b.node("Unsqueeze", b.input("mask", ["batch", LENGTH], dtype), b.ints(2))
        x = b.node("Mul", x, b.node("Cast", mask, to=TensorProto.FLOAT))
    b.node("MatMul", x, b.weight(8, 4), out="y")
    b.output("y", ["batch", LENGTH, 4])
    return b.build()


def pixels(dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Weigh whole numbers that only become floats, and 12 samples of them."""
    b = ModelBuilder(17)
    x = b.input("pixels", ["batch", LENGTH], getattr(TensorProto, dtype.upper()))
    b.node("MatMul", b.node("Cast", x, to=TensorProto.FLOAT), b.weight(LENGTH, 4), out="y")
    b.output("y", ["batch", 4])
    limits = np.iinfo(dtype)
    numbers = np.random.default_rng(1).integers(
        max(limits.min, -300), min(limits.max, 300), (12, LENGTH)
    )
    return b.build(), {"pixels": numbers.astype(dtype)}


def samples(dtype: str = "int64", *, masked: bool = False) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    ids = random.integers(0, ENTRIES, (12, LENGTH)).astype(dtype)
    mask = random.integers(0, 2, (12, LENGTH)).astype(dtype)
    return {"ids": ids, "mask": mask} if masked else {"ids": ids}


def result(dtype: str = "int64", *, masked: bool = False) -> Result:
    kind = getattr(TensorProto, dtype.upper())
    model, data = tokens(kind, masked=masked), samples(dtype, masked=masked)
    return intact.quantize(model, data, target="tflite-micro", formats=["c"])


@pytest.mark.parametrize(("dtype", "masked"), [("int64", True), ("int32", False)])
def test_the_program_computes_the_engines_integers(dtype: str, masked: bool) -> None:
    made = result(dtype, masked=masked)
    verified = intact.verify(made, samples(dtype, masked=masked))
    assert [(each.values, each.mismatches) for each in verified.outputs] == [(288, 0)]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_narrow_ones_become_codes(dtype: str) -> None:
    model, data = pixels(dtype)
    made = intact.quantize(model, data, target="tflite-micro", formats=["c"])
    assert [(each.values, each.mismatches) for each in intact.verify(made, data).outputs] == [
        (48, 0)
    ]


def test_they_are_int32_in_the_program() -> None:
    program = c_program(result().plan)
    assert "void model_run(const int32_t *ids, int8_t *y);" in program.files["model.h"]
    assert [port.bytes for port in program.inputs] == [4 * LENGTH]


def test_indices_count_from_the_end_and_stay_inside() -> None:
    program = c_program(result().plan)
    last, first = ENTRIES - 1, 0
    given = [[-1, -ENTRIES, last, ENTRIES, 2**31 - 1, -(2**31)]]
    meant = [[last, first, last, last, last, first]]
    with CRuntime(program) as runtime:
        found, expected = (runtime.run({"ids": np.array(ids)})["y"] for ids in (given, meant))
        np.testing.assert_array_equal(found, expected)
        with pytest.raises(DataError, match="int32"):
            runtime.run({"ids": np.array(given) + 2**32})
        with pytest.raises(DataError, match="int32"):
            runtime.run({"ids": np.array(given) / 2})


@pytest.mark.parametrize(("scale", "zero"), [(1 / 255, -128), (0.37, 5), (10.0, -100)])
def test_every_whole_number_gets_its_code(scale: float, zero: int) -> None:
    encoding = Encoding(
        np.array(scale, np.float32), np.array(zero), -128, 127, rounding=Rounding.HALF_EVEN
    )
    least, codes = codes_of_whole(encoding)
    numbers = np.arange(-4000, 4000)
    taken = codes[np.clip(numbers - least, 0, codes.size - 1)]
    expected = quantize(numbers.astype(np.float32), encoding.scale, encoding.zero_point, -128, 127)
    np.testing.assert_array_equal(taken, expected)


def test_a_table_of_too_many_numbers_is_refused() -> None:
    with pytest.raises(Unsupported, match="whole numbers have codes"):
        codes_of_whole(Encoding(np.array(100, np.float32), np.array(0), -128, 127))


def test_other_uses_are_refused_with_the_node() -> None:
    b = ModelBuilder(17)
    ids = b.input("ids", ["batch", LENGTH], TensorProto.INT64)
    b.node("Gather", b.weight(ENTRIES, 8), b.node("Mod", ids, b.ints(7), name="mod"), out="e")
    b.node("MatMul", "e", b.weight(8, 4), out="y")
    b.output("y", ["batch", LENGTH, 4])
    with pytest.raises(ExportError, match=r"'mod'.*computes in float"):
        intact.quantize(b.build(), samples(), target="tflite-micro", formats=["c"])


@pytest.mark.parametrize("written_out", [True, False])
def test_what_can_be_expanded_says_how(written_out: bool) -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 8]), b.weight(8, 8))
    if written_out:
        centred = b.node("Sub", x, b.mean(x, [-1], keepdims=1))
        variance = b.mean(b.node("Mul", centred, centred), [-1], keepdims=1)
        b.node("Div", centred, b.node("Sqrt", b.node("Add", variance, b.scalar(1e-3))), out="y")
    else:
        b.node("LayerNormalization", x, b.weight(8), b.weight(8), out="y")
    b.output("y", ["batch", 8])
    data = {"x": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)}
    with pytest.raises(ExportError, match="expand LayerNormalization"):
        intact.quantize(b.build(), data, target="tflite-micro", formats=["c"])
    expand = ["LayerNormalization"]
    made = intact.quantize(b.build(), data, target="tflite-micro", formats=["c"], expand=expand)
    assert "LayerNormalization" not in {node.op_type for node in made.plan.graph.nodes}

"""Inputs of whole numbers in ncnn: indices of its Embed layer, and masks that are fed as floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import intact
from intact.errors import DataError, ExportError
from intact.formats.ncnn.run import run_ncnn
from intact.formats.ncnn.write import write_ncnn
from intact.program.lower import lower_nodes
from intact.results.result import Result
from tests.formats.c.test_whole_inputs import LENGTH, pixels, samples, tokens
from tests.models import ModelBuilder

pytest.importorskip("ncnn")


def quantized(model: onnx.ModelProto, data: dict[str, np.ndarray]) -> Result:
    return intact.quantize(model, data, target="ncnn")


@pytest.mark.parametrize(("dtype", "masked"), [("int64", True), ("int32", False)])
def test_ncnn_computes_the_engines_numbers(dtype: str, masked: bool) -> None:
    kind = getattr(TensorProto, dtype.upper())
    data = samples(dtype, masked=masked)
    made = quantized(tokens(kind, masked=masked), data)
    verified = intact.verify(made, data)
    assert [(each.values, each.mismatches) for each in verified.outputs] == [(288, 0)]
    assert not any(each.mismatches for each in verified.layers)


def test_the_file_has_an_embed_layer(tmp_path: Path) -> None:
    made = quantized(tokens(masked=True), samples(masked=True))
    made.save(tmp_path / "out")
    lines = (tmp_path / "out" / "model.int8.param").read_text().splitlines()
    assert [line.split()[0] for line in lines].count("Embed") == 1


def test_indices_below_zero_are_refused() -> None:
    made = quantized(tokens(), samples())
    with pytest.raises(DataError, match="'ids' has indices below 0"):
        intact.verify(made, {"ids": samples()["ids"] - 20})


def test_indices_that_int32_does_not_hold_are_refused() -> None:
    made = quantized(tokens(), samples())
    with pytest.raises(DataError, match="'ids' is int64, the program takes int32"):
        run_ncnn(made.plan, write_ncnn(lower_nodes(made.plan)), {"ids": samples()["ids"] + 2**32})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_narrow_ones_are_fed_as_floats(dtype: str) -> None:
    model, data = pixels(dtype)
    verified = intact.verify(quantized(model, data), data)
    assert [(each.values, each.mismatches) for each in verified.outputs] == [(48, 0)]


@pytest.mark.parametrize("second", ["look-up", "computed look-up", "output"])
def test_a_second_reader_is_refused(second: str) -> None:
    b = ModelBuilder(17)
    ids = b.input("ids", ["batch", LENGTH], TensorProto.INT64)
    x = b.node("Gather", b.weight(20, 8), ids)
    if second == "output":
        b.node("Identity", ids, out="same")
        b.output("same", ["batch", LENGTH], TensorProto.INT64)
    else:
        others = b.node("Add", ids, b.ints(1)) if second == "computed look-up" else ids
        x = b.node("Add", x, b.node("Gather", b.weight(21, 8), others))
    b.node("MatMul", x, b.weight(8, 4), out="y")
    b.output("y", ["batch", LENGTH, 4])
    with pytest.raises(ExportError, match=r"'ids': .*not read by one look-up alone"):
        quantized(b.build(), samples())

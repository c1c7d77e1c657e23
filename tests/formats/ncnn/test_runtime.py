"""Running what was written, and what happens where ncnn is missing or refuses."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

import intact
from intact.errors import ExportError, MissingExtraError
from intact.formats.ncnn.run import NcnnRuntime, ncnn_version
from tests.formats.ncnn.cases import build_case, written_from
from tests.models import ModelBuilder
from tests.plans import calibrated, planned

pytestmark = pytest.mark.runtime_fact("ncnn")

RELU = "7767517\n2 2\nInput x 0 1 x 0=3\nReLU y 1 1 x y\n"


def test_runtime_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[ncnn\]"'):
        NcnnRuntime(RELU, b"")


def test_writing_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncnn", None)
    assert written_from(calibrated(build_case("gemm"), "ncnn")).weights


def test_version_names_the_runtime() -> None:
    pytest.importorskip("ncnn")
    assert ncnn_version().startswith("ncnn 1.0.")


def test_runtime_takes_a_sample_without_its_batch() -> None:
    pytest.importorskip("ncnn")
    found = NcnnRuntime(RELU, b"").run({"x": np.array([-1, 0, 2.5], np.float32)}, ["y", "x"])
    assert found["y"].tolist() == [0, 0, 2.5]
    assert found["x"].tolist() == [-1, 0, 2.5]  # what a layer changes in place is a copy


def test_runtime_errors_name_the_remedy() -> None:
    pytest.importorskip("ncnn")
    with pytest.raises(ExportError, match="refuses the written model"):
        NcnnRuntime(RELU.replace("ReLU", "NoSuchLayer"), b"")
    runtime = NcnnRuntime(RELU, b"")
    with pytest.raises(ExportError, match="has no input 'z'"):
        runtime.run({"z": np.zeros(3, np.float32)}, ["y"])
    with pytest.raises(ExportError, match="at blob 'z'"):
        runtime.run({"x": np.zeros(3, np.float32)}, ["z"])


def test_quantize_layer_rounds_half_away_and_saturates() -> None:
    pytest.importorskip("ncnn")
    param = "7767517\n2 2\nInput x 0 1 x 0=6\nQuantize y 1 1 x y 0=1\n"
    numbers = np.array([0.5, -0.5, 1.5, -2.5, 200, -200], np.float32)
    (codes,) = NcnnRuntime(param, np.float32(1).tobytes()).run({"x": numbers}, ["y"]).values()
    assert codes.tolist() == [1, -1, 2, -3, 127, -127]


def test_float_model_runs() -> None:
    pytest.importorskip("ncnn")
    written = written_from(planned(build_case("relu"), "ncnn"))
    runtime = NcnnRuntime(written.param, written.weights, threads=1)
    x = np.ones((4, 6, 7), np.float32)
    (found,) = runtime.run({written.inputs["x"]: x}, written.outputs.values()).values()
    np.testing.assert_array_equal(found, x)


def test_a_class_token_is_put_in_front_of_the_patches() -> None:
    b = ModelBuilder(17)
    patches = b.node("MatMul", b.input("x", [1, 6, 8]), b.weight(8, 8))
    tokens = b.node("Concat", b.weight(1, 1, 8), patches, axis=1)
    b.node("MatMul", tokens, b.weight(8, 4), out="y")
    b.output("y", [1, 7, 4])
    data = {"x": np.random.default_rng(0).normal(size=(16, 6, 8)).astype(np.float32)}
    made = intact.quantize(b.build(), data, target="ncnn")
    assert not any(each.mismatches for each in intact.verify(made, data).outputs)

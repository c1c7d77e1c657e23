"""Each layer in float, in ncnn, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from intact.errors import ExportError
from intact.formats.ncnn.write import write_ncnn
from intact.plan import Overrides
from tests.formats.ncnn.cases import CASES, Build, build_case, node, outputs_of, resize
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import planned

pytest.importorskip("ncnn")

PRODUCTS = ("Conv", "Gemm", "MatMul")


@pytest.mark.parametrize("name", CASES)
def test_a_float_layer_computes_what_onnx_says(name: str) -> None:
    model = build_case(name)
    kept = {node.op_type for node in model.graph.node if node.op_type in PRODUCTS}
    written = write_ncnn(planned(model, "ncnn", Overrides(keep_float=tuple(sorted(kept)))))
    feeds = random_inputs(model, batch=2)
    expected = run_model(model, feeds)
    for plain, tolerance in ((True, 2e-5), (False, 3e-3)):  # by default dense weights are float16
        found = outputs_of(written, feeds, plain=plain)
        for output, array in expected.items():
            assert found[output].size == array.size
            shaped = found[output].reshape(array.shape)
            np.testing.assert_allclose(shaped, array, rtol=tolerance, atol=tolerance)


def prelu(*shape: int) -> Build:
    return lambda b, x: b.node("PRelu", x, b.weight(*shape))


REFUSED: Mapping[str, tuple[Build, str]] = {
    "slopes of columns": (prelu(7), "do not run along the channels"),
    "slopes of rows": (prelu(7, 1), "do not run along the channels"),
    "a last window in the pads": (
        node("MaxPool", kernel_shape=[3, 3], strides=[4, 4], pads=[0, 0, 2, 2], ceil_mode=1),
        "its last window begins in the pads",
    ),
    "a last window behind the data": (
        node("MaxPool", kernel_shape=[1, 1], strides=[4, 4], ceil_mode=1),
        "its last window begins in the pads",
    ),
    "nearest, rounded up": (resize("nearest", "half_pixel", (12, 14), nearest_mode="ceil"), "ceil"),
    "nearest, aligned": (resize("nearest", "align_corners", (12, 14)), "align_corners"),
    "nearest, mixed": (
        resize("nearest", "asymmetric", (12, 14), nearest_mode="round_prefer_ceil"),
        "by asymmetric and round_prefer_ceil",
    ),
    "a named axis by a fraction": (
        lambda b, x: b.node(
            "Resize", x, "", b.constant(np.array([1.3], np.float32)), mode="linear", axes=[3]
        ),
        "no whole multiples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ncnn_would_compute_otherwise_is_refused(name: str) -> None:
    build, told = REFUSED[name]
    b = ModelBuilder(18)
    b.output(build(b, b.input("x", ["batch", 7, 7, 7])))
    with pytest.raises(ExportError, match=told):
        write_ncnn(planned(b.build(), "ncnn"))

"""Each layer in float, in ncnn, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import ExportError
from intact.plan import Overrides
from tests.formats.ncnn.cases import (
    CASES,
    Build,
    build_case,
    mean,
    node,
    outputs_of,
    resize,
    written_from,
)
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import planned

pytestmark = pytest.mark.runtime_fact("ncnn")

pytest.importorskip("ncnn")

PRODUCTS = ("Conv", "Gemm", "MatMul")


@pytest.mark.parametrize("name", CASES)
def test_float_layer_computes_what_onnx_says(name: str) -> None:
    model = build_case(name)
    kept = {node.op_type for node in model.graph.node if node.op_type in PRODUCTS}
    written = written_from(planned(model, "ncnn", Overrides(keep_float=tuple(sorted(kept)))))
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


UNSUPPORTED: dict[str, tuple[Build, str]] = {
    "slopes of columns": (prelu(7), "do not run along the channels"),
    "slopes of rows": (prelu(7, 1), "do not run along the channels"),
    "nearest, rounded up": (resize("nearest", "half_pixel", (12, 14), nearest_mode="ceil"), "ceil"),
    "nearest, aligned": (resize("nearest", "align_corners", (12, 14)), "align_corners"),
    "nearest, mixed": (
        resize("nearest", "asymmetric", (12, 14), nearest_mode="round_prefer_ceil"),
        "round_prefer_ceil with asymmetric",
    ),
    "a named axis by a fraction": (
        lambda b, x: b.node(
            "Resize", x, "", b.constant(np.array([1.3], np.float32)), mode="linear", axes=[3]
        ),
        "not those of its lengths",
    ),
}


UNSUPPORTED |= {
    "slopes with a batch": (prelu(2, 7, 1, 1), "not one constant"),
    "a dilated pool": (node("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]), "dilated"),
    "nothing but the batch": (mean([1, 2, 3], 0), "nothing but the batch"),
    "the batch reduced": (mean([0, 1], 1), "reduces the batch"),
    "smoothed": (resize("linear", "half_pixel", (12, 14), antialias=1), "has antialias"),
    "one column, aligned": (
        lambda b, x: b.node(
            "Resize", x, "", "", b.ints(1, 7, 7, 1),
            mode="linear", coordinate_transformation_mode="align_corners",
        ),
        "shrinks an axis to one sample",
    ),
    "nearest by a fraction": (
        lambda b, x: b.node("Resize", x, "", "", b.ints(1, 7, 10, 7), mode="nearest"),
        "round_prefer_floor with half_pixel",
    ),
    "samples joined": (lambda b, x: b.node("Reshape", x, b.ints(-1, 7)), "between samples"),
    "flattened late": (node("Flatten", axis=2), "all behind the batch"),
    "some samples": (
        lambda b, x: b.node("Slice", x, b.ints(0), b.ints(1), b.ints(0)), "some of the samples"
    ),
    "cut": (lambda b, x: b.node("Pad", x, b.ints(0, 0, -1, 0, 0, 0, 0, 0)), "it cuts off"),
    "channels by edges": (
        lambda b, x: b.node("Pad", x, b.ints(0, 1, 0, 0, 0, 0, 0, 0), mode="edge"),
        "pads channels",
    ),
    "a constant with a batch": (
        lambda b, x: b.node("Add", x, b.weight(2, 7, 7, 7)), "differs between samples"
    ),
    "a constant with more axes": (
        lambda b, x: b.node("Add", x, b.weight(1, 1, 1, 1, 1)), "more axes than its data"
    ),
    "fewer axes": (
        lambda b, x: b.node("Add", x, b.node("Flatten", b.node("GlobalMaxPool", x))),
        "different numbers of axes",
    ),
    "steps in front of samples": (
        lambda b, x: b.node(
            "RNN", b.node("Reshape", x, b.ints(7, -1, 49)), b.weight(1, 3, 49), b.weight(1, 3, 3),
            hidden_size=3,
        ),
        "its samples lie on the second axis",
    ),
    "backwards": (
        lambda b, x: b.node("CumSum", x, b.constant(np.int64(1)), reverse=1), "sums backwards"
    ),
    "an even window": (node("LRN", size=2), "its window is even"),
    "an operator of others": (
        lambda b, x: b.node("Gelu", x, domain="com.microsoft"), "of domain 'com.microsoft'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_layer_that_ncnn_computes_otherwise_is_unsupported(name: str) -> None:
    build, reason = UNSUPPORTED[name]
    b = ModelBuilder(18)
    b.output(build(b, b.input("x", ["batch", 7, 7, 7])))
    with pytest.raises(ExportError, match=reason):
        written_from(planned(b.build(), "ncnn"))

"""Masks of tokens: truth values that ncnn computes with floats."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.formats.ncnn.cases import outputs_of, written_from
from tests.models import ModelBuilder, run_model
from tests.plans import planned

pytestmark = pytest.mark.runtime_fact("ncnn")

pytest.importorskip("ncnn")

LEAST = float(np.finfo(np.float32).min)


def _known(b: ModelBuilder, mask: str) -> str:
    """As torch exports it: GatherND of all elements, And with a constant, Where."""
    known = b.node("Cast", mask, to=TensorProto.BOOL)
    places = np.stack(np.broadcast_arrays([0], np.arange(6)), axis=-1).reshape(1, 1, 6, 2)
    turned = b.node("GatherND", known, b.constant(places))
    lower = b.constant(np.tril(np.ones((1, 6, 6), bool)))
    return b.node("And", turned, lower)


def _added(b: ModelBuilder, scores: str, mask: str) -> str:
    chosen = b.node("Where", _known(b, mask), b.scalar(0.0), b.scalar(LEAST))
    return b.node("Softmax", b.node("Add", scores, chosen), axis=-1)


def _filled(b: ModelBuilder, scores: str, mask: str) -> str:
    """As DeBERTa: a product of whole numbers, and scores that are replaced."""
    rows = b.node("Reshape", mask, b.ints(1, 6, 1))
    pairs = b.node("Mul", rows, b.node("Reshape", mask, b.ints(1, 1, 6)))
    hidden = b.node("Not", b.node("Cast", pairs, to=TensorProto.BOOL))
    return b.node("Where", hidden, b.scalar(-5.0), scores)


def _two(b: ModelBuilder, scores: str, mask: str) -> str:
    """Where of two constants that are not 0, and Or."""
    allowed = b.node("Or", _known(b, mask), b.constant(np.eye(6, dtype=bool)[None]))
    return b.node("Mul", scores, b.node("Where", allowed, b.scalar(1.1), b.scalar(0.3)))


MASKED = {"added": _added, "filled": _filled, "two": _two}
FEEDS: dict[str, np.ndarray] = {
    "x": np.random.default_rng(3).normal(size=(1, 6, 8)).astype(np.float32),
    "mask": np.array([[1, 1, 1, 1, 0, 0]], np.int64),
}


def build(make) -> onnx.ModelProto:  # type: ignore[no-untyped-def]
    b = ModelBuilder(18)
    x, mask = b.input("x", [1, 6, 8]), b.input("mask", [1, 6], TensorProto.INT64)
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    b.output(b.node("MatMul", make(b, scores, mask), x))
    return b.build()


@pytest.mark.parametrize("name", MASKED)
def test_ncnn_computes_what_onnx_says(name: str) -> None:
    model = build(MASKED[name])
    (expected,) = run_model(model, FEEDS).values()
    written = written_from(planned(model, "ncnn"))
    (found,) = outputs_of(written, written.fed(FEEDS), plain=True).values()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)

"""Masks of tokens: truth values that ncnn computes with floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.formats.ncnn.cases import outputs_of, written_from
from tests.models import ModelBuilder, run_model
from tests.plans import planned

pytestmark = pytest.mark.runtime_fact("ncnn")

pytest.importorskip("ncnn")

Masked = Callable[[ModelBuilder, str, str], str]
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


def _wide(b: ModelBuilder, scores: str, mask: str) -> str:
    """Where whose zeros make the result as large as it is."""
    zeros = b.constant(np.zeros((1, 6, 6), np.float32))
    known = b.node("Cast", mask, to=TensorProto.BOOL)
    chosen = b.node("Where", known, zeros, b.scalar(-5.0))
    return b.node("MatMul", b.node("Softmax", chosen, axis=-1), scores)


def _fixed(least: float, condition: np.ndarray, *, turned: bool = False) -> Masked:
    """Where by a constant: of a decoder, or of a mask that all samples have alike."""

    def build(b: ModelBuilder, scores: str, mask: str) -> str:
        sides = (scores, b.scalar(least))
        chosen = b.node("Where", b.constant(condition), *(sides[::-1] if turned else sides))
        known = b.node("Cast", mask, to=TensorProto.FLOAT)
        return b.node("Mul", b.node("Softmax", chosen, axis=-1), known)

    return build


def _grown(b: ModelBuilder, scores: str, mask: str) -> str:
    """Where of one row that a constant condition makes three, as large as a product needs."""
    row = b.with_axes("ReduceMax", scores, [1], keepdims=1)
    rows = b.node("Where", b.constant(np.ones((1, 6, 1), bool)), row, b.scalar(-5.0))
    known = b.node("Cast", mask, to=TensorProto.FLOAT)
    return b.node("Mul", b.node("Transpose", rows, perm=[0, 2, 1]), known)


LOWER = np.tril(np.ones((6, 6), bool))
MASKED = {
    "wide": _wide,
    "decoder": _fixed(-1e4, LOWER),
    "decoder of infinities": _fixed(-np.inf, LOWER[None]),
    "upper": _fixed(-np.inf, ~LOWER, turned=True),
    "no row": _fixed(-5.0, np.zeros((1, 1, 6), bool)),
    "grown": _grown,
}
MASKED |= {"added": _added, "filled": _filled, "two": _two}
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

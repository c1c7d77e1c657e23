"""Models of one sample, whose values lack its axis, or hold more axes than a blob of ncnn."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import intact
from intact.errors import ExportError
from intact.plan import Overrides, QuantizedGraph
from tests.formats.ncnn.cases import Build, outputs_of, written_from
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import planned

pytestmark = pytest.mark.runtime_fact("ncnn")

pytest.importorskip("ncnn")


def _heads(b: ModelBuilder, x: str) -> str:
    """Attention whose heads are joined with the sample."""
    heads = b.node("Reshape", x, b.ints(6, 4, 4))
    turned = b.node("Transpose", heads, perm=[0, 2, 1])
    scores = b.node("Softmax", b.node("MatMul", heads, turned), axis=-1)
    return b.node("Reshape", b.node("MatMul", scores, heads), b.ints(1, 6, 16))


def _tokens_in_front(b: ModelBuilder, x: str) -> str:
    """The sample behind the tokens, as torch's MultiheadAttention has it."""
    turned = b.node("Transpose", x, perm=[1, 0, 2])
    made = b.node("Add", b.node("MatMul", turned, b.weight(16, 8)), b.weight(8))
    return b.node("Transpose", b.node("Mul", made, b.weight(6, 1, 8)), perm=[1, 0, 2])


def _rows(b: ModelBuilder, x: str) -> str:
    """Matrices without the sample, one of them a constant."""
    rows = b.node("Reshape", x, b.ints(6, 16))
    joined = b.node("Concat", rows, b.weight(2, 16), axis=0)
    parts = b.split(joined, [5, 3], 0)
    product = b.node("MatMul", parts[1], b.node("Transpose", parts[0], perm=[1, 0]))
    cut = b.node("Slice", product, b.ints(1), b.ints(3), b.ints(0))
    total = b.node("Add", b.node("ReduceMean", cut, axes=[0], keepdims=1), b.weight(5))
    return b.node("Reshape", total, b.ints(1, 5))


def _fewer_axes(b: ModelBuilder, x: str) -> str:
    """An activation of fewer axes meets one of more."""
    mean = b.node("ReduceMean", b.node("Reshape", x, b.ints(6, 16)), axes=[1], keepdims=1)
    return b.node("Sub", x, mean)


def _constant_first(b: ModelBuilder, x: str) -> str:
    return b.node("MatMul", b.weight(1, 3, 6), x)


def _windows(b: ModelBuilder, x: str) -> str:
    """Windows of an image, as in Swin: six axes."""
    parts = b.node("Reshape", x, b.ints(1, 3, 2, 2, 4, 2))
    turned = b.node("Transpose", parts, perm=[0, 1, 3, 2, 4, 5])
    rows = b.node("Reshape", turned, b.ints(6, 4, 4))
    return b.node("Reshape", b.node("Sigmoid", rows), b.ints(1, 96))


def _channels(b: ModelBuilder, x: str) -> str:
    """BatchNormalization of rows, as in LeViT."""
    positive = b.constant(np.linspace(0.5, 2, 16, dtype=np.float32))
    rows = b.node("Sigmoid", b.node("Reshape", x, b.ints(6, 16)))
    numbers = b.weight(16), b.weight(16), b.weight(16), positive
    normal = b.node("BatchNormalization", rows, *numbers)
    return b.node("Reshape", b.node("Sigmoid", normal), b.ints(1, 96))


def _read_twice(b: ModelBuilder, x: str) -> str:
    """Axes in front that two nodes need, and one that needs them twice."""
    parts = b.node("Reshape", b.node("Sin", x), b.ints(1, 2, 3, 16))
    mean = b.node("ReduceMean", x, axes=[1], keepdims=1)
    total = b.node("Mul", b.node("Add", parts, mean), mean)
    both = b.node("Concat", total, total, axis=0)
    return b.node("Reshape", b.node("Sin", both), b.ints(1, -1))


def _read_as_made(b: ModelBuilder, x: str) -> str:
    """A value that is made with an axis in front, and read so."""
    turned = b.node("Transpose", b.node("Reshape", x, b.ints(6, 16)), perm=[1, 0])
    row = b.node("Gather", turned, b.ints(3), axis=0)
    product = b.node("MatMul", b.node("Transpose", row, perm=[1, 0]), row)
    return b.node("Reshape", product, b.ints(1, -1))


ONE: dict[str, Build] = {
    "heads": _heads,
    "tokens in front": _tokens_in_front,
    "rows": _rows,
    "fewer axes": _fewer_axes,
    "a constant first": _constant_first,
    "windows": _windows,
    "read twice": _read_twice,
    "read as made": _read_as_made,
    "channels": _channels,
}


def build(make: Build) -> ModelBuilder:
    b = ModelBuilder(17)
    b.output(make(b, b.input("x", [1, 6, 16])))
    return b


def in_float(model: onnx.ModelProto) -> QuantizedGraph:
    kinds = {node.op_type for node in model.graph.node} & {"Conv", "MatMul"}
    return planned(model, "ncnn", Overrides(keep_float=tuple(sorted(kinds))))


@pytest.mark.parametrize("name", ONE)
def test_ncnn_computes_what_onnx_says(name: str) -> None:
    model = build(ONE[name]).build()
    feeds = random_inputs(model, batch=1)
    (expected,) = run_model(model, feeds).values()
    (found,) = outputs_of(written_from(in_float(model)), feeds, plain=True).values()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)


def test_deployed_is_what_was_planned() -> None:
    model = build(_tokens_in_front).build()
    data = {"x": np.random.default_rng(1).normal(size=(8, 6, 16)).astype(np.float32)}
    verified = intact.verify(intact.quantize(model, data, target="ncnn"), data)
    assert [each.mismatches for each in verified.layers] == [0, 0]


def test_a_constant_left_factor_stays_float() -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", [1, 6, 16]), b.weight(16, 8))
    b.output(b.node("MatMul", b.weight(3, 6), b.node("Relu", x)))
    data = {"x": np.random.default_rng(1).normal(size=(8, 6, 16)).astype(np.float32)}
    result = intact.quantize(b.build(), data, target="ncnn")
    assert [each.quantized for each in result.plan.decisions.values()] == [True, False, False]
    verified = intact.verify(result, data)
    assert not any(each.mismatches for each in verified.layers)


REFUSED: dict[str, tuple[Build, str]] = {
    "an output without the sample": (
        lambda b, x: b.node("Neg", b.node("Reshape", x, b.ints(6, 16))), "holds 6 samples"
    ),
    "a function of more axes": (
        lambda b, x: b.node(
            "Reshape",
            b.node("Softmax", b.node("Reshape", x, b.ints(1, 3, 2, 2, 4, 2)), axis=2),
            b.ints(1, 96),
        ),
        "has 6 axes",
    ),
    "several images": (
        lambda b, x: b.node(
            "Reshape",
            b.node("Conv", b.node("Reshape", x, b.ints(2, 3, 4, 4)), b.weight(3, 3, 1, 1)),
            b.ints(1, 96),
        ),
        "holds 2 samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_blob_holds_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(ExportError, match=reason):
        written_from(in_float(build(make).build()))

"""Look-ups by computed indices: embeddings of tokens."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import intact
from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.errors import DataError
from intact.program.lower import lower
from intact.program.operations import Lookup
from tests.models import ModelBuilder

TOKENS = np.random.default_rng(0).integers(0, 50, (64, 7))


def embedding(axis: int = 0, kind: int = onnx.TensorProto.INT64) -> onnx.ModelProto:
    """Tokens, their vectors, a dense layer and a mean."""
    b = ModelBuilder()
    tokens = b.input("tokens", ["batch", 7], kind)
    table = b.weight(50, 16) if axis == 0 else b.weight(16, 50)
    x = b.node("Gather", table, tokens, axis=axis, name="embed")
    if axis:
        x = b.node("Transpose", x, perm=[1, 2, 0])
    x = b.node("Relu", b.node("MatMul", x, b.weight(16, 8)))
    b.node("Softmax", b.node("MatMul", b.mean(x, [1], keepdims=0), b.weight(8, 4)), out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_look_up_takes_codes(axis: int) -> None:
    result = intact.quantize(embedding(axis), {"tokens": TOKENS}, target="tflite", threads=1)
    program = lower(result.plan)
    assert program.in_float == {}
    (step,) = (step for step in program.steps if isinstance(step.operation, Lookup))
    assert step.outputs[0].encoding is not None
    negative = {"tokens": TOKENS - 50 * (TOKENS % 2)}  # some count from the end
    for feeds in ({"tokens": TOKENS}, negative, {"tokens": TOKENS[:1]}, {"tokens": TOKENS[:0]}):
        found = IntegerEngine(program, threads=1).run(feeds, [step.outputs[0].name])
        simulated, _ = Simulator(result.plan, threads=1).run(feeds)
        assert np.abs(found.outputs["y"] - simulated["y"]).max(initial=0) < 0.02
        table = step.inputs[0]
        assert table is not None
        assert table.data is not None
        wanted = np.take(table.data, feeds["tokens"], axis)
        np.testing.assert_array_equal(found.tensors[step.outputs[0].name], wanted)


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT64, onnx.TensorProto.INT32])
@pytest.mark.parametrize("target", ["tflite", "tflite-xnnpack"])
def test_the_file_gives_the_same(target: str, kind: int) -> None:
    tokens = TOKENS.astype(np.int64 if kind == onnx.TensorProto.INT64 else np.int32)
    result = intact.quantize(embedding(kind=kind), {"tokens": tokens}, target=target, threads=1)
    found = intact.verify(result, {"tokens": tokens}, threads=1)
    assert len(found.layers) == 5
    assert sum(layer.mismatches for layer in found.layers) == 0
    assert [each.mismatches for each in found.outputs] == [0]


def test_an_index_beyond_the_table_is_named() -> None:
    result = intact.quantize(embedding(), {"tokens": TOKENS}, target="tflite", threads=1)
    with pytest.raises(DataError, match="'embed': an index is beyond the 50 entries"):
        intact.execute(result, {"tokens": TOKENS + 10}, threads=1)

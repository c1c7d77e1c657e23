"""Nodes in float16: what is cast where, and what is computed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.engines.session import make_session, run_session
from intact.graph import normalize
from intact.graph.passes.narrow import float16_slots, in_float16, narrow, round_floats
from tests.models import ModelBuilder

_X = np.random.default_rng(7).normal(size=(4, 6)).astype(np.float32)


def _model() -> ir.Model:
    """Two nodes, of which the second reads the first, beside others and as outputs."""
    b = ModelBuilder(opset=17)
    x = b.input("x", [4, 6])
    scaled = b.node("Mul", x, b.constant(np.array([1.1], np.float32), "factor"), name="scale")
    curve = b.node("Tanh", scaled, name="curve")
    summed = b.node("Add", scaled, curve, name="sum")
    b.output(curve, [4, 6])
    b.output(b.node("Neg", summed, name="negative"), [4, 6])
    return normalize(b.build()).model.clone()


def _run(model: ir.Model) -> list[np.ndarray]:
    names = [str(value.name) for value in model.graph.outputs]
    return run_session(make_session(model, threads=1), {"x": _X}, names)


def test_ends_of_a_narrowed_model_keep_their_names_and_types() -> None:
    before, model = _model(), _model()
    narrow(model, {"scale", "curve", "sum"})
    for side in ("inputs", "outputs"):
        ends = [[(v.name, v.dtype) for v in getattr(m.graph, side)] for m in (before, model)]
        assert ends[0] == ends[1]
    assert [out.shape for out in _run(model)] == [(4, 6), (4, 6)]


def test_a_value_is_cast_once_however_many_read_it() -> None:
    model = _model()
    narrow(model, {"curve", "sum"})
    casts = [
        (node.inputs[0].name, node.outputs[0].dtype)
        for node in model.graph
        if node.op_type == "Cast" and node.inputs[0] is not None
    ]
    scaled = next(n for n in model.graph if n.name == "scale").outputs[0].name
    # `scale` stays float32 and both others read it: one Cast; one back for each output.
    assert casts.count((scaled, ir.DataType.FLOAT16)) == 1
    assert len(casts) == 3
    kinds = {n.name: n.outputs[0].dtype for n in model.graph if n.op_type != "Cast"}
    assert kinds["scale"] == kinds["negative"] == ir.DataType.FLOAT
    assert kinds["curve"] == kinds["sum"] == ir.DataType.FLOAT16


def test_rounded_values_are_those_of_float16() -> None:
    model = _model()
    round_floats(model, {"scale", "curve", "sum"}, values=True)

    def half(array: np.ndarray) -> np.ndarray:
        return in_float16(array.astype(np.float32)).astype(np.float32)

    scaled = half(half(_X) * half(np.array([1.1], np.float32)))
    curve = half(np.tanh(scaled))
    found = _run(model)
    np.testing.assert_allclose(found[0], curve, atol=2**-11)
    np.testing.assert_array_equal(found[0], half(found[0]))
    np.testing.assert_array_equal(found[1], -half(scaled + found[0]))


def test_constants_alone_are_rounded() -> None:
    model = _model()
    round_floats(model, {"scale"}, values=False)
    factor = np.float32(np.float16(1.1))
    np.testing.assert_allclose(_run(model)[0], np.tanh(_X * factor), rtol=1e-6)
    assert not any(node.op_type == "Cast" for node in model.graph)


@pytest.mark.parametrize(
    ("op_type", "dtypes", "inputs"),
    [
        ("Add", [ir.DataType.FLOAT, ir.DataType.FLOAT], [0, 1]),
        ("Add", [ir.DataType.INT64, ir.DataType.INT64], []),
        ("Gather", [ir.DataType.FLOAT, ir.DataType.INT64], [0]),
        ("LayerNormalization", [ir.DataType.FLOAT] * 3, [0, 1, 2]),
        # Factors of Resize are float32 in every version.
        ("Resize", [ir.DataType.FLOAT, None, ir.DataType.FLOAT], [0]),
        ("NonMaxSuppression", [ir.DataType.FLOAT, ir.DataType.FLOAT], []),
        ("NoSuchOperator", [ir.DataType.FLOAT], []),
    ],
)
def test_slots_are_those_of_onnx(
    op_type: str, dtypes: list[ir.DataType | None], inputs: list[int]
) -> None:
    values = [
        None if each is None else ir.Value(name=f"v{k}", type=ir.TensorType(each))
        for k, each in enumerate(dtypes)
    ]
    node = ir.node(op_type, values, num_outputs=1)
    node.outputs[0].name = "y"
    is_float = op_type != "NonMaxSuppression" and dtypes[0] != ir.DataType.INT64
    kind = ir.DataType.FLOAT if is_float else ir.DataType.INT64
    node.outputs[0].type = ir.TensorType(kind)
    assert float16_slots(node, 17) == (inputs, [0] if inputs else [])

"""What is declared of operators with options, several operands or windows: ONNX and NumPy agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from intact.ops.declaration import Operator, OpSpec, Window
from intact.ops.functions import FUNCTIONS
from intact.ops.operators import OPERATORS, OPS, Gemm, MaxPool, Pad
from tests.models import ModelBuilder

Array = npt.NDArray[Any]

RANDOM = np.random.default_rng(7)
X, Y = RANDOM.normal(size=(2, 2, 3, 6, 6)).astype(np.float32)
BOOLS = RANDOM.integers(0, 2, (2, 40)).astype(bool)
BYTES = RANDOM.integers(0, 256, (2, 40)).astype(np.uint8)
KERNEL = {"kernel_shape": [2, 3]}

CALLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"), ([X, Y], {})),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), ([X, Y], {})),
    **dict.fromkeys(("And", "Or", "Xor"), (list(BOOLS), {})),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), (list(BYTES), {})),
    **dict.fromkeys(("Relu", "Softmax", "LogSoftmax", "Hardmax", "IsNaN", "Identity"), ([X], {})),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), ([X], {})),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), ([X], KERNEL)),
    **dict.fromkeys((name for name in OPS if name.startswith("Reduce")), ([X], {})),
    "BitwiseNot": ([BYTES[0]], {}),
    "Clip": ([X, np.float32(-0.5), np.float32(0.5)], {}),
    "Concat": ([X, Y], {"axis": 1}),
    "Dropout": ([X], {}),
    "Flatten": ([X], {}),
    "Not": ([BOOLS[0]], {}),
    "Reshape": ([X, np.array([-1, 4])], {}),
    "Squeeze": ([X[:, :1], np.array([1])], {}),
    "Unsqueeze": ([X, np.array([0])], {}),
    "Where": ([X > 0, X, Y], {}),
}
"""A node of each operator of which a fact is declared that values show."""

NOT_RUN = {"GlobalLpPool"}  # the reference has none


def run(name: str, inputs: list[Any], options: dict[str, Any]) -> Array:
    """Compute one node by ONNX's reference implementation."""
    names = [f"x{k}" for k in range(len(inputs))]
    node = onnx.helper.make_node(name, names, ["y"], **options)
    types = [onnx.helper.np_dtype_to_tensor_dtype(np.asarray(each).dtype) for each in inputs]
    ports = [
        onnx.helper.make_tensor_value_info(port, kind, None)
        for port, kind in zip(names, types, strict=True)
    ]
    result = onnx.helper.make_tensor_value_info("y", 0, None)
    graph = onnx.helper.make_graph([node], "one", ports, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    found: Any = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(found[0])


def shows(name: str, spec: OpSpec) -> bool:
    """Tell whether values show a fact of an operator that is not a function of one tensor."""
    is_bounded = (spec.low, spec.high) != (-math.inf, math.inf)
    told = spec.keeps_sign or spec.selects or spec.reshapes or spec.numpy or spec.commutes
    return name not in FUNCTIONS and name not in NOT_RUN and bool(is_bounded or told)


SHOWN = sorted(name for name, spec in OPS.items() if shows(name, spec))


@pytest.mark.parametrize("name", SHOWN)
def test_facts_are_so(name: str) -> None:
    inputs, options = CALLS[name]
    spec, found = OPS[name], run(name, inputs, options)
    assert (found >= spec.low).all()
    assert (found <= spec.high).all()
    if spec.keeps_sign:
        assert (run(name, [np.abs(each) for each in inputs], options) >= 0).all()
    if spec.reshapes:
        assert np.array_equal(found.reshape(-1), inputs[0].reshape(-1))
    if spec.selects:
        assert np.isin(
            found, np.concatenate([np.asarray(each).reshape(-1) for each in (*inputs, 0.0)])
        ).all()
    if spec.commutes:
        assert np.array_equal(found, run(name, inputs[::-1], options))
    if spec.neutral is not None:
        other = np.full_like(inputs[0], spec.neutral)
        assert np.array_equal(run(name, [inputs[0], other], options), inputs[0])
    if spec.numpy:
        np.testing.assert_array_equal(found, getattr(np, spec.numpy)(*inputs))


@pytest.mark.parametrize("declared", OPERATORS.values(), ids=lambda each: each.name)
def test_options_and_defaults_are_those_of_onnx(declared: type[Operator]) -> None:
    """Of all opsets: older ones have axes as attributes."""
    schemas = [
        schema
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.name, schema.domain) == (declared.name, "")
    ]
    newest = max(schemas, key=lambda schema: schema.since_version)
    for name, default in declared.defaults.items():
        assert any(name in schema.attributes for schema in schemas), name
        given = name in newest.attributes and newest.attributes[name].default_value
        if given and given.name:
            value = onnx.helper.get_attribute_value(given)
            listed = value if isinstance(value, list) else [value]
            words = [each.decode() if isinstance(each, bytes) else each for each in listed]
            assert default == pytest.approx(tuple(words) if isinstance(value, list) else words[0])


def test_options_are_read_from_a_node() -> None:
    node = ir.node("Gemm", [], attributes={"alpha": 0.5, "transB": 1})
    found = Gemm.of(node)
    assert (found.alpha, found.beta, found.transA, found.transB) == (0.5, 1.0, 0, 1)
    assert (Gemm.alpha, Gemm.transB) == (1.0, 0)
    assert Pad.of(ir.node("Pad", [], attributes={"mode": ""})).mode == "constant"
    assert Window.of(ir.node("Conv", [], attributes={"pads": [1, 2]})).pads == (1, 2)


@pytest.mark.parametrize("seed", range(20))
def test_rounding_up_makes_the_windows_of_the_runtime(seed: int) -> None:
    random = np.random.default_rng(seed)
    size, width, stride = (int(random.integers(*each)) for each in ((3, 12), (1, 4), (1, 5)))
    pads = int(random.integers(width)), int(random.integers(width))
    window = MaxPool.of(
        ir.node("MaxPool", [], attributes={"strides": [stride], "pads": pads, "ceil_mode": 1})
    )
    (added,) = window.added((size,), (width,), (pads,))
    b = ModelBuilder(opset=22)
    options: dict[str, Any] = {
        "kernel_shape": [width],
        "strides": [stride],
        "pads": pads,
        "ceil_mode": 1,
    }
    b.output(b.node("MaxPool", b.input("x", [1, 1, size]), out="y", **options), [1, 1, "n"])
    session = onnxruntime.InferenceSession(b.build().SerializeToString())
    found = session.run(None, {"x": np.zeros((1, 1, size), np.float32)})[0]
    assert found.shape[2] == (size + sum(pads) + added - width) // stride + 1

"""The op table against the ONNX specification, and the questions about single nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import defs

from intact.graph import (
    OPS,
    OpKind,
    Role,
    bias_slot,
    data_slots,
    input_role,
    load_model,
    moves_values,
    normalize,
    op_spec,
    output_channel_axis,
    output_channels,
    weight_slot,
)
from intact.graph.ops import outputs_of_vectors
from tests.models import ModelBuilder


def make_node(
    op_type: str, *inputs: np.ndarray | str | None, opset: int = 17, **attributes: Any
) -> ir.Node:
    """Return a node of a loaded model; arrays become constants, strings graph inputs."""
    builder = ModelBuilder(opset)
    names = []
    for value in inputs:
        if value is None:
            names.append("")
        elif isinstance(value, str):
            names.append(builder.input(value, ["n"]))
        else:
            names.append(builder.constant(value))
    builder.node(op_type, *names, out="y", **attributes)
    builder.output("y")
    return next(iter(load_model(builder.build()).graph))


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


def test_every_op_of_the_table_exists_in_onnx() -> None:
    known = {schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain}
    assert set(OPS) <= known


@pytest.mark.parametrize("op_type", sorted(OPS))
def test_roles_fit_the_specification(op_type: str) -> None:
    spec = OPS[op_type]
    inputs = defs.get_schema(op_type).inputs
    variadic = bool(inputs) and inputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic
    assert len(spec.roles) <= len(inputs)
    for slot, formal in enumerate(inputs):
        integers = set(formal.types) <= {"tensor(int64)", "tensor(int32)", "tensor(bool)"}
        if integers and not variadic:
            assert spec.role(slot) in {Role.SHAPE, Role.PARAMETER}, formal.name


def test_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        OPS["Conv"] = OPS["Relu"]  # type: ignore[index]


def test_unknown_ops_have_no_row() -> None:
    node = ir.node("Conv", [ir.Value(name="x")], domain="my.ops")
    assert op_spec(node) is None
    assert input_role(node, 0) is Role.DATA
    assert weight_slot(node) is None
    assert not moves_values(node)
    assert op_spec(ir.node("NoSuch", [])) is None


@pytest.mark.parametrize(
    ("inputs", "weight", "roles"),
    [
        (("x", zeros(3, 4)), 1, [Role.DATA, Role.WEIGHT]),
        ((zeros(3, 4), "x"), 0, [Role.WEIGHT, Role.DATA]),
        (("x", "z"), None, [Role.DATA, Role.DATA]),
        ((zeros(2, 3), zeros(3, 4)), 1, [Role.DATA, Role.WEIGHT]),
    ],
)
def test_matmul_weight_is_the_constant_side(
    inputs: tuple[np.ndarray | str, ...], weight: int | None, roles: list[Role]
) -> None:
    node = make_node("MatMul", *inputs)
    assert weight_slot(node) == weight
    assert [input_role(node, slot) for slot in (0, 1)] == roles


def test_computed_weights_and_biases_are_data() -> None:
    node = make_node("Conv", "x", "w", "b")
    assert weight_slot(node) is None
    assert bias_slot(node) is None
    assert output_channel_axis(node) is None
    assert data_slots(node) == (0, 1, 2)
    node = make_node("Conv", "x", zeros(4, 3, 1, 1), zeros(4))
    assert (weight_slot(node), bias_slot(node), data_slots(node)) == (1, 2, (0,))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "axis"),
    [
        ("Conv", ("x", zeros(4, 3, 3)), {}, 0),
        ("Conv", ("x", zeros(4, 1, 3, 3)), {"group": 4}, 0),
        ("ConvTranspose", ("x", zeros(4, 3, 3, 3)), {}, 1),
        ("ConvTranspose", ("x", zeros(4, 1, 3, 3)), {"group": 4}, 0),
        ("ConvTranspose", ("x", zeros(4, 3, 3, 3)), {"group": 2}, None),
        ("ConvTranspose", ("x", zeros(4, 1, 3, 3)), {"group": 2}, None),
        ("Gemm", ("x", zeros(4, 3)), {}, 1),
        ("Gemm", ("x", zeros(4, 3)), {"transB": 1}, 0),
        ("Gemm", (zeros(4, 3), "x"), {}, 0),
        ("Gemm", (zeros(4, 3), "x"), {"transA": 1}, 1),
        ("MatMul", ("x", zeros(4, 3)), {}, 1),
        ("MatMul", ("x", zeros(2, 4, 3)), {}, 2),
        ("MatMul", (zeros(2, 4, 3), "x"), {}, 1),
        ("MatMul", ("x", zeros(4)), {}, None),
        ("Relu", ("x",), {}, None),
    ],
)
def test_output_channel_axis(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], axis: int | None
) -> None:
    assert output_channel_axis(make_node(op_type, *inputs, **attributes)) == axis


ONE = np.float32(1)
PADS = np.zeros(4, dtype=np.int64)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "moves"),
    [
        ("MaxPool", ("x",), {"kernel_shape": [2, 2]}, True),
        ("AveragePool", ("x",), {"kernel_shape": [2, 2]}, False),
        ("Relu", ("x",), {}, False),
        ("Concat", ("x", "z"), {"axis": 0}, False),
        ("Transpose", ("x",), {}, True),
        ("ReduceMax", ("x",), {}, True),
        ("Pad", ("x", PADS), {}, True),
        ("Pad", ("x", PADS, np.float32(0)), {}, True),
        ("Pad", ("x", PADS, ONE), {}, False),
        ("Pad", ("x", PADS, ONE), {"mode": "reflect"}, True),
        ("Pad", ("x", PADS, "value"), {}, False),
        ("Resize", ("x", None, zeros(4)), {}, True),
        ("Resize", ("x", None, zeros(4)), {"mode": "linear"}, False),
        (
            "Resize",
            ("x", zeros(8), zeros(4)),
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            False,
        ),
        ("Dropout", ("x",), {}, True),
        ("Dropout", ("x", np.float32(0.5), np.array(True)), {}, False),
    ],
)
def test_moves_values(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], moves: bool
) -> None:
    assert moves_values(make_node(op_type, *inputs, **attributes)) is moves


def test_absent_inputs_are_no_data() -> None:
    assert data_slots(make_node("Resize", "x", None, zeros(4))) == (0,)
    assert data_slots(make_node("Where", "c", "x", "z")) == (1, 2)
    assert OPS["Concat"].role(99) is Role.DATA
    assert OPS["Concat"].kind is OpKind.JOIN


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes", "expected"),
    [
        ("Conv", (6, 2, 3, 3), {"group": 2}, 6),
        ("ConvTranspose", (4, 3, 3, 3), {"group": 2}, 6),
        ("Gemm", (4, 6), {}, 6),
        ("Gemm", (6, 4), {"transB": 1}, 6),
        ("MatMul", (4, 6), {}, None),
    ],
)
def test_output_channels(
    op_type: str, shape: tuple[int, ...], attributes: dict[str, int], expected: int | None
) -> None:
    assert output_channels(make_node(op_type, "x", zeros(*shape), **attributes)) == expected
    assert output_channels(make_node(op_type, "x", "w", **attributes)) is None


@pytest.mark.parametrize(
    ("last", "is_vector"),
    [
        ("Identity", False),
        ("Softmax", False),
        ("Sigmoid", False),
        ("LogSoftmax", False),
        ("Relu", True),
        ("HardSwish", True),
        ("LpNormalization", True),
    ],
)
def test_what_follows_the_last_layer_tells_scores_from_vectors(last: str, is_vector: bool) -> None:
    b = ModelBuilder()
    x = b.node("Flatten", b.conv(b.input("x", ["batch", 3, 4, 4]), 3, 16))
    b.node("Flatten", b.node(last, x), out="y")
    b.output("y")
    assert bool(outputs_of_vectors(normalize(b.build()).outputs)) is is_vector

"""Half precision becomes float32: exactly, everywhere, with the ports that the model had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.errors import ModelError
from intact.graph import Graph, normalize
from intact.graph.files import load
from intact.graph.files.external import MappedTensor
from intact.graph.passes.widen import METADATA_KEY
from tests import models
from tests.half import halved
from tests.models import ModelBuilder

HALF, BRAIN = TensorProto.FLOAT16, TensorProto.BFLOAT16
NAMES = sorted(models.MODELS.keys() - {"clutter"})  # 1e-12 is 0 there, and divides


def inner_types(graph: Graph) -> set[ir.DataType | None]:
    ports = {*graph.inputs, *graph.outputs}
    return {value.dtype for value in graph.values if value not in ports}


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"detector"}))
def test_float16_models_compute_what_they_did(name: str) -> None:
    source = halved(models.MODELS[name].build(18))
    feeds = {
        key: array.astype(np.float16)
        for key, array in models.random_inputs(models.MODELS[name].build(18)).items()
    }
    graph = normalize(source)
    proto = ir.to_proto(graph.model)
    onnx.checker.check_model(proto, full_check=True)
    expected, actual = models.run_model(source, feeds), models.run_model(proto, feeds)
    for key, array in expected.items():
        assert actual[key].dtype == array.dtype == np.float16
        largest = float(np.abs(array).max())
        np.testing.assert_allclose(actual[key], array, rtol=2e-3, atol=2e-3 * largest)
    assert graph.widened == ("FLOAT16",)
    assert ir.DataType.FLOAT16 not in inner_types(graph) or name == "shared_ports"
    assert [port.name for port in source.graph.input] == [value.name for value in graph.inputs]


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_models_have_float32_ports(name: str) -> None:
    """ONNX Runtime runs hardly any of them, and takes no bfloat16 from NumPy."""
    plain = models.MODELS[name].build(18)
    graph = normalize(halved(plain, BRAIN))
    feeds = models.random_inputs(plain)
    expected = models.run_model(plain, feeds)
    actual = models.run_model(ir.to_proto(graph.model), feeds)
    for key, array in expected.items():
        assert actual[key].dtype == np.float32
        largest = float(np.abs(array).max())
        np.testing.assert_allclose(actual[key], array, atol=2e-2 * largest)
    assert graph.widened == ("BFLOAT16",)
    assert not {ir.DataType.BFLOAT16} & {value.dtype for value in graph.values}


@pytest.mark.crossed
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"shared_ports"}))
def test_widening_twice_changes_nothing(name: str, dtype: int) -> None:
    graph = normalize(halved(models.MODELS[name].build(18), dtype))
    again = normalize(graph.model)
    assert again.hash == graph.hash
    assert again.widened == graph.widened


def test_constants_keep_every_bit() -> None:
    values = np.array([1 / 3, 65504, 6e-8, -0.0, np.inf, 0.1], np.float16)
    b = ModelBuilder()
    b.node("Add", b.input("x", ["n", 6], HALF), b.constant(values, "c"), out="y")
    b.output("y")
    constant = normalize(b.build()).model.graph.initializers["c"].const_value
    assert constant is not None
    assert constant.dtype is ir.DataType.FLOAT
    np.testing.assert_array_equal(constant.numpy(), values.astype(np.float32))


def test_islands_of_half_precision() -> None:
    """float32 around, float16 and bfloat16 inside, types named by attributes and tensors."""
    b = ModelBuilder()
    x = b.input("x", ["n", 6])
    half = b.node("Cast", x, to=HALF)
    y = b.node("MatMul", half, b.constant(np.eye(6, dtype=np.float16) / 3))
    filled = b.node(
        "ConstantOfShape", b.node("Shape", y), value=numpy_helper.from_array(np.ones(1, np.float16))
    )
    wide = b.node("Cast", b.node("Add", y, filled), to=TensorProto.FLOAT)
    brain = b.node("Cast", wide, to=BRAIN)
    like = b.node("CastLike", x, brain)
    b.node("Add", b.node("Cast", like, to=TensorProto.FLOAT), wide, out="y")
    b.output("y")
    graph = normalize(b.build())
    assert graph.widened == ("BFLOAT16", "FLOAT16")
    assert not {ir.DataType.FLOAT16, ir.DataType.BFLOAT16} & inner_types(graph)
    assert "Cast" not in {node.op_type for node in graph.nodes}
    given = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    third = np.float32(np.float16(1 / 3))
    found = models.run_model(ir.to_proto(graph.model), {"x": given})["y"]
    np.testing.assert_allclose(found, given + given * third + 1, rtol=1e-6)


def test_bodies_are_widened_with_what_they_read() -> None:
    graph = normalize(halved(models.control_flow(18)))
    node = next(node for node in graph.nodes if node.op_type == "If")
    for attribute in node.attributes.values():
        for value in attribute.as_graph().outputs:
            assert value.dtype is ir.DataType.FLOAT


def test_plain_and_double_models_are_left_alone() -> None:
    b = ModelBuilder()
    x = b.input("x", ["n", 6], TensorProto.DOUBLE)
    b.node("MatMul", x, b.constant(np.eye(6)), out="y")
    b.outputs.append(helper.make_tensor_value_info("y", TensorProto.DOUBLE, None))
    for model in (b.build(), models.residual_net()):
        graph = normalize(model)
        assert graph.widened == ()
        assert METADATA_KEY not in graph.model.metadata_props
    assert {value.dtype for value in normalize(b.build()).values} == {ir.DataType.DOUBLE}


def test_an_input_that_is_an_output_as_well() -> None:
    b = ModelBuilder()
    x = b.input("x", ["n", 6], HALF)
    b.node("Relu", x, out="y")
    for name in ("y", "x"):
        b.outputs.append(helper.make_tensor_value_info(name, HALF, ["n", 6]))
    graph = normalize(b.build())
    feeds = {"x": np.ones((2, 6), np.float16)}
    found = models.run_model(ir.to_proto(graph.model), feeds)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float16)}
    np.testing.assert_array_equal(found["x"], 1)


def test_mapped_weights_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAP_FROM", 1)
    monkeypatch.setattr(load, "_MAPPED_WEIGHT", 100)
    source = halved(models.residual_net())
    onnx.save(source, tmp_path / "m.onnx")
    assert any(
        isinstance(value.const_value, MappedTensor)
        for value in load.load_model(tmp_path / "m.onnx").graph.initializers.values()
    )
    graph = normalize(tmp_path / "m.onnx")
    kinds = {type(value.const_value) for value in graph.model.graph.initializers.values()}
    assert ir.LazyTensor in kinds
    assert graph.hash == normalize(source).hash


def test_a_look_at_the_bits_is_refused() -> None:
    b = ModelBuilder(26)
    x = b.node("BitCast", b.input("x", ["n", 6], HALF), to=TensorProto.INT16, name="bits")
    b.node("Cast", x, to=TensorProto.FLOAT, out="y")
    b.output("y")
    with pytest.raises(ModelError, match=r"node 'bits' .*reads the bits"):
        normalize(b.build())


def test_a_function_that_takes_its_type_is_refused() -> None:
    b = ModelBuilder(18)
    b.domains["local"] = 1
    cast = helper.make_node("Cast", ["a"], ["b"], name="inner")
    cast.attribute.append(
        onnx.AttributeProto(name="to", ref_attr_name="kind", type=onnx.AttributeProto.INT)
    )
    imports = [helper.make_opsetid("", 18)]
    b.functions.append(
        helper.make_function("local", "Become", ["a"], ["b"], [cast], imports, ["kind"])
    )
    b.node("Become", b.input("x", ["n", 6], HALF), domain="local", kind=HALF, out="y")
    b.outputs.append(helper.make_tensor_value_info("y", HALF, None))
    with pytest.raises(ModelError, match=r"node 'inner' .*'to' gets its type"):
        normalize(b.build())


def test_a_constant_may_be_an_output_as_well() -> None:
    b = ModelBuilder()
    b.node("Mul", b.input("x", ["batch", 4]), b.weight(4, name="c"), out="y")
    b.output("c", [4])
    b.output("y")
    source = halved(b.build())
    x = np.ones((2, 4), np.float16)
    expected = models.run_model(source, {"x": x})
    actual = models.run_model(ir.to_proto(normalize(source).model), {"x": x})
    np.testing.assert_array_equal(actual["c"], expected["c"])
    assert actual["c"].dtype == actual["y"].dtype == np.float16


def test_a_sequence_of_halves_becomes_one_of_floats() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.input("x", ["batch", 4], HALF))
    b.node("SequenceConstruct", x, x, out="s")
    source = b.build()
    source.graph.output.append(helper.make_tensor_sequence_value_info("s", HALF, None))
    graph = normalize(source)
    assert str(graph.outputs[0].type) == "Sequence(Tensor(FLOAT))"
    onnx.checker.check_model(ir.to_proto(graph.model), full_check=True)


@pytest.mark.parametrize("rows", [6, 1200])  # small ones are folded otherwise, too
def test_weights_that_are_only_stored_in_half_make_no_half_model(rows: int) -> None:
    b = ModelBuilder()
    x = b.input("x", ["n", rows])
    weight = b.constant(b.random.normal(size=(rows, rows)).astype(np.float16))
    b.node("MatMul", x, b.node("Cast", weight, to=TensorProto.FLOAT), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert graph.widened == ()
    assert [node.op_type for node in graph.nodes] == ["MatMul"]


def test_half_ports_become_float32_where_a_format_has_no_half() -> None:
    half = normalize(halved(models.residual_net()))
    wide = half.with_wide_ports()
    assert [value.name for value in (*wide.inputs, *wide.outputs)] == [
        value.name for value in (*half.inputs, *half.outputs)
    ]
    assert {value.dtype for value in (*wide.inputs, *wide.outputs)} == {ir.DataType.FLOAT}
    assert "Cast" not in {node.op_type for node in wide.nodes}
    assert wide.widened_ports == tuple(value.name for value in (*half.inputs, *half.outputs))
    feeds = models.random_inputs(models.residual_net())
    narrow = {name: array.astype(np.float16) for name, array in feeds.items()}
    feeds = {name: array.astype(np.float32) for name, array in narrow.items()}
    expected = models.run_model(ir.to_proto(half.model), narrow)
    for name, array in models.run_model(ir.to_proto(wide.model), feeds).items():
        np.testing.assert_array_equal(array.astype(np.float16), expected[name])
    plain = normalize(models.residual_net())
    assert plain.with_wide_ports() is plain

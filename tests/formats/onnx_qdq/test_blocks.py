"""Weights in blocks in ONNX Runtime: written, run, compared layer by layer, and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import intact
from intact.config import PerBlock, PerRow, QuantState
from intact.errors import ExportError, ModelError, TargetError
from intact.formats.base.report import Verification
from intact.formats.onnx_qdq.read import is_quantized, read_qdq
from intact.graph import load_model
from intact.plan import QuantizedGraph, quantization_points
from intact.results.result import Result
from intact.targets import BlockForm, Target, load_target
from tests.block_nets import WORDS, decoder, dense_net
from tests.plans import config, own_target

Arrays = dict[str, np.ndarray]
RUNTIME = load_target("onnxruntime")


def feeds(model: onnx.ModelProto) -> Arrays:
    """Inputs of either net."""
    random = np.random.default_rng(0)
    if model.graph.input[0].name == "ids":
        return {"ids": random.integers(0, WORDS, (3, 7))}
    return {"x": random.normal(size=(8, 100)).astype(np.float32)}


def deployed(result: Result) -> onnx.ModelProto:
    """What was written."""
    return onnx.load_from_string(result.exported.message or b"")


def nodes(model: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == op_type]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def run(model: onnx.ModelProto, inputs: Arrays) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


def assert_verified(found: Verification, layers: int) -> None:
    """Codes are equal, and floats but for the order of sums."""
    assert len(found.float_layers) == layers
    assert not any(each.differs for each in found.float_layers), found.float_layers
    assert max(each.relative for each in found.float_layers) < 1e-5
    assert sum(each.mismatches for each in found.layers) == 0
    assert not found.executed_otherwise()


KINDS = [
    (4, 32, False),
    (4, 16, True),
    (2, 32, False),
    (3, 16, True),
    (8, 32, False),
    (8, 16, True),
]


@pytest.mark.parametrize("activations", [None, "dynamic"])
@pytest.mark.parametrize(("bits", "size", "zero_points"), KINDS)
def test_each_layer_computes_what_the_plan_says(
    bits: int, size: int, zero_points: bool, activations: str | None
) -> None:
    model = dense_net()
    result = intact.quantize(
        model, block=size, weight_bits=bits, zero_points=zero_points, activations=activations
    )
    products = nodes(deployed(result), "MatMulNBits")
    assert {attributes(node)["accuracy_level"] for node in products} == {
        0 if activations is None else 4
    }
    assert {attributes(node)["bits"] for node in products} == {max(4, bits) if bits == 3 else bits}
    inputs = feeds(model)
    assert_verified(intact.verify(result, inputs), layers=3)
    simulated = intact.execute(result, inputs, executor="simulate").outputs["y"]
    given = run(deployed(result), inputs)
    assert np.abs(given - simulated).max() < 2e-5 * np.abs(simulated).max()


@pytest.mark.parametrize("activations", [None, "dynamic"])
def test_a_table_that_is_tied_is_stored_once(activations: str | None) -> None:
    model = decoder()
    result = intact.quantize(model, block=32, activations=activations)
    written = deployed(result)
    (table,) = nodes(written, "GatherBlockQuantized")
    sizes = [array.nbytes for array in map(numpy_helper.to_array, written.graph.initializer)]
    assert sum(size == WORDS * 32 for size in sizes) == 1
    assert table.input[0] in {node.input[0] for node in nodes(written, "Reshape")}
    assert_verified(intact.verify(result, feeds(model)), layers=3)
    assert not [note for note in result.plan.notes if "stored twice" in note.message]


def test_a_table_that_cannot_be_shared_is_said() -> None:
    result = intact.quantize(decoder(), block=32, bits={"head": 8})
    notes = [note.message for note in result.plan.notes if "stored twice" in note.message]
    assert notes == [
        "table 'table' is stored twice: node 'words' looks it up with other scales or widths, "
        "'head' multiplies with its integers"
    ]
    assert_verified(intact.verify(result, feeds(decoder())), layers=3)


def test_standard_operators_are_written_where_asked_for(tmp_path: Path) -> None:
    source = 'extends = "onnxruntime"\nformat = 2\nname = "standard"\n[blocks]\n'
    target = own_target(tmp_path, 'form = "dequantized"\n', header=source)
    assert target.blocks is not None
    assert target.blocks.form is BlockForm.DEQUANTIZED
    for model in (dense_net(), decoder()):
        result = intact.quantize(model, target=target, block=32, weight_bits=3)
        written = deployed(result)
        assert {node.domain for node in written.graph.node} == {""}
        assert len(nodes(written, "DequantizeLinear")) >= 2
        assert_verified(intact.verify(result, feeds(model)), layers=3)


# ---- models of others -------------------------------------------------------------------------


def by_runtime(net: onnx.ModelProto, *, qdq: bool, symmetric: bool, level: int) -> onnx.ModelProto:
    """Quantize with ONNX Runtime's own tool."""
    from onnxruntime.quantization import QuantFormat, matmul_nbits_quantizer

    given = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
        block_size=32,
        is_symmetric=symmetric,
        accuracy_level=level,
        quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
        op_types_to_quantize=("MatMul",) if qdq else ("MatMul", "Gather"),
    )
    tool = matmul_nbits_quantizer.MatMulNBitsQuantizer(net, algo_config=given)
    tool.process()
    made: onnx.ModelProto = tool.model.model
    return made


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("net", "qdq", "level"),
    [(dense_net, False, 0), (dense_net, False, 4), (dense_net, True, 0), (decoder, False, 4)],
)
def test_files_of_the_runtimes_own_tool_are_kept(
    net: Callable[[int], onnx.ModelProto], qdq: bool, level: int, symmetric: bool
) -> None:
    model = by_runtime(net(21), qdq=qdq, symmetric=symmetric, level=level)
    inputs = feeds(model)
    result = intact.read_quantized(model)
    assert_verified(intact.verify(result, inputs), layers=2)
    if not qdq:  # the runtime makes MatMulNBits of level 4 of the others
        np.testing.assert_array_equal(run(deployed(result), inputs), run(model, inputs))
    said = [note.message for note in result.plan.notes if "of level 4" in note.message]
    assert bool(said) == qdq
    dynamic = {c.state for c in result.plan.configs.values()} & {QuantState.DYNAMIC}
    assert bool(dynamic) == (level == 4)


@pytest.mark.parametrize("activations", [None, "dynamic"])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("net", [dense_net, decoder])
def test_what_was_written_reads_back(
    net: Callable[[], onnx.ModelProto], zero_points: bool, activations: str | None
) -> None:
    result = intact.quantize(net(), block=32, zero_points=zero_points, activations=activations)
    written = deployed(result)
    again = intact.read_quantized(written)
    inputs = feeds(written)
    np.testing.assert_array_equal(run(deployed(again), inputs), run(written, inputs))
    codes = [point.constant_codes() for point in quantization_points(result.plan)]
    back = [point.constant_codes() for point in quantization_points(again.plan)]
    assert len(codes) == len(back)
    for one, other in zip(codes, back, strict=True):
        np.testing.assert_array_equal(one, other if one.shape == other.shape else other.T)


def foreign(**changes: Any) -> onnx.ModelProto:
    """One MatMulNBits of 40 inputs and 6 outputs, as others write it, with something else."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "codes": random.integers(0, 256, (6, 2, 16)).astype(np.uint8),
        "scales": random.normal(size=(6, 2)).astype(np.float32),
        "zeros": random.integers(0, 256, (6, 1)).astype(np.uint8),
    }
    given: dict[str, Any] = {"K": 40, "N": 6, "bits": 4, "block_size": 32, "accuracy_level": 1}
    given |= {key: value for key, value in changes.items() if key in given}
    arrays |= {key: value for key, value in changes.items() if key in arrays}
    arrays = {key: value for key, value in arrays.items() if value is not None}
    inputs = ["x", *(name if name in arrays else "" for name in ("codes", "scales", "zeros"))]
    node = helper.make_node(
        "MatMulNBits", inputs, ["y"], name="product", domain="com.microsoft", **given
    )
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [port("x", onnx.TensorProto.FLOAT, ["n", 40])],
        [port("y", onnx.TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def read(model: onnx.ModelProto, target: Target = RUNTIME) -> QuantizedGraph:
    assert is_quantized(load_model(model))
    return read_qdq(model, target)


SCALES = np.ones((6, 2), np.float32)


def behind_reshape(shape: list[int]) -> onnx.ModelProto:
    """The scales reach the product through a Reshape of a constant."""
    model = foreign(zeros=None)
    sizes = numpy_helper.from_array(np.array(shape, np.int64), "sizes")
    model.graph.initializer.append(sizes)
    model.graph.node.insert(0, helper.make_node("Reshape", ["scales", "sizes"], ["reshaped"], "r"))
    model.graph.node[1].input[2] = "reshaped"
    return model


def test_scales_behind_a_reshape_that_keeps_a_length_are_read() -> None:
    (same,) = quantization_points(read(behind_reshape([0, -1])))
    (plain,) = quantization_points(read(foreign(zeros=None)))
    np.testing.assert_array_equal(same.constant_codes(), plain.constant_codes())


def test_scales_behind_a_reshape_that_does_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'r'.*its shape \[7\] does not fit \[6, 2\]"):
        read(behind_reshape([7]))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"zeros": None},
        {"zeros": np.arange(12, dtype=np.float32).reshape(6, 2)},
        {"scales": SCALES.astype(np.float16).reshape(12)},
        {"accuracy_level": 4},
    ],
)
def test_forms_of_parameters_are_read(changes: dict[str, Any]) -> None:
    model = foreign(**changes)
    if "scales" in changes or "zeros" in changes:  # of other types than this runtime takes
        model = foreign(**{**changes, "scales": changes.get("scales", SCALES)})
    plan = read(model)
    weight = config(plan, "product.input[1]")
    assert (weight.granularity, weight.state) == (PerBlock(0, 32), QuantState.BAKED)
    data = config(plan, "product.input[0]")
    assert (data.granularity == PerRow(32)) == (changes.get("accuracy_level") == 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": np.full((6, 2), np.nan, np.float32)}, "a scale of it is not finite"),
        ({"scales": np.zeros((6, 2), np.float32)}, "scale 0 and codes of other numbers"),
        ({"scales": np.ones((6, 3), np.float32)}, "it has 18 scales"),
        ({"codes": np.zeros((6, 2, 15), np.uint8)}, "its codes have 180 bytes"),
        ({"codes": np.zeros((6, 2, 16), np.int8)}, "no bytes"),
        ({"zeros": np.zeros((6, 3), np.uint8)}, "it has 18 zero points"),
        ({"zeros": np.full((6, 2), np.inf, np.float32)}, "a zero point of it is not finite"),
        ({"zeros": np.full((6, 2), 16, np.int32)}, "no code of 4 bits"),
        ({"bits": 5}, "its codes have 5 bits; use 2, 4 or 8"),
        ({"block_size": 0}, "its block_size is 0"),
        ({"K": -1}, "its K is -1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as found:
        read(foreign(**changes))
    assert str(found.value).startswith("node 'product' (MatMulNBits): ")
    assert "\n" not in str(found.value)
    assert found.value.remedy


@pytest.mark.parametrize("zeros", [None, np.linspace(-3, 9, 12, dtype=np.float16).reshape(6, 2)])
def test_a_model_of_float16_is_written_in_float32(zeros: np.ndarray | None) -> None:
    model = foreign(zeros=zeros, scales=(SCALES / 7).astype(np.float16), accuracy_level=0)
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    inputs = {"x": np.random.default_rng(1).normal(size=(5, 40)).astype(np.float16)}
    result = intact.read_quantized(model)
    (product,) = nodes(deployed(result), "MatMulNBits")
    assert attributes(product)["bits"] == 4
    expected = run(model, inputs).astype(np.float32)
    found = run(deployed(result), inputs).astype(np.float32)
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("zeros", [[-3.25, 9.0625], [8.0, 7.0], [0.0, 0.0], [20.1, 1 / 3]])
def test_zero_points_between_codes_are_kept(zeros: list[float], level: int) -> None:
    """As HQQ writes them; the runtime computes with floats then, whatever the level is."""
    given = np.array([zeros] * 6, np.float32)
    model = foreign(zeros=given, scales=SCALES / 7, accuracy_level=level)
    inputs = {"x": np.random.default_rng(1).normal(size=(5, 40)).astype(np.float32)}
    result = intact.read_quantized(model)
    found = intact.verify(result, inputs)
    assert_verified(found, layers=1)
    written = deployed(result)
    np.testing.assert_array_equal(run(written, inputs), run(model, inputs))
    # Integers, or rounded ones, would give other numbers.
    floats = np.asarray(intact.execute(result, inputs, executor="simulate").outputs["y"])
    assert np.abs(floats - run(model, inputs)).max() < 1e-5 * np.abs(floats).max()
    (point,) = quantization_points(read(written))
    np.testing.assert_array_equal(point.config.offset, given.T)


def test_zero_points_between_codes_are_saved(tmp_path: Path) -> None:
    zeros = np.array([[0, 0.25]] * 6, np.float32)
    intact.read_quantized(foreign(zeros=zeros), output=tmp_path / "made")
    again = intact.load_result(tmp_path / "made")
    (point,) = quantization_points(again.plan)
    np.testing.assert_array_equal(point.config.offset, zeros.T)


def test_others_of_the_same_model_are_compared_scale_by_scale() -> None:
    models = foreign(zeros=np.full((6, 2), 7.5, np.float32)), foreign(scales=-2 * SCALES)
    results = [intact.read_quantized(model) for model in models]
    found = intact.compare(results, np.zeros((1, 40), np.float32))
    (tensor,) = (tensor for node in found.nodes for tensor in node.tensors)
    assert {"scale", "zero_point"} <= set(tensor.differs)


def test_encodings_refuse_blocks_by_name() -> None:
    with pytest.raises(ExportError, match="its scales are those of blocks"):
        intact.read_quantized(foreign(), formats=["encodings"])


@pytest.mark.parametrize("name", ["tensorrt", "ncnn"])
def test_zero_points_between_codes_are_refused_where_a_target_has_none(name: str) -> None:
    model = foreign(zeros=np.full((6, 2), 7.5, np.float32))
    with pytest.raises(
        ModelError, match=f"zero points of 4 bits are floats, which {name}"
    ) as found:
        read(model, load_target(name))
    assert found.value.remedy.startswith("give target onnxruntime or openvino, or quantize")


def with_bytes() -> onnx.ModelProto:
    """Of 8 bits, which ONNX Runtime refuses itself."""
    codes = np.random.default_rng(0).integers(0, 256, (6, 2, 32)).astype(np.uint8)
    zeros = np.array([[127.3, 0.1]] * 6, np.float32)
    return foreign(zeros=zeros, scales=SCALES / 99, K=64, bits=8, codes=codes)


@pytest.mark.parametrize("rule", ["zero_points = false\n", "float_zero_points = [3]\n"])
def test_a_target_has_floats_between_the_codes_that_it_has(tmp_path: Path, rule: str) -> None:
    source = 'extends = "onnxruntime"\nformat = 2\nname = "odd"\n[blocks]\n'
    with pytest.raises(TargetError, match=r"\[blocks\] float_zero_points is"):
        own_target(tmp_path, rule, header=source)


def test_zero_points_between_bytes_are_refused_as_the_runtime_does() -> None:
    with pytest.raises(ModelError, match="zero points of 8 bits are floats") as found:
        read(with_bytes())
    assert found.value.remedy.startswith("give target openvino, or")


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_between_codes_go_to_openvino(bits: int) -> None:
    pytest.importorskip("openvino")
    model = with_bytes()
    if bits == 4:
        model = foreign(zeros=np.array([[7.3, 0.1]] * 6, np.float32), scales=SCALES / 7, K=64)
    inputs = {"x": np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)}
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 64
    result = intact.read_quantized(model, target="openvino")
    assert_verified(intact.verify(result, inputs), layers=1)


def test_blocks_of_zeros_have_any_scale() -> None:
    codes = np.full((6, 2, 16), 0x88, np.uint8)
    scales = np.array([[0, 1]] * 6, np.float32)
    plan = read(foreign(codes=codes, scales=scales, zeros=None))
    (point,) = quantization_points(plan)
    assert not point.constant_codes().any()

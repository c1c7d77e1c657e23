"""QDQ files: what ONNX Runtime makes of them is what the plan says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from intact.engines.simulate import Simulator
from intact.errors import ExportError
from intact.formats.onnx_qdq.executed import float_leftovers
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import QdqModel, write_qdq
from intact.plan import (
    NoteKind,
    Overrides,
    QuantizedGraph,
    TensorEnd,
    plan_to_json,
    quantization_points,
)
from tests.models import MODELS, ModelBuilder, control_flow, random_inputs, residual_net
from tests.plans import Arrays, calibrated, config, own_target, planned

OPS = '[[op]]\nops = ["Conv", "Relu", "Clip", "Add", "Gemm", "MaxPool", "MatMul"]\n'
TARGETS = ("onnxruntime", "onnxruntime-avx2", "tensorrt", "integer-pow2")
EXACT = ("onnxruntime", "onnxruntime-avx2")


def bytes_of(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def initializer(exported: QdqModel, name: str) -> np.ndarray:
    tensor = exported.model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def count(exported: QdqModel, op_type: str) -> int:
    return sum(node.op_type == op_type for node in exported.model.graph)


def compare(plan: QuantizedGraph, exported: QdqModel, feeds: Arrays) -> tuple[int, int]:
    """Each layer on the runtime's own integers: values that differ, and by how many steps."""
    simulator = Simulator(plan, threads=1, teacher_forced=True)
    codes = {end: exported.codes[end] for end in simulator.points}
    _, integers = QdqRuntime(exported.model, codes, threads=1).run(feeds)
    wide = {end: array.astype(np.int64) for end, array in integers.items()}
    lessons = {
        simulator.teacher_inputs[end]: plan.configs[end].dequantize(array)
        for end, array in wide.items()
    }
    _, taught = simulator.run(feeds | lessons, observe=tuple(codes))
    steps = [np.abs(wide[end] - plan.configs[end].quantize(taught[end])) for end in codes]
    return sum(int(np.count_nonzero(s)) for s in steps), max(int(s.max(initial=0)) for s in steps)


@pytest.mark.crossed
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_runtime_computes_what_the_plan_says(name: str, opset: int, target: str) -> None:
    model = MODELS[name].build(max(opset, MODELS[name].since))
    plan = calibrated(model, target)
    if not any(decision.quantized for decision in plan.decisions.values()):
        written = [node.op_type for node in write_qdq(plan).model.graph]
        assert written == [node.op_type for node in plan.graph.nodes]
        return
    exported, feeds = write_qdq(plan), dict(random_inputs(model, batch=3, seed=7))
    onnx.checker.check_model(ir.to_proto(exported.model))
    assert compare(plan, exported, feeds)[1] <= 1  # the simulation is next to it on ties of sums
    if target in EXACT:
        found = verify_qdq(plan, exported, [feeds], threads=1)
        assert {each.end: each.mismatches for each in found.layers if each.mismatches} == {}
        wanted = [node for node, each in plan.decisions.items() if each.quantized]
        assert float_leftovers(exported.model, wanted) == {}
    deployed, _ = QdqRuntime(exported.model, threads=1).run(feeds)
    simulated, _ = Simulator(plan, threads=1).run(feeds)
    assert list(deployed) == [str(value.name) for value in plan.graph.outputs]
    for output, values in deployed.items():
        noise = np.square(values - simulated[output], dtype=np.float64).sum()
        assert noise <= 2e-3 * np.square(values, dtype=np.float64).sum()


def test_names_ports_and_dynamic_batch_are_kept() -> None:
    plan = calibrated(residual_net())
    exported = write_qdq(plan)
    for ours, theirs in zip(
        (*exported.model.graph.inputs, *exported.model.graph.outputs),
        (*plan.graph.inputs, *plan.graph.outputs),
        strict=True,
    ):
        assert (ours.name, ours.shape, ours.dtype) == (theirs.name, theirs.shape, theirs.dtype)
    names = {str(node.name) for node in exported.model.graph}
    dropped = {str(node.name) for node in plan.graph.nodes} - names
    assert {plan.graph.node(name).op_type for name in dropped} == {"Relu"}
    runtime = QdqRuntime(exported.model, threads=1)
    for batch in (1, 5):
        outputs, _ = runtime.run(dict(random_inputs(residual_net(), batch=batch)))
        assert outputs["logits"].shape == (batch, 5)


def conv(opset: int = 17, *, name: str = "conv") -> ModelBuilder:
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 4, 6, 6])
    w = b.constant(b.random.normal(size=(4, 4, 1, 1)).astype(np.float32), "w")
    b.node("Conv", x, w, b.weight(4, name="b"), out="y", name=name)
    b.output("y")
    return b


PER_TENSOR = 'weight = { granularity = "per_tensor" }\n'


@pytest.mark.parametrize(
    ("rule", "overrides", "opset", "expected"),
    [
        (PER_TENSOR, None, 11, 11),
        ("", None, 11, 13),
        ("", None, 17, 17),
        ("", Overrides(weight_bits=4), 17, 21),
        ("", Overrides(activation_bits=16), 11, 21),
        ("", Overrides(weight_bits=5), 13, 13),
        ("", Overrides(activation_bits=4), 13, 13),
        ("", Overrides(weight_bits=4), 26, 26),
    ],
)
def test_the_opset_is_raised_only_where_a_type_needs_it(
    tmp_path: Path, rule: str, overrides: Overrides | None, opset: int, expected: int
) -> None:
    target = own_target(tmp_path, '[[op]]\nops = ["Conv"]\n' + rule)
    plan = calibrated(conv(opset).build(), target, overrides)
    exported = write_qdq(plan)
    assert exported.model.opset_imports[""] == expected
    packed = overrides is not None and overrides.weight_bits == 4
    saved = "1 constant(s) take 8 bytes as int4 instead of 16 as int8"
    assert any(saved in str(note) for note in exported.notes) is packed
    assert plan.graph.opset == opset
    assert compare(plan, exported, dict(random_inputs(conv().build())))[1] <= 1


def test_scales_and_integers_as_stored(tmp_path: Path) -> None:
    plan = calibrated(conv().build(), own_target(tmp_path, OPS))
    exported = write_qdq(plan)
    scale = initializer(exported, "x_scale")
    expected_types = {
        "x_scale": ((), "float32"),
        "x_zero_point": ((), "uint8"),
        "w_scale": ((4,), "float32"),
        "w_quantized": ((4, 4, 1, 1), "int8"),
        "b_scale": ((4,), "float32"),
        "b_quantized": ((4,), "int32"),
    }
    for name, (shape, dtype) in expected_types.items():
        assert initializer(exported, name).shape == shape
        assert str(initializer(exported, name).dtype) == dtype
    float_bias = plan.graph.constant(plan.graph.value("b"))
    np.testing.assert_array_equal(
        initializer(exported, "b_scale"), scale * initializer(exported, "w_scale")
    )
    expected = np.rint(np.asarray(float_bias, np.float64) / initializer(exported, "b_scale"))
    np.testing.assert_array_equal(initializer(exported, "b_quantized"), expected)
    assert "w" not in exported.model.graph.initializers


def test_the_same_bytes_twice_and_nothing_else_changed() -> None:
    plan = calibrated(residual_net())
    before, graph = plan_to_json(plan), bytes_of(plan.graph.model)
    assert bytes_of(write_qdq(plan).model) == bytes_of(write_qdq(plan).model)
    assert (plan_to_json(plan), bytes_of(plan.graph.model)) == (before, graph)
    assert bytes_of(write_qdq(calibrated(residual_net())).model) == bytes_of(write_qdq(plan).model)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bits", range(2, 17))
def test_every_width_runs(tmp_path: Path, bits: int) -> None:
    overrides = Overrides(weight_bits=bits, activation_bits=bits)
    plan = calibrated(conv().build(), own_target(tmp_path, OPS), overrides)
    exported = write_qdq(plan)
    assert compare(plan, exported, dict(random_inputs(conv().build())))[1] <= 1
    narrow = bits not in (8, 16)
    assert count(exported, "Clip") == (2 if narrow else 0)
    notes = [note for note in exported.notes if "is narrower than" in note.message]
    assert len(notes) == (1 if narrow else 0)
    if narrow:
        assert "(2 activation(s))" in notes[0].message
        assert f"0..{2**bits - 1} is narrower than" in notes[0].message


def test_codes_that_are_only_moved_need_no_clip(tmp_path: Path) -> None:
    b = conv()
    b.outputs.clear()
    x = b.node("MaxPool", "y", kernel_shape=[2, 2], name="pool")
    b.node("Conv", x, b.weight(4, 4, 1, 1), out="z", name="last")
    b.output("z")
    rules = OPS.replace('"MaxPool", ', "")
    rules += '[[op]]\nops = ["MaxPool"]\nscales = "output_follows_input"\n'
    overrides = Overrides(activation_bits=6)
    plan = calibrated(b.build(), own_target(tmp_path, rules), overrides)
    assert count(write_qdq(plan), "Clip") == 3  # x, y and z


def test_a_weight_shared_by_two_nodes_is_stored_once(tmp_path: Path) -> None:
    b = conv()
    b.node("Conv", "y", "w", out="z", name="again")
    b.output("z")
    plan = calibrated(b.build(), own_target(tmp_path, OPS))
    exported = write_qdq(plan)
    stored = [n for n in exported.model.graph.initializers if n.startswith("w_quantized")]
    assert stored == ["w_quantized"]
    assert compare(plan, exported, dict(random_inputs(b.build())))[1] <= 1


def test_a_weight_that_is_data_too_is_stored_for_both(tmp_path: Path) -> None:
    b = ModelBuilder()
    weight = b.weight(4, 4, name="w")
    x = b.node("MatMul", b.input("x", ["batch", 4, 4]), weight, name="product")
    b.node("Add", x, weight, out="y", name="sum")
    b.output("y")
    plan = calibrated(b.build(), own_target(tmp_path, OPS))
    exported = write_qdq(plan)
    types = {
        name: initializer(exported, name).dtype
        for name in exported.model.graph.initializers
        if name.startswith("w_quantized")
    }
    assert sorted(map(str, types.values())) == ["int8", "uint8"]
    assert compare(plan, exported, dict(random_inputs(b.build())))[1] <= 1


@pytest.mark.parametrize("shown", [["z"], ["z", "y"]])
def test_a_narrower_reader_requantizes_the_producers_integers(
    tmp_path: Path, shown: list[str]
) -> None:
    b = conv()
    b.node("Conv", "y", b.weight(4, 4, 1, 1), out="z", name="last")
    b.outputs.clear()
    for name in shown:
        b.output(name)
    overrides = Overrides(bits={"last.input": 4})
    plan = calibrated(b.build(), own_target(tmp_path, OPS), overrides)
    exported = write_qdq(plan)
    feeds = dict(random_inputs(b.build()))
    codes = {
        end: exported.codes[end] for end in (TensorEnd.output("conv"), TensorEnd.input("last", 0))
    }
    _, integers = QdqRuntime(exported.model, codes, threads=1).run(feeds)
    wide, narrow = (integers[end].astype(np.int64) for end in codes)
    values = config(plan, "conv.output[0]").dequantize(wide)
    np.testing.assert_array_equal(narrow, config(plan, "last.input[0]").quantize(values))
    assert float_leftovers(exported.model, ["conv"]) == {}
    assert compare(plan, exported, feeds)[1] <= 1


def test_bodies_read_the_quantized_value() -> None:
    plan = calibrated(control_flow())
    exported = write_qdq(plan)
    (branching,) = [node for node in exported.model.graph if node.op_type == "If"]
    body = branching.attributes["then_branch"].as_graph()
    (source,) = body[0].inputs
    assert source is not None
    assert source.producer() is not None
    assert source.producer().op_type == "DequantizeLinear"  # type: ignore[union-attr]


def test_a_loop_body_reads_the_quantized_value(tmp_path: Path) -> None:
    b = conv()
    b.outputs.clear()
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node
    far = b.constant(np.array(1e30, np.float32))
    body = onnx.helper.make_graph(
        [
            node("Add", ["carry", "y"], ["next"], name="inside"),
            # Data decide, or the turns would be written out.
            node("ReduceMax", ["next"], ["most"], keepdims=0),
            node("Less", ["most", far], ["on"]),
        ],
        "body",
        [info("i", 7, []), info("go", 9, []), info("carry", 1, None)],
        [info("on", 9, []), info("next", 1, None)],
    )
    start = b.constant(np.zeros((1, 4, 6, 6), np.float32))
    b.node("Loop", b.constant(np.int64(3)), "", start, body=body, out="sum", name="loop")
    b.output("sum")
    plan = calibrated(b.build(), own_target(tmp_path, OPS))
    exported, feeds = write_qdq(plan), dict(random_inputs(b.build()))
    end = TensorEnd.output("conv")
    outputs, integers = QdqRuntime(exported.model, {end: exported.codes[end]}).run(feeds)
    values = plan.configs[end].dequantize(integers[end].astype(np.int64))
    np.testing.assert_allclose(outputs["sum"], values * 3, rtol=1e-5)


@pytest.mark.parametrize("target", ["integer-pow2", "onnxruntime"])
def test_other_roundings_are_said(target: str) -> None:
    plan = calibrated(residual_net(), target)
    computed = [p for p in quantization_points(plan) if not (p.is_constant or p.is_passed_on)]
    notes = [note for note in write_qdq(plan).notes if not note.node]
    assert [note.kind for note in notes] == [NoteKind.EXPORT] * (target == "integer-pow2")
    for note in notes:
        assert "half_up" in note.message
        assert f"ties of {len(computed)} activation(s)" in note.message


def test_logarithmic_levels_are_refused(tmp_path: Path) -> None:
    rules = OPS + 'activation = { dtype = "int8", symmetric = true, spacing = "exponential" }\n'
    plan = calibrated(conv().build(), own_target(tmp_path, rules))
    with pytest.raises(ExportError, match=r"conv.input\[0\], .*: logarithmic levels"):
        write_qdq(plan)


def test_odd_names_survive(tmp_path: Path) -> None:
    for name in ("a b", "größe π", "x.input[0]", "x_quantized", "w_dequantized", 'it"s'):
        plan = calibrated(conv(name=name).build(), own_target(tmp_path, OPS))
        exported = write_qdq(plan)
        names = [str(node.name) for node in exported.model.graph]
        assert name in names
        assert len(set(names)) == len(names)
        ort.InferenceSession(bytes_of(exported.model), providers=["CPUExecutionProvider"])


def test_new_names_avoid_those_inside_bodies(tmp_path: Path) -> None:
    model = control_flow()
    (branch,) = [a.g for n in model.graph.node for a in n.attribute if a.name == "then_branch"]
    source = branch.node[0].input[0]
    branch.node[0].output[0] = branch.output[0].name = f"{source}_quantized"
    plan = calibrated(model, own_target(tmp_path, '[[op]]\nops = ["Conv"]\n'))
    exported = write_qdq(plan)
    onnx.checker.check_model(ir.to_proto(exported.model))
    QdqRuntime(exported.model, threads=1).run(dict(random_inputs(model)))


def test_an_uncalibrated_plan_is_refused() -> None:
    from intact.errors import PlanError

    with pytest.raises(PlanError, match="calibrate"):
        write_qdq(planned(residual_net()))


def test_int8_codes_into_a_float_mover_at_a_new_opset() -> None:
    """ONNX Runtime moves int8 pairs past such nodes and must still accept the model."""
    b = conv(21)
    b.outputs.clear()
    b.node("Softmax", b.node("Reshape", "y", b.ints(0, -1), name="flat"), out="z")
    b.output("z")
    for target in ("tensorrt", "integer-pow2"):
        plan = calibrated(b.build(), target)
        assert compare(plan, write_qdq(plan), dict(random_inputs(b.build())))[1] <= 1


def test_the_deployed_file_carries_only_what_runs() -> None:
    plan = calibrated(MODELS["batch_norm"].build(17))
    assert plan.graph.batch_norms  # remembered in the float model
    exported = write_qdq(plan)
    assert not any(node.metadata_props for node in exported.model.graph)
    assert plan.graph.batch_norms

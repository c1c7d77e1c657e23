"""The listings of [tvm] run as they stand; a graph is an ONNX model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import intact
from intact import hago
from intact.engines.simulate import Simulator
from intact.errors import DataError, TargetError, UsageError
from intact.graph import normalize
from intact.hago import Hardware, OpDesc
from intact.plan import build_plan, quantization_points
from intact.plan.inference import SCALE_INFERENCES, infer_scale
from intact.plan.tie import THRESHOLD_RECTIFY
from intact.search.strategy import Strategy
from intact.targets import load_target
from intact.targets.rules import Signature
from intact.targets.scheme import DType
from tests.models import ModelBuilder
from tests.plans import config

Arrays = dict[str, npt.NDArray[Any]]


def classifier() -> onnx.ModelProto:
    """Two convolutions with a residual sum, the mean of each channel as its class."""
    b = ModelBuilder(17)
    x = b.input("data", ["batch", 3, 8, 8])
    x = b.node("Relu", b.node("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), name="first"))
    y = b.node("Conv", x, b.weight(8, 8, 1, 1), b.weight(8), name="second")
    y = b.node("Add", x, y, name="sum")
    y = b.node("Conv", y, b.weight(4, 8, 1, 1), b.weight(4), name="third")
    y = b.node("GlobalAveragePool", y, name="mean")
    b.node("Flatten", y, out="logits", name="flatten")
    b.output("logits")
    return b.build()


def batches(model: onnx.ModelProto, *, key: str = "label") -> list[Arrays]:
    """Four batches of sixteen, with what the float model says as labels."""
    session = ort.InferenceSession(model.SerializeToString())
    random = np.random.default_rng(2)
    found: list[Arrays] = []
    for _ in range(4):
        data = random.normal(size=(16, 3, 8, 8)).astype(np.float32)
        found.append({"data": data, key: session.run(None, {"data": data})[0].argmax(axis=1)})
    return found


def run(model: onnx.ModelProto, data: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    session = ort.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: data})
    return np.asarray(found, np.float32)


def documents_hardware() -> Hardware:
    """The listing of "Hardware Description", line by line."""
    # fmt: off
    desc = Hardware()
    desc['add'].append(OpDesc(in_dtypes=['int32', 'int32'], out_dtypes=['int32']))
    desc['add'].append(OpDesc(in_dtypes=['float32', 'float32'], out_dtypes=['float32']))
    desc['nn.conv2d'].append(OpDesc(in_dtypes=['int16', 'int16'], out_dtypes=['int32']))
    desc['nn.conv2d'].append(OpDesc(in_dtypes=['int8', 'int8'], out_dtypes=['int32']))
    desc['nn.global_avg_pool2d'].append(OpDesc(in_dtypes=['float32'], out_dtypes=['float32']))
    # fmt: on
    return desc


def test_the_listing_of_hardware_is_a_target() -> None:
    rules = {rule.ops: rule for rule in documents_hardware().target().rules}
    assert set(rules) == {("Add",), ("Conv",), ("GlobalAveragePool",)}
    add, conv, mean = rules["Add",], rules["Conv",], rules["GlobalAveragePool",]
    assert (add.float, add.inputs, add.scales) == (True, (DType.INT32,) * 2, "unify_inputs")
    assert (conv.float, conv.inputs) == (False, (DType.INT16,) * 2)
    int8 = (DType.INT8,) * 2
    assert conv.alternatives == (Signature(inputs=int8, outputs=(DType.INT32,)),)
    assert (mean.quantize, "float32" in mean.reason) == (False, True)
    plan = build_plan(normalize(classifier()), documents_hardware().target())
    computed = {name for name, each in plan.decisions.items() if each.quantized}
    assert computed == {"first", "second", "sum", "third"}
    assert plan.decisions["mean"].reason.endswith("describes it with float32 inputs only")


def test_int16_is_a_choice_where_it_is_declared_and_nowhere_else() -> None:
    graph, target = normalize(classifier()), documents_hardware().target()
    plan = build_plan(graph, target, intact.Overrides(bits={"third": 12, "third.input": 16}))
    assert [config(plan, f"third.input[{slot}]").bits for slot in (0, 1)] == [16, 12]
    with pytest.raises(UsageError, match=r"declares 8 bits at sum.input\[0\].*give 2 to 8 bits"):
        build_plan(graph, target, intact.Overrides(bits={"sum.input": 12}))


def test_the_demonstration_runs() -> None:
    graph = classifier()
    dataset = batches(graph)
    # The listing of "API Demo".
    hardware = hago.create_sample_hardware()
    strategy, sim_acc = hago.search_quantize_strategy(graph, hardware, dataset, budget="12trials")
    quantizer = hago.create_quantizer(graph, hardware, strategy)
    simulated_graph = quantizer.simulate()
    quantized_graph = quantizer.quantize()

    assert isinstance(strategy, Strategy)
    assert 90.0 <= sim_acc <= 100.0  # of the labels, in percent
    labels = np.concatenate([batch["label"] for batch in dataset])
    data = np.concatenate([batch["data"] for batch in dataset])
    simulated, quantized = run(simulated_graph, data), run(quantized_graph, data)
    for found in (simulated, quantized):
        agreement = 100.0 * float((found.argmax(axis=1) == labels).mean())
        assert abs(agreement - sim_acc) <= 5.0
    scale = float(np.abs(run(graph, data)).max())
    assert np.abs(simulated - quantized).max() <= 0.05 * scale
    stored = {each.data_type for each in quantized_graph.graph.initializer}
    assert onnx.TensorProto.INT8 in stored
    kinds = {each.data_type for each in simulated_graph.graph.initializer if each.dims}
    assert kinds <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
    reference = Simulator(quantizer.plan).run({"data": data})[0]["logits"]
    np.testing.assert_allclose(simulated, reference, rtol=0, atol=1e-4 * scale)
    quantizers = [n for n in simulated_graph.graph.node if n.op_type == "Div"]
    edges = [point for point in quantization_points(quantizer.plan) if not point.is_constant]
    assert len(quantizers) == len(edges) >= 3


def test_sums_that_overflow_give_one_answer_everywhere(tmp_path: Path) -> None:
    """Of a target whose sums have 12 bits, by whatever computes them."""
    graph = classifier()
    dataset = batches(graph)
    path = tmp_path / "narrow.toml"
    path.write_text(
        'format = 2\nname = "narrow"\ndescription = "12-bit sums"\nextends = "tvm"\n'
        '[arithmetic]\naccumulator = { kind = "wrap", bits = 12 }\n',
        encoding="utf-8",
    )
    data = np.concatenate([batch["data"] for batch in dataset])
    labels = np.concatenate([batch["label"] for batch in dataset])
    target = load_target(path)
    plan_of: dict[str, Any] = {"budget": "1trials", "sampler": "random"}
    strategy, score = hago.search_quantize_strategy(graph, target, dataset, **plan_of)
    assert score < 50.0
    quantizer = hago.create_quantizer(graph, target, strategy)
    wanted = run(quantizer.quantize(), data)
    assert 100.0 * float((wanted.argmax(axis=1) == labels).mean()) == score
    np.testing.assert_array_equal(run(quantizer.simulate(), data), wanted)
    np.testing.assert_array_equal(
        Simulator(quantizer.plan).run({"data": data})[0]["logits"], wanted
    )
    result = intact.quantize(
        graph, {"data": data}, target=target, formats=["onnx_qdq"], preset="fast", progress=None
    )
    integers = intact.execute(result, {"data": data}).outputs["logits"]
    simulated = intact.execute(result, {"data": data}, executor="simulate").outputs["logits"]
    np.testing.assert_array_equal(simulated, integers)
    found = intact.evaluate(result, {"data": data, "label": labels})
    assert found.accuracy is not None
    assert found.accuracy.top1[1] == 100.0 * float((integers.argmax(axis=1) == labels).mean())
    assert any("they wrap as on the target" in note.message for note in result.plan.notes)


@pytest.mark.parametrize(("output", "overflows"), [("int16", True), ("int32", False)])
def test_products_wrap_in_the_type_of_their_output(output: str, overflows: bool) -> None:
    """Sums of about 600,000."""
    b = ModelBuilder(17)
    weight = np.random.default_rng(0).uniform(0.2, 0.8, (8, 64, 1, 1)).astype(np.float32)
    x = b.node("Conv", b.input("data", ["batch", 64, 4, 4]), b.constant(weight), name="first")
    b.node("Conv", b.node("Relu", x), b.weight(4, 8, 1, 1), name="second", out="y")
    b.output("y")
    graph, random = b.build(), np.random.default_rng(1)
    data = random.uniform(0, 1, (32, 64, 4, 4)).astype(np.float32)
    hardware = Hardware()
    hardware["nn.conv2d"].append(OpDesc(["int8", "int8"], [output]))
    hardware["nn.relu"].append(OpDesc(["int8"], ["int8"]))
    strategy, score = hago.search_quantize_strategy(
        graph, hardware, [data], budget="1trials", sampler="random"
    )
    assert (score < 10.0) is overflows  # dB
    quantizer = hago.create_quantizer(graph, hardware, strategy)
    wanted = run(graph, data)
    for found in (run(quantizer.simulate(), data), run(quantizer.quantize(), data)):
        error = float(np.square(found - wanted).sum() / np.square(wanted).sum())
        assert bool(-10.0 * np.log10(error) < 10.0) is overflows


def test_edges_of_a_quantizer_are_compared() -> None:
    graph = classifier()
    dataset = batches(graph)
    strategy, _ = hago.search_quantize_strategy(
        graph, "tvm", dataset, budget="1trials", sampler="random"
    )
    quantizer = hago.create_quantizer(graph, "tvm", strategy)
    found = hago.inspect_graph_statistic(quantizer, dataset)
    assert found.samples == 50
    assert len(found.edges) >= 6
    assert hago.inspect_graph_statistic(quantizer, dataset, samples=8).samples == 8


def test_hardware_of_integers_alone_gives_plain_integer_operators() -> None:
    graph = classifier()
    strategy, _ = hago.search_quantize_strategy(graph, "x86", batches(graph), budget="2trials")
    quantized = hago.create_quantizer(graph, "x86", strategy).quantize()
    kinds = {node.op_type for node in quantized.graph.node}
    assert kinds & {"ConvInteger", "MatMulInteger"}
    assert not kinds & {"Conv", "QLinearConv"}
    data = batches(graph)[0]["data"]
    wanted = run(graph, data)
    assert np.abs(run(quantized, data) - wanted).max() <= 0.2 * np.abs(wanted).max()


def test_a_list_of_arrays_is_a_dataset() -> None:
    graph = classifier()
    arrays = [batch["data"] for batch in batches(graph)]
    hardware = hago.create_sample_hardware()
    options = {"budget": "2trials", "sampler": "random"}
    strategy, agreement = hago.search_quantize_strategy(graph, hardware, arrays, **options)
    assert 0.0 <= agreement <= 100.0
    named = [{"data": array} for array in arrays]
    assert hago.search_quantize_strategy(graph, hardware, named, **options)[0] == strategy
    with pytest.raises(DataError, match="item 0 is of type object; give arrays"):
        hago.search_quantize_strategy(graph, hardware, [object()], **options)


def test_mistakes_in_a_description_name_the_operator() -> None:
    hardware = Hardware()
    hardware["nn.conv2"].append(OpDesc(["int8"], ["int32"]))
    with pytest.raises(UsageError, match=r"'nn.conv2'; did you mean 'nn.conv2d'"):
        hardware.target()
    for odd in (OpDesc(["int7"], ["int32"]), OpDesc([], ["int32"])):
        hardware = Hardware()
        hardware["Conv"].append(odd)
        with pytest.raises(TargetError, match="Conv: "):
            hardware.target()


@pytest.fixture
def restored() -> Iterator[None]:
    """Put back what the test registers."""
    tables: list[dict[str, Any]] = [THRESHOLD_RECTIFY, SCALE_INFERENCES]
    kept = [dict(table) for table in tables]
    yield
    for table, before in zip(tables, kept, strict=True):
        table.clear()
        table.update(before)


@pytest.mark.usefixtures("restored")
def test_the_documents_functions_of_operators_can_be_registered() -> None:
    sign_bit, called = 1, []

    @hago.register_fthreshold_rectify("add")
    def threshold_rectify_for_add(
        in_bits: Sequence[int],
        out_bits: Sequence[int],
        in_tholds: Sequence[float],
        out_tholds: Sequence[float],
    ) -> tuple[Sequence[float], Sequence[float]]:
        called.append(list(in_tholds))
        idx = int(np.argmax(in_tholds))
        unified_scale = in_tholds[idx] / (2 ** (in_bits[idx] - sign_bit))
        assert not out_bits
        return [unified_scale * 2 ** (bits - sign_bit) for bits in in_bits], out_tholds

    unified = THRESHOLD_RECTIFY["Add"]([8, 6], [(-4.0, 4.0), (-2.0, 2.0)])
    assert unified == [(-4.0, 4.0), (-1.0, 1.0)]
    graph = classifier()
    hago.search_quantize_strategy(graph, "tvm", batches(graph), budget="1trials")
    assert len(called) > 1

    @hago.register_finfer_scale("nn.conv2d")
    def infer_scale_for_conv2d(in_scales: Sequence[Any]) -> Any:
        return in_scales[0] * in_scales[1] * 3

    node = next(node for node in normalize(graph).nodes if node.op_type == "Conv")
    scale = infer_scale(node, [np.asarray(0.5), np.asarray(0.25)])
    assert scale is not None
    assert float(scale) == 0.375


def test_the_module_is_loaded_when_it_is_asked_for() -> None:
    code = (
        "import sys, intact\n"
        "assert 'intact.hago' not in sys.modules\n"
        "print(intact.hago.Hardware.__name__, 'hago' in dir(intact))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["Hardware", "True"]

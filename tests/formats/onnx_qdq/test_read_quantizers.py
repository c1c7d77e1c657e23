"""Models with the fake quantizers of training tools: what they say is kept, or they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from intact.engines.simulate import Simulator
from intact.errors import ModelError
from intact.formats.base.format import QuantizedSource
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.onnx_qdq.reader.quantizers import is_quantizer
from intact.formats.onnx_qdq.reader.translate import translate_quantizers
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.openvino.write import write_openvino
from intact.formats.registry import open_model
from intact.plan import QuantizedGraph, QuantPoint, quantization_points
from intact.targets import load_target
from tests.documents.test_mqbench import published_ends
from tests.formats.onnx_qdq.pairs import session
from tests.formats.onnx_qdq.trained import Floats, Trained, floats, mqbench_net, saved_net
from tests.models import ModelBuilder, random_inputs

QONNX = "qonnx.custom_op.general"
ORT = load_target("onnxruntime")
OPENVINO = load_target("openvino-mqbench")
RANGES = [(-128, 127), (0, 255), (-64, 63), (0, 127), (-8, 7), (0, 15)]


def small(
    b: Trained, x: str, w: str, *, channels: int = 3, op_type: str = "Conv", **more: Any
) -> onnx.ModelProto:
    """A product of a quantized input and a quantized weight."""
    y = b.node(op_type, x, w, b.weight(channels, name="bias"), out="y", **more)
    b.output(y)
    return b.build()


def by_value(plan: QuantizedGraph) -> dict[str, QuantPoint]:
    return {str(point.value.name): point for point in quantization_points(plan)}


def read(model: onnx.ModelProto, target: Any = ORT) -> QuantizedGraph:
    return read_qdq(model, target)


def numbers(x: Floats, scale: Any, zero_point: Any, low: int, high: int, axis: int = 0) -> Floats:
    """The standard formula of [mqbench], with the parameters as its deployment takes them."""
    shape = [-1 if i == axis else 1 for i in range(x.ndim)] if np.size(scale) > 1 else []
    steps = np.abs(np.asarray(scale, np.float64)).reshape(shape or ())
    zeros = np.clip(np.rint(zero_point), low, high).reshape(shape or ())
    codes = np.clip(np.rint(x / steps + zeros), low, high)
    return np.asarray((codes - zeros) * steps, np.float32)


class LearnablePerTensorAffine(OpRun):
    op_domain = ""

    def _run(self, x: Any, scale: Any, zero: Any, low: Any, high: Any) -> Any:
        return (numbers(x, scale, zero, int(low), int(high)),)


class FakeQuantizeLearnablePerchannelAffine(OpRun):
    op_domain = ""

    def _run(self, x: Any, scale: Any, zero: Any, quant_min: Any = 0, quant_max: Any = 0) -> Any:
        return (numbers(x, scale, zero, quant_min, quant_max),)


@pytest.mark.parametrize(("low", "high"), [(-64, 63), (-128, 127), (-8, 7)])
def test_a_model_of_mqbench_computes_what_it_did(low: int, high: int) -> None:
    model = mqbench_net(low, high)
    plan = read(model)
    feeds = dict(random_inputs(model, batch=3))
    own = [LearnablePerTensorAffine, FakeQuantizeLearnablePerchannelAffine]
    outputs: Any = ReferenceEvaluator(model, new_ops=own).run(None, feeds)
    wanted = outputs[0]
    found = Simulator(plan, threads=1).run(feeds)[0]["y"]
    assert (np.abs(found - wanted) < 1e-4).mean() > 0.99
    deployed = session(write_qdq(plan).model).run(None, feeds)[0]
    assert (np.abs(deployed - wanted) < 1e-4).mean() > 0.98
    names = {str(name) for name in plan.graph.model.graph.initializers}
    assert {"w1", "w2", "b1", "b2"} <= names
    assert "nobody_reads" not in names
    points = by_value(plan)
    assert {point.config.bits for point in points.values() if point.is_constant} == {
        (high - low).bit_length()
    }
    assert "b1" not in points  # a bias is float


def test_what_was_made_another_number_is_said() -> None:
    notes = [note.message for note in read(mqbench_net()).notes]
    assert any("negative scales were made positive" in note for note in notes)
    assert any("rounded to whole numbers within -128..127" in note for note in notes)


def test_openvino_gets_the_ranges_of_the_document() -> None:
    """Also for the weights: 128 levels are stored as 256, as MQBench's deployment does."""
    written = write_openvino(read(mqbench_net(), OPENVINO)).model
    graph = ir.to_proto(written).graph
    values = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    wanted: dict[str, tuple[Any, float, int, int]] = {
        "image": (0.02, -3.3, -128, 127),
        "relu": (-0.01, 0, 0, 255),
        "w1_on_grid": (np.linspace(0.004, 0.02, 4, dtype=np.float32), 0, -128, 127),
        "w2_on_grid": (np.full(5, 0.01, np.float32), 0, -128, 127),
    }
    nodes = [node for node in graph.node if node.op_type == "FakeQuantize"]
    assert {node.input[0] for node in nodes} == set(wanted)
    for node in nodes:
        scales, zero_point, *codes = wanted[node.input[0]]
        assert node.input[1:3] == node.input[3:5]
        assert node.attribute[0].i == codes[1] - codes[0] + 1
        found = zip(*(values[name].reshape(-1) for name in node.input[1:3]), strict=True)
        for ends, scale in zip(found, np.asarray(scales).reshape(-1), strict=True):
            exact = published_ends(float(scale), zero_point, codes[0], codes[1])
            assert ends == pytest.approx(exact, rel=1e-6, abs=1e-9)
    made = {str(value.name) for value in written.graph.inputs}
    made |= set(written.graph.initializers)
    for node in written.graph:  # topologically sorted, and nothing unused
        assert {str(value.name) for value in node.inputs if value is not None} <= made
        made |= {str(value.name) for value in node.outputs}
    assert all(value.uses() for value in written.graph.initializers.values())


@pytest.mark.parametrize("says", ["attributes", "nothing"])
def test_seven_bits_are_those_of_the_openvino_backend(says: str) -> None:
    for bits, target in ((7, "openvino-mqbench"), (4, "onnxruntime"), (8, "onnxruntime")):
        source = open_model(saved_net(bits, says))
        assert isinstance(source, QuantizedSource)
        assert source.target == target


def test_the_target_that_fits() -> None:
    for model, target in ((mqbench_net(), "openvino-mqbench"), (mqbench_net(-8, 7), "onnxruntime")):
        source = open_model(model)
        assert isinstance(source, QuantizedSource)
        assert source.target == target


TENSOR = [
    ("FixedPerTensorAffine", "", True),
    ("LearnablePerTensorAffine", "Sophgo_custom", True),
    ("FakeQuantizeDSQPertensor", "MQBench_custom", False),
    ("FakeQuantizeLearnablePertensorAffine", "", False),
    ("FakeQuantizeAffine", "custom", False),
    ("PerTensorAffine", "custom", True),
    ("fake_quantize_per_tensor_affine", "aten", True),
]


@pytest.mark.crossed
@pytest.mark.parametrize("span", RANGES)
@pytest.mark.parametrize(("op_type", "domain", "as_inputs"), TENSOR)
def test_each_operator_of_one_scale(
    op_type: str, domain: str, as_inputs: bool, span: tuple[int, int]
) -> None:
    b = Trained()
    x = b.input("x", ["batch", 3, 6, 6])
    values: list[Any] = [np.float32(0.03), np.int64(2)]
    more: dict[str, Any] = {}
    if as_inputs:
        values += [np.int64(span[0]), np.int64(span[1])]
    else:
        more = {"quant_min": span[0], "quant_max": span[1]}
    if "DSQ" in op_type:
        more["alpha"] = 0.4
    x = b.fake(op_type, x, *values, domain=domain, **more)
    w = b.tensor(b.weight(3, 3, 3, 3), 0.01, 0, -128, 127)
    config = by_value(read(small(b, x, w)))["x"].config
    assert (config.quant_min, config.quant_max) == span
    assert config.bits == (span[1] - span[0]).bit_length()
    assert config.scale == np.float32(0.03)
    assert config.offset == 2


CHANNEL = [
    ("FixedPerChannelAffine", "", "inputs"),
    ("FixedPerChannelAffine", "mmdeploy", "inputs"),
    ("FakeQuantizeLearnablePerchannelAffine", "", "attributes"),
    ("FakeQuantizeLearnablePerChannelAffine", "", "axis"),
    ("FakeQuantizeDSQPerchannel", "MQBench_custom", "attributes"),
    ("fake_quantize_per_channel_affine", "aten", "inputs"),
]


@pytest.mark.parametrize(("op_type", "domain", "form"), CHANNEL)
@pytest.mark.parametrize(("product", "axis"), [("Conv", 0), ("ConvTranspose", 1), ("Gemm", 1)])
def test_each_operator_of_a_scale_a_channel(
    op_type: str, domain: str, form: str, product: str, axis: int
) -> None:
    """Also with as many channels in front as behind, where only the reader tells the axis."""
    b = Trained()
    scales = floats([0.01, 0.02, 0.03])
    values: list[Any] = [scales, np.zeros(3, np.int32)]
    more: dict[str, Any] = {"quant_min": -64, "quant_max": 63}
    if form == "inputs":
        values, more = [*values, np.int64(axis), np.int64(-64), np.int64(63)], {}
    elif form == "axis":
        more["ch_axis"] = axis
    matrix = product == "Gemm"
    shape: list[int | str] = ["batch", 3] if matrix else ["batch", 3, 6, 6]
    x = b.tensor(b.input("x", shape), 0.03, 0, -128, 127)
    w = b.fake(
        op_type, b.weight(3, 3, *[3, 3] * (not matrix), name="w"), *values, domain=domain, **more
    )
    config = by_value(read(small(b, x, w, op_type=product)))["w"].config
    assert config.granularity.axis == axis
    np.testing.assert_array_equal(config.scale, scales)
    assert (config.quant_min, config.quant_max, config.bits) == (-64, 63, 7)


@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "span"),
    [
        (8, 1, 0, (-128, 127)),
        (8, 1, 1, (-127, 127)),
        (4, 0, 0, (0, 15)),
        (4, 0, 1, (0, 14)),
        (3, 1, 1, (-3, 3)),
        (16, 1, 0, (-32768, 32767)),
    ],
)
@pytest.mark.parametrize("domain", [QONNX, "onnx.brevitas", "finn.custom_op.general"])
def test_quant_of_brevitas(
    bits: int, signed: int, narrow: int, span: tuple[int, int], domain: str
) -> None:
    b = Trained()
    more: dict[str, Any] = {"signed": signed, "narrow": narrow, "domain": domain}
    more["rounding_mode"] = "ROUND"
    zero, x = np.float32(0), b.input("x", ["batch", 3, 6, 6])
    x = b.fake("Quant", x, np.float32(0.5), zero, np.float32(bits), **more)
    scales = floats([0.25, 0.5, 1]).reshape(3, 1, 1, 1)
    more["signed"] = 1
    w = b.fake("Quant", b.weight(3, 3, 3, 3, name="w"), scales, zero, np.float32(4), **more)
    points = by_value(read(small(b, x, w)))
    config = points["x"].config
    assert (config.quant_min, config.quant_max) == span
    assert points["w"].config.granularity.axis == 0
    np.testing.assert_array_equal(points["w"].config.scale, scales.reshape(-1))


def test_a_quantized_bias_of_brevitas_keeps_its_integers() -> None:
    b = Trained()

    def quant(x: str, scale: float, bits: int) -> str:
        return b.fake("Quant", x, *floats([scale, 0, bits]), domain=QONNX)

    x = quant(b.input("x", ["batch", 4]), 0.5, 8)
    w = quant(b.weight(3, 4, name="w"), 0.25, 8)
    bias = quant(b.constant(floats([0.25, -1.5, 3.0]), "bias"), 0.125, 32)
    b.output(b.node("Gemm", x, w, bias, transB=1, out="y"))
    plan = read(b.build())
    np.testing.assert_array_equal(by_value(plan)["bias"].constant_codes(), [2, -12, 24])


def test_powers_of_two_and_tiny_scales() -> None:
    b = Trained()
    span: dict[str, Any] = {"quant_min": -128, "quant_max": 127}
    x = b.input("x", ["batch", 3, 6, 6])
    x = b.fake("FakeQuantizeTqtAffine", x, floats([0.3]), floats([0]), **span)
    numbers = floats([1e-12]), floats([0]), -128, 127
    w = b.fake("LearnablePerTensorAffine", b.weight(3, 3, 3, 3, name="w"), *numbers)
    plan = read(small(b, x, w))
    points = by_value(plan)
    assert points["x"].config.scale == np.float32(0.5)
    assert points["w"].config.scale == np.finfo(np.float32).eps
    notes = " ".join(note.message for note in plan.notes)
    assert "powers of two" in notes
    assert "scales below 1.1920929e-07 were raised" in notes


def test_a_weight_that_is_computed_first() -> None:
    """DoReFa: the weight behind its quantizer is computed from the parameter."""
    b = Trained()
    w = b.node("Tanh", b.weight(3, 3, 3, 3, name="w"))
    most = b.node("Add", b.node("ReduceMax", b.node("Abs", w), keepdims=0), b.scalar(1e-5))
    w = b.tensor(b.node("Div", w, most), 1 / 127, 0, -128, 127)
    plan = read(small(b, b.tensor(b.input("x", ["batch", 3, 6, 6]), 0.1, 0, -128, 127), w))
    assert [node.op_type for node in plan.graph.nodes] == ["Conv"]
    weight = next(p for p in by_value(plan).values() if p.is_constant)
    assert np.abs(weight.constant_codes()).max() == 127


def test_what_cannot_be_computed_stays_in_the_model() -> None:
    b = Trained()
    w = b.node("Reshape", b.weight(3, 3, 3, 3), b.ints(7, 7))
    x = b.tensor(b.input("x", ["batch", 3, 6, 6]), 0.1, 0, -128, 127)
    b.output(b.node("MatMul", x, b.tensor(w, 0.01, 0, -128, 127), out="y"))
    assert "Reshape" in [node.op_type for node in read(b.build()).graph.nodes]


def test_a_damaged_node_beside_a_weight_that_is_computed() -> None:
    b = Trained()
    x = b.input("x", ["batch", 3, 6, 6])
    b.output(b.node("Identity", x, out="nothing"))
    w = b.tensor(b.node("Tanh", b.weight(3, 3, 3, 3)), 0.01, 0, -128, 127)
    model = ir.from_proto(small(b, b.tensor(x, 0.1, 0, -128, 127), w))
    next(node for node in model.graph if node.op_type == "Identity").resize_inputs(0)
    translate_quantizers(model)
    assert "FixedPerTensorAffine" not in [node.op_type for node in model.graph]


def test_pairs_with_ranges_and_clips() -> None:
    """As MQBench with opset 13, PyTorch with reduce_range, and Brevitas (QCDQ) write them."""
    b = Trained()
    x = b.input("x", ["batch", 3, 6, 6])
    zero = b.node("Cast", b.constant(np.int32(0)), to=onnx.TensorProto.INT8)
    scale = b.scalar(0.1)
    span: dict[str, Any] = {"quant_min": -8, "quant_max": 7}
    x = b.node(
        "DequantizeLinear", b.node("QuantizeLinear", x, scale, zero, **span), scale, zero, **span
    )
    stored = b.constant(np.arange(27, dtype=np.int8).reshape(1, 3, 3, 3).repeat(3, 0) - 13)
    w = b.node("Clip", stored, b.constant(np.int8(-7)), b.constant(np.int8(7)))
    y = b.node("Conv", x, b.dequantize(w, 0.01, np.int8(0)))
    codes = b.node("Clip", b.quantize(y, 0.02, np.uint8(64)), "", b.constant(np.uint8(127)))
    b.output(b.node("Relu", b.dequantize(codes, 0.02, np.uint8(64)), out="y"))
    points = list(quantization_points(read(b.build())))
    spans = {(p.config.quant_min, p.config.quant_max, p.config.bits) for p in points}
    assert spans == {(-8, 7, 4), (-7, 7, 4), (0, 127, 7)}
    weight = next(point for point in points if point.is_constant)
    assert (weight.constant_codes().min(), weight.constant_codes().max()) == (-7, 7)


def test_a_quantizer_beside_pairs_and_in_a_row() -> None:
    b = Trained()
    x = b.pair(b.input("x", ["batch", 3, 6, 6]), 0.05, np.int8(0))
    x = b.tensor(x, 0.1, 0, -8, 7)
    w = b.tensor(b.weight(3, 3, 3, 3, name="w"), 0.01, 0, -128, 127)
    plan = read(small(b, x, w))
    scales = [float(np.asarray(p.config.scale)) for p in quantization_points(plan)]
    assert sorted(scales) == pytest.approx([0.01, 0.05, 0.1])


def test_equal_quantizers_of_one_tensor_are_one() -> None:
    b = Trained()
    x = b.input("x", ["batch", 3, 6, 6])
    first, second = (b.tensor(x, 0.05, 0, -128, 127) for _ in range(2))
    left = b.node("Conv", first, b.tensor(b.weight(3, 3, 1, 1), 0.01, 0, -128, 127))
    b.output(b.node("Add", left, second, out="y"))
    points = [p for p in quantization_points(read(b.build())) if p.value.name == "x"]
    assert len(points) == 1


def test_a_shared_weight_is_stored_once() -> None:
    b = Trained()
    x = b.tensor(b.input("x", ["batch", 3, 6, 6]), 0.05, 0, -128, 127)
    weight = b.weight(3, 3, 1, 1, name="w")
    left, right = (b.node("Conv", x, b.tensor(weight, 0.01, 0, -128, 127)) for _ in range(2))
    b.output(b.node("Add", left, right, out="y"))
    constants = read(b.build()).graph.model.graph.initializers
    assert list(constants) == ["w"]


def test_a_quantized_output_keeps_its_name() -> None:
    b = Trained()
    x = b.tensor(b.input("x", ["batch", 3, 6, 6]), 0.05, 0, -128, 127)
    y = b.node("Conv", x, b.tensor(b.weight(3, 3, 3, 3), 0.01, 0, -128, 127))
    values = floats([0.1]), floats([0]), np.int64(-128), np.int64(127)
    b.output(b.fake("FixedPerTensorAffine", y, *values, out="y"))
    plan = read(b.build())
    assert [value.name for value in plan.graph.model.graph.outputs] == ["y"]
    assert [value.name for value in write_qdq(plan).model.graph.outputs] == ["y"]


# ---- refusals -----------------------------------------------------------------------------------


def refusal(op_type: str, *values: Any, domain: str = "", **more: Any) -> str:
    b = Trained()
    x = b.fake(op_type, b.input("x", ["batch", 3, 6, 6]), *values, domain=domain, name="q0", **more)
    w = b.tensor(b.weight(3, 3, 3, 3), 0.01, 0, -128, 127)
    source = open_model(small(b, x, w))
    assert isinstance(source, QuantizedSource)
    with pytest.raises(ModelError) as caught:
        source.plan(ORT)
    message = str(caught.value)
    assert message.startswith("node 'q0' (")
    return message


ONE = floats([0.1])
NONE = floats([0])


def codes(*values: int) -> list[np.int64]:
    return [np.int64(value) for value in values]


@pytest.mark.parametrize(
    ("op_type", "values", "more", "words"),
    [
        ("FixedPerTensorAffine", (ONE, NONE, *codes(3, 3)), {}, "codes are 3..3"),
        ("FakeQuantizeDSQPertensor", (ONE, NONE), {}, "no quant_min"),
        ("FakeQuantizeDSQPertensor", (ONE, NONE), {"domain": "acme"},
         "in domain 'acme'; it is read in domain '', 'mqb"),
        ("FixedPerTensorAffine", (NONE, NONE, *codes(0, 9)), {}, "not positive"),
        ("FixedPerTensorAffine", (ONE * np.nan, NONE, *codes(0, 9)), {}, "not positive"),
        ("FixedPerTensorAffine", (ONE, NONE * np.nan, *codes(0, 9)), {},
         "zero point is not finite"),
        ("FixedPerTensorAffine", (ONE, NONE, *codes(0, 2**40)), {}, "2 to 32 bits"),
        ("FixedPerChannelAffine", (np.ones(5, np.float32), NONE, *codes(1, 0, 9)), {},
         "5 scales along axis 1"),
        ("FakeQuantizeDSQPertensor", (ONE, NONE), {"quant_min": "a", "quant_max": 3}, "no number"),
        ("Quant", (ONE, NONE, np.float32(7.5)), {"domain": QONNX}, "bit_width is"),
        ("Quant", (ONE, NONE, np.float32(40)), {"domain": QONNX}, "it has 40 bits"),
        ("Quant", (ONE, NONE), {"domain": QONNX}, "no bit_width"),
        ("Quant", (ONE, NONE, np.float32(8)), {"domain": QONNX, "rounding_mode": "FLOOR"},
         "rounds by FLOOR"),
        ("Quant", (ONE, NONE + 0.5, np.float32(8)), {"domain": QONNX}, "no whole number"),
        ("Quant", (ONE, NONE + 300, np.float32(8)), {"domain": QONNX}, "outside -128..127"),
        ("BipolarQuant", (ONE,), {"domain": QONNX}, "two levels"),
        ("Trunc", (ONE, NONE, NONE, NONE), {"domain": QONNX}, "lowest bits"),
        ("NNIEQuantize", (ONE,), {}, "not equally spaced"),
        ("SuperFakeQuant", (ONE,), {"domain": "acme"}, "MQBench and PyTorch (domain ''"),
    ],
)  # fmt: skip
def test_what_is_refused(
    op_type: str, values: tuple[Any, ...], more: dict[str, Any], words: str
) -> None:
    assert words in refusal(op_type, *values, **more)


def test_half_precision_is_refused() -> None:
    b = Trained()
    x = b.input("x", ["batch", 3], onnx.TensorProto.FLOAT16)
    b.output(b.node("Relu", b.tensor(x, 0.1, 0, -128, 127), out="y"))
    with pytest.raises(ModelError, match="it quantizes float16; export the model in float32"):
        read(b.build())


def test_a_computed_scale_is_refused() -> None:
    b = Trained()
    x = b.input("x", ["batch", 3])
    scale = b.node("ReduceMax", x, keepdims=0, out="most")
    y = b.node(
        "FixedPerTensorAffine", x, scale, *b.given(NONE, np.int64(0), np.int64(9)), name="q0"
    )
    b.output(b.node("Relu", y, out="y"))
    with pytest.raises(ModelError, match=r"node 'q0' .* its scale 'most' is computed by the model"):
        read(b.build())


def test_operators_of_others_that_are_no_quantizers_stay_float() -> None:
    b = ModelBuilder()
    b.domains["acme"] = 1
    b.output(b.node("Quantum", b.input("x", ["batch", 3]), domain="acme", out="y"))
    assert not isinstance(open_model(b.build()), QuantizedSource)


# ---- real exports -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_torch_trained_and_exported(tmp_path: Path) -> None:
    """torch.ao's fake quantizers of 7 bits for activations, 8 for weights, through ONNX."""
    torch = pytest.importorskip("torch")
    quantization = pytest.importorskip("torch.ao.quantization")
    fake = quantization.FakeQuantize.with_args(
        observer=quantization.MinMaxObserver, quant_min=0, quant_max=127, dtype=torch.quint8
    )
    per_channel = quantization.default_per_channel_weight_fake_quant
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(3, 4, 3)
    net = torch.nn.Sequential(fake(), conv, torch.nn.ReLU(), fake())
    weights = per_channel()
    weights(conv.weight)
    torch.nn.utils.parametrize.register_parametrization(conv, "weight", weights)
    x = torch.randn(2, 3, 6, 6)
    net(x)
    net.eval().apply(quantization.disable_observer)
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (x,), str(path), dynamo=False, opset_version=17)
    plan = read_qdq(path, ORT)
    wanted = net(x).detach().numpy()
    feeds = {str(plan.graph.inputs[0].name): x.numpy()}
    found = next(iter(Simulator(plan, threads=1).run(feeds)[0].values()))
    assert (np.abs(found - wanted) < 1e-5).mean() > 0.99
    spans = {(p.config.quant_min, p.config.quant_max) for p in quantization_points(plan)}
    assert spans == {(0, 127), (-128, 127)}


def test_unknown_quantizers_are_told_in_every_domain_but_the_runtime_s() -> None:
    for domain, is_told in (("", True), ("custom", True), ("com.microsoft", False)):
        node = ir.Node(domain, "FakeQuantizeDorefaPerchannel", [])
        assert is_quantizer(node) is is_told, domain

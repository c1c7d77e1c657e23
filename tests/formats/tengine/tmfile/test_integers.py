"""Plans to quantized Tengine files and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.calibrate.assign import Method, assign
from intact.engines.integer import IntegerEngine
from intact.errors import ExportError, ModelError, PlanError
from intact.formats.tengine.tmfile.codec import encode, open_tmfile
from intact.formats.tengine.tmfile.file import Element, FileNode, Kind, TmFile
from intact.formats.tengine.tmfile.read import Int8Model, read_int8
from intact.formats.tengine.tmfile.write import write_float, write_int8
from intact.graph import normalize
from intact.plan import QuantizedGraph, quantization_points
from intact.program.lower import lower
from tests.formats.tengine.tmfile.files import file_of
from tests.formats.tengine.tmfile.interpreter import Interpreter
from tests.formats.tengine.tmfile.networks import FLOAT, INTEGER, run
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrated, own_target, planned

TARGETS = ("tengine", "tengine-u8")


def holds(plan: QuantizedGraph, read: Int8Model) -> int:
    """Hold a file that was read against its plan; return the number of points compared."""
    count = 0
    for point in quantization_points(plan):
        name = str(point.value.name)
        params = point.config.params
        assert params is not None
        if point.is_constant:
            found, codes = read.codes[name], point.constant_codes()
            rows = codes if codes.shape == found.shape else codes.T  # of a dense layer
            np.testing.assert_array_equal(found, rows)
        if point.config.bits == 8:
            scales = read.scales[name]
            assert scales.signed == (point.config.quant_min < 0)
            both = ((scales.scale, params.scale), (scales.zero_point, params.zero_point))
            for found, wanted in both:
                np.testing.assert_array_equal(found, np.broadcast_to(wanted, found.shape))
        count += 1
    return count


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", INTEGER)
def test_codes_and_scales_are_those_of_the_plan(name: str, target: str) -> None:
    plan = calibrated(FLOAT[name](17), target)
    assert holds(plan, read_int8(write_int8(plan))) > 5


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["residual", "depthwise"])
def test_the_float_model_of_a_quantized_file_has_the_weights_of_its_codes(
    name: str, target: str
) -> None:
    model = FLOAT[name](17)
    plan = calibrated(model, target)
    feeds = random_inputs(model, batch=2)
    (wanted,), (found,) = (
        run(each, feeds) for each in (plan.graph, read_int8(write_int8(plan)).model)
    )
    assert 0 < np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", INTEGER)
def test_a_file_that_is_read_gives_the_plan_that_it_was_written_from(
    name: str, target: str
) -> None:
    data = write_int8(calibrated(FLOAT[name](17), target))
    read = read_int8(data)
    plan = planned(ir.to_proto(read.model), target)
    again = write_int8(assign(plan, None, Method.of(plan.target), read.scales))
    assert again == data


@pytest.mark.parametrize("name", ["residual", "depthwise"])
def test_the_file_computes_what_the_engine_computes(name: str) -> None:
    """The file is run by Tengine's formulas, from nothing but its bytes."""
    model = FLOAT[name](17)
    plan = calibrated(model, "tengine")
    feeds = random_inputs(model, batch=64, seed=7)
    (images,) = feeds.values()
    found = Interpreter(open_tmfile(write_int8(plan)), images).run()
    (wanted,) = IntegerEngine(lower(plan)).run(feeds).outputs.values()
    assert np.unique(wanted).size > 20
    np.testing.assert_array_equal(found, wanted)


def nodes_of(file: TmFile) -> list[tuple[str, str]]:
    """Kind and name of what is neither a constant nor an input."""
    return [(n.operator, n.name) for n in file.nodes if n.operator not in ("Const", "InputOp")]


def chain(*ops: tuple[float, float] | str) -> onnx.ModelProto:
    """Convolutions, each with a function behind it."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 6, 6])
    for number, op in enumerate(ops):
        x = b.node("Conv", x, b.weight(4, 4, 1, 1), b.weight(4), name=f"conv{number}")
        x = b.node("Relu", x, name=f"f{number}") if isinstance(op, str) else b.clip(x, *op)
    b.node("Conv", x, b.weight(4, 4, 1, 1), name="last", out="y")
    b.output("y")
    return b.build()


def test_what_is_fused_goes_into_the_convolution_if_it_can() -> None:
    plan = calibrated(chain("relu", (0, 6), (-1, 1), (0, 3)), "tengine")
    file = open_tmfile(write_int8(plan))
    kinds = [kind for kind, _ in nodes_of(file)]
    convolutions = [node for node in file.nodes if node.operator == "Convolution"]
    assert kinds == [*["Convolution"] * 3, "Clip", "Convolution", "Clip", "Convolution"]
    assert [node.options["activation"] for node in convolutions] == [0, 6, -1, -1, -1]
    for clip in (node for node in file.nodes if node.operator == "Clip"):
        before, after = (file.tensors[each[0]].quantization for each in (clip.inputs, clip.outputs))
        assert before is not None
        assert after is not None
        assert before.scale == after.scale


def test_all_weights_of_int8_have_a_scale_for_each_channel(tmp_path: Path) -> None:
    """Kernels read a list, whatever the plan has; there is one for a tensor in uint8."""
    header = """
        format = 2
        name = "mine"
        formats = ["onnx_qdq"]
        [activation]
        dtype = "int8"
        quant_min = -127
        symmetric = true
        [weight]
        dtype = "int8"
        quant_min = -127
        symmetric = true
        granularity = "per_tensor"
        [bias]
        dtype = "int32"
        [arithmetic]
        requantize = { kind = "float_once" }
    """.replace("\n        ", "\n")
    plan = calibrated(
        chain("relu"), own_target(tmp_path, '[[op]]\nops = ["Conv", "Relu"]', header=header)
    )
    for tensor in open_tmfile(write_int8(plan)).tensors:
        assert tensor.quantization is not None
        assert tensor.quantization.scale.size == (4 if tensor.kind is Kind.CONSTANT else 1)
        assert np.unique(tensor.quantization.scale).size == 1
    for tensor in open_tmfile(write_int8(calibrated(chain("relu"), "tengine-u8"))).tensors:
        assert tensor.quantization is not None
        assert tensor.quantization.scale.size == 1
        assert tensor.element is (Element.INT32 if "bias" in tensor.name else tensor.element)


def test_a_dense_layer_is_written_by_rows() -> None:
    b = ModelBuilder()
    x = b.node("Flatten", b.input("image", ["batch", 4, 2, 1]))
    b.node("Gemm", x, b.weight(8, 3, name="w"), b.weight(3, name="b"), out="y")
    b.output("y")
    plan = calibrated(b.build(), "tengine")
    point = next(each for each in quantization_points(plan) if each.value.name == "w")
    found = read_int8(write_int8(plan)).codes["w"]
    assert found.shape == (3, 8)
    codes = point.constant_codes()
    np.testing.assert_array_equal(found, codes if codes.shape == (3, 8) else codes.T)


def test_a_dense_layer_of_one_output_is_refused_in_int8() -> None:
    b = ModelBuilder()
    x = b.node("Flatten", b.input("image", ["batch", 4, 2, 1]))
    b.node("Gemm", x, b.weight(8, 1), b.weight(1), out="y", name="logit")
    b.output("y")
    with pytest.raises(ExportError, match="'logit': it has one output"):
        write_int8(calibrated(b.build(), "tengine"))
    assert write_int8(calibrated(b.build(), "tengine-u8"))


def test_a_fused_output_of_the_model() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 6, 6])
    b.node("Relu", b.node("Conv", x, b.weight(4, 4, 1, 1), name="conv"), out="y")
    b.output("y")
    file = open_tmfile(write_int8(calibrated(b.build(), "tengine")))
    assert nodes_of(file) == [("Convolution", "conv")]
    (last,) = file.outputs
    assert [file.tensors[index].name for index in file.nodes[last].outputs] == ["y"]


def test_a_bias_of_two_convolutions_is_written_twice() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 6, 6])
    shared = b.weight(4, name="shared")
    left = b.node("Conv", x, b.weight(4, 4, 1, 1), shared)
    b.node("Conv", b.node("Sigmoid", left), b.weight(4, 4, 1, 1), shared, out="y")
    b.output("y")
    file = open_tmfile(write_int8(calibrated(b.build(), "tengine")))
    biases = [file.tensors[n.inputs[2]] for n in file.nodes if n.operator == "Convolution"]
    assert [each.name for each in biases] == ["shared", "shared_2"]
    scales = [each.quantization.scale for each in biases if each.quantization is not None]
    assert not np.array_equal(scales[0], scales[1])


def test_what_stays_float_is_refused_with_the_reason() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 6, 6])
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), name="fine")
    x = b.node("Erf", x, name="curved")
    x = b.node("ConvTranspose", x, b.weight(4, 4, 3, 3), strides=[2, 2], name="wide")
    b.node("Neg", x, out="y", name="negated")
    b.output("y")
    with pytest.raises(ExportError) as error:
        write_int8(calibrated(b.build(), "tengine"))
    text = str(error.value)
    assert "'curved': stays float (target tengine describes no integer Erf" in text
    assert "'negated'" in text
    assert "'wide'" in text
    assert "'fine'" not in text


def test_a_plan_without_scales_is_refused() -> None:
    with pytest.raises(PlanError, match="no scale yet"):
        write_int8(planned(chain("relu"), "tengine"))


def test_zero_points_and_mixed_signs_are_refused() -> None:
    with pytest.raises(ExportError, match="not of one sign"):
        write_int8(calibrated(chain("relu"), "onnxruntime"))


def test_a_float_file_is_not_read_as_integers() -> None:
    with pytest.raises(ModelError, match="the model is not quantized"):
        read_int8(write_float(normalize(chain("relu"))))


def test_scales_of_zero() -> None:
    """Tengine gives channels of zeros the scale 0; anything else has none."""
    file = file_of(
        "Scale", {"axis": 1, "num_axes": 1, "bias_term": 0}, (1, 2, 1, 1), np.array([0, 0], np.int8)
    )
    quantization = file.tensors[1].quantization
    assert quantization is not None
    quantization.scale[:] = 0
    found = read_int8(encode(file))
    assert found.scales["c0"].scale == 1
    file.tensors[1].data[:] = 5  # type: ignore[index]
    with pytest.raises(ModelError, match=r"the scale 0\.0 is not a positive"):
        read_int8(encode(file))


def test_nodes_keep_their_order() -> None:
    """What a tensor is computed from has smaller numbers: Tengine's tool counts on it."""
    file = open_tmfile(write_int8(calibrated(FLOAT["residual"](17), "tengine")))
    seen: set[int] = set()
    for node in file.nodes:
        assert isinstance(node, FileNode)
        assert seen.issuperset(node.inputs)
        assert not node.inputs or max(node.inputs) < min(node.outputs)
        seen.update(node.outputs)

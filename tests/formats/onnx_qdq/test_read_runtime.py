"""Models of ONNX Runtime's own quantizer, in both its forms, read and written bit for bit."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.data.sources import open_samples
from intact.formats.onnx_qdq.executed import float_leftovers
from intact.formats.onnx_qdq.reader.expand import QOPERATORS
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import Decision, Overrides, QuantizedGraph, quantization_points
from intact.plan.build import complete
from intact.targets import load_target
from tests.formats.onnx_qdq.pairs import (
    PairBuilder,
    assert_exact,
    assert_same_outputs,
    read,
    session,
)
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net

pytestmark = pytest.mark.runtime_fact("onnxruntime")

U8, S8 = QuantType.QUInt8, QuantType.QInt8


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Three random batches."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._batches = iter([random_inputs(model, seed=seed) for seed in range(3)])

    def get_next(self) -> Any:
        return next(self._batches, None)


def operators(opset: int = 17) -> onnx.ModelProto:
    """Every operator that has a form on codes of its own."""
    b = ModelBuilder(opset)
    x = b.conv(b.input("x", ["batch", 4, 8, 8]), 4, 8)
    left = b.node("LeakyRelu", x, alpha=0.1)
    right = b.node("Sigmoid", b.conv(left, 8, 8, kernel=1))
    x = b.node("Concat", b.node("Mul", left, right), b.node("Add", left, right), axis=1)
    x = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], count_include_pad=1)
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = b.node("MatMul", b.node("Transpose", x, perm=[0, 1, 3, 2]), x)
    x = b.node("Softmax", b.node("GlobalAveragePool", b.node("Mul", x, y)), axis=1)
    x = b.node("Reshape", x, b.ints(0, -1))
    b.node("Gemm", x, b.weight(5, 16), b.weight(5), out="y", transB=1, alpha=0.5)
    b.output("y", ["batch", 5])
    return b.build()


SOURCES: dict[str, Callable[[int], onnx.ModelProto]] = {
    "operators": operators,
    **{name: MODELS[name].build for name in ("residual", "transformer", "detector")},
}


@functools.cache
def quantized(
    source: str,
    form: QuantFormat,
    activations: QuantType = U8,
    weights: QuantType = S8,
    *,
    per_channel: bool = True,
    opset: int = 17,
    exclude: tuple[str, ...] = (),
    contributed: bool = False,
) -> onnx.ModelProto:
    """A test model as ONNX Runtime quantizes it, perhaps with pairs of its own domain."""
    model = SOURCES[source](opset)
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        onnx.save(model, before)
        quantize_static(
            before,
            after,
            Reader(model),
            quant_format=form,
            activation_type=activations,
            weight_type=weights,
            per_channel=per_channel,
            # The kernels of signed activations saturate pairs where processors do, and no option
            # of the runtime changes that; with 7-bit weights no pair is large enough.
            reduce_range=activations == S8,
            nodes_to_exclude=list(exclude),
            extra_options={"UseQDQContribOps": contributed},
        )
        return onnx.load(after)


@pytest.mark.crossed
@pytest.mark.parametrize(
    ("activations", "weights", "per_channel"),
    [(U8, S8, True), (S8, S8, True), (U8, U8, False)],
)
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("source", SOURCES)
def test_both_forms_bit_for_bit(
    source: str, form: QuantFormat, activations: QuantType, weights: QuantType, per_channel: bool
) -> None:
    model = quantized(source, form, activations, weights, per_channel=per_channel)
    plan, _ = assert_exact(model)
    assert sum(decision.quantized for decision in plan.decisions.values()) >= 6
    assert not any("Q" in node.op_type for node in plan.graph.nodes)


@pytest.mark.parametrize("activations", [U8, QuantType.QInt16])
def test_pairs_of_the_runtimes_own_domain(activations: QuantType) -> None:
    model = quantized("residual", QuantFormat.QDQ, activations, contributed=True)
    assert {node.domain for node in model.graph.node} == {"", "com.microsoft"}
    _, exported = assert_exact(model)
    assert set(exported.model.opset_imports) == {""}


def test_the_table_covers_what_the_quantizer_writes() -> None:
    model = quantized("operators", QuantFormat.QOperator)
    found = {(node.domain, node.op_type) for node in model.graph.node}
    missing = set(QOPERATORS) - found
    assert missing == {("com.microsoft", "QLinearConv")}  # that one is for channels last


def test_scales_of_operators_are_kept() -> None:
    model = quantized("operators", QuantFormat.QOperator)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    scales = {
        array.tobytes()
        for name, array in stored.items()
        if array.dtype == np.float32 and name.endswith("_scale")
    }
    plan = read(model)
    kept = {config.scale.tobytes() for config in plan.configs.values() if config.scale is not None}
    assert scales <= kept


def qgemm(*, with_output: bool) -> onnx.ModelProto:
    """QGemm between codes, with a bias, or handing out floats."""
    b = PairBuilder()
    b.domains["com.microsoft"] = 1
    x = b.quantize(b.input("x", ["n", 6]), 0.05, np.uint8(120))
    weight = b.constant(b.random.integers(-100, 100, (6, 4)).astype(np.int8))
    scale = b.constant(b.random.uniform(0.01, 0.02, 4).astype(np.float32))
    zero = b.constant(np.zeros(4, np.int8))
    bias = b.constant(b.random.integers(-2000, 2000, 4).astype(np.int32))
    inputs = [x, b.scalar(0.05), b.constant(np.uint8(120)), weight, scale, zero, bias]
    if with_output:
        inputs += [b.scalar(0.1), b.constant(np.uint8(100))]
    y = b.node(
        "QGemm", *inputs, domain="com.microsoft", alpha=0.5, out=None if with_output else "y"
    )
    if with_output:
        b.dequantize(y, 0.1, np.uint8(100), out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize("with_output", [True, False])
def test_a_gemm_on_codes(with_output: bool) -> None:
    model = qgemm(with_output=with_output)
    plan = read(model)
    exported = write_qdq(plan)
    if with_output:
        assert_same_outputs(model, exported.model)
    else:  # ONNX Runtime makes floats of such a pair in another order of multiplications
        feeds = dict(random_inputs(model))
        ours, theirs = (session(m).run(None, feeds)[0] for m in (exported.model, model))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# ---- verifying ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_read_model_is_verified(form: QuantFormat) -> None:
    plan = read(quantized("residual", form))
    batches = [dict(random_inputs(residual_net(), batch=3, seed=seed)) for seed in range(2)]
    found = verify_qdq(plan, write_qdq(plan), batches, threads=1)
    assert len(found.layers) == 7
    assert sum(layer.mismatches for layer in found.layers) == 0
    assert all(layer.values for layer in found.layers)


def test_a_model_with_one_scale_a_channel_of_an_activation_is_verified() -> None:
    b = PairBuilder()
    scale = np.array([0.01, 0.02, 0.04], np.float32)
    x = b.pair(b.input("x", ["n", 3, 5]), scale, np.array([0, 100, 200], np.uint8), axis=1)
    b.pair(b.node("Neg", x), 0.05, np.uint8(128), out="y")
    b.output("y")
    plan, exported = assert_exact(b.build())
    found = verify_qdq(plan, exported, [dict(random_inputs(b.build()))], threads=1)
    assert [layer.mismatches for layer in found.layers] == [0, 0]


# ---- completing ---------------------------------------------------------------------------------

CONVS = [n.name for n in residual_net().graph.node if n.op_type == "Conv"]


def completed(model: onnx.ModelProto, target: str = "onnxruntime") -> tuple[QuantizedGraph, ...]:
    plan, described = read(model), load_target(target)
    structure = complete(plan, described)
    needed = required_tensors(structure)
    statistics = None
    if needed:
        samples = open_samples(dict(random_inputs(residual_net(), batch=8)), plan.graph)
        statistics = collect(plan.graph, samples, needed, threads=1)
    return plan, assign(structure, statistics, Method.of(described))


def assert_read_scales_hold(plan: QuantizedGraph, found: QuantizedGraph) -> None:
    for end, config in plan.configs.items():
        if config.scale is not None:
            assert found.configs[end].grid == config.grid, end
            np.testing.assert_array_equal(found.configs[end].scale, config.scale)
            np.testing.assert_array_equal(found.configs[end].offset, config.offset)


@pytest.mark.crossed
@pytest.mark.parametrize(
    ("target", "activations"),
    [("onnxruntime", U8), ("onnxruntime", S8), ("tensorrt", S8), ("integer-pow2", U8)],
)
@pytest.mark.parametrize("position", range(3))
def test_a_node_left_float_is_completed(position: int, target: str, activations: QuantType) -> None:
    excluded = CONVS[position]
    model = quantized("residual", QuantFormat.QDQ, activations, exclude=(excluded,))
    plan, found = completed(model, target)
    needed = required_tensors(complete(plan, found.target))
    assert needed == (("image",) if position == 0 else ())
    assert not plan.decisions[excluded].quantized
    assert found.decisions[excluded].quantized
    assert_read_scales_hold(plan, found)
    assert {end: id(codes) for end, codes in found.baked.items()} == {
        end: id(codes) for end, codes in plan.baked.items()
    }
    exported = write_qdq(found)
    if target == "onnxruntime" and activations is U8:
        quantized_nodes = [name for name, each in found.decisions.items() if each.quantized]
        assert set(float_leftovers(exported.model, quantized_nodes).values()) <= {"ReduceMean"}
    feeds = dict(random_inputs(residual_net(), batch=3, seed=9))
    verified = verify_qdq(found, exported, [feeds], threads=1)
    assert max(layer.largest for layer in (verified.layers or verified.simulation)) <= 1


def test_a_complete_model_needs_no_samples() -> None:
    plan, found = completed(quantized("residual", QuantFormat.QDQ))
    assert required_tensors(found) == ()
    assert_read_scales_hold(plan, found)
    assert found.decisions == plan.decisions


def test_float_weights_of_a_read_input_get_the_targets_scheme() -> None:
    plan, found = completed(quantized("residual", QuantFormat.QDQ, exclude=(CONVS[1],)))
    weight = found.input_config(found.graph.node(CONVS[1]), 1)
    assert (weight.quant_min, weight.quant_max, weight.granularity.axis) == (-127, 127, 0)
    before = plan.input_config(plan.graph.node(CONVS[0]), 1)
    assert (before.quant_min, before.quant_max) == (-128, 127)


def test_overrides_do_not_reach_what_was_read() -> None:
    plan = read(quantized("residual", QuantFormat.QDQ, exclude=(CONVS[1],)))
    found = complete(plan, load_target("onnxruntime"), Overrides(keep_float=("Conv",)))
    assert found.decisions[CONVS[0]] == plan.decisions[CONVS[0]]
    assert found.decisions[CONVS[1]] == Decision(False, "kept float as asked (--keep-float Conv)")


def tensors_next_to_read_ones(b: PairBuilder) -> onnx.ModelProto:
    """A weight, an input and results, each quantized for one reader and float for another."""
    weight = b.constant(b.random.integers(-99, 99, (4, 4, 1, 1)).astype(np.int8), "w_quantized")
    stored = b.dequantize(weight, np.float32(0.01), np.int8(0))
    x = b.input("x", ["n", 4, 6, 6])
    b.node("Conv", x, stored, name="float_data", out="a")
    b.node("Conv", b.pair(x, 0.03, np.int8(0)), stored, name="read", out="b")
    b.node("MaxPool", "b", kernel_shape=[2, 2], name="pool", out="c")
    b.node("Conv", "c", b.weight(4, 4, 1, 1), name="last", out="h")
    b.node("Conv", b.pair("b", 0.07, np.int8(1)), stored, name="behind", out="d")
    b.node("Conv", x, b.weight(4, 4, 1, 1), name="new", out="e")
    b.node("Conv", b.pair("e", 0.09, np.int8(2)), stored, name="after", out="f")
    b.node("Conv", "e", b.weight(4, 4, 1, 1), name="beside", out="g")
    for name in "adfgh":
        b.output(name)
    return b.build()


def test_new_ends_take_the_scale_of_the_tensor_that_was_read() -> None:
    model = tensors_next_to_read_ones(PairBuilder())
    plan, target = read(model), load_target("onnxruntime")
    structure = complete(plan, target)
    named = {str(end): config for end, config in structure.configs.items()}
    same = {
        "float_data.input[0]": "read.input[0]",
        "float_data.input[1]": "read.input[1]",
        "new.input[0]": "read.input[0]",
        "new.output[0]": "after.input[0]",
        "beside.input[0]": "after.input[0]",
        "pool.input[0]": "behind.input[0]",
        "pool.output[0]": "behind.input[0]",
        "last.input[0]": "behind.input[0]",
    }
    for new, old in same.items():
        assert named[new].dominator is named[old].dominator, new
    points = [str(p.end) for p in quantization_points(structure) if p.value.name == "e"]
    assert points == ["new.output[0]"]
    needed = required_tensors(structure)
    assert set(needed) == {"a", "g", "h"}
    feeds = dict(random_inputs(model, batch=8))
    statistics = collect(plan.graph, open_samples(feeds, plan.graph), needed, threads=1)
    found = assign(structure, statistics, Method.of(target))
    assert_read_scales_hold(plan, found)
    exported = write_qdq(found)
    layers = verify_qdq(found, exported, [feeds], threads=1).layers
    assert max(layer.largest for layer in layers) <= 1
    assert "w_quantized" in exported.model.graph.initializers

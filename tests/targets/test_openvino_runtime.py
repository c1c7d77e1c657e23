"""The arithmetic that ``openvino.toml`` and ``openvino-avx2.toml`` say, against OpenVINO.

Every kind of kernel, with weights of 8 bits that are large enough to saturate in pairs: all are in
one model, so that a process under ``ONEDNN_MAX_CPU_ISA`` is started once.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.engines.cpu import instruction_sets
from intact.formats.base.report import Verification
from intact.formats.openvino.process import LIMIT
from intact.formats.openvino.verify import verify_openvino
from intact.formats.openvino.write import write_openvino
from intact.plan import QuantizedGraph
from intact.targets import InstructionSet, load_target
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned

pytestmark = pytest.mark.runtime_fact("openvino")

KINDS = {
    # name: channels of input and output, kernel, groups
    "first": (3, 16, 3, 1),
    "dense": (16, 16, 3, 1),
    "odd": (16, 5, 5, 1),
    "of_odd": (5, 16, 3, 1),
    "pointwise": (16, 24, 1, 1),
    "depthwise": (24, 24, 3, 24),
    "grouped": (24, 16, 3, 4),
    "thin_groups": (16, 12, 3, 4),
    "odd_groups": (12, 8, 3, 4),
    "multiplied": (8, 16, 3, 8),
    "narrow": (16, 12, 1, 1),
    "odd_inputs": (12, 16, 3, 4),
}
"""Convolutions, each behind the one before."""

RELU_BEHIND = {"first", "pointwise", "grouped", "thin_groups"}
"""The others hand out signed codes."""

AVX2_OF_8_BITS = """
extends = "openvino-avx2"
name = "mine"
[weight]
bits = 8
quant_min = -128
quant_max = 127
"""


def network() -> onnx.ModelProto:
    """Every kind of layer, on ``image [batch, 3, 12, 12]``."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 12, 12])
    for name, (inputs, outputs, kernel, group) in KINDS.items():
        # Of one sign by halves: neighbours add up.
        weight = np.abs(b.random.normal(1.0, 0.1, (outputs, inputs // group, kernel, kernel)))
        weight *= np.sign(b.random.normal(size=(outputs, 1, kernel, kernel)))
        weight /= inputs // group * kernel
        pads = [kernel // 2] * 4
        parts = (b.constant(weight.astype(np.float32)), b.weight(outputs))
        x = b.node("Conv", x, *parts, name=name, group=group, pads=pads, out=f"{name}_out")
        if name in RELU_BEHIND:
            x = b.node("Relu", x, out=f"{name}_relu")
    branch = b.conv(x, 16, 16, kernel=1)
    x = b.node("Add", b.conv(branch, 16, 16), x, name="residual", out="sum")
    x = b.node("Relu", b.node("Add", x, b.conv(x, 16, 16), name="other"), out="sum_relu")
    x = b.node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, name="average")
    x = b.node("Concat", x, b.node("MaxPool", x, kernel_shape=[1, 1]), axis=1, name="concat")
    for name, kind in (("product", "Mul"), ("alone", "Add")):  # operands of different scales
        smooth = b.node("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)
        x = b.node(kind, x, smooth, name=name)
    x = b.node("Flatten", b.node("GlobalAveragePool", x, name="mean"))
    for name, inputs, outputs in (("hidden", 32, 21), ("wide", 21, 13), ("last", 13, 5)):
        dense = b.constant(b.random.normal(1, 0.02, (outputs, inputs)).astype(np.float32))
        x = b.node("Gemm", x, dense, b.weight(outputs), name=name, transB=1, out=f"{name}_out")
        if name != "last":
            x = b.node("Relu", x)
    b.output(x, ["batch", 5])
    return b.build()


def images(count: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    image = random.normal(size=(count, 3, 12, 12)) + 2 * random.normal(size=(count, 3, 1, 1))
    return {"image": image.astype(np.float32)}


def stronger(count: int, seed: int) -> Arrays:
    """Images beyond the calibrated range: most codes are the largest."""
    return {"image": 4 * images(count, seed)["image"]}


def verified(plan: QuantizedGraph, seed: int = 3) -> Verification:
    batches = [stronger(16, seed), stronger(5, seed + 1)]
    return verify_openvino(plan, write_openvino(plan), batches)


@pytest.fixture(scope="module")
def plain() -> Verification:
    return verified(calibrate(planned(network(), "openvino"), images(64, seed=1)))


@pytest.fixture(scope="module")
def saturating(tmp_path_factory: pytest.TempPathFactory) -> QuantizedGraph:
    path = tmp_path_factory.mktemp("targets") / "mine.toml"
    path.write_text(AVX2_OF_8_BITS, encoding="utf-8")
    return calibrate(planned(network(), load_target(path)), images(64, seed=1))


@pytest.fixture(scope="module")
def old_cpu(saturating: QuantizedGraph) -> Verification:
    return verified(saturating)


SETS = {
    "AVX2": InstructionSet.AVX2,
    "AVX512_CORE_VNNI": InstructionSet.AVX512_VNNI,
    "AVX512_CORE_AMX": InstructionSet.AMX,
}
"""Values of ``ONEDNN_MAX_CPU_ISA``, which reproduce an older processor, and what they leave."""


def compared(found: Verification) -> dict[str, tuple[int, int]]:
    """Values and mismatches by the node that hands out the tensor."""
    return {each.end.split(".")[0]: (each.values, each.mismatches) for each in found.layers}


@pytest.mark.parametrize("limit", SETS)
def test_every_layer_with_the_instructions_of_another_processor(limit: str) -> None:
    if SETS[limit] not in instruction_sets():
        pytest.skip(f"this processor has no {SETS[limit]}")
    plan = calibrate(planned(network(), "openvino"), images(64, seed=2))
    found = verify_openvino(
        plan, write_openvino(plan), [stronger(16, seed=5), images(48, seed=6)], instructions=limit
    )
    assert f"{LIMIT}={limit}" in found.runtime
    assert found.in_float == found.float_nodes == found.not_compared == {}
    assert {name: wrong for name, (_, wrong) in compared(found).items() if wrong} == {}
    assert [each.mismatches for each in found.outputs] == [0]
    if SETS[limit] is InstructionSet.AMX:
        assert found.processor is None
        return
    assert found.processor is not None
    assert SETS[limit] in found.processor.compared
    (output,) = found.processor.outputs
    assert output.values == found.outputs[0].values
    if SETS[limit] is InstructionSet.AVX2:
        assert output.mismatches > 100
        assert found.processor.remedy == "quantize for such processors (--target openvino-avx2)"


def test_every_layer_of_this_processor(plain: Verification) -> None:
    assert plain.in_float == plain.float_nodes == plain.not_compared == {}
    assert len(plain.layers) >= 20
    assert {name: wrong for name, (_, wrong) in compared(plain).items() if wrong} == {}
    assert [(each.mismatches, each.values) for each in plain.outputs] == [(0, 105)]


def test_every_layer_where_pairs_saturate(
    old_cpu: Verification, saturating: QuantizedGraph
) -> None:
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in old_cpu.runtime or old_cpu.cpu.saturates_pairs
    assert old_cpu.in_float == old_cpu.float_nodes == old_cpu.not_compared == {}
    assert {name: wrong for name, (_, wrong) in compared(old_cpu).items() if wrong} == {}
    assert [each.mismatches for each in old_cpu.outputs] == [0]
    saturated = {each.step for each in old_cpu.overflows}
    pairless = {"depthwise"}
    assert saturated >= {*KINDS, "wide", "last"} - pairless
    assert not saturated & pairless


def test_without_the_limit_the_same_model_computes_otherwise(saturating: QuantizedGraph) -> None:
    found = verify_openvino(
        saturating, write_openvino(saturating), [stronger(8, seed=3)], instructions=""
    )
    if found.cpu.saturates_pairs:
        pytest.skip("this processor saturates by itself")
    assert compared(found)["dense"][1] > 100


def test_seven_bits_do_not_saturate() -> None:
    plan = calibrate(planned(network(), "openvino-avx2"), images(64, seed=1))
    found = verified(plan)
    assert found.overflows == []
    assert [each.end for each in found.layers if each.mismatches] == []
    assert [each.mismatches for each in found.outputs] == [0]


def transposed() -> onnx.ModelProto:
    """Transposed convolutions of signed and of unsigned codes, on ``image [batch, 3, 12, 12]``.

    A function behind each that is computed in float keeps its sums apart from what follows.
    """
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 12, 12])
    for name, inputs, stride in (("signed", 3, 1), ("unsigned", 16, 2), ("again", 16, 1)):
        x = b.conv(x, inputs, 16)
        x = b.node("Relu", x) if name == "unsigned" else x
        weight = np.sign(b.random.normal(size=(16, 16, 1, 1))) * np.ones((1, 1, stride, stride))
        weight = weight * b.random.uniform(0.1, 0.3, weight.shape)
        parts = (b.constant(weight.astype(np.float32)), b.weight(16))
        x = b.node("ConvTranspose", x, *parts, name=name, strides=[stride] * 2)
        x = b.node("PRelu", x, b.constant(np.full((16, 1, 1), 0.25, np.float32)))
    b.output(b.conv(x, 16, 4), ["batch", 4, 24, 24])
    return b.build()


@pytest.mark.parametrize(
    ("limit", "instructions"),
    [
        ("AVX2", InstructionSet.AVX2),
        ("AVX512_CORE", InstructionSet.AVX512),
        ("AVX512_CORE_VNNI", InstructionSet.AVX512_VNNI),
    ],
)
def test_transposed_convolutions_with_the_instructions_of_another_processor(
    limit: str, instructions: InstructionSet
) -> None:
    """Pairs saturate; for signed codes the kernels of AVX-512 halve the weights instead."""
    if instructions not in instruction_sets():
        pytest.skip(f"this processor has no {instructions}")
    plan = calibrate(planned(transposed(), "openvino"), images(32, seed=1))
    found = verify_openvino(plan, write_openvino(plan), [stronger(8, seed=3)], instructions=limit)
    assert found.in_float == {}
    assert [(each.values, each.mismatches) for each in found.outputs] == [(18_432, 0)]

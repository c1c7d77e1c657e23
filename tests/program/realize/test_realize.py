"""Graphs of programs: layouts, wide types only where they are needed, and refusals."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from intact.errors import ExportError
from intact.program import Program
from intact.program import operations as ops
from intact.program.realize import Op, integer_program, realize
from intact.targets import FloatOnce, FloatType, PairSaturate
from tests.formats.c import cases
from tests.models import ModelBuilder
from tests.plans import calibrate, calibrated, planned
from tests.program.one_step import int8, one_step
from tests.program.realize.networks import images, plan_for

SHIFT, DOUBLE = cases.SHIFT, cases.DOUBLE


def ops_of(program: Program) -> list[Op]:
    return [node.op for node in realize(program).nodes]


def test_a_convolutional_network_needs_no_transposes() -> None:
    graph = realize(integer_program(plan_for("integer-pow2")))
    found = [node.op for node in graph.nodes]
    assert Op.CONVOLVE in found
    assert Op.MAX_POOL in found
    assert Op.TRANSPOSE not in found


def test_shifts_stay_in_32_bits_and_multipliers_do_not() -> None:
    for target, kinds in (("integer-pow2", {"int8", "int32"}), ("tvm", {"int8", "int32", "int64"})):
        graph = realize(integer_program(plan_for(target)))
        assert {str(node.output.dtype) for node in graph.nodes} == kinds


def test_every_tensor_of_codes_has_a_place() -> None:
    program = integer_program(plan_for("integer-pow2"))
    graph = realize(program)
    made = {value.name: value for value in graph.inputs}
    made |= {node.output.name: node.output for node in graph.nodes}
    for tensor, place in graph.tensors:
        assert made[place.value].dtype == tensor.dtype
        lengths = [made[place.value].shape[place.order.index(a)] for a in range(len(place.order))]
        assert lengths == list(tensor.shape)
    assert len(graph.tensors) == sum(len(step.outputs) for step in program.steps)


def test_nothing_is_changed() -> None:
    program = integer_program(plan_for("tvm"))
    first, second = realize(program), realize(program)
    assert [node.output.name for node in first.nodes] == [node.output.name for node in second.nodes]


def test_ends_are_integers_or_floats() -> None:
    plan = plan_for("tvm")
    graph = realize(integer_program(plan))
    assert [value.dtype for value in (*graph.inputs, *graph.outputs)] == [np.int8, np.int8]
    graph = realize(integer_program(plan, float_ends=True))
    assert [value.dtype for value in (*graph.inputs, *graph.outputs)] == [np.float32] * 2


def test_requantizing_in_float_is_refused_step_by_step() -> None:
    plan = plan_for("onnxruntime")
    with pytest.raises(ExportError, match="float32") as caught:
        realize(integer_program(plan))
    for node in ("stem", "depthwise", "pointwise", "dense"):
        assert repr(node) in str(caught.value)
    assert "fixed_point" in str(caught.value)


def test_nodes_in_float_are_all_named_with_the_plans_reason() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 8)
    x = b.node("AveragePool", x, kernel_shape=[3, 3], name="by_nine")
    x = b.node("Erf", b.conv(x, 8, 8), name="curve")
    b.output(b.conv(x, 8, 4))
    plan = calibrate(planned(b.build(), "integer-pow2"), images(8))
    with pytest.raises(ExportError) as caught:
        integer_program(plan)
    assert "'by_nine'" in str(caught.value)
    assert "'curve'" in str(caught.value)
    assert "a division, and the accelerator only shifts" in str(caught.value)
    assert "Quantize" not in str(caught.value)  # conversions follow from what is told


def test_a_float_end_is_told_where_all_steps_are_integers() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    b.output(b.conv(x, 3, 8), ["batch", 8, 8, 8])
    b.output(b.node("Erf", x, name="curve"), ["batch", 3, 8, 8])
    plan = calibrate(planned(b.build(), "integer-pow2"), images(8))
    with pytest.raises(ExportError, match="'curve'"):
        integer_program(plan)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"requantize": FloatOnce()}, "float32"),
        ({"requantize": FloatOnce(precision=FloatType.FLOAT64)}, "float64"),
    ],
)
def test_arithmetic_that_is_refused(fields: dict[str, object], reason: str) -> None:
    program = cases.convolutions(msgspec.structs.replace(DOUBLE, **fields), cases.Scales())["plain"]
    with pytest.raises(ExportError, match=reason):
        realize(program)


@pytest.mark.parametrize("name", ["plain", "dense", "turned", "matmul"])
def test_pairs_that_saturate_are_refused(name: str) -> None:
    arithmetic = msgspec.structs.replace(DOUBLE, accumulator=PairSaturate(pair_bits=16))
    with pytest.raises(ExportError, match="saturate"):
        realize(cases.convolutions(arithmetic, cases.Scales())[name])


def test_sums_that_leave_32_bits_and_do_not_wrap_are_refused() -> None:
    weight = np.full((1, 140_000), 127, np.int8)
    program = one_step(
        ops.FullyConnected(),
        SHIFT,
        [((None, 140_000), int8(0.5)), (weight, int8(0.5))],
        [((None, 1), int8(2.0**20))],
    )
    with pytest.raises(ExportError, match="32 bits"):
        realize(program)


def test_scales_that_are_no_powers_of_two_are_refused() -> None:
    program = cases.convolutions(SHIFT, cases.Scales())["plain"]
    with pytest.raises(ExportError, match="power of two"):
        realize(program)


def test_a_program_of_another_batch_keeps_it() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", [2, 3, 8, 8]), 3, 8)
    b.output(x, [2, 8, 8, 8])
    graph = realize(integer_program(calibrated(b.build(), "tvm")))
    assert graph.inputs[0].shape == (2, 3, 8, 8)
    assert graph.outputs[0].shape == (2, 8, 8, 8)


def test_an_open_batch_stays_open() -> None:
    graph = realize(integer_program(plan_for("tvm")))
    assert graph.inputs[0].shape == (None, 3, 8, 8)
    assert graph.outputs[0].shape == (None, 5)


def test_an_output_may_be_an_input() -> None:
    encoding = int8(0.5)
    program = one_step(
        ops.Reshape((-1, 4)), SHIFT, [((None, 4), encoding)], [((None, 4), encoding)]
    )
    both = replace(program, outputs={**program.outputs, "same": program.inputs["in0"]})
    assert [value.name for value in realize(both).outputs] == ["out0", "same"]
    assert ops_of(both) == [Op.COPY, Op.COPY]

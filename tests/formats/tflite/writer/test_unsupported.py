"""Everything that keeps a program from being written is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

pytest.importorskip("ai_edge_litert")


from intact.errors import ExportError
from intact.formats.base.format import Io
from intact.formats.tflite.micro import verify_micro
from intact.formats.tflite.run import Kernels, TfliteRuntime
from intact.formats.tflite.write import program_to_tflite, refuse_structure, write_tflite
from intact.ops import functions
from intact.program import Encoding, Program, Tensor
from intact.program.deployed import deployed_program
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Convolution,
    Elementwise,
    FloatNodes,
    Function,
    Pad,
    Pool,
    PoolKind,
    PRelu,
    Reshape,
    Resize,
    ResizeMode,
    Softmax,
)
from intact.program.passes.whole_inputs import with_int32
from intact.targets import load_target
from tests.formats.tflite.cases import (
    ARITHMETIC,
    CASES,
    OUT,
    X,
    codes_for,
    on_data,
    weighted,
)
from tests.formats.tflite.files import operators_of
from tests.models import ModelBuilder
from tests.plans import calibrate, planned
from tests.program.one_step import int8, int32, one_step, uint8

CONV = CASES["conv_relu"]


def changed(program: Program, slot: int, **fields: Any) -> Program:
    """Return a one-step program with another constant."""
    (step,) = program.steps
    inputs = list(step.inputs)
    constant = inputs[slot]
    assert constant is not None
    inputs[slot] = replace(constant, **fields)
    return program.with_steps((replace(step, inputs=tuple(inputs)),))


def wide() -> Program:
    codes = np.full((5, 7), -128, np.int8)
    return changed(CASES["fully_connected"], 1, data=codes)


def of(
    operation: Any, shape: Any, encoding: Encoding = X, result: Encoding | None = None
) -> Program:
    return on_data(operation, shape, shape, encoding, result)


def float_nodes() -> Program:
    node = ir.Node("", "LSTM", [])
    return on_data(FloatNodes((node,), (), ()), (1, 2), (1, 2))


def pool_of_two_scales() -> Program:
    pool = Pool(PoolKind.AVERAGE, (2, 2), (2, 2), ((0, 0), (0, 0)))
    return on_data(pool, (1, 4, 4, 2), (1, 2, 2, 2), X, OUT)


def two_scales(kind: Binary) -> Program:
    return one_step(Elementwise(kind), ARITHMETIC, [((2,), X), ((2,), OUT)], [((2,), OUT)])


SYMMETRIC = Encoding(np.asarray(0.1, np.float32), np.asarray(0, np.int64), -127, 127)
VOLUME = Convolution((1,) * 3, ((0, 0),) * 3, (1,) * 3)


def scaled(name: str, factor: float) -> Program:
    """Return a case with other scales of its activations' inputs."""
    program = CASES[name]
    (step,) = program.steps

    def coarser(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.is_constant or tensor.encoding is None:
            return tensor
        scale = (tensor.encoding.scale * np.float32(factor)).astype(np.float32)
        return replace(tensor, encoding=replace(tensor.encoding, scale=scale))

    step = replace(step, inputs=tuple(coarser(each) for each in step.inputs))
    return Program({t.name: t for t in step.activations}, program.outputs, (step,))


LIMITS: dict[str, float] = {
    "add": 0.09 / 0.05 * 2**19,
    "squared_difference": (0.4 / 0.05**2 * 2**12) ** 0.5,
    "conv_no_bias": 0.09 / (0.05 * 0.0035) * 256,
    "fully_connected_3d": 0.09 / (0.05 * 0.003) * 256,
    "hard_swish": 0.09 / 0.05 * 128,
    "softmax": 2**-26 / 0.05,
    "log_softmax": 2**-26 / 0.05,
}
"""Factors of the inputs' scales at which a kernel gives up."""


@pytest.mark.parametrize("name", LIMITS)
def test_scales_too_far_apart_are_unsupported(name: str) -> None:
    """LiteRT would end the process for some of them, so that only the other side is run."""
    outward = -1 if "softmax" in name else 1
    with pytest.raises(ExportError, match="too far apart"):
        program_to_tflite(scaled(name, LIMITS[name] * 1.001**outward))
    inside = scaled(name, LIMITS[name] / 1.001**outward)
    content = program_to_tflite(inside)
    for kernels in Kernels:
        TfliteRuntime(content, kernels=kernels).run(codes_for(inside))


UNSUPPORTED: dict[str, tuple[Program, str]] = {
    "uint8": (of(Reshape((1, 2)), (1, 2), uint8(0.1, 128)), "0..255"),
    "narrow": (of(Reshape((1, 2)), (1, 2), SYMMETRIC), "-127..127"),
    "by channel": (of(Reshape((1, 2)), (1, 2), int8([0.1, 0.2], axis=1)), "by channel"),
    "weight of -128": (wide(), "-128..-128 beyond -127..127"),
    "weight zero point": (
        changed(CASES["fully_connected"], 1, encoding=int8(0.003, 1)),
        "zero point",
    ),
    "weight by input": (
        changed(CASES["conv"], 1, encoding=int8([0.1, 0.2, 0.3], axis=3)),
        "along axis 3",
    ),
    "bias scale": (
        changed(CASES["fully_connected"], 2, encoding=int32(0.004)),
        "data times weight",
    ),
    "softmax": (of(Softmax(1), (1, 4), X, OUT), "scale 0.0900000036 and zero point -11"),
    "log_softmax": (of(Softmax(1, log=True), (1, 4), X, OUT), "0.0625 and 127"),
    "sigmoid": (of(Function(functions.sigmoid), (1, 4), X, OUT), "0.00390625 and -128"),
    "tanh": (of(Function(functions.tanh), (1, 4), X, OUT), "0.0078125 and 0"),
    "average": (pool_of_two_scales(), "differ in scale"),
    "minimum": (two_scales(Binary.MINIMUM), "differ in scale"),
    "linear": (
        on_data(Resize(ResizeMode.LINEAR, (2, 2)), (1, 1, 1, 2), (1, 2, 2, 2), X, OUT),
        "differ in scale",
    ),
    "volumes": (
        weighted(VOLUME, (1, 4, 4, 4, 2), (2, 1, 1, 1, 2), (1, 4, 4, 4, 2)),
        "not 3",
    ),
    "division": (two_scales(Binary.DIV), "in float only"),
    "float nodes": (float_nodes(), "LSTM"),
    "negative pads": (on_data(Pad(((0, 0), (-1, 0))), (1, 4), (1, 3)), "negative pads"),
    "axes": (of(BatchMatMul(), (1,) * 6), "6 axes"),
    "open axes": (of(Softmax(2), (None, None, 4), X, int8(1 / 256, -128)), "[?, ?, 4]"),
    "slope by channel": (
        changed(CASES["prelu"], 1, encoding=int8([0.1, 0.2, 0.3], axis=2)),
        "by channel",
    ),
    "slope of int32": (changed(CASES["prelu"], 1, encoding=int32(0.1)), "int32, not int8"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_steps_are_reported_with_reason_and_remedy(name: str) -> None:
    program, reason = UNSUPPORTED[name]
    remedies = {"open axes": "input_shape", "float nodes": "cut them from the model"}
    remedy = remedies.get(name, "keep_float")
    with pytest.raises(ExportError, match=remedy) as caught:
        program_to_tflite(program)
    assert reason in str(caught.value)


def test_another_target_is_offered_only_to_plans_of_others() -> None:
    program = UNSUPPORTED["softmax"][0]
    with pytest.raises(ExportError, match=r"keep_float$"):
        program_to_tflite(program, load_target("tflite-micro"))
    with pytest.raises(ExportError, match=r"or quantize for target tflite$"):
        program_to_tflite(program, load_target("onnxruntime"))


def test_unsupported_steps_are_all_listed() -> None:
    first, second = UNSUPPORTED["softmax"][0], UNSUPPORTED["weight of -128"][0]
    steps = (replace(first.steps[0], name="one"), CONV.steps[0], second.steps[0])
    program = Program(first.inputs, first.outputs, steps)
    with pytest.raises(ExportError, match=r"'one': .*; 'step': .*-128\.\.-128"):
        program_to_tflite(program)


def test_unsupported_steps_with_one_reason_are_reported_together() -> None:
    step = UNSUPPORTED["softmax"][0].steps[0]
    program = Program({}, {}, tuple(replace(step, name=f"s{k}") for k in range(30)))
    with pytest.raises(ExportError) as caught:
        program_to_tflite(program)
    assert all(f"'s{k}'" in str(caught.value) for k in range(30))
    assert str(caught.value).count("zero point") == 1


def test_a_slope_may_have_the_range_of_weights() -> None:
    program = changed(CASES["prelu"], 1, encoding=SYMMETRIC)
    assert isinstance(program.steps[0].operation, PRelu)
    TfliteRuntime(program_to_tflite(program))


@pytest.mark.parametrize(
    ("op_type", "shape", "code", "most"),
    [
        ("Slice", [1, 2, 3, 4, 5], "STRIDED_SLICE", 4),
        ("Transpose", [1, 2, 3, 2, 3, 2], "TRANSPOSE", 5),
        ("Expand", [1, 2, 3, 2, 3, 1], "BROADCAST_TO", 5),
    ],
)
def test_microcontrollers_have_fewer_axes(
    op_type: str, shape: list[int], code: str, most: int
) -> None:
    b = ModelBuilder(17)
    x = b.node("Relu", b.input("x", shape))
    if op_type == "Slice":
        y = b.node("Slice", x, b.ints(1, 1, 1), b.ints(2, 3, 4), b.ints(1, 3, 4), name="moves")
    elif op_type == "Transpose":
        y = b.node("Transpose", x, perm=[0, 5, 4, 3, 2, 1], name="moves")
    else:
        y = b.node("Expand", x, b.ints(*shape[:-1], 4), name="moves")
    b.outputs.append(helper.make_empty_tensor_value_info(b.node("Relu", y)))
    for target in ("tflite", "tflite-micro"):
        plan = planned(b.build(), target)
        program = deployed_program(
            calibrate(plan, {"x": np.ones(shape, np.float32)}), float_operations=True
        )
        if target == "tflite":
            TfliteRuntime(program_to_tflite(program, plan.target))
            continue
        # Before scales are known, when no sample was read.
        with pytest.raises(ExportError) as caught:
            refuse_structure(program, Io.FLOAT, plan.target)
        said = f": its {code} has {len(shape)} axes, the kernel takes {most}; merge axes"
        assert said in str(caught.value)
        # What only moves axes is one with others that do, and called after its tensor.
        assert ("'moves'" in str(caught.value)) == (op_type != "Transpose")


@pytest.mark.parametrize("rank", [5, 6])
@pytest.mark.parametrize("axes", [(1,), (-1,), (2,), (1, 2)])
def test_slices_of_many_axes_join_those_that_stay_for_microcontrollers(
    rank: int, axes: tuple[int, ...]
) -> None:
    pytest.importorskip("tflite_micro")
    b, shape = ModelBuilder(17), [1, 3, 4, 3, 2, 3][:rank]
    x = b.node("Relu", b.input("x", ["batch", *shape[1:]]))
    ends = (b.ints(*(1 for _ in axes)), b.ints(*(9 for _ in axes)), b.ints(*axes))
    b.outputs.append(helper.make_empty_tensor_value_info(b.node("Slice", x, *ends)))
    data = {"x": np.random.default_rng(0).normal(size=(4, *shape[1:])).astype(np.float32)}
    plan = calibrate(planned(b.build(), "tflite-micro"), data)
    program = with_int32(deployed_program(plan, float_operations=True))
    content = write_tflite(program, io=Io.INT8, target=plan.target)
    found = verify_micro(plan, content, [data])
    assert [each.mismatches for each in found.outputs] == [0]
    assert operators_of(content).count("RESHAPE") == 2
    # What has kernels of more axes is left as it was.
    assert "RESHAPE" not in operators_of(write_tflite(program, io=Io.INT8))

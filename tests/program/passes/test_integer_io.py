from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import ExportError
from intact.formats.base.format import Deployed, Io
from intact.formats.registry import FORMATS, runtime_of
from intact.numerics.metrics import sqnr_db
from intact.ops import functions
from intact.program import Encoding, Program, Step, Tensor, operations
from intact.program.lower import lower
from intact.program.operations import (
    Binary,
    Dequantize,
    Elementwise,
    FloatNodes,
    Function,
    Quantize,
    Transpose,
)
from intact.program.passes.integer_io import integer_io
from intact.targets import Arithmetic, FloatOnce
from tests.models import ModelBuilder, run_model
from tests.plans import calibrated
from tests.program.one_step import int8

ARITHMETIC = Arithmetic(requantize=FloatOnce())
A, B = int8(0.1, 3), int8(0.2)


def tensor(name: str, encoding: Encoding | None = None) -> Tensor:
    return Tensor(name, (None, 4), encoding)


def step(name: str, operation: Any, inputs: list[Tensor], output: Tensor) -> Step:
    return Step(name, operation, tuple(inputs), (output,), ARITHMETIC)


X, QX, QY, Y = tensor("x"), tensor("qx", A), tensor("qy", B), tensor("y")
TANH = Function(functions.tanh)
QUANTIZE = step("q", Quantize(), [X], QX)
DEQUANTIZE = step("d", Dequantize(), [QY], Y)
PLAIN = Program({"x": X}, {"y": Y}, (QUANTIZE, step("t", TANH, [QX], QY), DEQUANTIZE))


def test_quantize_and_dequantize_at_the_ends_are_left_out() -> None:
    found = integer_io(PLAIN)
    assert [each.name for each in found.steps] == ["t"]
    assert found.inputs == {"x": QX}
    assert found.outputs == {"y": QY}


def test_the_program_given_is_not_changed() -> None:
    integer_io(PLAIN)
    assert PLAIN.inputs == {"x": X}
    assert len(PLAIN.steps) == 3


def test_it_can_be_done_twice() -> None:
    once = integer_io(PLAIN)
    twice = integer_io(once)
    assert (twice.inputs, twice.outputs) == (once.inputs, once.outputs)
    assert [each.name for each in twice.steps] == ["t"]


def test_two_equal_quantizers_become_one_input() -> None:
    again = tensor("again", int8(0.1, 3))
    add = step("a", Elementwise(Binary.ADD), [QX, again], QY)
    steps = (QUANTIZE, step("q2", Quantize(), [X], again), add, DEQUANTIZE)
    found = integer_io(Program({"x": X}, {"y": Y}, steps))
    assert [each.name for each in found.steps] == ["a"]
    assert found.steps[0].inputs == (QX, QX)


@pytest.mark.parametrize(("first", "second"), [(0.1, 0.2), (0.2, 0.1)])
def test_an_input_on_two_scales_has_the_finer_codes(first: float, second: float) -> None:
    one, other = tensor("one", int8(first)), tensor("other", int8(second))
    add = step("a", Elementwise(Binary.ADD), [one, other], QY)
    steps = (step("q1", Quantize(), [X], one), step("q2", Quantize(), [X], other), add, DEQUANTIZE)
    found = integer_io(Program({"x": X}, {"y": Y}, steps))
    fine, coarse = (one, other) if first < second else (other, one)
    assert found.inputs == {"x": fine}
    assert found.steps[0].operation == operations.Requantize()
    assert (found.steps[0].inputs, found.steps[0].outputs) == ((fine,), (coarse,))
    assert found.steps[1].inputs == (one, other)


def test_a_dequantize_that_others_read_stays() -> None:
    late = step("t2", TANH, [Y], tensor("z"))
    back = step("q3", Quantize(), [tensor("z")], tensor("qz", A))
    end = step("d3", Dequantize(), [tensor("qz", A)], tensor("z_out"))
    program = Program({"x": X}, {"y": Y, "z": tensor("z_out")}, (*PLAIN.steps, late, back, end))
    found = integer_io(program)
    assert [each.name for each in found.steps] == ["t", "d", "t2", "q3"]
    assert {name: each.name for name, each in found.outputs.items()} == {"y": "qy", "z": "qz"}


def test_an_input_that_is_also_an_output_becomes_codes() -> None:
    out = tensor("out")
    steps = (QUANTIZE, step("d", Dequantize(), [QX], out))
    found = integer_io(Program({"x": X}, {"out": out}, steps))
    assert found.steps == ()
    assert found.inputs == {"x": QX}
    assert found.outputs == {"out": QX}


def test_one_tensor_may_be_two_outputs() -> None:
    found = integer_io(Program({"x": X}, {"y": Y, "again": Y}, PLAIN.steps))
    assert found.outputs == {"y": QY, "again": QY}


def test_an_input_that_nothing_reads_stays() -> None:
    idle = tensor("idle")
    found = integer_io(Program({"x": X, "idle": idle}, {"y": Y}, PLAIN.steps))
    assert found.inputs == {"x": QX, "idle": idle}


MOVED = step("m", Transpose((1, 0)), [X], tensor("moved"))
WIDE = step("q2", Quantize(), [X], tensor("qx2", replace(B, quant_min=-(2**15))))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            Program({"x": X}, {"y": Y}, (*PLAIN.steps, MOVED)),
            r"input 'x' is read as floats by 'm'",
        ),
        (Program({"x": X}, {"y": Y}, (*PLAIN.steps, WIDE)), r"input 'x' is quantized in two ways"),
        (Program({"x": X}, {"y": Y, "x2": X}, PLAIN.steps), r"input 'x' is an output too"),
        (
            Program(
                {"x": X}, {"y": tensor("f")}, (*PLAIN.steps, step("f", TANH, [Y], tensor("f")))
            ),
            r"output 'y' is made in float by 'f'",
        ),
        (Program({"x": X}, {"x": X}, ()), r"output 'x' is made in float outside"),
    ],
)
def test_floats_at_the_ends_are_named(program: Program, message: str) -> None:
    with pytest.raises(ExportError, match=rf"{message}.*io float"):
        integer_io(program)


def test_of_an_island_the_nodes_at_the_ends_are_named() -> None:
    x = ir.Value(name="x")
    first = ir.node("Relu", [x], name="first")
    second = ir.node("Relu", [first.outputs[0]], name="second")
    made = tensor("made")
    operation = FloatNodes((first, second), (x,), (second.outputs[0],))
    program = Program({"x": X}, {"y": made}, (step("island", operation, [X], made),))
    with pytest.raises(ExportError, match=r"floats by 'first'; output 'y' .* by 'second'"):
        integer_io(program)


def test_all_float_ends_are_listed() -> None:
    program = Program({"x": X}, {"y": Y, "m": MOVED.outputs[0]}, (*PLAIN.steps, MOVED))
    with pytest.raises(ExportError, match=r"input 'x' is read .*; output 'm' is made"):
        integer_io(program)


def turned_at_the_end(order: list[int]) -> onnx.ModelProto:
    """A convolution, and a Transpose that makes the output."""
    b = ModelBuilder()
    x = b.input("x", ["N", 3, 6, 5])
    y = b.node("Conv", x, b.weight(4, 3, 1, 1))
    b.output(b.node("Transpose", b.node("Relu", y), perm=order, out="turned"))
    return b.build()


@pytest.mark.crossed
@pytest.mark.parametrize("order", [[0, 3, 1, 2], [0, 1, 3, 2], [0, 2, 3, 1], [0, 3, 2, 1]])
@pytest.mark.parametrize(
    ("target", "name"), [("tflite-micro", "c"), ("tflite", "tflite"), ("x86", "onnx_integer")]
)
def test_an_output_behind_a_transpose_has_the_axes_of_the_model(
    target: str, name: str, order: list[int]
) -> None:
    model = turned_at_the_end(order)
    x = {"x": np.random.default_rng(0).normal(size=(4, 3, 6, 5)).astype(np.float32)}
    (expected,) = run_model(model, x).values()
    plan = calibrated(model, target)
    (found,) = integer_io(lower(plan)).outputs.values()
    assert found.value == "turned"
    run = runtime_of(name).run
    exported = FORMATS[name].writer.write(plan, Io.INT8)
    (array,) = run(Deployed(plan, exported, threads=1), x).values()
    assert array.shape == expected.shape
    assert sqnr_db(expected, array) > 30

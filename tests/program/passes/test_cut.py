from __future__ import annotations

from intact.formats.tflite.verify import one_op_programs
from intact.ops import functions
from intact.program import Program, Step, Tensor
from intact.program.operations import Binary, Elementwise, Function, Split
from intact.targets import Arithmetic, FloatOnce
from tests.program.one_step import int8

ARITHMETIC = Arithmetic(requantize=FloatOnce())
ENCODING = int8(0.1)
X, Y, Z, LEFT, RIGHT = (Tensor(name, (2, 4), ENCODING) for name in ("x", "y", "z", "l", "r"))
ONE = Tensor("one", (), ENCODING, data=ENCODING.zero_point.astype("int8"))

STEPS = (
    Step("tanh", Function(functions.tanh), (X,), (Y,), ARITHMETIC),
    Step("twice", Elementwise(Binary.ADD), (Y, Y), (Z,), ARITHMETIC),
    Step("plus", Elementwise(Binary.ADD), (X, ONE), (Z,), ARITHMETIC),
    Step("halves", Split(1, (2, 2)), (Z,), (LEFT, RIGHT), ARITHMETIC),
)
PROGRAM = Program({"input": X}, {"output": LEFT}, STEPS, {"n": "because"})


def test_each_step_becomes_a_program_of_its_own() -> None:
    found = list(one_op_programs(PROGRAM))
    assert tuple(step for step, _ in found) == STEPS
    assert [program.steps for _, program in found] == [(step,) for step in STEPS]


def test_ends_are_named_after_tensors() -> None:
    ends = [(p.inputs, p.outputs) for _, p in one_op_programs(PROGRAM)]
    assert ends == [
        ({"x": X}, {"y": Y}),
        ({"y": Y}, {"z": Z}),  # once, though it is read twice
        ({"x": X}, {"z": Z}),  # the constant is no input
        ({"z": Z}, {"l": LEFT, "r": RIGHT}),
    ]


def test_a_program_without_steps_has_none() -> None:
    assert list(one_op_programs(Program({"x": X}, {"x": X}, ()))) == []

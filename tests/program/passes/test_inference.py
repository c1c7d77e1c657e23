"""How long open axes are for one sample; the rules by operation are held in ``formats/c``."""

from __future__ import annotations

from dataclasses import replace

from intact.program import Program, Step, Tensor
from intact.program import operations as ops
from intact.program.passes.inference import open_lengths
from intact.targets import Arithmetic, FloatOnce

ARITHMETIC = Arithmetic(requantize=FloatOnce())
X = Tensor("x", (None, 4, 6))
FOLDED = Tensor("folded", (None, 6))
BACK = Tensor("back", (None, 4, 6))
STEPS = (
    Step("fold", ops.Reshape((-1, 6)), (X,), (FOLDED,), ARITHMETIC),
    Step("back", ops.Reshape((-1, 4, 6)), (FOLDED,), (BACK,), ARITHMETIC),
)


def test_open_lengths_follow_axes_folded_into_the_batch() -> None:
    program = Program({"x": X}, {"back": BACK}, STEPS)
    assert open_lengths(program) == {"folded": 4, "back": 1}


def test_unknown_lengths_are_left_out() -> None:
    unknown = replace(STEPS[0], operation=ops.FloatNodes((), (), ()))
    assert open_lengths(Program({"x": X}, {}, (unknown,))) == {}
    closed = replace(STEPS[0], outputs=(Tensor("folded", (4, 6)),))
    assert open_lengths(Program({"x": X}, {}, (closed,))) == {}

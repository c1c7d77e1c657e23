"""Shapes that a model leaves open are computed, and agree with what the engine makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from intact.engines.integer import IntegerEngine
from intact.formats.c.files import OpenShapes, static_shapes
from intact.program import Program
from intact.program import operations as ops
from tests.formats.c import cases, window_cases
from tests.program.one_step import int8, one_step

EVERY = {
    **cases.convolutions(cases.DOUBLE, cases.Scales()),
    **cases.pairs(cases.DOUBLE, cases.Scales()),
    **window_cases.windows(cases.DOUBLE, cases.Scales()),
    **window_cases.moves(),
    **window_cases.functions(),
}


def opened(program: Program) -> Program:
    """Return a one-step program whose results have only open axes."""
    (step,) = program.steps
    outputs = tuple(replace(t, shape=(None,) * len(t.shape)) for t in step.outputs)
    named = {tensor.name: tensor for tensor in outputs}
    return replace(program, outputs=named, steps=(replace(step, outputs=outputs),))


@pytest.mark.parametrize("name", list(EVERY))
def test_shapes_are_those_of_the_engine(name: str) -> None:
    program = opened(EVERY[name])
    fed = {key: codes[:1] for key, codes in cases.feeds(program, 2).items()}
    results = IntegerEngine(program).run(fed).outputs
    shapes = static_shapes(program)
    assert {key: shapes[key] for key in results} == {key: a.shape for key, a in results.items()}


def test_a_batch_that_moved_to_another_axis() -> None:
    x = int8(0.1)
    fold = one_step(ops.Reshape((3, -1, 4)), cases.DOUBLE, [((None, 12), x)], [((3, None, 4), x)])
    assert static_shapes(fold)["out0"] == (3, 1, 4)


def test_shapes_that_contradict_each_other() -> None:
    x = int8(0.1)
    wrong = one_step(ops.Transpose((0, 2, 1)), cases.DOUBLE, [((None, 3, 4), x)], [((1, 3, 4), x)])
    with pytest.raises(OpenShapes) as caught:
        static_shapes(wrong)
    assert caught.value.tensors == {"out0": "it is 1x4x3, not 1x3x4"}


def test_windows_that_are_not_as_many_as_declared() -> None:
    """ONNX counts a last window that lies all behind the data where a pool rounds up."""
    x = int8(0.1)
    pool = ops.Pool(ops.PoolKind.MAX, (2, 2), (3, 3), ((0, 0), (0, 1)))
    wrong = one_step(pool, cases.DOUBLE, [((None, 9, 7, 3), x)], [((None, 4, 3, 3), x)])
    with pytest.raises(OpenShapes) as caught:
        static_shapes(wrong)
    assert caught.value.tensors == {"out0": "it is 1x3x3x3, not ?x4x3x3"}

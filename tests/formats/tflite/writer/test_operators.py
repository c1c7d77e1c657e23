"""Every operation as a file of one operator: it loads, and it computes what it should.

Whether it does so to the bit is for the tests of the engine's kernels. Here an operation written
with wrong axes, pads or weights would be far off real numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from intact.formats.tflite.run import Kernels, TfliteRuntime
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Program
from tests.formats.tflite.cases import CASES, CODES_ONLY, FLOAT_ONLY, as_float, codes_for, real
from tests.formats.tflite.float_reference import evaluate

pytest.importorskip("ai_edge_litert")

NOT_IN_REFERENCE = {"elu"}
"""LiteRT registers no reference kernel."""

WRONG_IN_REFERENCE = {"sum"}
"""LiteRT's reference kernel is far off for negative sums; the two others are right."""

NOT_IN_MICRO = {"gelu", "gelu_tanh", "exp", "log", "expand_batch"}
"""TFLite Micro has no such int8 kernel, or no open batch."""


def real_inputs(program: Program, feeds: Mapping[str, Array]) -> list[Array | None]:
    """Return what a step's inputs stand for, by slot; constants are the program's."""
    (step,) = program.steps
    found: list[Array | None] = []
    for tensor in step.inputs:
        if tensor is None:
            found.append(None)
            continue
        data = feeds[tensor.name] if tensor.data is None else tensor.data
        found.append(data if tensor.encoding is None else real(tensor.encoding, data))
    return found


def wanted(program: Program, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the real numbers that a one-step program should give."""
    (step,) = program.steps
    with np.errstate(divide="ignore", invalid="ignore"):
        results = evaluate(step, real_inputs(program, feeds))
    return {tensor.name: array for tensor, array in zip(step.outputs, results, strict=True)}


def assert_within_a_step(program: Program, found: Mapping[str, Array]) -> None:
    feeds = codes_for(program)
    for name, expected in wanted(program, feeds).items():
        encoding = program.outputs[name].encoding
        assert encoding is not None
        codes = np.clip(expected / float(encoding.scale) + int(encoding.zero_point), -128, 127)
        assert found[name].shape == expected.shape
        assert found[name].dtype == np.int8
        assert np.nanmax(np.abs(codes - found[name])) <= 1.01


def pairs(names: Iterable[str], left_out: set[str]) -> list[tuple[str, Kernels]]:
    """Return names with kernels, less what the reference kernels leave out."""
    found = itertools.product(names, Kernels)
    return [(n, k) for n, k in found if k is not Kernels.REF or n not in left_out]


@pytest.mark.parametrize(("name", "kernels"), pairs(CASES, NOT_IN_REFERENCE | WRONG_IN_REFERENCE))
def test_codes_are_within_a_step_of_real_numbers(name: str, kernels: Kernels) -> None:
    program = CASES[name]
    runtime = TfliteRuntime(program_to_tflite(program), kernels=kernels)
    outputs, _ = runtime.run(codes_for(program))
    assert_within_a_step(program, outputs)


IN_FLOAT = {n: case for n, case in {**CASES, **FLOAT_ONLY}.items() if n not in CODES_ONLY}


@pytest.mark.parametrize(("name", "kernels"), pairs(IN_FLOAT, NOT_IN_REFERENCE))
def test_floats_are_those_of_numpy(name: str, kernels: Kernels) -> None:
    integer = IN_FLOAT[name]
    program = as_float(integer)
    feeds = {
        key: real(encoding, codes).astype(np.float32)
        for key, codes in codes_for(integer).items()
        if (encoding := integer.inputs[key].encoding) is not None
    }
    outputs, _ = TfliteRuntime(program_to_tflite(program), kernels=kernels).run(feeds)
    for key, expected in wanted(program, feeds).items():
        defined = np.isfinite(expected)  # what 1 / sqrt(0) is, kernels do not agree on
        np.testing.assert_allclose(outputs[key][defined], expected[defined], rtol=1e-4, atol=1e-4)
        assert outputs[key].shape == expected.shape


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_IN_MICRO])
def test_tflite_micro_computes_them_too(name: str) -> None:
    micro = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    program = CASES[name]
    interpreter = micro.Interpreter.from_bytes(program_to_tflite(program))
    for place, codes in enumerate(codes_for(program).values()):
        interpreter.set_input(codes, place)
    interpreter.invoke()
    found = {key: interpreter.get_output(place) for place, key in enumerate(program.outputs)}
    assert_within_a_step(program, found)


def test_the_kernels_that_are_left_out_still_differ() -> None:
    """Once LiteRT mends them the exceptions above can go."""
    program = CASES["sum"]
    outputs, _ = TfliteRuntime(program_to_tflite(program)).run(codes_for(program))
    with pytest.raises(AssertionError):
        assert_within_a_step(program, outputs)

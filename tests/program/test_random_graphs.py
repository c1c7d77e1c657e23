"""Programs of random models: the bits do not depend on where transposes went."""

from __future__ import annotations

import numpy as np
import pytest

from intact.calibrate.assign import required_tensors
from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.formats.tflite.verify import one_op_programs
from intact.numerics.metrics import sqnr_db
from intact.plan import QuantizedGraph
from intact.program import Program
from intact.program.lower import lower, translate
from intact.program.passes.layout import IoLayout
from tests.models import random_inputs
from tests.plans import Arrays, calibrate, planned
from tests.program.random_graphs import random_graph

OPERATORS = 10


def made(seed: int, target: str) -> tuple[QuantizedGraph, Arrays]:
    """A calibrated plan of a random model, and data."""
    model = random_graph(seed, OPERATORS)
    plan = planned(model, target)
    assert required_tensors(plan), "nothing is quantized: take another seed"
    feeds = dict(random_inputs(model, batch=2, seed=seed))
    return calibrate(plan, feeds), feeds


def computed(program: Program, feeds: Arrays) -> Arrays:
    """What a program gives, with axes as in the model."""
    stored = {
        name: np.ascontiguousarray(program.inputs[name].as_stored(array))
        for name, array in feeds.items()
    }
    outputs = IntegerEngine(program, threads=1).run(stored).outputs
    return {name: program.outputs[name].as_in_model(array) for name, array in outputs.items()}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(315, 365))
def test_layouts_give_the_same_bits(seed: int) -> None:
    plan, feeds = made(seed, "tflite")
    wanted = computed(translate(plan), feeds)
    simulated, _ = Simulator(plan, threads=1).run(feeds)
    for layout in IoLayout:
        program = lower(plan, layout=layout)
        for name, array in computed(program, feeds).items():
            np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    for name, array in wanted.items():
        assert array.shape == simulated[name].shape
        assert sqnr_db(simulated[name], array) > 10 or np.abs(simulated[name]).max() < 1e-6


@pytest.mark.parametrize("seed", range(380, 390))
def test_steps_alone_give_the_same_bits(seed: int) -> None:
    plan, feeds = made(seed, "tflite")
    program = lower(plan)
    names = [tensor.name for tensor in program.tensors()]
    seen = IntegerEngine(program, threads=1).run(feeds, observe=names).tensors
    for tensor in program.tensors():
        if not tensor.is_constant:
            assert seen[tensor.name].dtype == tensor.dtype
            lengths = zip(tensor.shape, seen[tensor.name].shape, strict=True)
            assert all(known in {None, found} for known, found in lengths)
    for step, alone in one_op_programs(program):
        own = {tensor.name: seen[tensor.name] for tensor in step.activations}
        for name, array in IntegerEngine(alone, threads=1).run(own).outputs.items():
            np.testing.assert_array_equal(array, seen[name], err_msg=step.name)

"""The engine around its kernels: what is fed, observed, forced and refused."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.integer import IntegerEngine
from intact.errors import DataError
from intact.program import Program, Tensor
from intact.program.lower import lower
from intact.program.operations import Convolution
from tests.models import ModelBuilder, random_inputs, residual_net
from tests.plans import Arrays, calibrated


@pytest.fixture(scope="module")
def engine() -> IntegerEngine:
    return IntegerEngine(lower(calibrated(residual_net(), "tflite")), threads=1)


def feeds_of(batch: int) -> Arrays:
    return dict(random_inputs(residual_net(), batch=batch))


def convolved(program: Program) -> Tensor:
    """What the first convolution gives."""
    return next(s.outputs[0] for s in program.steps if isinstance(s.operation, Convolution))


def test_every_tensor_but_constants_can_be_observed(engine: IntegerEngine) -> None:
    every = list(engine.program.tensors())
    seen = engine.run(feeds_of(2), observe=[tensor.name for tensor in every]).tensors
    assert set(seen) == {tensor.name for tensor in every if not tensor.is_constant}
    assert all(seen[t.name].dtype == t.dtype for t in every if t.name in seen)
    assert engine.run(feeds_of(2)).tensors == {}


@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_batch_is_its_samples(engine: IntegerEngine, size: int) -> None:
    feeds = feeds_of(16)
    parts = [
        engine.run({"image": feeds["image"][start : start + size]}).outputs["logits"]
        for start in range(0, 16, size)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), engine.run(feeds).outputs["logits"])


def test_an_empty_batch_gives_an_empty_one(engine: IntegerEngine) -> None:
    assert engine.run(feeds_of(0)).outputs["logits"].shape == (0, 5)


def test_forced_tensors_are_read_and_computed_ones_observed(engine: IntegerEngine) -> None:
    first, second = feeds_of(2), {"image": -feeds_of(2)["image"]}
    name = convolved(engine.program).name
    other = engine.run(second, observe=[name])
    forced = engine.run(first, observe=[name], forced=dict(other.tensors))
    np.testing.assert_array_equal(forced.tensors[name], engine.run(first, [name]).tensors[name])
    np.testing.assert_array_equal(forced.outputs["logits"], other.outputs["logits"])
    (image,) = engine.program.inputs.values()
    taken = engine.run(first, forced={image.name: second["image"]})
    np.testing.assert_array_equal(taken.outputs["logits"], other.outputs["logits"])


def test_feeds_of_wrong_type_or_shape_raise(engine: IntegerEngine) -> None:
    feeds, tensor = feeds_of(2), convolved(engine.program)
    wrong_type = {tensor.name: np.zeros((2, 8, 8, 8), np.float32)}
    wrong_rank = {tensor.name: np.zeros((2, 8), tensor.dtype)}
    with pytest.raises(DataError, match="no tensor 'nowhere'"):
        engine.run(feeds, observe=["nowhere"])
    with pytest.raises(DataError, match="no tensor 'nowhere'"):
        engine.run(feeds, forced={"nowhere": feeds["image"]})
    with pytest.raises(DataError, match="is float32, the program takes int8"):
        engine.run(feeds, forced=wrong_type)
    with pytest.raises(DataError, match="has 2 axes, the program takes 4"):
        engine.run(feeds, forced=wrong_rank)
    with pytest.raises(DataError, match="'image' has 3 axes"):
        engine.run({"image": feeds["image"][0]})
    with pytest.raises(DataError, match="'image' is float64"):
        engine.run({"image": feeds["image"].astype(np.float64)})
    with pytest.raises(DataError, match="'image' is missing"):
        engine.run({})


def test_a_step_that_cannot_take_a_shape_is_named() -> None:
    b = ModelBuilder()
    x = b.node("Sigmoid", b.input("x", [2, 3, 4]))
    b.node("Softmax", b.node("Reshape", x, b.ints(2, 12), name="flat"), out="y")
    b.output("y")
    engine = IntegerEngine(lower(calibrated(b.build(), "tflite")), threads=1)
    with pytest.raises(DataError, match=r"'flat' cannot compute with arrays .*5, 3, 4\]"):
        engine.run({"x": np.zeros((5, 3, 4), np.float32)})

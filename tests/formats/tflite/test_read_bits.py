"""What is read gives LiteRT's reference integers, tensor for tensor, in the integer engine."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from intact.engines.integer.engine import IntegerEngine
from intact.formats.tflite.int16 import INT16_VERSIONS
from intact.formats.tflite.read import TfliteModel, read_tflite_model
from intact.graph import moves_values
from intact.program import Array, Program
from intact.program.lower import lower
from intact.targets import load_target
from tests.formats.tflite.files import operators_of
from tests.formats.tflite.read_cases import CASES, WIDE, build, target_of
from tests.formats.tflite.small_files import random_feeds, reference

_SEEDS = (0, 1)
_CODES = ("int8", "uint8", "int16")


def _feeds(model: TfliteModel, arrays: dict[int, Array]) -> dict[str, Array]:
    """Return what the program takes for the arrays that the file takes."""
    feeds = {}
    for index, array in arrays.items():
        place = model.tensors[index]
        reader, slot = model.plan.graph.consumers(model.plan.graph.value(place.value))[0]
        is_coded = place.element in _CODES
        config = model.plan.input_config(reader, slot)
        feeds[place.value] = config.dequantize(array.astype(np.int64)) if is_coded else array
    return feeds


def _observed(program: Program, model: TfliteModel, feeds: dict[str, Array]) -> dict[int, Array]:
    """Return what the engine computes, by number in the file, with the file's axes."""
    tensors = {(t.value, t.encoding is not None): t for t in program.tensors() if not t.is_constant}
    run = IntegerEngine(program).run(feeds, [tensor.name for tensor in tensors.values()])
    found = {}
    for index, place in model.tensors.items():
        tensor = tensors.get((place.value, place.element in _CODES))
        if tensor is not None and tensor.name in run.tensors:
            array = tensor.as_in_model(run.tensors[tensor.name])
            order = place.permutation
            found[index] = array if order is None else array.transpose(order)
    return found


@pytest.mark.parametrize("name", [*CASES, *WIDE])
def test_every_tensor_has_the_reference_integers(name: str) -> None:
    data = build(name)
    model = read_tflite_model(data, target_of(name))
    program = lower(model.plan)
    interpreter = reference(data)
    wrong: Counter[str] = Counter()
    compared: set[int] = set()
    for seed in _SEEDS:
        arrays = dict(random_feeds(interpreter, seed))
        for index, array in arrays.items():
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        for index, array in _observed(program, model, _feeds(model, arrays)).items():
            expected = interpreter.get_tensor(index)
            assert array.shape == expected.shape
            if model.tensors[index].element in _CODES:
                wrong[model.tensors[index].name] += int(np.sum(array != expected))
            else:
                np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
            compared.add(index)
    assert +wrong == Counter()
    codes = {index for index, place in model.tensors.items() if place.element in _CODES}
    for index in codes - compared:  # the program may do without a tensor that is only moved
        producer = model.plan.graph.value(model.tensors[index].value).producer()
        assert producer is not None
        assert moves_values(producer)
    assert len(compared) > 1


def test_every_int16_operator_is_in_a_case() -> None:
    found = {name for case in WIDE for name in operators_of(build(case))}
    assert found == set(INT16_VERSIONS)


@pytest.mark.parametrize("name", [name for name in CASES if name != "dilated_by_batch"])
def test_a_batch_is_its_samples(name: str) -> None:
    data = build(name)
    model = read_tflite_model(data, load_target("tflite"))
    program, interpreter = lower(model.plan), reference(data)
    singles = [_feeds(model, dict(random_feeds(interpreter, seed))) for seed in range(3)]
    joint = {key: np.concatenate([feeds[key] for feeds in singles]) for key in singles[0]}
    engine = IntegerEngine(program)
    together = engine.run(joint).outputs
    apart = [engine.run(feeds).outputs for feeds in singles]
    for key, array in together.items():
        np.testing.assert_array_equal(array, np.concatenate([each[key] for each in apart]))


def test_a_model_that_mixes_samples_keeps_its_batch() -> None:
    plan = read_tflite_model(build("dilated_by_batch"), load_target("tflite")).plan
    assert plan.graph.inputs[0].shape is not None
    assert plan.graph.inputs[0].shape.numpy() == (1, 8, 8, 4)

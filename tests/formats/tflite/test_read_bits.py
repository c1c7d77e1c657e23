"""What is read gives LiteRT's reference integers, tensor for tensor, in the integer engine.

Floats may be multiplied with stored codes; random files are read too.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from intact.config import QuantState
from intact.engines.integer.engine import IntegerEngine
from intact.engines.session import FloatModel
from intact.formats.tflite.read import TfliteModel, read_tflite, read_tflite_model
from intact.formats.tflite.spellings import INT16_VERSIONS
from intact.graph import moves_values
from intact.program import Array, Program
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.targets import load_target
from tests.formats.tflite.files import operators_of
from tests.formats.tflite.read_cases import CASES, WIDE, build, target_of
from tests.formats.tflite.read_layers import SAME, some_scales
from tests.formats.tflite.small_files import FileBuilder, random_feeds, reference

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


_MIX_SAMPLES = {"dilated_by_batch", "elements_of_samples"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in _MIX_SAMPLES])
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


TARGET = load_target("tflite")


def hybrid(b: FileBuilder, **dense: Any) -> bytes:
    """Return a file with a convolution and a dense layer, both with int8 weights."""
    x = b.input((1, 6, 6, 3), "float32", name="image")
    weight = b.codes((4, 3, 3, 3), scale=some_scales(4))
    bias = b.tensor((4,), "float32", data=[0.5, -0.2, 0.1, 0])
    y = b.op("CONV_2D", [x, weight, bias], b.tensor((1, 3, 3, 4), "float32"), "Conv2DOptions",
             padding=SAME, strideH=2, strideW=2, dilationHFactor=1, dilationWFactor=1,
             fusedActivationFunction=1, version=5)  # fmt: skip
    y = b.op("RESHAPE", [y, b.ints(1, 36)], b.tensor((1, 36), "float32"))
    weight = b.codes((5, 36), scale=0.02)
    out = b.tensor((1, 5), "float32", name="scores")
    b.op("FULLY_CONNECTED", [y, weight, -1], out, "FullyConnectedOptions", version=4, **dense)
    return b.build(out)


def test_a_hybrid_file_is_a_float_model_with_its_weights() -> None:
    data = hybrid(FileBuilder(), asymmetricQuantizeInputs=True)
    plan = read_tflite(data, TARGET)
    image = np.random.default_rng(0).normal(size=(1, 6, 6, 3)).astype(np.float32)
    (found,) = FloatModel(plan.graph).run({"image": image}).values()
    interpreter = reference(data)
    interpreter.set_tensor(0, image)
    interpreter.invoke()
    expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.05  # LiteRT rounds what it multiplies
    weights = list(plan.baked)
    assert [plan.configs[end].state for end in weights] == [QuantState.BAKED] * 2
    assert any("at run time" in note.message for note in plan.notes)


_KINDS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "MAX_POOL_2D", "AVERAGE_POOL_2D")


def _length(size: int, width: int, stride: int, padding: int) -> int:
    return -(-size // stride) if padding == SAME else (size - width) // stride + 1


def _window(kind: str, seed: int) -> bytes:
    """Return a file of one operator; windows that are larger than the image get SAME padding."""
    random, b = Random(f"{kind} {seed}"), FileBuilder(seed)
    sizes = [random.randint(1, 9) for _ in range(2)]
    kernel = [random.randint(1, 5) for _ in range(2)]
    strides = [random.randint(1, 3) for _ in range(2)]
    channels, zero = random.choice((1, 2, 3, 8)), random.randint(-128, 127)
    fits = all(width <= size for width, size in zip(kernel, sizes, strict=True))
    padding = random.randint(0, 1) if fits else SAME
    x = b.input((1, *sizes, channels), scale=0.05, zero=zero)
    fields = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
    if kind == "TRANSPOSE_CONV":
        return _transposed(b, x, kernel, strides, fields)
    lengths = [_length(*each, padding) for each in zip(sizes, kernel, strides, strict=True)]
    fields["fusedActivationFunction"] = random.randint(0, 3)
    if kind.endswith("POOL_2D"):
        fields |= {"filterHeight": kernel[0], "filterWidth": kernel[1]}
        out = b.tensor((1, *lengths, channels), scale=0.05, zero=zero)
        return b.build(b.op(kind, [x], out, "Pool2DOptions", **fields))
    fields |= {"dilationHFactor": 1, "dilationWFactor": 1}
    is_depthwise = kind != "CONV_2D"
    outputs = channels * random.randint(1, 2) if is_depthwise else random.randint(2, 5)
    scales = some_scales(outputs)
    shape = (1, *kernel, outputs) if is_depthwise else (outputs, *kernel, channels)
    weight = b.codes(shape, scale=scales, axis=3 if is_depthwise else 0)
    bias = b.bias(outputs, [0.05 * scale for scale in scales])
    out = b.tensor((1, *lengths, outputs), scale=random.choice((0.02, 0.3)), zero=-zero // 2)
    options = "DepthwiseConv2DOptions" if is_depthwise else "Conv2DOptions"
    return b.build(b.op(kind, [x, weight, bias], out, options, **fields))


def _transposed(
    b: FileBuilder, x: int, kernel: list[int], strides: list[int], fields: dict[str, int]
) -> bytes:
    _, *sizes, channels = b.graph.tensors[x].shape
    lengths = [
        size * stride if fields["padding"] == SAME else (size - 1) * stride + width
        for size, stride, width in zip(sizes, strides, kernel, strict=True)
    ]
    weight = b.codes((3, *kernel, channels), scale=some_scales(3))
    out = b.tensor((1, *lengths, 3), scale=0.1, zero=5)
    inputs = [b.ints(1, *lengths, 3), weight, x]
    return b.build(b.op("TRANSPOSE_CONV", inputs, out, "TransposeConvOptions", **fields))


@pytest.mark.parametrize("kind", _KINDS)
def test_windows(kind: str) -> None:
    for seed in range(12):
        data = _window(kind, seed)
        interpreter = reference(data)
        ((index, codes),) = random_feeds(interpreter, seed).items()
        interpreter.set_tensor(index, codes)
        interpreter.invoke()
        plan = read_tflite(data, load_target("tflite"))
        program = integer_io(lower(plan))
        assert not program.in_float
        (found,) = IntegerEngine(program).run({"t0": codes}).outputs.values()
        expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_array_equal(found, expected, err_msg=f"{kind} {seed}")

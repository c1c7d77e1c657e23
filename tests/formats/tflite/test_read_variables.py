"""Resource variables: inputs and outputs of the plan, as LiteRT keeps them from run to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import intact
from intact.engines.integer.engine import IntegerEngine
from intact.errors import ModelError
from intact.formats.tflite.read import read_tflite, read_tflite_model
from intact.formats.tflite.run import TfliteRuntime
from intact.formats.tflite.verify import stateless
from intact.program.lower import lower
from intact.targets import load_target
from tests.formats.tflite.small_files import FileBuilder, reference
from tests.formats.tflite.streams import PAST, streaming

TARGET = load_target("tflite")


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_gives_the_codes_of_a_runtime_that_keeps_its_variables(again: bool) -> None:
    data = streaming(FileBuilder(), again=again)
    model = read_tflite_model(data, TARGET)
    engine, graph = IntegerEngine(lower(model.plan)), model.plan.graph
    interpreter = reference(data)
    (state,) = graph.states.values()
    assert (state.before, state.after) == ("ring", "ring/next")
    assert [value.name for value in graph.inputs] == ["audio", "ring"]
    assert any("input 'ring' takes what output" in note.message for note in model.plan.notes)
    held = state.first
    for codes in np.random.default_rng(0).integers(-128, 128, (5, 1, 1, 1, 4)):
        interpreter.set_tensor(model.inputs[0], codes.astype(np.int8))
        interpreter.invoke()
        audio = ((codes - 3) * np.float32(0.05)).astype(np.float32)
        outputs = engine.run({"audio": audio, "ring": held}).outputs
        held = outputs["ring/next"]
        for name in list(outputs)[:-1]:
            number = model.file.signature.outputs[name]
            expected = (interpreter.get_tensor(number).astype(np.int64) + 5) * np.float32(0.3)
            np.testing.assert_array_equal(outputs[name], expected.astype(np.float32))


def test_a_runtime_is_given_the_states() -> None:
    data = streaming(FileBuilder())
    runtime = TfliteRuntime(stateless(data, read_tflite_model(data, TARGET).file))
    assert list(runtime.inputs) == ["audio", "ring"]
    assert list(runtime.outputs) == ["out0", "ring/next"]


def test_states_left_out_of_the_data_have_their_first_value(tmp_path: Path) -> None:
    path = tmp_path / "streaming.tflite"
    path.write_bytes(streaming(FileBuilder()))
    audio = np.random.default_rng(1).normal(size=(4, 1, 1, 4)).astype(np.float32)
    result = intact.read_quantized(path, target="tflite", output=tmp_path / "out")
    again = intact.load_result(tmp_path / "out")
    first = np.full((4, *PAST[1:]), np.float32(0.05) * 4, np.float32)
    for each in (result, again):
        found = intact.execute(each, {"audio": audio}).outputs
        told = intact.execute(each, {"audio": audio, "ring": first}).outputs
        for name, array in found.items():
            np.testing.assert_array_equal(array, told[name])
        layers = intact.verify(each, {"audio": audio}).layers
        assert layers
        assert not any(layer.mismatches for layer in layers)


def test_a_variable_that_nothing_assigns_is_a_constant() -> None:
    b = FileBuilder()
    data = streaming(b)
    b.graph.operators = [op for op in b.graph.operators if len(op.inputs) != 2 or op.outputs]
    data = b.build(*b.graph.outputs)
    plan = read_tflite(data, TARGET)
    assert [value.name for value in plan.graph.inputs] == ["audio"]
    assert not plan.graph.states


def _no_handle(b: FileBuilder) -> bytes:
    data = streaming(b)
    del b.graph.operators[1]
    return b.build(*b.graph.outputs) if data else data


def _computed_first(b: FileBuilder) -> bytes:
    streaming(b)
    b.model.subgraphs[1].tensors[0].buffer = 0
    return b.build(*b.graph.outputs)


def _no_subgraph(b: FileBuilder) -> bytes:
    streaming(b)
    b.graph.operators[0].builtinOptions.initSubgraphIndex = 4
    return b.build(*b.graph.outputs)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda b: streaming(b, first_scale=0.06), "other shapes or scales"),
        (_no_handle, "READ_VARIABLE (1): its variable has no VAR_HANDLE before it"),
        (_computed_first, "CALL_ONCE (0): what it assigns is no constant"),
        (_no_subgraph, "operator 0 calls subgraph 4 of 2"),
    ],
)
def test_variables_that_cannot_be_followed_are_named(make, reason: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ModelError) as caught:
        read_tflite(make(FileBuilder()), TARGET)
    assert reason in str(caught.value)

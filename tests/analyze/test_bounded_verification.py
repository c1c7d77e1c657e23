"""The memory of a verification does not grow with its samples, and its phases are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from intact import api, demo
from intact.analyze.verification import subject as verification
from intact.analyze.verification.subject import batch_size_of, batches_of, values_of
from intact.data.sources import open_samples
from intact.engines.integer.engine import IntegerEngine
from intact.graph import normalize
from intact.program.lower import lower
from intact.results.result import Result
from tests.models import ModelBuilder


@pytest.fixture(scope="module")
def result() -> Result:
    return api.quantize(demo.model_path(), demo.calibration_path(), samples=8)


def test_activations_are_counted_and_unknown_ones_taken_for_large() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.input("x", ["batch", 3, 4, 5]))
    b.output(b.node("Sigmoid", x))
    graph = normalize(b.build())
    assert values_of(graph) == 2 * 60
    for node in graph.nodes:
        if node.op_type == "Sigmoid":
            node.outputs[0].shape = None
    assert values_of(graph) == 2 * 60


def test_as_many_samples_run_at_once_as_memory_is_meant_for(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = result.plan.graph
    data = open_samples(demo.test_path(), graph, limit=20)

    def sizes() -> list[int]:
        return [
            len(next(iter(batch.values())))
            for batch in batches_of(data, batch_size_of(data, graph))
        ]

    assert sizes() == [16, 4]
    monkeypatch.setattr(verification, "_VALUES", 7 * values_of(graph))
    assert sizes() == [7, 7, 6]
    monkeypatch.setattr(verification, "_VALUES", 1)
    assert sizes() == [1] * 20


def test_observed_tensors_need_not_be_kept(result: Result) -> None:
    program = lower(result.plan)
    engine = IntegerEngine(program)
    feeds = next(result.draw_samples(2).batches(2))[0]
    names = [tensor.name for step in program.steps for tensor in step.outputs]
    kept = engine.run(feeds, names).tensors
    seen: dict[str, np.ndarray] = {}
    found = engine.run(feeds, names, seen=seen.__setitem__)
    assert not found.tensors
    assert list(seen) == list(kept)
    assert all(np.array_equal(seen[name], kept[name]) for name in names)


class Recorder:
    """A progress function that notes what begins."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.phase: Callable[[str], None] = self.phases.append

    def __call__(self, done: int, total: int | None) -> None: ...


def test_phases_are_named() -> None:
    seen = Recorder()
    data = demo.calibration_path()
    result = api.quantize(
        demo.model_path(), data, samples=4, formats=["onnx_qdq", "encodings"], progress=seen
    )
    api.evaluate(result, data, samples=4, progress=seen)
    api.verify_all(result, samples=2, progress=seen)
    assert seen.phases == [
        "reading the model",
        "simplifying the model",
        "planning",
        "calibrating",
        "choosing scales for onnxruntime",
        "measuring the loss",
        "quantizing",
        "running what was made",
        "loading both models",
        "evaluating",
        "timing both models",
        "loading in the runtime",
        "reading samples",
        "comparing",
        "summing up",
    ]


def test_a_folder_is_read_once_in_a_report(tmp_path: Path) -> None:
    data, folder = demo.calibration_path(), tmp_path / "out"
    api.quantize(demo.model_path(), data, samples=8, output=folder)
    seen = Recorder()
    api.report(folder, data, samples=4, leave_out=["accuracy"], progress=seen)
    assert seen.phases[0] == "reading the result"
    assert seen.phases.count("reading the result") == 1

"""Sums that leave the accumulator and pairs that saturate are measured by the integer engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import intact
from intact.analyze.diagnose import arithmetic
from intact.analyze.diagnose.arithmetic import SumFindings, sum_findings
from intact.analyze.diagnose.diagnosis import Diagnosis, decibels_of, diagnosis_of, first_runs
from intact.analyze.diagnose.evidence import Evidence
from intact.calibrate.outputs import FloatRuns
from intact.data.sources import open_samples
from intact.engines import cpu
from intact.engines.simulate import Simulator
from intact.limits import WELL_DB
from intact.plan import QuantizedGraph
from tests.models import ModelBuilder
from tests.plans import HEADER, calibrate, own_target, planned

RULES = '[[op]]\nops = ["Gemm", "MatMul"]\n'
NARROW = '[arithmetic]\naccumulator = { kind = "wrap", bits = 16 }'
PAIRS = '[arithmetic]\naccumulator = { kind = "pair_saturate", pair_bits = 16 }'
DATA = {"x": np.random.default_rng(0).uniform(0, 1, (16, 8)).astype(np.float32)}


def dense(size: float = 1.0) -> onnx.ModelProto:
    """Two dense layers; the sums of the first are as large as its weights make them."""
    b = ModelBuilder()
    weight = np.full((8, 4), size, np.float32) * np.linspace(0.5, 1, 32).reshape(8, 4)
    weight[0] = 1.0  # the scale
    first = b.node("Gemm", b.input("x", ["n", 8]), b.constant(weight.astype(np.float32)), name="a")
    b.output(b.node("Gemm", first, b.constant(np.eye(4, dtype=np.float32)), name="b", out="y"))
    return b.build()


def plan_for(folder: Path, sums: str, model: onnx.ModelProto | None = None) -> QuantizedGraph:
    target = own_target(folder, RULES, header=HEADER.replace("[arithmetic]", sums))
    return calibrate(planned(model or dense(), target), DATA)


def found_in(plan: QuantizedGraph, **given: Any) -> SumFindings:
    runs = FloatRuns(plan.graph, [(DATA, 16)])
    simulator = Simulator(plan.with_exact_sums(), threads=1)
    (errors,) = runs.errors(lambda feeds: simulator.run(feeds)[0])
    return sum_findings(plan, runs, errors, well=WELL_DB, **given)


def diagnosed(plan: QuantizedGraph) -> Diagnosis:
    samples = open_samples(DATA, plan.graph)
    return diagnosis_of(Evidence(first_runs(plan, samples), samples=samples, planned=plan))


def test_sums_beyond_the_accumulator_are_the_cause(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, NARROW)
    found = diagnosed(plan)
    (first, *_) = found.findings
    assert (first.cause, first.node) == ("accumulator_overflow", "a")
    assert "leave 16 bits" in first.evidence
    assert first.severity > 0.9
    assert found.decibels["y"] < 10
    assert decibels_of(plan, open_samples(DATA, plan.graph)) == found.decibels


def test_the_remedy_has_fewer_bits_where_sums_are_large(tmp_path: Path) -> None:
    (found,) = found_in(plan_for(tmp_path, NARROW)).findings
    bits = found.remedies[0].options["bits"]
    assert bits["a"] < 8
    assert "b" not in bits
    assert found.remedies[-1].options == {"keep_float": ["a"]}


def test_fewer_bits_make_the_sums_fit(tmp_path: Path) -> None:
    target = own_target(tmp_path, RULES, header=HEADER.replace("[arithmetic]", NARROW))
    result = intact.quantize(dense(), DATA, target=target)
    before = intact.diagnose(result, DATA)
    bits = found_in(result.plan).findings[0].remedies[0].options["bits"]
    mended = intact.quantize(dense(), DATA, target=target, bits=bits)
    after = intact.diagnose(mended, DATA)
    assert before.findings[0].cause == "accumulator_overflow"
    assert "accumulator_overflow" not in [each.cause for each in after.findings]
    assert after.decibels["y"] > before.decibels["y"] + 15


def test_the_engine_runs_only_where_a_bound_allows_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(tmp_path, NARROW.replace("16", "32"))

    def refused(*_: object, **__: object) -> None:
        pytest.fail("the integer engine was made")

    monkeypatch.setattr("intact.program.lower.lower", refused)
    assert found_in(plan) == SumFindings()


def test_layers_that_run_in_float_lose_no_sums(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, NARROW)
    assert found_in(plan, in_float={"a", "b"}).findings == ()
    assert [each.node for each in found_in(plan, in_float={"b"}).findings] == ["a"]


def test_pairs_that_saturate_are_the_cause(tmp_path: Path) -> None:
    (found,) = found_in(plan_for(tmp_path, PAIRS)).findings
    assert (found.cause, found.node) == ("pair_saturation", "a")
    assert "pairs of products at 'a' leave 16 bits" in found.evidence
    assert found.remedies[0].options == {"weight_bits": 7, "bits": None}


def test_weights_of_seven_bits_saturate_nothing() -> None:
    found = found_in(calibrate(planned(dense(), "onnxruntime-avx2"), DATA))
    assert found == SumFindings()


def _on(monkeypatch: pytest.MonkeyPatch, target: str, *, saturates: bool) -> SumFindings:
    monkeypatch.setattr(arithmetic, "saturates_pairs", lambda: saturates)
    return found_in(calibrate(planned(dense(), target), DATA))


def test_a_processor_that_saturates_everything_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arithmetic, "LITTLE_DB", 100.0)
    (found,) = _on(monkeypatch, "onnxruntime", saturates=True).findings
    assert found.cause == "pair_saturation"
    assert "session.x64quantprecision=1" in found.evidence
    assert found.remedies[0].options == {"target": "onnxruntime-avx2"}


def test_a_processor_that_saturates_a_little_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "LITTLE_DB", -100.0)
    found = _on(monkeypatch, "onnxruntime", saturates=True)
    assert found.findings == ()
    assert found.note.startswith("this processor saturates pairs of 8-bit products: output 'y' has")


@pytest.mark.parametrize(("noise", "is_said"), [(0.0, False), (0.05, True)])
def test_what_the_runtime_computes_here_needs_no_engine(
    noise: float, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "saturates_pairs", lambda: True)
    monkeypatch.setattr("intact.program.lower.lower", lambda *_: pytest.fail("the engine was made"))
    plan = calibrate(planned(dense(), "onnxruntime"), DATA)
    simulator = Simulator(plan, threads=1)

    def deployed(feeds: dict[str, Any]) -> dict[str, Any]:
        outputs = simulator.run(feeds)[0]
        return {name: array * np.float32(1 + noise) for name, array in outputs.items()}

    found = found_in(plan, deployed=deployed)
    assert found.findings == ()
    assert bool(found.note) == is_said


@pytest.mark.parametrize(
    ("target", "saturates"), [("onnxruntime", False), ("tflite", True), ("onnxruntime-avx2", True)]
)
def test_other_processors_and_other_runtimes_are_not_concerned(
    target: str, saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _on(monkeypatch, target, saturates=saturates) == SumFindings()


def test_kernels_of_this_processor_are_those_of_the_target_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = {"AVX2": 1, "AVX-512 VNNI": 0}
    for name, count in sets.items():
        monkeypatch.setattr(cpu, "instruction_sets", lambda name=name: (name,))
        found = found_in(calibrate(planned(dense(), "openvino"), DATA))
        assert len(found.findings) + bool(found.note) == count


def test_an_output_that_is_infinite_is_not_well() -> None:
    """A code of 0 stands for a small number, of which a logarithm is taken."""
    b = ModelBuilder()
    x = b.conv(b.input("x", ["n", 3, 4, 4]), 3, 4, kernel=1)
    b.output(b.node("Log", b.node("Sigmoid", b.node("Mul", x, b.scalar(20.0))), out="y"))
    data = {"x": np.random.default_rng(0).normal(size=(16, 3, 4, 4)).astype(np.float32)}
    plan = calibrate(planned(b.build()), data)
    assert np.isinf(Simulator(plan).run(data)[0]["y"]).any()
    samples = open_samples(data, plan.graph)
    found = diagnosis_of(Evidence(first_runs(plan, samples), samples=samples, planned=plan))
    assert found.findings
    assert found.decibels == {"y": -100.0}


def test_a_float_model_without_numbers_is_said(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, "[arithmetic]")
    graph = planned(_root_of_negatives()).graph
    runs = FloatRuns(graph, [(DATA, 16)])
    assert runs.without_numbers() == {"y": 16}
    assert FloatRuns(plan.graph, [(DATA, 16)]).without_numbers() == {}


def _root_of_negatives() -> onnx.ModelProto:
    b = ModelBuilder()
    negative = b.node("Neg", b.node("Add", b.input("x", ["n", 8]), b.scalar(1.0)))
    b.output(b.node("Sqrt", negative, out="y"))
    return b.build()

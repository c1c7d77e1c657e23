"""Layers that a runtime computes in float, and results that are slower than float."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import intact
from intact.analyze.diagnose import arithmetic, deployed, runtime
from intact.analyze.diagnose.deployed import products_in_float, runtime_of
from intact.analyze.diagnose.evidence import Evidence
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.remedies import with_command
from intact.analyze.diagnose.runtime import SHORTEST_SECONDS as SHORTEST
from intact.analyze.diagnose.runtime import slow_sign, time_if_slower
from intact.calibrate.outputs import FloatRuns
from intact.data.sources import open_samples
from intact.engines.simulate import Simulator
from intact.formats.onnx_qdq.executed import profile_kernels
from intact.results.result import Result
from tests.models import ModelBuilder

DATA = {"x": np.random.default_rng(0).normal(size=(16, 4, 8, 8)).astype(np.float32)}


def net() -> onnx.ModelProto:
    """A convolution alone between functions that stay float, and two that follow each other."""
    b = ModelBuilder()
    x = b.node("Sin", b.input("x", ["n", 4, 8, 8]), name="before")
    x = b.node("Sin", b.node("Conv", x, b.weight(4, 4, 1, 1), name="alone"), name="behind")
    for name in ("first", "second"):
        x = b.node("Conv", x, b.weight(4, 4, 1, 1), name=name)
        x = b.node("Relu", x, name=f"{name}_relu")
    b.output(x)
    return b.build()


@pytest.fixture(scope="module")
def result() -> Result:
    return intact.quantize(net(), DATA, threads=1)


@pytest.fixture(scope="module")
def wide() -> Result:
    return intact.quantize(net(), DATA, activation_bits=16, threads=1)


def found_in(result: Result, in_float: Mapping[str, str]) -> list[Finding]:
    samples, plan = open_samples(DATA, result.plan.graph), result.plan
    made = runtime_of(result, dict(in_float))
    evidence = Evidence(FloatRuns(plan.graph, []), samples=samples, planned=plan, runtime=made)
    return [*runtime.check_layers_in_float(evidence), *runtime.check_slowness(evidence)]


def timed(monkeypatch: pytest.MonkeyPatch, *blocks: tuple[float, float]) -> list[int]:
    """Let the runs of both models take these seconds, block by block; count the blocks."""
    asked = []

    def made(*_: object, **__: object) -> Any:
        for one, other in blocks:
            asked.append(1)
            yield [one, 2 * one], [other, 2 * other]

    monkeypatch.setattr(runtime, "blocks_in_turn", made)
    return asked


def test_codes_of_16_bits_are_computed_in_float(wide: Result, result: Result) -> None:
    in_float = products_in_float(wide, threads=1)
    assert in_float == {"alone": "Conv", "first": "Conv", "second": "Conv"}
    found = found_in(wide, in_float)[0]
    assert (found.cause, found.node, found.unit) == ("float_fallback", "alone", "times")
    assert "3 of 3 layers in float" in found.evidence
    assert "16 bits in activations" in found.evidence
    assert found.remedies[0].options == {"activation_bits": 8, "bits": None}
    assert products_in_float(result, threads=1) == {}


def test_one_layer_that_runs_in_float_is_kept_so(result: Result) -> None:
    found = found_in(result, {"second": "Conv"})[0]
    assert found.remedies[0].options == {"keep_float": ["second"]}


def test_openvino_tells_what_it_computes_in_float() -> None:
    pytest.importorskip("openvino")
    made = intact.quantize(net(), DATA, target="openvino", threads=1)
    assert products_in_float(made, threads=1) == {}


def test_a_runtime_that_does_not_tell_has_none() -> None:
    made = intact.quantize(net(), DATA, target="tflite", keep_float=["Sin"], io="float")
    assert products_in_float(made) == {}
    assert found_in(made, {}) == []


def test_slower_in_each_round_is_a_finding(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, *[(0.004, 0.008)] * 5)
    (found,) = found_in(result, {})
    assert (found.cause, found.unit) == ("slower_than_float", "times")
    assert "takes 8 ms quantized and 4 ms in float on one thread" in found.evidence
    assert found.severity == pytest.approx(0.25)
    assert found.remedies[0].options == {"fastest": True}


def test_a_first_round_that_warms_both_up_decides_nothing(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, (0.030, 0.031), *[(0.004, 0.005)] * 4)
    found = time_if_slower(result.plan.graph, runtime_of(result), DATA)
    assert found is not None
    assert (found.in_float, found.quantized, found.rounds) == (0.004, 0.005, 4)
    asked = timed(monkeypatch, (0.031, 0.029), *[(0.004, 0.005)] * 4)
    assert time_if_slower(result.plan.graph, runtime_of(result), DATA) is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    "last", [(0.004, 0.004), (0.004, 0.0041), (0.00001, 0.008)], ids=["even", "chance", "small"]
)
def test_once_as_fast_is_no_finding(
    last: tuple[float, float], result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = timed(monkeypatch, (0.004, 0.008), last, (0.004, 0.008), (0.004, 0.008))
    assert time_if_slower(result.plan.graph, runtime_of(result), DATA) is None
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("rounds", "times", "expected"),
    [
        (1, 2.0, False),
        (2, 1.4, False),
        (2, 1.6, True),
        (3, 1.2, True),
        (3, 1.1, False),
        (5, 1.1, True),
        (5, 1.04, False),
    ],
)
def test_a_little_slower_takes_more_rounds(
    rounds: int, times: float, *, expected: bool, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, *[(1.0, times)] * rounds)
    found = time_if_slower(result.plan.graph, runtime_of(result), DATA)
    assert (found is not None) is expected


def test_runs_of_some_microseconds_are_compared(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "SHORTEST_SECONDS", SHORTEST)
    timed(monkeypatch, *[(2.6e-5, 4.4e-5)] * 5)
    found = time_if_slower(result.plan.graph, runtime_of(result), DATA)
    assert found is not None
    assert found.quantized == 4.4e-5


@pytest.mark.parametrize(
    ("target", "package", "options"),
    [
        ("openvino", "openvino", {}),
        ("tflite-xnnpack", "ai_edge_litert", {"io": "float"}),
        ("ncnn", "ncnn", {}),
    ],
)
def test_a_result_is_compared_with_the_float_model_in_its_own_runtime(
    target: str, package: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    made = intact.quantize(net(), DATA, target=target, **options)
    in_float = runtime_of(made).load_float
    assert in_float is not None
    monkeypatch.setattr("intact.engines.session.make_session", None)  # ONNX Runtime is not asked
    assert in_float(made.plan.graph)(DATA)
    timed(monkeypatch, *[(0.004, 0.008)] * 5)
    assert slow_sign(runtime_of(made), DATA, lambda: in_float(made.plan.graph), 1000.0)


def test_one_sample_is_timed_where_devices_run_one(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def loaded(_: object = None) -> Any:
        return lambda feeds: seen.append(len(feeds["x"]))

    made = msgspec.structs.replace(
        runtime_of(result), is_onnxruntime=False, load=loaded, load_float=loaded
    )
    timed(monkeypatch, *[(0.004, 0.008)] * 5)
    runs = FloatRuns(result.plan.graph, [(DATA, 16)], threads=1)
    evidence = Evidence(runs, planned=result.plan, runtime=made, spent=1000.0)
    assert [each.cause for each in runtime.check_little_slowness(evidence)] == ["slower_than_float"]
    assert set(seen) == {1}


def test_what_runs_in_float_is_named_before_the_time(
    wide: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, *[(0.004, 0.008)] * 5)
    first, second = found_in(wide, products_in_float(wide))
    assert (first.cause, second.cause) == ("float_fallback", "slower_than_float")
    assert first.severity > second.severity
    assert second.remedies[0].options == {"activation_bits": 8, "bits": None}


def test_quantize_says_that_a_result_is_slower_and_what_mends_it(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, *[(0.004, 0.008)] * 5)
    (found,) = slow_sign(runtime_of(result), DATA, lambda: lambda _: None, 1000.0)
    assert found.cause == "slower_than_float"
    command = with_command(found, {"model": "m.onnx", "data": "d.npz"}).remedy
    assert command == "intact quantize m.onnx --data d.npz --fastest --output mended"


def test_nothing_is_timed_where_that_would_take_long(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = timed(monkeypatch, *[(0.004, 0.008)] * 5)
    assert slow_sign(runtime_of(result), DATA, lambda: lambda _: None, 1e-6) == []
    assert asked == []


@pytest.mark.parametrize("times", [1.0, 1.02, 1.13, 3.0])
@pytest.mark.parametrize("seconds", [1e-3, 0.015, 0.1])
def test_runs_of_any_length_are_timed_in_a_part_of_the_time(
    seconds: float, times: float, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, spent = [0.0], 10.0

    def taking(each: float) -> Any:
        def run(_: object) -> None:
            now[0] += each

        return run

    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(f"time.{clock}", lambda: now[0])
    made = runtime_of(result)
    made = msgspec.structs.replace(made, load=lambda: taking(times * seconds))
    found = slow_sign(made, DATA, lambda: taking(seconds), spent)
    assert [each.cause for each in found] == ["slower_than_float"] * (times > 1.05)
    assert now[0] <= 0.2 * spent


@pytest.mark.parametrize(
    ("saturates", "noise", "is_said"), [(True, 0.5, True), (True, 0.0, False), (False, 0.5, False)]
)
def test_quantize_says_what_saturating_sums_cost_here(
    saturates: bool, noise: float, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (runtime, arithmetic):
        monkeypatch.setattr(module, "saturates_pairs", lambda: saturates)

    def runner(made: Result) -> Any:
        simulator = Simulator(made.plan, threads=1)

        def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            outputs = simulator.run(dict(feeds))[0]
            return {name: array * np.float32(1 + noise) for name, array in outputs.items()}

        return run

    monkeypatch.setattr(deployed, "deployed_run", runner)
    found = intact.quantize(net(), DATA, threads=1).findings
    said = [each for each in found if each.cause == "pair_saturation"]
    assert len(said) == is_said
    for each in said:
        assert "this processor saturates pairs of 8-bit products" in each.evidence
        assert each.remedies[0].options == {"target": "onnxruntime-avx2"}
    monkeypatch.setattr(runtime, "_MOST_BYTES", 0)
    large = intact.quantize(net(), DATA, threads=1).findings
    assert "pair_saturation" not in {each.cause for each in large}
    monkeypatch.undo()
    seven = intact.quantize(net(), DATA, threads=1, target="onnxruntime-avx2").findings
    assert "pair_saturation" not in {each.cause for each in seven}


@pytest.mark.parametrize("given", [None, {"other": 4, "alone": 6}])
def test_bits_of_a_remedy_leave_those_of_other_nodes(given: Mapping[str, int] | None) -> None:
    finding = Finding("accumulator_overflow", "", 1.0, remedies=(Remedy({"bits": {"alone": 7}}),))
    made_by = {"model": "m.onnx", "data": "d.npz", **({"bits": given} if given else {})}
    command = with_command(finding, made_by).remedy
    assert "--bits alone=7" in command
    assert ("--bits other=4" in command) == (given is not None)
    assert "alone=6" not in command


def test_kernels_are_named_by_the_runtimes_operators(result: Result) -> None:
    def seconds(model: ir.Model) -> dict[str, float]:
        kernels = profile_kernels(model, DATA, runs=2, threads=1)
        return {each.op_type: each.seconds for each in kernels}

    integers = seconds(result.exported.model)
    assert integers["QLinearConv"] > 0
    assert seconds(result.plan.graph.model).keys() & {"Conv", "FusedConv"}

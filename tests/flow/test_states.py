"""A model with a state and a scalar goes through every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intact
from intact.errors import DataError
from intact.results.result import Result
from tests.recurrent import STATE, WIDTH, recurrent_model

Arrays = dict[str, Any]


def sequence(count: int = 6) -> Arrays:
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(count, WIDTH)).astype(np.float32), "rate": np.int64(2)}


def with_state(count: int = 6) -> Arrays:
    state = np.random.default_rng(2).normal(size=(count, 2, 1, STATE)).astype(np.float32)
    return sequence(count) | {"state": state}


def plan_bytes(result: Result, folder: Path) -> bytes:
    result.save(folder)
    return (folder / "statistics.npz").read_bytes() + (folder / "model.int8.onnx").read_bytes()


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_feeds_calibrate_verify_and_evaluate(target: str) -> None:
    if target == "openvino":
        pytest.importorskip("openvino")
    result = intact.quantize(recurrent_model(), with_state(), target=target)
    assert result.statistics is not None
    assert result.statistics["state"].samples == 6
    verification = intact.verify(result, with_state(3))
    assert verification.samples == 3
    assert intact.verify(result, samples=2).samples == 2
    evaluation = intact.evaluate(result, with_state(4))
    assert evaluation.samples == 4
    assert evaluation.outputs["next"].sqnr_db > 20


def test_all_forms_of_the_same_feeds_give_the_same_bytes(tmp_path: Path) -> None:
    arrays = with_state()
    feeds = [
        {"x": arrays["x"][k : k + 1], "state": arrays["state"][k], "rate": arrays["rate"]}
        for k in range(6)
    ]
    np.savez(tmp_path / "feeds.npz", **{**arrays, "rate": np.full(6, 2)})
    sources: list[Any] = [arrays, feeds, iter(feeds), tmp_path / "feeds.npz", feeds[::-1]]
    found = {
        plan_bytes(intact.quantize(recurrent_model(), source), tmp_path / str(k))
        for k, source in enumerate(sources)
    }
    assert len(found) == 1


def test_states_come_from_outputs_and_are_kept(tmp_path: Path) -> None:
    states = {"next": "state"}
    result = intact.quantize(recurrent_model(), sequence(), state=states)
    assert result.statistics is not None
    state = result.statistics["state"]
    assert state.samples == 6
    assert state.zeros == 2 * STATE  # the first alone
    result.save(tmp_path / "out")
    loaded = Result.load(tmp_path / "out")
    assert loaded.plan.provenance.states == states
    evaluation = intact.evaluate(loaded, sequence(4))  # needs no state, and no option
    assert evaluation.outputs["next"].sqnr_db > 20
    assert intact.verify(loaded, sequence(4)).samples == 4
    again = intact.quantize(recurrent_model(), sequence(), state=states, threads=3)
    assert plan_bytes(again, tmp_path / "again") == plan_bytes(loaded, tmp_path / "once")


def test_the_quantized_model_is_fed_with_its_own_states() -> None:
    states = {"next": "state"}
    result = intact.quantize(recurrent_model(), sequence(), state=states)
    ran = intact.execute(result, sequence(4), executor="simulate", state=states)
    alone = [
        intact.execute(
            result,
            {
                "x": sequence(4)["x"][k : k + 1],
                "rate": np.int64(2),
                "state": ran.outputs["next"][2 * k - 2 : 2 * k],
            },
            executor="simulate",
            state={},
        )
        for k in range(1, 4)
    ]
    for k, each in enumerate(alone, 1):
        np.testing.assert_array_equal(each.outputs["next"], ran.outputs["next"][2 * k : 2 * k + 2])


def test_a_search_runs_on_feeds() -> None:
    found = intact.search_strategy(
        recurrent_model(),
        with_state(4),
        objective="sqnr",
        min_score=5.0,
        budget="3trials",
        no_batch=["state"],
    )
    assert found.result.plan.provenance.no_batch == ("state",)


def test_what_a_device_recorded_is_of_one_sample() -> None:
    result = intact.quantize(recurrent_model(), with_state(), target="onnxruntime")
    run = intact.execute(result, with_state(1), executor="integer", observe=None)
    observed = {**run.outputs, **run.tensors}
    with pytest.raises(
        DataError, match="3 samples of one run each; record one, and give samples 1"
    ):
        intact.verify(result, with_state(3), observed=observed)
    assert intact.verify(result, with_state(3), observed=observed, samples=1).samples == 1

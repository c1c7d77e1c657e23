"""plan.json: exact, reproducible, and refused with one line where it is not what it should be."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.config import QuantState
from intact.errors import PlanError
from intact.graph import Graph, normalize
from intact.plan import (
    QuantizedGraph,
    TensorEnd,
    build_plan,
    load_plan,
    plan_to_json,
    save_plan,
)
from intact.plan.gains import Gain, Improvement
from intact.targets import load_target
from tests.models import MODELS, ModelBuilder, residual_net
from tests.plans import calibrated, config, own_target, planned

TARGETS = ("onnxruntime", "onnxruntime-avx2", "tensorrt", "integer-pow2")


@pytest.fixture(scope="module")
def plan() -> QuantizedGraph:
    return calibrated(residual_net(), "integer-pow2")


def sharing(plan: QuantizedGraph) -> set[frozenset[str]]:
    """Which ends share a scale, as groups."""
    groups: dict[int, set[str]] = {}
    for end, each in plan.configs.items():
        groups.setdefault(id(each.dominator), set()).add(str(end))
    return {frozenset(group) for group in groups.values()}


def assert_same(left: QuantizedGraph, right: QuantizedGraph) -> None:
    assert list(left.configs) == list(right.configs)
    assert sharing(left) == sharing(right)
    assert left.decisions == right.decisions
    assert left.notes == right.notes
    assert left.provenance == right.provenance
    assert left.target == right.target
    for end, one in left.configs.items():
        two = right.configs[end]
        assert one.grid == two.grid, end
        assert (one.state, one.detail, one.inplace) == (two.state, two.detail, two.inplace), end
        assert (one.scale is None) == (two.scale is None), end
        if one.scale is not None and two.scale is not None:
            assert one.scale.tobytes() == two.scale.tobytes(), end
            np.testing.assert_array_equal(one.offset, two.offset)
            assert one.observer == two.observer


@pytest.mark.crossed
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_round_trip(tmp_path: Path, name: str, target: str) -> None:
    for each in (
        planned(MODELS[name].build(17), target),
        calibrated(MODELS[name].build(17), target),
    ):
        save_plan(each, tmp_path / "plan.json")
        loaded = load_plan(tmp_path / "plan.json", each.graph)
        assert_same(each, loaded)
        assert plan_to_json(loaded) == plan_to_json(each)


def test_every_state_reads_back(tmp_path: Path) -> None:
    plan = calibrated(residual_net())
    own = [c for c in plan.configs.values() if c.state is QuantState.ACTIVATED]
    own[0].transition(QuantState.DEQUANTIZED)
    own[1].transition(QuantState.DEACTIVATED)
    own[2].transition(QuantState.BAKED)
    passive = next(c for c in plan.configs.values() if c.state is QuantState.PASSIVE)
    passive.transition(QuantState.PASSIVE_BAKED)
    hidden = [c for c in plan.configs.values() if c.state is QuantState.OVERLAPPED]
    hidden[0].transition(QuantState.FP32)
    hidden[1].transition(QuantState.DEQUANTIZED)
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json", plan.graph)
    assert_same(plan, loaded)
    assert plan_to_json(loaded) == plan_to_json(plan)
    for before, after in zip(plan.configs.values(), loaded.configs.values(), strict=True):
        if before.state is QuantState.DEQUANTIZED:
            before.requantize()
            after.requantize()
            assert before.state is after.state


def test_the_same_bytes_again_and_in_another_process() -> None:
    again = plan_to_json(calibrated(residual_net()))
    assert again == plan_to_json(calibrated(residual_net()))
    code = (
        "import sys; from tests.models import residual_net; from tests.plans import calibrated;"
        "from intact.plan import plan_to_json;"
        "sys.stdout.buffer.write(plan_to_json(calibrated(residual_net())))"
    )
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(root / "src")])
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": paths}
    other = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    assert other.stdout == again


def test_one_line_a_config(plan: QuantizedGraph) -> None:
    lines = plan_to_json(plan).decode().splitlines()
    assert sum(line.lstrip().startswith('{"end":') for line in lines) == len(plan.configs)


@pytest.mark.parametrize("name", ["a b", "größe π 🙂", "a.input[0]", 'it\'s "q"', "tab\tnew\nline"])
def test_odd_node_names(tmp_path: Path, name: str) -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 8, 8]), b.weight(4, 4, 1, 1), name=name)
    b.node("Conv", x, b.weight(4, 4, 1, 1), out="y", name="a")
    b.output("y")
    plan = calibrated(b.build())
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json", plan.graph)
    assert_same(plan, loaded)
    assert TensorEnd.output(name) in loaded.configs


@given(st.integers(0x00800000, 0x7F7FFFFF))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scales_keep_their_bits(bits: int) -> None:
    from intact.plan.plan_file import _numbers

    scale = np.array(bits, np.uint32).view(np.float32)
    assert np.float32(json.loads(json.dumps(_numbers(scale)))).tobytes() == scale.tobytes()


# ---- damaged files ------------------------------------------------------------------------------


def refused(path: Path, graph: Graph) -> str:
    with pytest.raises(PlanError) as caught:
        load_plan(path, graph)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"format": "other"}', b"[" * 10**5]
)
def test_foreign_files(tmp_path: Path, plan: QuantizedGraph, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    refused(path, plan.graph)


def test_missing_files_and_folders(tmp_path: Path, plan: QuantizedGraph) -> None:
    refused(tmp_path / "none.json", plan.graph)
    refused(tmp_path, plan.graph)


def test_truncated_files(tmp_path: Path, plan: QuantizedGraph) -> None:
    path, data = tmp_path / "plan.json", plan_to_json(plan)
    for length in range(0, len(data) - 2, max(1, len(data) // 60)):
        path.write_bytes(data[:length])
        refused(path, plan.graph)


def test_another_version(tmp_path: Path, plan: QuantizedGraph) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(plan_to_json(plan).replace(b'"version": 4', b'"version": 5'))
    assert "version 5" in refused(path, plan.graph)


def test_another_model(tmp_path: Path, plan: QuantizedGraph) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert "the plan is for model" in refused(path, normalize(residual_net(21)))


Change = Callable[[dict[str, Any]], Any]
CHANGES: dict[str, Change] = {
    "a config too few": lambda plan: plan["configs"].pop(),
    "a config twice": lambda plan: plan["configs"].append(plan["configs"][0]),
    "an unknown end": lambda plan: plan["configs"][0].update(end="nothing.input[0]"),
    "no end": lambda plan: plan["configs"][0].update(end="nothing"),
    "a decision too few": lambda plan: plan["decisions"].pop(),
    "a decision twice": lambda plan: plan["decisions"].append(plan["decisions"][0]),
    "a decision on nothing": lambda plan: plan["decisions"][0].update(node="nothing"),
    "an unknown key": lambda plan: plan["configs"][0].update(color="red"),
    "an unknown state": lambda plan: plan["configs"][0].update(state="asleep"),
    "a scale of zero": lambda plan: plan["configs"][0].update(scale=0.0),
    "no scale": lambda plan: plan["configs"][0].pop("scale"),
    "no policy": lambda plan: plan["configs"][0].pop("policy"),
    "too large an offset": lambda plan: plan["configs"][0].update(offset=2**70),
    "an offset outside": lambda plan: plan["configs"][0].update(offset=1000),
    "three scales": lambda plan: plan["configs"][0].update(scale=[1.0, 2.0, 3.0]),
    "an impossible range": lambda plan: plan["configs"][0].update(range=[5, -5]),
    "a negative axis": lambda plan: plan["configs"][0].update(axis=-1),
    "a follower of nobody": lambda plan: plan["configs"][0].update(follows="nothing.input[0]"),
    "a follower of itself": lambda plan: plan["configs"][0].update(
        follows=plan["configs"][0]["end"]
    ),
    "a policy that does not exist": lambda plan: plan["configs"][0].update(policy="GOOD"),
    "a target without rules": lambda plan: plan["target"].pop("activation"),
    "an unknown note": lambda plan: plan["notes"].append(
        {"kind": "x", "node": "", "message": "", "remedy": ""}
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damaged_entries(tmp_path: Path, plan: QuantizedGraph, change: Change) -> None:
    data = json.loads(plan_to_json(plan))
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    refused(path, plan.graph)


def test_a_follower_on_another_grid_is_refused(tmp_path: Path) -> None:
    rules = '[[op]]\nops = ["Conv"]\n[[op]]\nops = ["Add"]\nscales = "unify_inputs"\n'
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 8, 8])
    left, right = (b.node("Conv", x, b.weight(4, 4, 1, 1), name=name) for name in "lr")
    b.node("Add", left, right, out="y", name="add")
    b.output("y")
    plan = calibrated(b.build(), own_target(tmp_path, rules))
    assert config(plan, "r.output[0]").state is QuantState.PASSIVE
    data = json.loads(plan_to_json(plan))
    (record,) = [each for each in data["configs"] if each["end"] == "r.output[0]"]
    record.update(range=[0, 254])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    refused(path, plan.graph)


def test_a_plan_survives_its_target_file(tmp_path: Path) -> None:
    """The target is stored in the plan, so that it can be read without the file."""
    target = own_target(tmp_path, '[[op]]\nops = ["Conv"]\n')
    plan = build_plan(normalize(residual_net()), target)
    save_plan(plan, tmp_path / "plan.json")
    (tmp_path / "mine.toml").unlink()
    assert load_plan(tmp_path / "plan.json", plan.graph).target == target
    assert load_target("onnxruntime") != target


def test_gains_that_are_no_numbers_read_back(tmp_path: Path, plan: QuantizedGraph) -> None:
    gains = (
        Gain("zeros", math.nan, math.nan, kept=False),
        Gain("lost", 20.0, -math.inf, kept=False),
        Gain("exact", 20.0, math.inf, kept=True),
    )
    record = Improvement("rounding", math.nan, math.inf, True, gains)
    improved = replace(plan, provenance=plan.provenance.improved([record]))
    save_plan(improved, tmp_path / "plan.json")
    (found,) = load_plan(tmp_path / "plan.json", improved.graph).provenance.improvements
    assert [(each.node, each.after) for each in found.gains] == [("lost", -999.9), ("exact", 999.9)]
    assert (found.before, found.after) == (-999.9, 999.9)

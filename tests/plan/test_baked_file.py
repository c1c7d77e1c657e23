"""Integers beside the plan: kept exactly, held against the plan, bounded in memory."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.config import QuantState
from intact.engines.simulate import Simulator
from intact.errors import PlanError
from intact.plan import (
    QuantizedGraph,
    TensorEnd,
    load_plan,
    plan_to_json,
    quantization_points,
    refuse_unready,
    save_plan,
)
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrated

WEIGHT, BIAS = TensorEnd.input("größe/π.input[0] 🙂", 1), TensorEnd.input("größe/π.input[0] 🙂", 2)


def baked() -> QuantizedGraph:
    """A plan whose weight and bias are integers of their own, with a node name that is odd."""
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 6, 6])
    weight = b.weight(5, 4, 1, 1)
    b.node("Conv", x, weight, b.weight(5), name=WEIGHT.node, out="y")
    b.output("y")
    plan = calibrated(b.build())
    plan.configs[WEIGHT].transition(QuantState.BAKED)
    plan.configs[BIAS].transition(QuantState.PASSIVE_BAKED)
    random = np.random.default_rng(0)
    plan.baked[WEIGHT] = random.integers(-127, 128, (5, 4, 1, 1)).astype(np.int8)
    plan.baked[BIAS] = random.integers(-(2**31), 2**31 - 1, 5).astype(np.int32)
    return plan


@pytest.fixture(scope="module")
def plan() -> QuantizedGraph:
    return baked()


def test_they_are_read_back_bit_for_bit(plan: QuantizedGraph, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json", plan.graph)
    assert list(loaded.baked) == [WEIGHT, BIAS]
    for end, codes in plan.baked.items():
        assert loaded.baked[end].dtype == codes.dtype
        np.testing.assert_array_equal(loaded.baked[end], codes)
        assert not loaded.baked[end].flags.writeable
    assert plan_to_json(loaded) == plan_to_json(plan)
    first = (tmp_path / "weights.npz").read_bytes()
    save_plan(loaded, tmp_path / "plan.json")
    assert (tmp_path / "weights.npz").read_bytes() == first


def test_they_are_what_executors_and_formats_use(plan: QuantizedGraph) -> None:
    refuse_unready(plan)
    points = {point.end: point for point in quantization_points(plan)}
    np.testing.assert_array_equal(points[WEIGHT].constant_codes(), plan.baked[WEIGHT])
    np.testing.assert_array_equal(points[BIAS].constant_codes(), plan.baked[BIAS])
    feeds = {"x": np.zeros((1, 4, 6, 6), np.float32)}
    outputs, _ = Simulator(plan, threads=1).run(feeds, observe=(TensorEnd.output(WEIGHT.node),))
    wanted = plan.configs[BIAS].dequantize(plan.baked[BIAS])
    saturated = plan.configs[TensorEnd.output(WEIGHT.node)].fake_quantize(wanted)
    np.testing.assert_allclose(outputs["y"][0, :, 0, 0], saturated)


def test_copies_keep_them(plan: QuantizedGraph) -> None:
    copy = plan.copy()
    del copy.baked[WEIGHT]
    assert list(plan.baked) == [WEIGHT, BIAS]


def test_without_integers_what_is_baked_is_quantized() -> None:
    plan = baked()
    plan.baked.clear()
    points = {point.end: point for point in quantization_points(plan)}
    value = points[WEIGHT].value.const_value
    assert value is not None
    expected = plan.configs[WEIGHT].quantize(value.numpy())
    np.testing.assert_array_equal(points[WEIGHT].constant_codes(), expected)


def test_a_plan_without_them_has_no_file(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Conv", b.input("x", ["n", 4, 6, 6]), b.weight(4, 4, 1, 1), out="y")
    b.output("y")
    plan = calibrated(b.build())
    save_plan(plan, tmp_path / "plan.json")
    assert not (tmp_path / "weights.npz").exists()
    assert json.loads(plan_to_json(plan))["weights"] == ""
    assert dict(random_inputs(b.build()))


# ---- damaged and foreign files ------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, bytes]], object]) -> None:
    """Change the members of an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def stored(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def listed(*ends: str) -> bytes:
    return stored(np.frombuffer(json.dumps(ends).encode(), np.uint8))


def huge(members: dict[str, bytes]) -> None:
    """A header that asks for a terabyte."""
    head = stored(np.zeros(10, np.int8)).replace(b"(10,), }", b"(1099511627776,), }")
    members["0.npy"] = head


def huge_list(members: dict[str, bytes]) -> None:
    members["ends.npy"] = stored(np.zeros(10, np.uint8)).replace(
        b"(10,), }", b"(1099511627776,), }"
    )


CHANGES: dict[str, Callable[[dict[str, bytes]], object]] = {
    "other integers": lambda m: m.update({"0.npy": stored(np.ones((5, 4, 1, 1), np.int8))}),
    "another shape": lambda m: m.update({"0.npy": stored(np.ones((4, 5, 1, 1), np.int8))}),
    "floats": lambda m: m.update({"0.npy": stored(np.ones((5, 4, 1, 1), np.float32))}),
    "wide integers": lambda m: m.update({"0.npy": stored(np.ones((5, 4, 1, 1), np.int64))}),
    "objects": lambda m: m.update(
        {"0.npy": stored(np.full((5, 4, 1, 1), None), allow_pickle=True)}
    ),
    "outside the range": lambda m: m.update(
        {"0.npy": stored(np.full((5, 4, 1, 1), -128, np.int8))}
    ),
    "columns first": lambda m: m.update(
        {"0.npy": stored(np.asfortranarray(np.arange(20, dtype=np.int8).reshape(5, 4, 1, 1)))}
    ),
    "too short": lambda m: m.update({"0.npy": m["0.npy"][:-1]}),
    "too long": lambda m: m.update({"0.npy": m["0.npy"] + b"0"}),
    "no array": lambda m: m.update({"0.npy": b"no array"}),
    "a terabyte": huge,
    "a terabyte of names": huge_list,
    "a member too few": lambda m: m.pop("1.npy"),
    "a member too many": lambda m: m.update({"../evil.npy": m["1.npy"]}),
    "no list": lambda m: m.pop("ends.npy"),
    "a list that is none": lambda m: m.update({"ends.npy": stored(np.zeros(3, np.uint8))}),
    "an end that is none": lambda m: m.update({"ends.npy": listed("nothing", str(BIAS))}),
    "an end of another node": lambda m: m.update({"ends.npy": listed("a.input[0]", str(BIAS))}),
    "an end that is not baked": lambda m: m.update(
        {"ends.npy": listed(f"{WEIGHT.node}.input[0]", str(BIAS))}
    ),
    "an output": lambda m: m.update({"ends.npy": listed(f"{WEIGHT.node}.output[0]", str(BIAS))}),
    "one end twice": lambda m: m.update({"ends.npy": listed(str(BIAS), str(BIAS))}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_foreign_integers(
    plan: QuantizedGraph, tmp_path: Path, change: Callable[[dict[str, bytes]], object]
) -> None:
    save_plan(plan, tmp_path / "plan.json")
    rewritten(tmp_path / "weights.npz", change)
    refused(tmp_path, plan)


def test_integers_outside_the_range_of_the_plan(tmp_path: Path) -> None:
    plan = baked()
    plan.baked[WEIGHT] = np.full((5, 4, 1, 1), -128, np.int8)
    save_plan(plan, tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"contains -128, the plan's range is -127\.\.127"):
        load_plan(tmp_path / "plan.json", plan.graph)


def refused(folder: Path, plan: QuantizedGraph) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(folder / "plan.json", plan.graph)
    assert "weights.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(plan: QuantizedGraph, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.json")
    (tmp_path / "weights.npz").unlink()
    refused(tmp_path, plan)


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes(plan: QuantizedGraph, tmp_path: Path, data: st.DataObject) -> None:
    """Whatever happens to the file, the integers are the plan's or it is refused."""
    save_plan(plan, tmp_path / "plan.json")
    path = tmp_path / "weights.npz"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(
        content[: data.draw(st.sampled_from([len(content), len(content) // 2, 40, 0]))]
    )
    try:
        loaded = load_plan(tmp_path / "plan.json", plan.graph)
    except PlanError as error:
        assert "weights.npz" in str(error)  # noqa: PT017
        return
    for end, codes in plan.baked.items():
        np.testing.assert_array_equal(loaded.baked[end], codes)

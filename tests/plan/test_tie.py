"""Scales that the hardware keeps equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact.config import QuantState, TensorQuantConfig
from intact.plan import NoteKind, Overrides, QuantizedGraph
from intact.plan.untie import RequantizeReason, requantized
from tests.models import ModelBuilder
from tests.plans import calibrate, config, conv, image, own_target, planned


def rule(ops: Sequence[str], scales: str = "free", rest: str = "") -> str:
    listed = ", ".join(f'"{op}"' for op in ops)
    return f'[[op]]\nops = [{listed}]\nscales = "{scales}"\n{rest}\n'


FREE = rule(["Conv", "Add", "Mul", "Relu", "MaxPool", "Reshape", "Concat", "Sigmoid"])
IN_PLACE = "[topology]\nin_place = true\n"


def plan_of(
    b: ModelBuilder, folder: Path, rules: str, *outputs: str, overrides: Overrides | None = None
) -> QuantizedGraph:
    for name in outputs:
        b.output(name)
    return planned(b.build(), own_target(folder, FREE + rules), overrides)


def roots(plan: QuantizedGraph, *ends: str) -> list[TensorQuantConfig]:
    """The distinct dominators of some ends."""
    found = {id(config(plan, end).dominator): config(plan, end).dominator for end in ends}
    return list(found.values())


def joined(op_type: str, **attributes: Any) -> ModelBuilder:
    b = ModelBuilder()
    x = image(b)
    b.node(op_type, conv(b, x, "one"), conv(b, x, "two"), out="y", name="join", **attributes)
    return b


def test_free_scales_stay_apart(tmp_path: Path) -> None:
    plan = plan_of(joined("Add"), tmp_path, "", "y")
    assert len(roots(plan, "join.input[0]", "join.input[1]", "join.output[0]")) == 3


def test_unified_inputs_have_the_union_of_their_ranges(tmp_path: Path) -> None:
    plan = plan_of(joined("Add"), tmp_path, rule(["Add"], "unify_inputs"), "y")
    assert len(roots(plan, "one.output[0]", "two.output[0]", "join.input[0]", "join.input[1]")) == 1
    assert config(plan, "join.output[0]").dominator is config(plan, "join.output[0]")
    assert config(plan, "two.output[0]").state is QuantState.PASSIVE_INIT
    feeds = _feeds()
    tied = calibrate(plan, feeds)
    free = calibrate(plan_of(joined("Add"), tmp_path, "", "y"), feeds)
    one, two = (config(free, f"{name}.output[0]") for name in ("one", "two"))
    shared = config(tied, "one.output[0]")
    low = min(-int(c.offset) * float(c.scale) for c in (one, two))  # type: ignore[arg-type]
    high = max((255 - int(c.offset)) * float(c.scale) for c in (one, two))  # type: ignore[arg-type]
    assert float(shared.scale) == pytest.approx((high - low) / 255, rel=1e-2)  # type: ignore[arg-type]


def _feeds() -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(2).normal(size=(4, 4, 8, 8)).astype(np.float32)}


def test_a_concat_unifies_all(tmp_path: Path) -> None:
    b = joined("Concat", axis=1)
    plan = plan_of(b, tmp_path, rule(["Concat"], "unify_all"), "y")
    ends = ("one.output[0]", "two.output[0]", "join.input[0]", "join.input[1]", "join.output[0]")
    assert len(roots(plan, *ends)) == 1


def test_a_join_of_different_widths_is_noted(tmp_path: Path) -> None:
    overrides = Overrides(bits={"two.output": 4, "join.input[1]": 4})
    rules = rule(["Add"], "unify_inputs")
    plan = plan_of(joined("Add"), tmp_path, rules, "y", overrides=overrides)
    assert len(roots(plan, "join.input[0]", "join.input[1]")) == 2
    (note,) = [note for note in plan.notes if note.kind is not NoteKind.WIDTH]
    assert (note.kind, note.node) == (NoteKind.TIE, "join")


def test_movers_follow_their_input(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("MaxPool", conv(b, image(b), "conv"), kernel_shape=[2, 2], name="pool")
    b.node("Reshape", x, b.ints(0, -1), out="y", name="flat")
    rules = rule(["MaxPool", "Reshape"], "output_follows_input")
    plan = plan_of(b, tmp_path, rules, "y")
    ends = ("pool.input[0]", "pool.output[0]", "flat.input[0]", "flat.output[0]")
    assert roots(plan, *ends) == [config(plan, "conv.output[0]")]
    assert config(plan, "pool.output[0]").state is QuantState.PASSIVE_INIT
    assert plan.notes == ()


def test_a_fused_input_is_not_followed(tmp_path: Path) -> None:
    """Inside a fused pair nothing is quantized before the last output, so that keeps its own."""
    b = ModelBuilder()
    b.node("MaxPool", conv(b, image(b), "conv"), kernel_shape=[2, 2], out="y", name="pool")
    rules = rule(["MaxPool"], "output_follows_input")
    rules += '[[fusion]]\npattern = [["Conv"], ["MaxPool"]]\n'
    plan = plan_of(b, tmp_path, rules, "y")
    output = config(plan, "pool.output[0]")
    assert (output.state, output.dominator) == (QuantState.INITIAL, output)


def test_a_fused_input_has_no_scale_to_unify(tmp_path: Path) -> None:
    """The convolution adds the residual itself: only the residual is stored, on its own scale."""
    rules = rule(["Add"], "unify_inputs") + '[[fusion]]\npattern = [["Conv"], ["Add"]]\n'
    plan = plan_of(joined("Add"), tmp_path, rules, "y")
    output, residual = config(plan, "join.output[0]"), config(plan, "two.output[0]")
    assert config(plan, "one.output[0]").dominator is output
    assert config(plan, "join.input[1]").dominator is residual
    assert residual.dominator is residual


@pytest.mark.parametrize("in_place", [True, False])
def test_an_in_place_scale_travels_upwards(tmp_path: Path, in_place: bool) -> None:
    b = ModelBuilder()
    x = b.node("Relu", conv(b, image(b), "conv"), name="relu")
    b.node("Reshape", x, b.ints(0, -1), out="y", name="flat")
    rules = rule(["Relu", "Reshape"], "input_follows_output") + IN_PLACE
    plan = plan_of(b, tmp_path, rules if in_place else "", "y")
    ends = ("conv.output[0]", "relu.input[0]", "relu.output[0]", "flat.output[0]")
    assert len(roots(plan, *ends)) == (1 if in_place else 3)
    if in_place:
        assert roots(plan, *ends) == [config(plan, "flat.output[0]")]


@pytest.mark.parametrize(("readers", "shown", "tied"), [(1, 0, 1), (2, 0, 0), (1, 1, 0)])
def test_in_place_only_where_few_read(tmp_path: Path, readers: int, shown: int, tied: int) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    names = [b.node("Relu", x, out=f"y{k}", name=f"relu{k}") for k in range(readers)]
    rules = rule(["Relu"], "input_follows_output", "max_consumers = 1") + IN_PLACE
    plan = plan_of(b, tmp_path, rules, *names, *([x] if shown else []))
    same = config(plan, "relu0.input[0]").dominator is config(plan, "relu0.output[0]")
    assert same is bool(tied)


FIXED = rule(["Sigmoid"], rest="fixed_output = { scale = 0.00390625 }")


def test_a_join_requantizes_a_prescribed_scale(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    b.node("Concat", x, b.node("Sigmoid", x, name="s"), axis=1, out="y", name="join")
    plan = plan_of(b, tmp_path, FIXED + rule(["Concat"], "unify_all"), "y")
    ends = ("conv.output[0]", "join.input[0]", "join.input[1]", "join.output[0]")
    assert len(roots(plan, *ends)) == 1
    assert config(plan, "s.output[0]") not in roots(plan, *ends)
    assert requantized(config(plan, "join.input[1]")) is RequantizeReason.PRESCRIBED
    calibrated = calibrate(plan, _feeds())
    assert config(calibrated, "s.output[0]").scale == np.float32(1 / 256)
    low, high = config(calibrated, "join.output[0]").value_range()
    assert (low, high) == pytest.approx(config(calibrated, "conv.output[0]").value_range())
    assert low < 0
    assert high > 1
    assert plan.notes == ()


def test_an_in_place_scale_stops_at_a_prescribed_one(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Sigmoid", conv(b, image(b), "conv"), name="s")
    b.node("Reshape", x, b.ints(0, -1), out="y", name="flat")
    rules = FIXED + rule(["Reshape"], "input_follows_output") + IN_PLACE
    plan = plan_of(b, tmp_path, rules, "y")
    assert config(plan, "s.output[0]").dominator is config(plan, "s.output[0]")
    assert config(plan, "s.output[0]").scale == np.float32(1 / 256)
    assert [note.node for note in plan.notes] == ["flat"]


def test_two_equal_prescribed_scales_agree(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    left, right = (b.node("Sigmoid", x, name=name) for name in ("s", "t"))
    b.node("Concat", left, right, axis=1, out="y", name="join")
    plan = plan_of(b, tmp_path, FIXED + rule(["Concat"], "unify_all"), "y")
    assert plan.notes == ()


@pytest.mark.parametrize(("readers", "upwards"), [(1, True), (2, False)])
def test_where_codes_are_only_moved_either_follows(
    tmp_path: Path, readers: int, upwards: bool
) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    names = [b.node("Reshape", x, b.ints(0, -1), out=f"y{k}", name=f"f{k}") for k in range(readers)]
    rules = rule(["Reshape"], "either_follows", "max_consumers = 1") + IN_PLACE
    plan = plan_of(b, tmp_path, rules, *names)
    owner = config(plan, "f0.output[0]" if upwards else "conv.output[0]")
    assert roots(plan, "conv.output[0]", "f0.input[0]", "f0.output[0]") == [owner]


def test_codes_that_are_moved_keep_a_prescribed_scale(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Sigmoid", conv(b, image(b), "conv"), name="s")
    b.node("Reshape", x, b.ints(0, -1), out="y", name="flat")
    plan = plan_of(b, tmp_path, FIXED + rule(["Reshape"], "either_follows") + IN_PLACE, "y")
    assert roots(plan, "s.output[0]", "flat.output[0]") == [config(plan, "s.output[0]")]
    assert plan.notes == ()

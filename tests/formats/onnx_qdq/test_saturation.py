"""An activation is left out exactly where saturation does its work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import QuantizedGraph, TensorEnd
from tests.models import ModelBuilder
from tests.plans import config, own_target, planned

pytestmark = pytest.mark.runtime_fact("onnxruntime")

RULES = """
[[op]]
ops = ["Conv", "Relu", "Clip"]
[[fusion]]
pattern = [["Conv"], ["Relu", "Clip"]]
"""


def model(op_type: str, low: float | None, high: float | None) -> ModelBuilder:
    b = ModelBuilder()
    identity = np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1)
    x = b.node("Conv", b.input("x", ["n", 2, 4, 4]), b.constant(identity), name="conv")
    bounds = ["" if bound is None else b.scalar(bound) for bound in (low, high)]
    b.node(op_type, x, *(bounds if op_type == "Clip" else []), out="y", name="act")
    b.output("y")
    return b


def by_hand(plan: QuantizedGraph, scale: float, offset: int) -> QuantizedGraph:
    """Give the plan its scales without samples."""
    for end, each in plan.configs.items():
        if each.dominator is each and str(each.state) == "initial":
            if each.granularity.axis is not None:
                each.set_params(np.full(2, 1 / 64, np.float32))
            elif end == TensorEnd.output("act"):
                each.set_params(scale, offset)
            else:
                each.set_params(0.1, 128)
            each.transition(each.state.ACTIVATED)
    return plan


@pytest.mark.parametrize(
    ("op_type", "low", "high", "scale", "offset", "left_out"),
    [
        ("Relu", None, None, 0.05, 0, True),
        ("Relu", None, None, 0.05, 1, False),
        ("Relu", None, None, 0.05, 128, False),
        ("Clip", 0, 6, 6 / 255, 0, True),
        ("Clip", 0, 6, 5 / 255, 0, True),
        ("Clip", 0, 6, 7 / 255, 0, False),
        ("Clip", 0, 6, 6 / 255, 3, False),
        ("Clip", -1, 1, 2 / 255, 128, False),
        ("Clip", -1, 1, 1.9 / 255, 128, True),
        ("Clip", 0, None, 0.05, 0, True),
        ("Clip", None, 6, 6 / 255, 0, True),
        ("Clip", None, None, 0.05, 77, True),
    ],
)
def test_left_out_exactly_where_it_changes_nothing(
    tmp_path: Path,
    op_type: str,
    low: float | None,
    high: float | None,
    scale: float,
    offset: int,
    left_out: bool,
) -> None:
    built = model(op_type, low, high).build()
    plan = by_hand(planned(built, own_target(tmp_path, RULES)), scale, offset)
    exported = write_qdq(plan)
    present = any(str(node.name) == "act" for node in exported.model.graph)
    if "act" in plan.decisions and config(plan, "act.input[0]").state.name == "OVERLAPPED":
        assert present is not left_out
    x = np.random.default_rng(0).uniform(-20, 20, (1, 2, 4, 4)).astype(np.float32)
    end = TensorEnd.output("act")
    _, integers = QdqRuntime(exported.model, {end: exported.codes[end]}, threads=1).run({"x": x})
    data, weight = config(plan, "conv.input[0]"), config(plan, "conv.input[1]")
    stored = np.float32(weight.fake_quantize(np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1))[0, 0])
    exact = data.fake_quantize(x) * stored.reshape(())
    if op_type == "Relu":
        low, high = 0, None
    limited = np.clip(exact, -np.inf if low is None else low, np.inf if high is None else high)
    steps = integers[end].astype(np.int64) - plan.configs[end].quantize(limited)
    assert np.abs(steps).max() <= 1  # ties: the runtime multiplies by one combined scale
    assert np.count_nonzero(steps) <= 1


def test_between_two_pairs_it_stays(tmp_path: Path) -> None:
    """Left out, the pairs would touch, and the runtime would give the first the second's scale."""
    rules = RULES[: RULES.index("[[fusion]]")]
    plan = by_hand(planned(model("Relu", None, None).build(), own_target(tmp_path, rules)), 0.05, 0)
    config(plan, "conv.output[0]").set_params(0.3, 128)
    exported = write_qdq(plan)
    assert any(str(node.name) == "act" for node in exported.model.graph)
    x = np.random.default_rng(0).uniform(-20, 20, (1, 2, 4, 4)).astype(np.float32)
    verified = verify_qdq(plan, exported, [{"x": x}], threads=1)
    assert [layer.mismatches for layer in verified.layers] == [0, 0, 0]

"""What the states and dominators mean for the data that flows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.config import QuantState
from intact.errors import PlanError
from intact.plan import Overrides, QuantizedGraph, QuantPoint, quantization_points, refuse_unready
from tests.models import ModelBuilder, control_flow
from tests.plans import calibrated, config, own_target, planned

OPS = '[[op]]\nops = ["Conv", "Add", "Relu"]\n'
MOVER = '[[op]]\nops = ["MaxPool", "Clip"]\nscales = "output_follows_input"\n'
FUSION = '[[fusion]]\npattern = [["Conv"], ["Relu"]]\n'


def points(plan: QuantizedGraph) -> dict[str, QuantPoint]:
    return {str(point.end): point for point in quantization_points(plan)}


def readers(point: QuantPoint) -> list[tuple[str, int]]:
    return [(str(node.name), slot) for node, slot in point.readers]


def chain() -> ModelBuilder:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), b.weight(4), name="conv", out="c")
    b.node("MaxPool", b.node("Relu", x, name="relu"), kernel_shape=[2, 2], out="y", name="pool")
    b.output("y")
    return b


def test_the_points_of_a_chain_in_order(tmp_path: Path) -> None:
    plan = planned(chain().build(), own_target(tmp_path, OPS + MOVER + FUSION))
    found = points(plan)
    assert list(found) == [
        "conv.input[0]",
        "conv.input[1]",
        "conv.input[2]",
        "relu.output[0]",
        "pool.output[0]",
    ]
    assert [point.is_constant for point in found.values()] == [False, True, True, False, False]
    assert [point.at_output for point in found.values()] == [False, False, False, True, True]
    assert readers(found["relu.output[0]"]) == [("pool", 0)]


def test_codes_that_are_only_moved_are_passed_on(tmp_path: Path) -> None:
    found = points(planned(chain().build(), own_target(tmp_path, OPS + MOVER + FUSION)))
    passed = {end for end, point in found.items() if point.is_passed_on}
    assert passed == {"pool.output[0]"}


def test_a_mover_behind_a_switched_off_end_quantizes_itself(tmp_path: Path) -> None:
    plan = calibrated(chain().build(), own_target(tmp_path, OPS + MOVER + FUSION))
    config(plan, "relu.output[0]").transition(QuantState.DEACTIVATED)
    found = points(plan)
    assert "relu.output[0]" not in found
    assert not found["pool.output[0]"].is_passed_on


def test_a_clip_computes_even_where_it_keeps_the_scale(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.input("x", ["batch", 4]), name="relu")
    b.clip(x, 0, 6)
    b.output(b.nodes[-1].output[0])
    found = points(planned(b.build(), own_target(tmp_path, OPS + MOVER)))
    assert not any(point.is_passed_on for point in found.values())


def test_a_narrower_reader_has_a_point_of_its_own(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["b", 4, 8, 8]), b.weight(4, 4, 1, 1), name="conv", out="c")
    for name in ("wide", "narrow", "slim"):
        b.node("Relu", x, name=name, out=name)
        b.output(name)
    overrides = Overrides(bits={"narrow.input": 4, "slim.input": 4})
    found = points(planned(b.build(), own_target(tmp_path, OPS), overrides))
    assert readers(found["conv.output[0]"]) == [("wide", 0), ("narrow", 0), ("slim", 0)]
    assert readers(found["narrow.input[0]"]) == [("narrow", 0), ("slim", 0)]
    assert "slim.input[0]" not in found
    assert "wide.input[0]" not in found


def test_bodies_read_what_the_producer_hands_out() -> None:
    plan = planned(control_flow())
    (point,) = [p for p in quantization_points(plan) if p.at_output]
    assert (str(point.readers[-1][0].op_type), point.readers[-1][1]) == ("If", -1)


def test_a_plan_without_scales_is_refused_with_the_end(tmp_path: Path) -> None:
    plan = planned(chain().build(), own_target(tmp_path, OPS))
    with pytest.raises(PlanError, match=r"conv.input\[0\] is INITIAL"):
        refuse_unready(plan)
    refuse_unready(calibrated(chain().build(), own_target(tmp_path, OPS)))


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_bias_codes_are_those_of_float64(tmp_path: Path, granularity: str) -> None:
    rules = f'[[op]]\nops = ["Conv"]\nweight = {{ granularity = "{granularity}" }}\n'
    plan = calibrated(chain().build(), own_target(tmp_path, rules))
    bias = points(plan)["conv.input[2]"]
    data, weight = config(plan, "conv.input[0]"), config(plan, "conv.input[1]")
    assert data.scale is not None
    assert weight.scale is not None
    assert weight.scale.shape == (() if granularity == "per_tensor" else (4,))
    np.testing.assert_array_equal(bias.config.scale, data.scale * weight.scale)
    assert bias.value.const_value is not None
    exact = bias.value.const_value.numpy().astype(np.float64) / np.float64(bias.config.scale)
    np.testing.assert_array_equal(bias.constant_codes(), np.rint(exact))


def test_codes_of_an_activation_are_refused(tmp_path: Path) -> None:
    plan = calibrated(chain().build(), own_target(tmp_path, OPS))
    with pytest.raises(PlanError, match="not a constant"):
        points(plan)["conv.output[0]"].constant_codes()

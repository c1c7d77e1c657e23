"""Operators with float32 among their data types, as in [tvm]: float only, or integers and float."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.errors import TargetError
from intact.plan import QuantizedGraph
from intact.targets import Target, load_target, target_from_json, target_to_json
from intact.targets.rules import Signature
from intact.targets.scheme import DType
from tests.models import ModelBuilder
from tests.plans import calibrated, own_target, planned

CONV = '[[op]]\nops = ["Conv"]\ninputs = ["int8", "int8"]\noutputs = ["int32"]\n'
FLOAT = '{ inputs = ["float32"], outputs = ["float32"] }'
INT = '{ inputs = ["int32", "int32"], outputs = ["int32"] }'


def described(folder: Path, text: str) -> Target:
    return own_target(folder, CONV + text)


def net() -> ModelBuilder:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 8, 8])
    first = b.node("Add", x, x, name="before")
    y = b.node("Conv", first, b.weight(4, 4, 1, 1), name="conv")
    y = b.node("Add", y, y, name="behind")
    b.node("GlobalAveragePool", y, out="y", name="mean")
    b.output("y")
    return b


def quantized(plan: QuantizedGraph) -> set[str]:
    return {name for name, decision in plan.decisions.items() if decision.quantized}


def test_float32_alone_means_float_only(tmp_path: Path) -> None:
    """The line of the document: global_avg_pool2d with in_dtypes and out_dtypes float32."""
    rules = '[[op]]\nops = ["GlobalAveragePool"]\ninputs = ["float32"]\noutputs = ["float32"]\n'
    plan = calibrated(net().build(), described(tmp_path, rules))
    assert quantized(plan) == {"conv"}
    reason = plan.decisions["mean"].reason
    assert reason == "target mine describes it with float32 inputs only"


@pytest.mark.parametrize(
    "lines",
    [
        f'inputs = ["int32", "int32"]\noutputs = ["int32"]\nalternatives = [{FLOAT}]\n',
        f'inputs = ["float32", "float32"]\noutputs = ["float32"]\nalternatives = [{INT}]\n',
    ],
)
def test_float32_beside_integers_quantizes_behind_a_quantized_source(
    tmp_path: Path, lines: str
) -> None:
    target = described(tmp_path, f'[[op]]\nops = ["Add"]\nscales = "unify_inputs"\n{lines}')
    (rule,) = (rule for rule in target.rules if "Add" in rule.ops)
    assert (rule.float, rule.alternatives, rule.scales) == (True, (), "unify_inputs")
    assert (rule.inputs, rule.outputs) == ((DType.INT32,) * 2, (DType.INT32,))
    plan = planned(net().build(), target)
    assert quantized(plan) == {"conv", "behind"}
    assert plan.decisions["before"].reason == "none of its inputs comes from a quantized node"
    assert target_from_json(target_to_json(target)) == target


def test_other_signatures_stay(tmp_path: Path) -> None:
    int16 = '{ inputs = ["int16", "int16"], outputs = ["int32"] }'
    lines = f'inputs = ["int8", "int8"]\noutputs = ["int32"]\nalternatives = [{FLOAT}, {int16}]\n'
    target = own_target(tmp_path, f'[[op]]\nops = ["Conv"]\n{lines}')
    (rule,) = target.rules
    assert rule.float
    assert rule.alternatives == (Signature(inputs=(DType.INT16,) * 2, outputs=(DType.INT32,)),)


def test_a_target_that_extends_another_takes_integers_away(tmp_path: Path) -> None:
    path = tmp_path / "less.toml"
    path.write_text(
        'name = "less"\nextends = "tvm"\n'
        '[[op]]\nops = ["Concat"]\ninputs = ["float32"]\noutputs = ["float32"]\n'
        'reason = "slower than floats here"\n'
    )
    rule = next(rule for rule in load_target(path).rules if rule.ops == ("Concat",))
    assert (rule.quantize, rule.reason) == (False, "slower than floats here")
    assert next(r for r in load_target("tvm").rules if r.ops == ("Concat",)).quantize
    path.write_text(path.read_text().replace('"float32"', '"float33"'))
    with pytest.raises(TargetError, match="float33"):
        load_target(path)

"""Which nodes become integer: each rule by a graph that needs no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import intact
from intact.config import QuantState
from intact.plan import Overrides, QuantizedGraph
from tests.models import ModelBuilder, control_flow, custom_domain, local_function
from tests.plans import config, floats, own_target, planned

CONV = """
[[op]]
ops = ["Conv"]
"""
FLEXIBLE = """
[[op]]
ops = ["Relu", "MaxPool", "Sigmoid", "Add"]
float = true
"""
PRUNE = """
[topology]
prune_without_consumer = true
"""


def image(b: ModelBuilder) -> str:
    return b.input("image", ["batch", 4, 8, 8])


def finish(b: ModelBuilder, *names: str) -> ModelBuilder:
    for name in names:
        b.output(name)
    return b


def pool(b: ModelBuilder, x: str, out: str) -> str:
    return b.node("MaxPool", x, kernel_shape=[2, 2], name=out, out=out)


def quantized(plan: QuantizedGraph) -> set[str]:
    return {name for name, decision in plan.decisions.items() if decision.quantized}


def test_an_op_without_integer_description_stays_float(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Tanh", b.node("Conv", image(b), b.weight(4, 4, 1, 1), name="conv"), out="y", name="t")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, CONV))
    assert quantized(plan) == {"conv"}
    assert plan.decisions["t"].reason == "target mine describes no integer Tanh"


def test_a_product_with_a_computed_bias_stays_float_where_biases_are_integers(
    tmp_path: Path,
) -> None:
    b = ModelBuilder()
    b.node("Conv", image(b), b.weight(4, 4, 1, 1), b.input("shift", [4]), out="y", name="conv")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, CONV))
    assert "computes its bias" in plan.decisions["conv"].reason


def test_a_rule_that_refuses_gives_its_own_reason(tmp_path: Path) -> None:
    rules = CONV + '[[op]]\nops = ["Tanh"]\nquantize = false\nreason = "too steep"\n'
    b = ModelBuilder()
    b.node("Tanh", b.node("Conv", image(b), b.weight(4, 4, 1, 1)), out="y", name="t")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, rules))
    assert plan.decisions["t"].reason == "too steep"


def test_an_op_with_a_float_form_needs_a_quantized_source(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Relu", image(b), out="before", name="before")
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), name="conv")
    b.node("Relu", x, out="after", name="after")
    plan = planned(finish(b, "after").build(), own_target(tmp_path, CONV + FLEXIBLE))
    assert quantized(plan) == {"conv", "after"}
    assert "comes from a quantized node" in plan.decisions["before"].reason


def test_one_quantized_source_is_enough(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = image(b)
    b.node("Add", b.node("Conv", x, b.weight(4, 4, 1, 1)), x, out="y", name="add")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, CONV + FLEXIBLE))
    assert plan.decisions["add"].quantized


def test_pruning_cascades_from_the_outputs_upwards(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Conv", image(b), b.weight(4, 4, 1, 1), name="conv")
    b.node("Tanh", pool(b, pool(b, x, "first"), "second"), out="y")
    model = finish(b, "y").build()
    kept = planned(model, own_target(tmp_path, CONV + FLEXIBLE))
    pruned = planned(model, own_target(tmp_path, CONV + FLEXIBLE + PRUNE))
    assert quantized(kept) == {"conv", "first", "second"}
    assert quantized(pruned) == {"conv"}
    assert floats("nothing that reads it", pruned) == {"first", "second"}


def test_a_quantized_reader_keeps_a_chain(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = pool(b, b.node("Conv", image(b), b.weight(4, 4, 1, 1), name="one"), "between")
    b.node("Conv", x, b.weight(4, 4, 1, 1), out="y", name="two")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, CONV + FLEXIBLE + PRUNE))
    assert quantized(plan) == {"one", "between", "two"}


FUSED = '[[fusion]]\npattern = [["Conv"], ["Relu"]]\n'


@pytest.mark.parametrize(
    ("float_output", "shown", "kept"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_the_fused_activation_of_an_integer_only_op(
    tmp_path: Path, float_output: bool, shown: bool, kept: bool
) -> None:
    """It costs nothing where the op must requantize anyway and hands its result to it alone."""
    rules = CONV + ("float_output = true\n" if float_output else "") + FLEXIBLE + FUSED + PRUNE
    b = ModelBuilder()
    x = b.node("Conv", image(b), b.weight(4, 4, 1, 1), out="c", name="conv")
    b.node("Relu", x, out="y", name="relu")
    model = finish(b, "y", *(["c"] if shown else [])).build()
    plan = planned(model, own_target(tmp_path, rules))
    assert plan.decisions["relu"].quantized is kept
    expected = QuantState.FP32 if float_output else QuantState.OVERLAPPED
    if not shown:
        assert config(plan, "conv.output[0]").state is expected


def test_without_a_fusion_the_activation_is_pruned(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Relu", b.node("Conv", image(b), b.weight(4, 4, 1, 1)), out="y", name="relu")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, CONV + FLEXIBLE + PRUNE))
    assert not plan.decisions["relu"].quantized


@pytest.mark.parametrize("asked", ["conv", "Conv"])
def test_kept_float_by_name_or_type(tmp_path: Path, asked: str) -> None:
    b = ModelBuilder()
    x = b.node("Conv", image(b), b.weight(4, 4, 1, 1), name="conv")
    b.node("Relu", x, out="y", name="relu")
    overrides = Overrides(keep_float=(asked,))
    plan = planned(finish(b, "y").build(), own_target(tmp_path, CONV + FLEXIBLE), overrides)
    assert quantized(plan) == set()
    assert plan.decisions["conv"].reason == f"kept float as asked (--keep-float {asked})"


def test_what_leads_to_shapes_only_is_never_quantized(tmp_path: Path) -> None:
    rules = CONV + '[[op]]\nops = ["Mul", "Resize"]\n'
    b = ModelBuilder()
    x = b.node("Conv", image(b), b.weight(4, 4, 1, 1), name="conv")
    size = b.node("Cast", b.node("Shape", x), to=1)
    sizes = b.node("Mul", size, b.constant([1.0, 1.0, 2.0, 2.0]), name="double")
    wanted = b.node("Cast", sizes, to=7)
    b.node("Resize", x, "", "", wanted, mode="nearest", out="y", name="resize")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, rules))
    assert plan.decisions["double"].reason == "computes shapes or indices only"
    assert config(plan, "double.input[0]").state is QuantState.SOI
    assert config(plan, "double.output[0]").state is QuantState.SOI
    assert config(plan, "resize.input[3]").state is QuantState.SOI
    assert plan.decisions["resize"].quantized


def test_unknown_operators_and_domains_stay_float() -> None:
    plan = planned(custom_domain())
    assert "domain 'my.ops'" in plan.decisions["warp"].reason
    assert "NoSuchOperator is not in the op table" in plan.decisions["mystery"].reason
    assert floats("of unknown type", plan) == {"Conv_conv_4"}
    assert len(floats("domain 'local'", planned(local_function()))) == 1


def test_an_if_stays_float_with_a_reason() -> None:
    plan = planned(control_flow())
    (node,) = [node for node in plan.graph.nodes if node.op_type == "If"]
    decision = plan.decisions[str(node.name)]
    assert not decision.quantized
    assert decision.reason


def test_other_types_than_float32_stay_as_they_are(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Cast", image(b), to=11, name="cast")
    b.node("Relu", x, out="y", name="relu")
    b.outputs.append(type(b.inputs[0])(name="y"))
    rules = '[[op]]\nops = ["Relu"]\n'
    plan = planned(b.build(), own_target(tmp_path, rules))
    assert plan.decisions["relu"].reason == "its data is double, not float32"


def test_every_node_has_a_reason() -> None:
    for model in (control_flow(), custom_domain(), local_function()):
        plan = planned(model)
        assert list(plan.decisions) == [str(node.name) for node in plan.graph.nodes]
        assert all(decision.reason for decision in plan.decisions.values())


MOVING = """
[[op]]
ops = ["Reshape", "Slice", "Transpose"]
scales = "output_follows_input"
[[op]]
ops = ["Concat"]
scales = "unify_all"
"""


def moved(*, convolves: bool, around: str = "Exp") -> ModelBuilder:
    """A packed state that is cut in two: one goes into a function, the other one where asked."""
    b = ModelBuilder()
    state = b.input("state", ["batch", 4, 8, 8])
    first, second = (
        b.node("Slice", state, b.ints(k), b.ints(k + 2), b.ints(1), name=f"cut{k}") for k in (0, 2)
    )
    first = b.node(around, b.node("Transpose", first, perm=[0, 1, 3, 2], name="turn"), name="f")
    if convolves:
        second = b.node("Conv", second, b.weight(2, 2, 1, 1), name="conv")
    else:
        second = b.node(around, second, name="g")
    shown = b.node("Reshape", first, b.ints(0, 2, 8, 8), name="shape")
    b.output(b.node("Concat", shown, second, out="next", name="pack", axis=1))
    return b


def test_what_only_moves_floats_stays_float(tmp_path: Path) -> None:
    target = own_target(tmp_path, CONV + MOVING)
    alone = planned(moved(convolves=False).build(), target)
    assert quantized(alone) == set()
    assert "nothing around it computes with integers" in alone.decisions["pack"].reason
    beside = planned(moved(convolves=True).build(), target)
    assert quantized(beside) == {"cut2", "conv", "pack", "shape"}


def test_what_only_moves_between_ends_has_integers(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Transpose", image(b), perm=[0, 1, 3, 2], out="y", name="turn")
    plan = planned(finish(b, "y").build(), own_target(tmp_path, MOVING))
    assert quantized(plan) == {"turn"}


def test_asking_for_a_shape_is_not_computing(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Transpose", image(b), perm=[0, 1, 3, 2], name="turn")
    b.node("Shape", x, out="shape", name="shape")
    b.node("Conv", x, b.weight(4, 4, 1, 1), out="y", name="conv")
    b.output("y")
    b.output("shape", dtype=7)
    plan = planned(b.build(), own_target(tmp_path, CONV + MOVING))
    assert {"turn", "conv"} <= quantized(plan)


def test_a_table_with_infinities_stays_float() -> None:
    """Its row of infinities masks what is padded."""
    b = ModelBuilder()
    table = b.random.normal(size=(5, 4)).astype(np.float32)
    table[0] = -np.inf
    ids = b.input("ids", ["batch", 4], TensorProto.INT64)
    bias = b.node("Gather", b.constant(table), ids, name="bias")
    scores = b.node("MatMul", b.input("x", ["batch", 4, 4]), b.weight(4, 4), name="scores")
    b.node("Softmax", b.node("Add", scores, bias), out="y")
    b.output("y")
    rng = np.random.default_rng(0)
    data = {
        "ids": rng.integers(1, 5, (16, 4)),
        "x": rng.normal(size=(16, 4, 4)).astype(np.float32),
    }
    plan = intact.quantize(b.build(), data).plan
    assert "infinities" in plan.decisions["bias"].reason
    assert plan.decisions["scores"].quantized

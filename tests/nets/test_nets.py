"""Random nets over all operators, on every target, in every format, in the real runtimes.

``make fuzz-nets MINUTES=60`` tries thousands and makes what fails small.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.engines.integer.engine import IntegerEngine
from intact.errors import IntactError
from intact.ops.operators import OPS
from intact.program.lower import lower
from intact.targets import load_target
from tests.models import run_model
from tests.nets.exact import distances
from tests.nets.findings import Finding, Pair, check, pairs, planned
from tests.nets.forms import FORMS
from tests.nets.grown import OPSETS, Grown, Step, grown_net
from tests.nets.known import is_known
from tests.nets.makers import MAKERS
from tests.nets.nets import COMMON, INPUTS, Instruction, Net, random_net
from tests.nets.operators import LEFT_OUT, OPERATORS
from tests.nets.regimes import SAMPLES, WEIGHTS
from tools import fuzz_nets

INSTRUCTIONS = st.builds(
    Instruction,
    st.sampled_from((*sorted(OPERATORS), *COMMON * 8)),
    st.tuples(*[st.integers(0, 255)] * 8),
)
NETS = st.builds(
    Net,
    st.integers(0, len(INPUTS) - 1),
    st.lists(INSTRUCTIONS, min_size=1, max_size=9).map(tuple),
    st.integers(0, 99),
)

quickly = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def test_every_operator_is_in_nets_or_left_out_with_a_reason() -> None:
    left_out = {name for names in LEFT_OUT.values() for name in names.split()}
    assert set(OPERATORS) | left_out == set(OPS)
    assert not set(OPERATORS) & left_out
    made = {node.op_type for seed in range(1500) for node in random_net(seed).model().graph.node}
    assert set(OPERATORS) - made <= {"Expand"}


def test_nets_are_valid_and_have_the_shapes_that_they_say() -> None:
    for seed in range(100):
        net = random_net(seed)
        model = net.model()
        onnx.checker.check_model(model)
        for value in model.graph.output:
            sizes = [d.dim_value for d in value.type.tensor_type.shape.dim][1:]
            assert list(run_model(model, net.samples(2))[value.name].shape[1:]) == sizes


@pytest.mark.parametrize("part", range(6))
def test_what_is_exported_computes_the_integers_of_the_plan(part: int) -> None:
    mine = pairs()[part::6]

    @given(NETS, st.sampled_from(mine))
    @settings(quickly, max_examples=60)
    def holds(net: Net, pair: tuple[str, str]) -> None:
        found = [each for each in check(net, pair) if not is_known(net, each)]
        assert not found, "; ".join(map(str, found))

    holds()


def test_grown_nets_have_every_opset_operator_and_regime() -> None:
    nets = [grown_net(seed) for seed in range(500)]
    made = {node.op_type for net in nets for node in net.model().graph.node}
    assert not set(MAKERS) - made
    assert {net.opset for net in nets} == set(OPSETS)
    assert {net.fed for net in nets} == set(SAMPLES)
    assert {net.weights for net in nets} == set(WEIGHTS)
    usable = sum(net.is_usable() for net in nets[:100])  # checked by ONNX, run by its runtime
    assert usable > 90


def test_grown_nets_have_every_rare_form() -> None:
    nets = [grown_net(seed, rare=True) for seed in range(200)]
    made = {node.name for net in nets for node in net.model().graph.node}
    assert not [form for form in FORMS if not any(f"_{form}_" in name for name in made)]
    assert sum(net.is_usable() for net in nets[:20]) > 17


def test_pairs_get_the_same_time_and_runs_add_up(tmp_path: Path) -> None:
    """A slow pair has fewer nets; a run with the same file goes on with the next seeds."""
    file, seeds, clock = tmp_path / "totals.json", list[int](), [0.0]
    costs = {"vta": 1.0, "tflite": 3.0}

    def net(seed: int) -> Net:
        seeds.append(seed)
        return random_net(0)

    def check_of(_net: Net, pair: Pair, *, refused: Callable[[bool], None]) -> list[Finding]:
        clock[0] += costs[pair[0]]
        if pair[0] == "vta":
            refused(False)
        return []

    with pytest.MonkeyPatch.context() as patch:
        generator = fuzz_nets.Generator(net, lambda _: (), lambda _: True)
        patch.setattr(fuzz_nets, "GENERATORS", {"own": generator})
        patch.setattr(fuzz_nets, "_processor_seconds", lambda: clock[0])
        patch.setattr(fuzz_nets, "check", check_of)
        for _ in range(2):
            chosen = ("--pair", "vta/onnx_qdq", "--pair", "tflite/tflite")
            given = ("--minutes", "0.001", "--json", f"{file}", "--seed", "7")
            assert fuzz_nets.main([*given, *chosen]) == 0
    rows = {row["target"]: row for row in json.loads(file.read_text())["pairs"] if row["next"]}
    assert abs(rows["vta"]["seconds"] - rows["tflite"]["seconds"]) <= 3
    assert rows["vta"]["seconds"] == rows["vta"]["refused"]
    assert rows["tflite"]["seconds"] == 3 * rows["tflite"]["nets"]
    counts = [rows[name]["next"] for name in costs]
    assert sorted(seeds) == sorted(7 + each for count in counts for each in range(count))


@pytest.mark.parametrize("part", range(2))
def test_what_is_exported_of_a_grown_net_computes_the_integers_of_the_plan(part: int) -> None:
    mine = [each for each in pairs() if each[1] != "tvm"]  # which compiles for seconds
    for seed, pair in list(enumerate(mine))[part::2]:
        net = grown_net(seed, most=5)
        if net.is_usable():
            assert not [str(each) for each in check(net, pair) if not is_known(net, each)]


def test_a_grown_net_is_a_function_of_its_seed_and_becomes_smaller() -> None:
    net = grown_net(3)
    assert net.model() == grown_net(3).model()
    assert all(len(str(each)) < len(str(net)) for each in net.smaller())


READ_TWICE = Net(
    0,
    (
        Instruction("MatMul", (151, 239, 61, 204, 30, 154, 123, 164, 240, 9, 65, 191)),
        Instruction("Conv", (59, 22, 227, 187, 254, 106, 115, 178, 4, 166, 84, 56)),
        Instruction("Conv", (232, 119, 184, 165, 143, 5, 31, 191, 115, 16, 238, 46)),
    ),
    13,
)
"""Its MatMul of two activations OpenVINO runs in floats; a convolution reads what it reads."""


@pytest.mark.runtime_fact("openvino")
def test_what_openvino_runs_in_floats_does_not_saturate() -> None:
    pytest.importorskip("openvino")
    assert not check(READ_TWICE, ("openvino-avx2", "openvino"))


@pytest.mark.parametrize(
    "pair",
    [
        *(("x86", "onnx_integer"), ("tvm", "onnx_qdq"), ("tflite", "tflite")),
        *(("tflite-micro", "tflite"), ("tflite-micro", "c")),
    ],
)
def test_an_output_without_axes_is_compared_as_it_is(pair: Pair) -> None:
    net = Grown(21, ((4, 12, 3),), dynamic=False, steps=(Step("ReduceMean/all", 7503338),))
    assert [list(each.type.tensor_type.shape.dim) for each in net.model().graph.output] == [[]]
    refusals: list[bool] = []
    assert not check(net, pair, refused=refusals.append)
    assert not refusals


@pytest.mark.parametrize("target", ["tflite", "tflite-micro", "tflite-xnnpack"])
def test_a_constant_on_the_left_makes_no_dense_layer(target: str) -> None:
    net = Grown(7, ((3, 4, 5),), dynamic=False, steps=(Step("MatMul/left", 1072799959),))
    assert not check(net, (target, "tflite"))


def test_a_rare_step_is_known_and_two_steps_are_not() -> None:
    net, pair = random_net(0), ("tensorrt", "onnx_qdq")
    assert is_known(net, Finding(pair, "bits", "", largest=1, share=0.009))
    assert not is_known(net, Finding(pair, "bits", "", largest=2, share=0.001))
    assert not is_known(net, Finding(pair, "bits", "", largest=1, share=0.03))
    assert not is_known(net, Finding(("onnxruntime", "onnx_qdq"), "bits", "", largest=1))


def test_only_functions_in_float_move_codes_of_16_bits() -> None:
    finding = Finding(("tflite-16x8", "tflite"), "bits", "", largest=1, share=0.001)
    codes = (1,) * 12
    assert is_known(Net(0, (Instruction("Exp", codes),), 1), finding)
    assert not is_known(Net(0, (Instruction("Conv", codes),), 1), finding)


def test_only_what_cancels_in_float_moves_codes_on_openvino() -> None:
    finding = Finding(("openvino", "openvino"), "bits", "", largest=1, share=0.008)
    # x less what LRN leaves of it, a few millionths
    steps = (Step("LRN", 777719742), Step("Sub", 885784987), Step("Conv", 104758561))
    net = Grown(22, ((8, 6, 10),), dynamic=True, steps=steps)
    assert is_known(net, finding)
    assert not is_known(replace(net, steps=steps[::2]), finding)


# How far a code may lie from the number that it rounds: half a step, and what the arithmetic adds.
LIMITS = {"onnxruntime": 0.502, "openvino": 0.502, "integer-pow2": 0.502, "tflite": 0.76}


@pytest.mark.parametrize("target", LIMITS)
def test_the_engine_rounds_the_exact_number(target: str) -> None:
    looked_at = 0
    for seed in range(40):
        net = random_net(seed, most=5)
        try:
            program = lower(planned(net, load_target(target)))
            engine = IntegerEngine(program, threads=1)
        except IntactError:
            continue
        feeds = net.samples(1, seed=2)
        names = [tensor.name for tensor in program.tensors() if not tensor.is_constant]
        values = dict(engine.run(feeds, names).tensors)
        for step in program.steps:
            for place, distance in distances(step, values):
                looked_at += 1
                assert distance <= LIMITS[target], (seed, step.name, place, distance)
    assert looked_at > 300


def test_a_code_that_is_off_by_one_is_seen() -> None:
    """The reference can fail."""
    for seed in range(40):
        net = random_net(seed, most=5)
        try:
            program = lower(planned(net, load_target("onnxruntime")))
        except IntactError:
            continue
        names = [tensor.name for tensor in program.tensors() if not tensor.is_constant]
        values = dict(IntegerEngine(program, threads=1).run(net.samples(1), names).tensors)
        for step in program.steps:
            own = dict(values)
            if list(distances(step, own)):
                array = own[step.outputs[0].name]
                own[step.outputs[0].name] = np.where(array > 5, array - 1, array + 1)
                assert max(d for _, d in distances(step, own)) > 0.502
                return
    raise AssertionError("no net has a step that is looked at")

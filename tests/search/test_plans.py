"""Plans of candidates: made fast, and equal to those that are made from nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.data.sources import open_samples
from intact.engines.limits import needs_integers
from intact.engines.piecewise import PiecewiseSimulator
from intact.errors import CalibrationError, UsageError
from intact.graph import Graph, normalize
from intact.plan import NoteKind, Overrides, QuantizedGraph, build_plan, plan_to_json
from intact.search.plans import Planner, required
from intact.search.space import FLOAT, Candidate, Space
from intact.search.strategy import Strategy
from intact.search.structures import Structure
from intact.targets import Target, load_target
from tests.gallery.catalogue import GALLERY
from tests.models import (
    ModelBuilder,
    depthwise_net,
    random_inputs,
    residual_net,
    transformer_block,
)
from tests.plans import conv, image, own_target


def joined_net() -> onnx.ModelProto:
    """A Relu that a Concat joins with numbers of both signs, and a convolution reads too."""
    b = ModelBuilder()
    x = image(b)
    r = b.node("Relu", conv(b, x, "first"), out="r")
    joined = b.node("Concat", r, conv(b, x, "second"), axis=1)
    b.node("Conv", joined, b.weight(4, 8, 1, 1), out="y", name="last")
    conv(b, r, "other")
    b.output("y")
    b.output("other_out")
    return b.build()


SMALL: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual_net,
    "depthwise": depthwise_net,
    "transformer": transformer_block,
    "joined": joined_net,
}
CASES = [
    ("residual", "onnxruntime"),
    ("residual", "integer-pow2"),
    ("residual", "tengine"),
    ("depthwise", "tflite"),
    ("depthwise", "openvino"),
    ("depthwise", "ncnn"),
    ("transformer", "onnxruntime"),
    ("transformer", "tengine-u8"),
    ("transformer", "tensorrt"),
    ("joined", "openvino"),
    ("joined", "openvino-mqbench"),
    ("residual", "nnie"),
    ("split_net", "integer-pow2"),
    ("prelu_net", "openvino"),
]


def observed(graph: Graph, model: onnx.ModelProto, space: Space, batch: int = 4) -> Statistics:
    feeds = random_inputs(model, batch=batch, seed=3)
    return collect(graph, open_samples(feeds, graph), required(space), threads=1)


@cache
def planner_of(name: str, target: str) -> Planner:
    model = SMALL[name]() if name in SMALL else GALLERY[name].model
    graph, described = normalize(model), load_target(target)
    space = Space.of(graph, described)
    return Planner(space, observed(graph, model, space), Method.of(described))


def candidates(space: Space) -> st.SearchStrategy[Candidate]:
    """Candidates with some groups left float, and widths that are often the same."""
    few = st.sampled_from([(8,), (8, 4), tuple(range(2, 17))])

    @st.composite
    def draw(drawn: st.DrawFn) -> Candidate:
        allowed, floats = drawn(few), drawn(st.sampled_from([0, 1, 4]))
        chosen = []
        for group in space.groups:
            if FLOAT in group.choices and drawn(st.integers(0, 9)) < floats:
                chosen.append(FLOAT)
            else:
                widths = [bits for bits in group.choices if bits in allowed] or [group.default]
                chosen.append(drawn(st.sampled_from(widths)))
        return tuple(chosen)

    return draw()


def slow_plan(planner: Planner, candidate: Candidate) -> QuantizedGraph:
    space = planner.space
    plan = build_plan(space.plan.graph, space.plan.target, space.requests(candidate))
    return assign(plan, planner._statistics, planner._method)


def assert_equal(left: QuantizedGraph, right: QuantizedGraph) -> None:
    assert plan_to_json(left) == plan_to_json(right)
    assert left.notes == right.notes
    assert left.provenance == right.provenance
    assert list(left.decisions.items()) == list(right.decisions.items())
    for end, config in right.configs.items():
        other = left.configs[end]
        assert type(other.grid) is type(config.grid)
        assert (other.grid, other.observer, other.detail) == (
            config.grid,
            config.observer,
            config.detail,
        )
        group = [e for e, c in right.configs.items() if c.dominator is config.dominator]
        assert group == [e for e, c in left.configs.items() if c.dominator is other.dominator]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "target"), CASES)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_plans_equal_those_made_from_nothing(name: str, target: str, data: st.DataObject) -> None:
    planner = planner_of(name, target)
    candidate = data.draw(candidates(planner.space))
    slow = slow_plan(planner, candidate)
    assert_equal(planner.plan(candidate), slow)
    assert set(required_tensors(slow)) <= set(required(planner.space))


@pytest.mark.parametrize("method", ["kl", "percentile", "minmax"])
def test_other_methods_too(method: str) -> None:
    base = planner_of("residual", "openvino")
    chosen = Method.of(base.space.plan.target, method, "mse")
    planner = Planner(base.space, base._statistics, chosen)
    for bits in (8, 4, 8):
        candidate = base.space.uniform(bits)
        assert_equal(planner.plan(candidate), slow_plan(planner, candidate))


def steps(simulator: PiecewiseSimulator, plan: QuantizedGraph) -> tuple[object, ...]:
    """What a run of a plan depends on."""
    made = simulator.prepare(plan)
    quantizers = {stream: quantizer.key for stream, quantizer in made.quantizers.items()}
    return [step.variant for step in made.steps], made.keys, quantizers, made.is_exact


@pytest.mark.parametrize(("name", "target"), CASES)
def test_what_is_remembered_is_what_is_made_from_nothing(name: str, target: str) -> None:
    """Strategies and prepared plans of one planner after the other, beside those of new ones."""
    base = planner_of(name, target)
    planner = Planner(base.space, base._statistics, base._method)
    simulator = PiecewiseSimulator(base.space.plan.graph)
    random = np.random.default_rng(5)
    drawn = [
        tuple(int(random.choice(group.choices)) for group in base.space.groups) for _ in range(2)
    ]
    for candidate in (base.space.default, base.space.uniform(4), *drawn, base.space.default):
        plan = planner.plan(candidate)
        found = steps(simulator, plan)
        assert found == steps(PiecewiseSimulator(plan.graph), plan)
        assert found[-1] is not needs_integers(plan)
        strategy = planner.strategy(plan)
        assert strategy == Planner(base.space, base._statistics, base._method).strategy(plan)
        assert strategy == Strategy.of(plan, strategy.thresholds)


def test_plans_share_nothing() -> None:
    planner = planner_of("residual", "onnxruntime")
    before = plan_to_json(planner.plan(planner.space.default))
    plan = planner.plan(planner.space.default)
    for config in plan.configs.values():
        config.detail["mine"] = True
        if config.dominator is config and config.params is not None:
            config.set_params(config.params.scale * 2, config.params.zero_point)
    plan.provenance = plan.provenance.searched("mine")
    plan.decisions.clear()
    assert plan_to_json(planner.plan(planner.space.default)) == before


def test_one_structure_serves_all_widths() -> None:
    base = planner_of("residual", "onnxruntime")
    planner = Planner(base.space, base._statistics, base._method)
    random = np.random.default_rng(0)
    for _ in range(20):
        planner.plan(
            tuple(
                int(random.choice([b for b in group.choices if b != FLOAT] or group.choices))
                for group in base.space.groups
            )
        )
    assert [len(each) for each in planner._structures.values()] == [1]


RULES = """
[[op]]
ops = ["Conv"]
[[op]]
ops = ["Gemm", "MatMul"]
activation = {{ dtype = "uint8", bits = {bits}, symmetric = false }}
[[op]]
ops = ["Concat"]
scales = "unify_all"
float = true
"""


def two_readers(folder: Path, bits: int) -> tuple[onnx.ModelProto, Target]:
    """A tensor with a reader of 8 bits and one of fewer: one grid, only if they get one width."""
    b = ModelBuilder()
    x = b.input("x", ["batch", 6, 6])
    left = b.node("MatMul", x, b.weight(6, 6), name="left")
    right = b.node("Relu", x, name="right")
    b.output(left)
    b.output(right)
    rules = RULES.format(bits=bits) + '[[op]]\nops = ["Relu"]\n'
    return b.build(), own_target(folder, rules)


def test_a_structure_is_for_those_whose_ends_agree_alike(tmp_path: Path) -> None:
    model, target = two_readers(tmp_path, bits=6)
    graph = normalize(model)
    space = Space.of(graph, target)
    planner = Planner(space, observed(graph, model, space), Method.of(target))
    reading = [
        number
        for number, group in enumerate(space.groups)
        if any(str(end) in ("left.input[0]", "right.input[0]") for end in group.ends)
    ]
    assert len(reading) == 2, "the test needs two groups at one tensor"
    for pair in ((6, 8), (5, 5), (5, 6), (4, 4), (6, 6)):
        candidate = list(space.default)
        for number, bits in zip(reading, pair, strict=True):
            candidate[number] = bits if bits in space.groups[number].choices else candidate[number]
        assert_equal(planner.plan(tuple(candidate)), slow_plan(planner, tuple(candidate)))
    found = [structure for each in planner._structures.values() for structure in each]
    assert len(found) == 2
    assert all(structure.questions for structure in found)


def test_overrides_of_the_user_hold(tmp_path: Path) -> None:
    model = residual_net()
    graph, target = normalize(model), load_target("onnxruntime")
    node = next(str(node.name) for node in graph.nodes if node.op_type == "Conv")
    other = [str(node.name) for node in graph.nodes if node.op_type == "Conv"][1]
    space = Space.of(graph, target, Overrides(keep_float=(node,), bits={other: 5}))
    planner = Planner(space, observed(graph, model, space), Method.of(target))
    for candidate in (space.default, space.uniform(4), space.uniform(8)):
        assert_equal(planner.plan(candidate), slow_plan(planner, candidate))


def test_notes_on_widths_are_those_of_the_candidate() -> None:
    planner = planner_of("residual", "onnxruntime")
    kinds = [
        {note.kind for note in planner.plan(planner.space.uniform(bits)).notes} for bits in (8, 16)
    ]
    assert NoteKind.WIDTH not in kinds[0]


def test_missing_statistics_are_named() -> None:
    base = planner_of("residual", "onnxruntime")
    missing = required_tensors(base.space.plan)[-1]
    tensors = {k: v for k, v in base._statistics.tensors.items() if k != missing}
    statistics = msgspec.structs.replace(base._statistics, tensors=tensors)
    planner = Planner(base.space, statistics, base._method)
    with pytest.raises(CalibrationError, match=missing):
        planner.plan(base.space.default)


def test_statistics_of_another_model_are_refused() -> None:
    base = planner_of("residual", "onnxruntime")
    with pytest.raises(CalibrationError, match="another model"):
        Planner(base.space, Statistics("0" * 64), base._method)


def test_what_is_no_candidate_is_refused() -> None:
    planner = planner_of("residual", "onnxruntime")
    with pytest.raises(UsageError, match="groups"):
        planner.plan(planner.space.default[:-1])


def test_structures_that_were_not_used_for_long_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("intact.search.plans._KEPT", 2)
    base = planner_of("residual", "onnxruntime")
    planner = Planner(base.space, base._statistics, base._method)
    floats = [n for n, group in enumerate(base.space.groups) if FLOAT in group.choices][:4]
    for number in floats:
        candidate = base.space.with_choice(base.space.default, number, FLOAT)
        assert_equal(planner.plan(candidate), slow_plan(planner, candidate))
        assert sum(map(len, planner._structures.values())) <= 2
    made: list[Structure] = [each for kept in planner._structures.values() for each in kept]
    assert len(made) == 2


def test_a_space_without_groups_has_one_plan() -> None:
    b = ModelBuilder()
    b.output(b.node("Relu", image(b), name="alone"))
    graph, target = normalize(b.build()), load_target("onnxruntime")
    space = Space.of(graph, target)
    planner = Planner(space, Statistics(graph.hash), Method.of(target))
    assert not planner.plan(space.default).decisions["alone"].quantized


def test_masks_and_float_models_keep_their_notes() -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "only")
    b.output(b.node("Softmax", b.node("Add", x, b.scalar(-1e9), name="mask"), name="soft"))
    model = b.build()
    graph, target = normalize(model), load_target("integer-pow2")
    space = Space.of(graph, target)
    planner = Planner(space, observed(graph, model, space), Method.of(target))
    for _ in range(2):
        assert_equal(planner.plan(space.default), slow_plan(planner, space.default))

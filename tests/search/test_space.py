"""The choice space: what a target leaves, in groups of which no choice is illegal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.errors import UsageError
from intact.graph import Graph, normalize
from intact.plan import NoteKind, Overrides, TensorEnd, build_plan
from intact.search.space import FLOAT, Group, GroupKind, Space
from intact.targets import load_target
from tests.models import ModelBuilder, depthwise_net, residual_net, transformer_block
from tests.plans import conv, image, own_target

MODELS = {"residual": residual_net, "depthwise": depthwise_net, "transformer": transformer_block}
TARGETS = ("onnxruntime", "integer-pow2", "tflite", "openvino", "ncnn", "tengine", "tensorrt")


def graph_of(name: str) -> Graph:
    return normalize(MODELS[name]())


def holding(space: Space, end: TensorEnd) -> Group:
    return next(group for group in space.groups if end in group.ends)


def chain(*, relu: bool = False) -> Graph:
    b = ModelBuilder()
    x = conv(b, image(b), "first")
    if relu:
        x = b.node("Relu", x, name="relu")
    b.output(conv(b, x, "second"))
    return normalize(b.build())


def test_an_edge_is_one_group_with_its_producer_and_its_readers() -> None:
    space = Space.of(chain(), load_target("onnxruntime"))
    middle = holding(space, TensorEnd.output("first"))
    assert TensorEnd.input("second", 0) in middle.ends
    assert middle.kind is GroupKind.ACTIVATION


def test_a_fused_activation_is_in_the_group_of_what_it_hands_out() -> None:
    space = Space.of(chain(relu=True), load_target("onnxruntime"))
    group = holding(space, TensorEnd.output("relu"))
    assert {TensorEnd.output("first"), TensorEnd.input("relu", 0)} <= set(group.ends)


def test_a_weight_owns_its_node_and_what_is_fused_behind_it() -> None:
    space = Space.of(chain(relu=True), load_target("onnxruntime"))
    group = holding(space, TensorEnd.input("first", 1))
    assert (group.kind, group.owners) == (GroupKind.WEIGHT, ("first", "relu"))
    assert group.choices == (FLOAT, 8, 7, 6, 5, 4)


def test_what_convolutions_hand_on_is_no_choice_of_its_own_to_stay_float() -> None:
    space = Space.of(chain(), load_target("onnxruntime"))
    assert holding(space, TensorEnd.output("first")).choices == (8, 7, 6, 5, 4)


def test_declared_alternatives_widen_the_choices(tmp_path: Path) -> None:
    rules = """
        [[op]]
        ops = ["Conv"]
        inputs = ["uint8", "int8"]
        outputs = ["int32"]
        alternatives = [{ inputs = ["int16", "int16"], outputs = ["int32"] }]
    """
    space = Space.of(chain(), own_target(tmp_path, rules), allow_float=False)
    first = holding(space, TensorEnd.input("first", 0))
    assert first.choices == tuple(range(16, 3, -1))
    # The sum that a convolution hands out is int32, but what is stored of it is not.
    assert holding(space, TensorEnd.output("first")).choices == tuple(range(8, 3, -1))


def test_wanted_widths_are_all_that_is_offered() -> None:
    space = Space.of(chain(), load_target("onnxruntime"), widths=(8, 4), allow_float=False)
    assert {group.choices for group in space.groups} == {(8, 4)}


def test_no_wanted_width_is_possible() -> None:
    space = Space.of(chain(), load_target("onnxruntime"), widths=(16,), allow_float=False)
    assert {group.choices for group in space.groups} == {(8,)}
    assert space.open == ()
    assert space.size == 1


@pytest.mark.parametrize("bits", [0, 1, 17, -4])
def test_impossible_widths_are_refused(bits: int) -> None:
    with pytest.raises(UsageError, match="give widths from 2 to 16"):
        Space.of(chain(), load_target("onnxruntime"), widths=(8, bits))


def test_what_the_user_settles_is_no_choice() -> None:
    overrides = Overrides(keep_float=("second",), bits={"first.weight": 5})
    space = Space.of(chain(), load_target("onnxruntime"), overrides)
    assert holding(space, TensorEnd.input("first", 1)).choices == (5,)
    assert not any("second" in group.owners for group in space.groups)
    plan = build_plan(space.plan.graph, space.plan.target, space.requests(space.default))
    assert plan.configs[TensorEnd.input("first", 1)].bits == 5
    assert not plan.decisions["second"].quantized


def test_prescribed_integers_are_no_choice() -> None:
    b = ModelBuilder()
    x = b.node("Softmax", b.input("x", ["batch", 4]), name="soft", axis=-1)
    b.output(b.node("MatMul", x, b.weight(4, 4), name="dense"))
    space = Space.of(normalize(b.build()), load_target("integer-pow2"), allow_float=False)
    assert holding(space, TensorEnd.output("soft")).choices == (8,)


def test_uniform_takes_the_nearest_width_below() -> None:
    space = Space.of(chain(), load_target("onnxruntime"), widths=(8, 6, 4))
    assert set(space.uniform(7)) == {6}
    assert set(space.uniform(2)) == {4}
    assert set(space.uniform(8)) == {8}


def test_check_refuses_what_is_no_candidate() -> None:
    space = Space.of(chain(), load_target("onnxruntime"))
    with pytest.raises(UsageError, match="choices for"):
        space.check(space.default[1:])
    with pytest.raises(UsageError, match="3 bits is not one of its choices"):
        space.check(space.with_choice(space.default, 0, 3))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_candidate_is_illegal(data: st.DataObject) -> None:
    graph = graph_of(data.draw(st.sampled_from(sorted(MODELS))))
    target = load_target(data.draw(st.sampled_from(TARGETS)))
    space = Space.of(graph, target)
    candidate = tuple(data.draw(st.sampled_from(group.choices)) for group in space.groups)
    space.check(candidate)
    plan = build_plan(graph, target, space.requests(candidate))
    ties = [note for note in plan.notes if note.kind is NoteKind.TIE]
    assert ties == [note for note in space.plan.notes if note.kind is NoteKind.TIE]
    widths = space.widths(candidate)
    for end, config in plan.configs.items():
        if end in widths and config.state.name in ("INITIAL", "OVERLAPPED"):
            assert config.bits == widths[end], end
    for group, bits in zip(space.groups, candidate, strict=True):
        if bits == FLOAT:
            assert not any(plan.decisions[name].quantized for name in group.owners)


@pytest.mark.crossed
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_default_is_what_quantize_decides(name: str, target: str) -> None:
    graph, hardware = graph_of(name), load_target(target)
    space = Space.of(graph, hardware)
    plan = build_plan(graph, hardware, space.requests(space.default))
    plain = build_plan(graph, hardware)
    assert {end: (c.state, c.grid) for end, c in plan.configs.items()} == {
        end: (c.state, c.grid) for end, c in plain.configs.items()
    }
    assert plan.decisions == plain.decisions

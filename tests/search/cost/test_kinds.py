"""Each kind of cost, against counts that are written out or made in another way."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.errors import DataError, UsageError
from intact.formats.onnx_qdq.write import write_qdq
from intact.graph import Graph, normalize
from intact.plan import Overrides, build_plan
from intact.search.cost import COSTS, CostModel, make_cost, prune
from intact.search.space import FLOAT, Candidate, GroupKind, Space
from intact.targets import load_target
from tests.models import (
    MODELS,
    ModelBuilder,
    depthwise_net,
    random_inputs,
    residual_net,
    transformer_block,
    transposed_net,
)
from tests.plans import calibrate, own_target

WIDTHS = (8, 7, 6, 5, 4)


def space_of(model: onnx.ModelProto, target: str = "onnxruntime", **options: Any) -> Space:
    return Space.of(normalize(model), load_target(target), widths=WIDTHS, **options)


def with_bits(space: Space, **bits: int) -> Candidate:
    """The default, but for groups by the node of their first end and their kind."""
    found = list(space.default)
    for index, group in enumerate(space.groups):
        name = f"{group.ends[0].node}_{group.kind}"
        if name in bits:  # the input's group comes before the output's
            found[index] = bits.pop(name)
    assert not bits
    return tuple(found)


def one_conv(*, group: int = 1, bias: bool = True) -> onnx.ModelProto:
    """A convolution of 8x8 images by 3x3 kernels, 4 to 6 channels (grouped: 4 to 4)."""
    b = ModelBuilder()
    outputs = 4 if group > 1 else 6
    x = b.input("image", ["batch", 4, 8, 8])
    weight = b.weight(outputs, 4 // group, 3, 3, name="w")
    extra = [b.weight(outputs, name="bias")] if bias else []
    b.output(b.node("Conv", x, weight, *extra, group=group, pads=[1] * 4, name="conv", out="y"))
    return b.build()


def random_candidates(space: Space, count: int, seed: int = 0) -> list[Candidate]:
    generator = random.Random(seed)
    return [tuple(generator.choice(group.choices) for group in space.groups) for _ in range(count)]


# ---- bits and bytes ------------------------------------------------------------------------------


def test_bits_are_summed_over_groups() -> None:
    space = space_of(residual_net())
    cost = make_cost("bits", space)
    for candidate in [space.default, space.uniform(4), *random_candidates(space, 5)]:
        assert cost.of(candidate) == sum(candidate)


def test_bytes_of_a_convolution_are_its_codes_scales_and_bias() -> None:
    space = space_of(one_conv(), "tvm")
    cost = make_cost("bytes", space)
    activations = 5 * sum(group.kind is GroupKind.ACTIVATION for group in space.groups)
    weight = 6 * 4 * 9
    rest = activations + 6 * 4  # the bias, whose scale and zero point are another 8
    assert cost.of(space.default) == weight + 5 + rest + 8
    assert cost.of(with_bits(space, conv_weight=5)) == cost.of(space.default)
    assert cost.of(with_bits(space, conv_weight=4)) == weight // 2 + 5 + rest + 8
    assert cost.of(with_bits(space, conv_weight=FLOAT)) == 4 * weight + rest


def test_bytes_count_a_scale_for_each_channel() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    x = b.node("Conv", x, b.weight(3, 4, 1, 1), name="first", out="x")
    b.output(b.node("Conv", x, b.weight(3, 3, 1, 1), name="conv", out="y"))
    space = space_of(b.build())
    cost = make_cost("bytes", space)
    step = cost.of(space.default) - cost.of(with_bits(space, conv_weight=4))
    assert step == 9 - 5  # codes, two a byte; zero points are bytes
    step = cost.of(with_bits(space, conv_weight=FLOAT)) - cost.of(space.default)
    assert step == 4 * 9 - 9 - 3 * (4 + 1)
    # A format that packs nothing stores 4 bits as it stores 8.
    unpacked = make_cost("bytes", space, packs=False)
    assert unpacked.of(space.default) == cost.of(space.default)
    assert unpacked.of(with_bits(space, conv_weight=4)) == unpacked.of(space.default)


def test_a_weight_that_two_nodes_share_is_stored_once() -> None:
    def model(*, shared: bool) -> onnx.ModelProto:
        b = ModelBuilder()
        x = b.input("image", ["batch", 4, 8, 8])
        first = b.weight(4, 4, 1, 1)
        second = first if shared else b.weight(4, 4, 1, 1)
        x = b.node("Conv", x, first, name="first", out="x")
        b.output(b.node("Conv", x, second, name="second", out="y"))
        return b.build()

    once, twice = space_of(model(shared=True)), space_of(model(shared=False))
    weights = [group for group in once.groups if group.kind is GroupKind.WEIGHT]
    assert [len(group.ends) for group in weights] == [2]
    difference = make_cost("bytes", twice).of(twice.default)
    difference -= make_cost("bytes", once).of(once.default)
    assert difference == 16 + 4 * (4 + 1)


def written_bytes(space: Space, candidate: Candidate, feeds: dict[str, npt.NDArray[Any]]) -> int:
    """The parameters of the written model."""
    plan = space.plan
    made = calibrate(build_plan(plan.graph, plan.target, space.requests(candidate)), feeds)
    tensors = [value.const_value for value in write_qdq(made).model.graph.initializers.values()]
    return sum(each.nbytes for each in tensors if each is not None)


def weights_at(space: Space, bits: int) -> Candidate:
    """The default, but for the weights."""
    return tuple(
        bits if group.kind is GroupKind.WEIGHT and bits in group.choices else group.default
        for group in space.groups
    )


@pytest.mark.parametrize("target", ["onnxruntime", "tvm"])
@pytest.mark.parametrize("make", [residual_net, depthwise_net, transformer_block])
def test_bytes_go_with_those_of_the_written_model(make: Any, target: str) -> None:
    model = make()
    space = space_of(model, target, allow_float=False)
    cost = make_cost("bytes", space)
    feeds = random_inputs(model, seed=0)
    candidates = [space.default, weights_at(space, 6), weights_at(space, 4)]
    differences = {cost.of(each) - written_bytes(space, each, feeds) for each in candidates}
    assert len(differences) == 1
    # What is only in one of both: Relu6 that saturation does (its bounds), scales of codes that
    # are moved on, bounds of Clips.
    assert abs(differences.pop()) < 256


def test_bytes_are_exactly_those_of_a_written_residual_net() -> None:
    model = residual_net()
    space = space_of(model)
    cost = make_cost("bytes", space)
    feeds = random_inputs(model, seed=0)
    for candidate in (space.default, weights_at(space, 4)):
        assert cost.of(candidate) == written_bytes(space, candidate, feeds)


def test_bytes_keep_the_widest_activations_and_three_weights() -> None:
    space = space_of(residual_net())
    for group in prune(space, make_cost("bytes", space)).groups:
        if group.kind is GroupKind.ACTIVATION:
            assert group.choices == (8,)
        else:
            assert group.choices == (FLOAT, 8, 4)


# ---- operations ----------------------------------------------------------------------------------


def test_bit_operations_are_products_times_both_widths() -> None:
    space = space_of(one_conv())
    cost = make_cost("bitops", space)
    products = 6 * 8 * 8 * 4 * 9
    assert cost.of(space.default) == products * 8 * 8
    assert cost.of(with_bits(space, conv_weight=4)) == products * 8 * 4
    assert cost.of(with_bits(space, conv_activation=5, conv_weight=4)) == products * 5 * 4
    assert cost.of(with_bits(space, conv_weight=FLOAT)) == products * 32 * 32


@pytest.mark.parametrize("group", [2, 4])
def test_grouped_convolutions_read_fewer_channels(group: int) -> None:
    space = space_of(one_conv(group=group))
    assert make_cost("bitops", space).of(space.default) == 4 * 8 * 8 * (4 // group) * 9 * 64


def test_gemms_and_matmuls_count_rows_columns_and_length() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3, 5])
    x = b.node("MatMul", x, b.weight(5, 7), name="matmul", out="m")
    x = b.node("Flatten", x, name="flat", out="f")
    b.output(b.node("Gemm", x, b.weight(2, 21), transB=1, name="gemm", out="y"))
    space = space_of(b.build())
    assert make_cost("bitops", space).of(space.default) == (3 * 7 * 5 + 2 * 21) * 64


def test_products_of_two_activations_depend_on_both() -> None:
    b = ModelBuilder()
    x, y = b.input("x", ["batch", 3, 5]), b.input("y", ["batch", 5, 2])
    b.output(b.node("MatMul", x, y, name="matmul", out="m"))
    space = space_of(b.build(), "tvm")
    cost = make_cost("bitops", space)
    ends = {str(group.ends[0]): index for index, group in enumerate(space.groups)}
    left, right = ends["matmul.input[0]"], ends["matmul.input[1]"]
    candidate = space.with_choice(space.with_choice(space.default, left, 5), right, 4)
    assert cost.of(candidate) == 3 * 5 * 2 * 5 * 4
    output = ends["matmul.output[0]"]
    if FLOAT in space.groups[output].choices:
        assert cost.of(space.with_choice(candidate, output, FLOAT)) == 30 * 32 * 32


def test_transposed_convolutions_spread_their_inputs() -> None:
    model = transposed_net()
    space = space_of(model)
    graph = normalize(model)
    shapes = onnx.shape_inference.infer_shapes(model)
    total = sum(counted(graph, shapes)) * 32 * 32
    float_all = tuple(FLOAT if FLOAT in group.choices else group.default for group in space.groups)
    assert make_cost("bitops", space).of(float_all) == total


def counted(graph: Graph, shapes: onnx.ModelProto) -> list[int]:
    """MACs by another formula: outputs times what one output sums, at stride and padding's edge."""
    found = []
    for node in graph.nodes:
        weight = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.op_type not in {"Conv", "ConvTranspose", "Gemm", "MatMul"} or weight is None:
            continue
        sizes = [1 if not isinstance(size, int) else size for size in node.outputs[0].shape or ()]
        source = node.inputs[0].shape if node.inputs[0] is not None else ()
        inputs = [1 if not isinstance(size, int) else size for size in source or ()]
        if node.op_type == "ConvTranspose":
            found.append(math.prod(inputs[2:]) * weight.size)
        elif node.op_type == "Conv":
            found.append(math.prod(sizes[2:]) * weight.size)
        else:
            found.append(math.prod(inputs[:-1]) * weight.size)
    return found


def dynamic_model() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, "height", "width"])
    b.output(b.node("Conv", x, b.weight(3, 2, 1, 1), name="conv", out="y"))
    return b.build()


def test_dynamic_shapes_are_taken_from_a_sample() -> None:
    space = space_of(dynamic_model())
    sample = {"image": np.zeros((1, 2, 5, 7), np.float32)}
    cost = make_cost("bitops", space, feeds=sample)
    assert cost.of(space.default) == 5 * 7 * 3 * 2 * 64


def test_dynamic_shapes_without_a_sample_are_refused() -> None:
    with pytest.raises(DataError, match="depends on the sample; give a sample"):
        make_cost("bitops", space_of(dynamic_model()))
    make_cost("bytes", space_of(dynamic_model()))  # needs none


def test_a_sample_changes_nothing_where_shapes_are_known() -> None:
    model = residual_net()
    space = space_of(model)
    feeds = {name: array[:1] for name, array in random_inputs(model, seed=0).items()}
    for name in ("bitops", "target"):
        declared, observed = make_cost(name, space), make_cost(name, space, feeds=feeds)
        for candidate in random_candidates(space, 5):
            assert declared.of(candidate) == observed.of(candidate)


PRICES = """
[[op]]
ops = ["Conv"]
inputs = ["uint4", "int4"]
outputs = ["uint8"]
alternatives = [
    { inputs = ["uint8", "int8"], outputs = ["uint8"] },
    { inputs = ["uint16", "int8"], outputs = ["uint16"] },
]
[[op]]
ops = ["Add"]
[cost]
"Conv.uint4" = 0.25
"Conv.uint8" = 0.5
"Conv.float32" = 2.0
"Add.uint8" = 3.0
"""


def test_a_targets_prices_are_taken_by_the_first_description_that_holds_all(tmp_path: Path) -> None:
    graph = normalize(one_conv())
    space = Space.of(graph, own_target(tmp_path, PRICES), widths=(16, 8, 5, 4))
    cost = make_cost("target", space)
    products = 6 * 8 * 8 * 4 * 9
    assert cost.of(with_bits(space, conv_activation=8, conv_weight=8)) == products * 0.5
    assert cost.of(with_bits(space, conv_activation=4, conv_weight=5)) == products * 0.5
    assert cost.of(with_bits(space, conv_activation=4, conv_weight=4)) == products * 0.25
    assert cost.of(with_bits(space, conv_activation=16)) == products * 1.0  # without a price
    assert cost.of(with_bits(space, conv_weight=FLOAT)) == products * 2.0
    both = Overrides(weight_bits=16)  # which no description takes: always in float
    with pytest.raises(UsageError, match="has the same cost"):
        make_cost("target", Space.of(graph, own_target(tmp_path, PRICES), both))


def test_narrow_codes_cost_what_the_priced_type_costs(tmp_path: Path) -> None:
    b = ModelBuilder()
    x, y = b.input("x", ["batch", 2, 4, 4]), b.input("y", ["batch", 2, 4, 4])
    b.output(b.node("Add", x, y, name="add", out="z"))
    target = own_target(tmp_path, PRICES)
    space = Space.of(normalize(b.build()), target, widths=(8, 4))
    assert make_cost("target", space).of(space.uniform(4)) == 2 * 4 * 4 * 3.0


def test_a_target_without_prices_is_refused_and_latency_has_a_stand_in() -> None:
    space = space_of(one_conv(), "tvm")
    with pytest.raises(UsageError, match=r"target tvm has the same cost.*\[cost\] table"):
        make_cost("target", space)
    integers = Space.of(normalize(one_conv()), load_target("x86"), allow_float=False)
    with pytest.raises(UsageError, match=r"target x86 has the same cost.*onnx_qdq"):
        make_cost("target", integers)
    stand_in = make_cost("latency", space, measure=lambda _: 1.0)
    assert stand_in.estimate(space.default) == make_cost("bitops", space).of(space.default)
    assert stand_in.of(space.default) == 1.0


@pytest.mark.crossed
@pytest.mark.parametrize("name", [name for name in COSTS if name != "target"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_every_cost(model: str, name: str) -> None:
    made = MODELS[model].build(17)
    space = space_of(made)
    feeds = random_inputs(made, seed=0)
    cost = make_cost(name, space, feeds=feeds, measure=lambda _: 1.0)
    assert isinstance(cost, CostModel)
    costs = [cost.estimate(each) for each in [space.default, *random_candidates(space, 3)]]
    assert all(math.isfinite(each) and each >= 0 for each in costs)

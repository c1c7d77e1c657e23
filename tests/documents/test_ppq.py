"""[ppq]: what its document says of a tensor's configuration, asked of intact's."""

from __future__ import annotations

import inspect
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.config import (
    MEANING,
    PerChannel,
    PerTensor,
    QuantPolicy,
    QuantState,
    Rounding,
    StateMeaning,
    TensorQuantConfig,
    make_policy,
)
from intact.engines.simulate import Simulator
from intact.errors import ConfigError
from intact.plan import Overrides, TensorEnd, quantization_points
from intact.targets import Target, load_target
from tests.models import ModelBuilder, random_inputs, residual_net
from tests.plans import calibrated, config, conv, image, own_target, planned

LINEAR = make_policy(PerTensor(), symmetric=True)
P = QuantPolicy

DOCUMENT = {
    "policy": "policy",
    "rounding": "rounding",
    "num_of_bits": "bits",
    "quant_min": "quant_min",
    "quant_max": "quant_max",
    "scale": "scale",
    "offset": "offset",
    "observer_algorithm": "observer",
    "detail": "detail",
    "inplace": "inplace",
    "state": "state",
}
"""The arguments of its class, and ours."""


def made(bits: int) -> TensorQuantConfig:
    return TensorQuantConfig(
        policy=LINEAR, bits=bits, quant_min=-(2 ** (bits - 1)), quant_max=2 ** (bits - 1) - 1
    )


def test_every_argument_is_there() -> None:
    ours = set(inspect.signature(TensorQuantConfig).parameters)
    assert set(DOCUMENT.values()) <= ours
    fresh = made(8)
    assert fresh.state is QuantState.INITIAL
    assert (fresh.detail, fresh.inplace) == ({}, False)
    assert fresh.dominator is fresh  # "_father_config = self"


@pytest.mark.parametrize("bits", [2, 3, 8, 31, 32])
def test_2_to_32_bits(bits: int) -> None:
    assert made(bits).bits == bits


@pytest.mark.parametrize("bits", [1, 33, 48, 64])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="2 to 32"):
        made(bits)


def test_biases_alone_are_as_wide_as_sums() -> None:
    plan = calibrated(residual_net(), "tflite-16x8")
    wide = {end: each for end, each in plan.configs.items() if each.bits > 32}
    assert {end.slot for end in wide} == {2}
    assert {each.state for each in wide.values()} == {QuantState.PASSIVE}


@pytest.mark.parametrize("inplace", [False, True])
def test_in_place_the_array_is_overwritten(inplace: bool) -> None:
    own = TensorQuantConfig(
        policy=LINEAR,
        bits=8,
        quant_min=-128,
        quant_max=127,
        scale=0.5,
        inplace=inplace,
        state=QuantState.ACTIVATED,
    )
    values = np.array([0.3, 9.1, 100], np.float32)
    kept = values.copy()
    found = own.fake_quantize(values)
    np.testing.assert_array_equal(found, np.array([0.5, 9, 63.5], np.float32))
    assert (found is values) == inplace
    np.testing.assert_array_equal(values, found if inplace else kept)
    kept.flags.writeable = False
    assert own.fake_quantize(kept) is not kept
    assert own.fake_quantize(values, inplace=False) is not values


def codes_of(target: Target) -> dict[str, tuple[int, int]]:
    return {
        kind: (scheme.quant_min, scheme.quant_max)
        for kind, scheme in (("activation", target.activation), ("weight", target.weight))
    }


def test_examples_of_ranges(tmp_path: Path) -> None:
    """-127..127 on TensorRT; ours has -128 for activations, with the same scale amax / 127."""
    assert codes_of(load_target("tensorrt")) == {"activation": (-128, 127), "weight": (-127, 127)}
    path = tmp_path / "mine.toml"
    path.write_text(
        'format = 2\nname = "mine"\nextends = "tensorrt"\n[activation]\nquant_min = -127\n',
        encoding="utf-8",
    )
    documents = load_target(path)
    assert codes_of(documents) == {"activation": (-127, 127), "weight": (-127, 127)}
    b = ModelBuilder()
    conv(b, image(b), "one")
    b.output("one_out")
    scales = [
        config(calibrated(b.build(), target), "one.input[0]").scale
        for target in (load_target("tensorrt"), documents)
    ]
    assert scales[0] == scales[1]
    assert codes_of(load_target("onnxruntime"))["activation"] == (0, 255)  # as on a DSP


def test_a_channel_has_a_scale_and_an_offset() -> None:
    policy = P.ASYMMETRICAL | P.LINEAR | P.PER_CHANNEL  # the document's example
    grid = TensorQuantConfig(
        policy=policy.check(),
        granularity=PerChannel(0),
        bits=8,
        quant_min=0,
        quant_max=255,
        scale=[0.5, 0.25],
        offset=[3, 128],
        state=QuantState.ACTIVATED,
    )
    values = np.array([[-1.0, 2.0], [-32.0, 31.0]], np.float32)
    assert grid.quantize(values).tolist() == [[1, 7], [0, 252]]


def test_an_offset_needs_an_asymmetric_policy() -> None:
    with pytest.raises(ConfigError):
        TensorQuantConfig(policy=LINEAR, bits=8, quant_min=-128, quant_max=127, scale=0.5, offset=3)


PAIRS = [
    {P.PER_TENSOR, P.PER_CHANNEL},
    {P.LINEAR, P.EXPONENTIAL},
    {P.SYMMETRICAL, P.ASYMMETRICAL},
]


def test_seven_properties_of_which_some_exclude_each_other() -> None:
    names = ("PER_TENSOR", "PER_CHANNEL", "LINEAR", "EXPONENTIAL", "SYMMETRICAL", "ASYMMETRICAL")
    own = ("PER_BLOCK", "PER_ROW")
    assert {each.name for each in P} == {*names, "POWER_OF_2", *own}
    fine = P.PER_TENSOR + P.LINEAR + P.SYMMETRICAL  # as in the document
    assert fine == P.PER_TENSOR | P.LINEAR | P.SYMMETRICAL
    assert fine + P.LINEAR == fine.check()
    (fine | P.POWER_OF_2).check()
    for other in (P.PER_CHANNEL, P.EXPONENTIAL, P.ASYMMETRICAL):
        with pytest.raises(ConfigError, match="sets both"):
            (fine | other).check()
        pair = next(each for each in PAIRS if other in each)
        with pytest.raises(ConfigError, match="sets neither"):
            (fine & ~next(iter(pair - {other}))).check()


TIES = (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (Rounding.HALF_EVEN, (-2, -2, 0, 0, 2, 2)),
        (Rounding.HALF_UP, (-2, -1, 0, 1, 2, 3)),
        (Rounding.HALF_DOWN, (-3, -2, -1, 0, 1, 2)),
        (Rounding.HALF_TOWARD_ZERO, (-2, -1, 0, 0, 1, 2)),
        (Rounding.HALF_AWAY_FROM_ZERO, (-3, -2, -1, 1, 2, 3)),
        (Rounding.NEAREST, (-2, -2, 0, 0, 2, 2)),  # abandoned there; half even here
        (Rounding.UP, (-2, -1, 0, 1, 2, 3)),
    ],
)
def test_codes_of_ties(rounding: Rounding, expected: tuple[int, ...]) -> None:
    """Of codes, not of numbers alone: a config rounds as its policy says."""
    grid = TensorQuantConfig(
        policy=LINEAR, bits=8, quant_min=-128, quant_max=127, rounding=rounding, scale=0.25,
        state=QuantState.ACTIVATED,
    )  # fmt: skip
    values = np.array([tie / 4 for tie in TIES], np.float32)
    assert grid.quantize(values).tolist() == list(expected)
    above = np.array([0.3, -0.3], np.float32)  # 1.2 and -1.2
    assert grid.quantize(above).tolist() == ([2, -1] if rounding is Rounding.UP else [1, -1])


def test_who_acts_in_which_state() -> None:
    """The document's list: in effect, not in effect, not usable yet."""
    acts = {QuantState.ACTIVATED, QuantState.PASSIVE}
    unusable = {QuantState.INITIAL, QuantState.PASSIVE_INIT}
    assert {s for s, m in MEANING.items() if m is StateMeaning.QUANTIZES} == acts
    assert {s for s, m in MEANING.items() if m is StateMeaning.REFUSED} == unusable
    assert len(QuantState) == 12


def test_a_bias_has_no_scale_of_its_own() -> None:
    plan = calibrated(residual_net(), "tflite")
    biases = [
        plan.configs[TensorEnd.input(str(node.name), 2)]
        for node in plan.graph.nodes
        if node.op_type == "Conv" and len(node.inputs) > 2
    ]
    assert biases
    assert {each.state for each in biases} == {QuantState.PASSIVE}


def test_shapes_are_soi() -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    b.node("Reshape", x, b.ints(0, -1), name="flat", out="y")
    b.output("y")
    plan = planned(b.build(), "onnxruntime")
    assert config(plan, "flat.input[1]").state is QuantState.SOI


OPS = '[[op]]\nops = ["Conv", "Relu"]\n'
FUSED = OPS + '[[fusion]]\npattern = [["Conv"], ["Relu"]]\n'


def test_two_readers_may_quantize_one_tensor_differently(tmp_path: Path) -> None:
    """Var 1 with 8 bits from its producer and 4 bits at its reader is quantized twice."""
    b = ModelBuilder()
    conv(b, conv(b, image(b), "one"), "two")
    b.output("two_out")
    target = own_target(tmp_path, OPS)
    plan = planned(b.build(), target, Overrides(bits={"two.input": 4}))
    here, there = config(plan, "one.output[0]"), config(plan, "two.input[0]")
    assert (here.bits, there.bits) == (8, 4)
    assert there.state is QuantState.INITIAL  # a quantizer of its own
    same = planned(b.build(), target)
    assert config(same, "two.input[0]").state is QuantState.OVERLAPPED
    assert config(same, "two.input[0]").dominator is config(same, "one.output[0]")


def joined_by_concat() -> onnx.ModelProto:
    b = ModelBuilder()
    x = image(b)
    b.node("Concat", conv(b, x, "one"), conv(b, x, "two"), axis=1, name="join", out="y")
    b.output("y")
    return b.build()


def test_a_concat_governs_the_convolutions_before_it(tmp_path: Path) -> None:
    rules = '[[op]]\nops = ["Conv", "Concat"]\n[[fusion]]\npattern = [["Conv"], ["Concat"]]\n'
    plan = calibrated(joined_by_concat(), own_target(tmp_path, rules))
    for end in ("one.output[0]", "two.output[0]", "join.input[0]"):
        assert config(plan, end).state is QuantState.OVERLAPPED
        assert config(plan, end).dominator is config(plan, "join.output[0]")


@pytest.mark.parametrize("base", ["tflite", "tvm", "integer-pow2", "tengine"])
def test_what_a_concat_governs_is_deployed(tmp_path: Path, base: str) -> None:
    """Each convolution writes codes of the Concat's scale, with a Relu of its own or without."""
    b = ModelBuilder()
    x = image(b)
    clamped = b.node("Relu", conv(b, x, "two"), name="relu")
    shared = conv(b, x, "three")
    b.node("Concat", conv(b, x, "one"), clamped, shared, axis=1, name="join", out="y")
    b.output("y")
    b.node("MaxPool", shared, name="pool", out="z", kernel_shape=[2, 2])
    b.output("z")
    path = tmp_path / "mine.toml"
    chains = '[["Conv"], ["Concat"]]', '[["Conv"], ["Relu"], ["Concat"]]'
    fusions = "".join(f"[[fusion]]\npattern = {each}\n" for each in chains)
    path.write_text(f'format = 2\nname = "mine"\nextends = "{base}"\n{fusions}', encoding="utf-8")
    model = b.build()
    data = random_inputs(model, batch=4)
    result = intact.quantize(model, data, target=path)
    join = config(result.plan, "join.output[0]")
    assert join.state is not QuantState.OVERLAPPED
    for name in ("one", "two", "relu"):
        governed = config(result.plan, f"{name}.output[0]")
        assert governed.state is QuantState.OVERLAPPED
        assert governed.dominator is join.dominator
    other = config(result.plan, "three.output[0]")  # two read it
    assert other.state is not QuantState.OVERLAPPED
    places = [p for p in quantization_points(result.plan) if p.at_output]
    scales = {str(p.end): float(p.config.scale) for p in places if p.config.scale is not None}
    assert scales["one.output[0]"] == scales["relu.output[0]"] == scales["join.output[0]"]
    assert "two.output[0]" not in scales
    verification = intact.verify(result, data)
    assert verification.layers
    assert not any(layer.mismatches for layer in verification.layers)
    simulated = Simulator(result.plan).run(data)[0]
    assert sorted(simulated) == ["y", "z"]


@pytest.mark.parametrize("target", ["tflite", "tvm"])
def test_one_scale_for_a_concat_is_written_by_the_convolutions(target: str) -> None:
    plan = calibrated(joined_by_concat(), target)
    ends = [config(plan, f"{name}.output[0]") for name in ("one", "two", "join")]
    assert len({id(each.dominator) for each in ends}) == 1
    activated, passive = QuantState.ACTIVATED, QuantState.PASSIVE
    assert [each.state for each in ends] == [activated, passive, passive]


def test_relu_governs_the_convolution_before_it(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Relu", conv(b, image(b), "conv"), name="relu", out="y")
    b.output("y")
    plan = calibrated(b.build(), own_target(tmp_path, FUSED))
    behind, master = config(plan, "conv.output[0]"), config(plan, "relu.output[0]")
    assert (behind.state, master.state) == (QuantState.OVERLAPPED, QuantState.ACTIVATED)
    assert behind.dominator is master
    assert behind.scale == master.scale


@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime", "openvino", "tflite"])
def test_more_than_half_of_the_configs_share(target: str) -> None:
    plan = calibrated(residual_net(), target)
    ends = [each for each in plan.configs.values() if each.state not in (QuantState.SOI,)]
    governed = {id(each.dominator) for each in ends if each.dominator is not each}
    sharing = [each for each in ends if each.dominator is not each or id(each) in governed]
    assert len(sharing) > len(ends) / 2


def test_there_is_one_master_whatever_the_order() -> None:
    for order in combinations(range(4), 2):
        configs = [made(8) for _ in range(4)]
        first, second = order
        configs[first].dominate(configs[second])
        for each in configs:
            configs[0].dominate(each)
        assert len({id(each.dominator) for each in configs}) == 1

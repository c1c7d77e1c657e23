"""Scales that were given hold bit for bit, and what contradicts them is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.scales.roles import is_parameter, point_role
from intact.calibrate.statistics import Statistics
from intact.errors import CalibrationError
from intact.formats.scales import read_scales
from intact.graph import Role
from intact.plan import NoteKind, Overrides, QuantizedGraph, QuantPoint, quantization_points
from intact.plan.given_scales import GIVEN, GivenScale, ScaleTable
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net
from tests.plans import calibrate, calibrated, config, conv, image, own_target, planned

TARGETS = ("onnxruntime", "tensorrt", "integer-pow2")
MODEL_NAMES = ("residual", "depthwise", "detector", "transformer")


def named(plan: QuantizedGraph) -> dict[str, QuantPoint]:
    """The quantized tensors of a plan, biases left out."""
    points = (p for p in quantization_points(plan) if not is_bias(p))
    return {str(point.value.name): point for point in points}


def is_bias(point: QuantPoint) -> bool:
    return is_parameter(point) and point_role(point) is Role.BIAS


def encodings_1(plan: QuantizedGraph) -> str:
    """What AIMET would write for this plan, version 1.0.0."""
    entries = []
    for name, point in named(plan).items():
        grid, params = point.config.grid, point.config.params
        assert params is not None
        lowest = -(1 << (grid.bits - 1)) if grid.quant_min < 0 else 0
        entries.append(
            {
                "name": name,
                "dtype": "INT",
                "enc_type": "PER_TENSOR" if grid.axis is None else "PER_CHANNEL",
                "bw": grid.bits,
                "is_sym": grid.quant_min < 0,
                "scale": [float(scale) for scale in params.scale.reshape(-1)],
                "offset": [int(lowest - zero) for zero in params.zero_point.reshape(-1)],
            }
        )
    return json.dumps({"version": "1.0.0", "activation_encodings": entries, "param_encodings": []})


def encodings_2(plan: QuantizedGraph) -> str:
    entries = []
    for name, point in named(plan).items():
        grid, params = point.config.grid, point.config.params
        assert params is not None
        kind = f"{'int' if grid.quant_min < 0 else 'uint'}{grid.bits}"
        entry: dict[str, Any] = {
            "name": name,
            "output_dtype": kind,
            "y_scale": params.scale.astype(np.float64).tolist(),
            "y_zero_point": params.zero_point.tolist(),
        }
        entries.append(entry | ({} if grid.axis is None else {"axis": grid.axis}))
    return json.dumps({"version": "2.0.0", "encodings": entries})


def tengine_tables(plan: QuantizedGraph) -> str:
    """``table_minmax.scale`` and ``scale_weight.txt`` in one."""
    lines = []
    for name, point in named(plan).items():
        params = point.config.params
        assert params is not None
        if point.config.granularity.axis is None:
            lines.append(f"{name} {float(params.scale):f} {int(params.zero_point)}\n")
        else:
            lines.append(f"{name} {''.join(f'{scale:8.8f} ' for scale in params.scale)}\n")
    return "".join(lines)


def given(plan: QuantizedGraph, table: ScaleTable) -> QuantizedGraph:
    return assign(plan, None, Method.of(plan.target), table)


def table(**scales: GivenScale) -> ScaleTable:
    return ScaleTable.of("my.scale", [("line", *item) for item in scales.items()])


@pytest.mark.crossed
@pytest.mark.parametrize("written", [encodings_1, encodings_2])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_table_of_a_calibrated_plan_gives_that_plan_without_samples(
    name: str, target: str, written: Callable[[QuantizedGraph], str], tmp_path: Path
) -> None:
    model = next(value for key, value in MODELS.items() if key.startswith(name)).build(17)
    plan = planned(model, target)
    expected = calibrate(plan, random_inputs(model, batch=8, seed=1))
    path = tmp_path / "my.encodings"
    path.write_text(written(expected))
    found = given(plan, read_scales(path))
    for end, wanted in expected.configs.items():
        have = found.configs[end]
        assert have.state is wanted.state, end
        if wanted.params is not None:
            assert have.params is not None
            assert have.params.scale.tobytes() == wanted.params.scale.tobytes(), end
            np.testing.assert_array_equal(have.params.zero_point, wanted.params.zero_point)
    for want, have_point in zip(named(expected).values(), named(found).values(), strict=True):
        if want.is_constant:
            np.testing.assert_array_equal(want.constant_codes(), have_point.constant_codes())


def test_the_decimals_of_a_tengine_table_are_the_scales(tmp_path: Path) -> None:
    plan = planned(residual_net(), "tensorrt")
    text = tengine_tables(calibrated(residual_net(), "tensorrt"))
    path = tmp_path / "table_minmax.scale"
    path.write_text(text)
    found = given(plan, read_scales(path))
    assert not found.notes
    for line in text.splitlines():
        name, *numbers = line.split()
        point = named(found)[name]
        scales = numbers if point.is_constant else numbers[:1]
        np.testing.assert_array_equal(point.config.scale, np.array(scales).astype(np.float32))
        assert point.config.dominator.observer == GIVEN


def test_only_what_is_not_given_is_calibrated() -> None:
    plan = planned(residual_net())
    everything = required_tensors(plan)
    part = table(image=GivenScale.of(0.0625, 3))
    assert required_tensors(plan, part) == tuple(n for n in everything if n != "image")
    feeds = random_inputs(residual_net(), batch=8, seed=1)
    expected = calibrate(plan, feeds)
    statistics = statistics_of(plan, feeds)
    found = assign(plan, statistics, Method.of(plan.target, "minmax"), part)
    image_point = named(found)["image"]
    assert image_point.config.scale == np.float32(0.0625)
    assert image_point.config.offset == 131
    others = [name for name in named(expected) if name != "image"]
    for name in others:
        assert named(found)[name].config.scale == pytest.approx(named(expected)[name].config.scale)
    assert found.provenance.method == "minmax"
    assert found.provenance.statistics == statistics.hash()


def statistics_of(plan: QuantizedGraph, feeds: Any) -> Statistics:
    from intact.calibrate.collect import collect
    from intact.data.sources import open_samples

    return collect(plan.graph, open_samples(feeds, plan.graph), required_tensors(plan), threads=1)


def test_without_samples_the_first_tensors_that_lack_a_scale_are_named() -> None:
    plan = planned(residual_net())
    with pytest.raises(CalibrationError, match=r"my.scale: gives no scale for \d+ tensor.*data"):
        given(plan, table(image=GivenScale.of(0.1)))
    with pytest.raises(CalibrationError, match=r"there are no statistics for .*'image'"):
        assign(plan, None, Method.of(plan.target))


def test_the_plan_says_where_its_scales_are_from(tmp_path: Path) -> None:
    path = tmp_path / "my.encodings"
    path.write_text(encodings_2(calibrated(residual_net())))
    scales = read_scales(path)
    found = given(planned(residual_net()), scales)
    assert found.provenance.scales == "my.encodings"
    assert found.provenance.scales_hash == scales.hash()
    assert found.provenance.method == GIVEN
    assert found.provenance.statistics == ""


@pytest.mark.parametrize(
    ("target", "scale", "message"),
    [
        ("onnxruntime", GivenScale.of(0.1, bits=4), "for 4 bits, the plan has 8; .*bits"),
        ("onnxruntime", GivenScale.of([0.1, 0.2]), "2 scales, the plan has one"),
        ("tensorrt", GivenScale.of(0.1, 3), "zero point 3 of int8 does not fit a symmetric"),
        ("integer-pow2", GivenScale.of(0.1), "POWER_OF_2 but a scale is not a power of two"),
    ],
)
def test_a_scale_that_does_not_fit_is_refused_before_samples_are_run(
    target: str, scale: GivenScale, message: str
) -> None:
    with pytest.raises(CalibrationError, match=rf"^my.scale: the scale of 'image' .*{message}"):
        required_tensors(planned(residual_net(), target), table(image=scale))


def test_a_width_that_was_asked_for_is_the_one_to_give() -> None:
    plan = planned(residual_net(), overrides=Overrides(activation_bits=4))
    assert "image" not in required_tensors(plan, table(image=GivenScale.of(0.1, bits=4)))
    with pytest.raises(CalibrationError, match="for 8 bits, the plan has 4"):
        required_tensors(plan, table(image=GivenScale.of(0.1)))


def test_channels_of_a_weight_must_be_those_of_the_model() -> None:
    plan = planned(residual_net())
    weight = next(name for name, point in named(plan).items() if point.is_constant)
    with pytest.raises(CalibrationError, match=rf"of {weight!r} .* 2 scales along axis 0"):
        required_tensors(plan, table(**{weight: GivenScale.of([0.1, 0.2])}))


def concat_plan(folder: Path, scales: str) -> QuantizedGraph:
    b = ModelBuilder()
    x = image(b)
    parts = [conv(b, x, "left"), conv(b, x, "right")]
    b.node("Concat", *parts, name="join", out="y", axis=1)
    b.output("y")
    rules = f"""
        [[op]]
        ops = ["Conv"]
        [[op]]
        ops = ["Concat"]
        scales = "{scales}"
        """
    target = own_target(folder, rules)
    return planned(b.build(), target)


ALL = {"image": GivenScale.of(1.0), "right_out": GivenScale.of(0.25)}


def test_tensors_with_one_scale_take_the_largest_that_is_given(tmp_path: Path) -> None:
    plan = concat_plan(tmp_path, "unify_all")
    found = given(plan, table(**ALL, left_out=GivenScale.of(0.5), y=GivenScale.of(0.125)))
    for end in ("join.input[0]", "join.input[1]", "join.output[0]"):
        assert config(found, end).scale == 0.5
    (note,) = found.notes
    assert "the scales of 2 tensor(s) give way" in str(note)
    agreed = given(
        plan, table(image=GivenScale.of(1.0), y=GivenScale.of(0.25), right_out=ALL["right_out"])
    )
    assert not agreed.notes
    assert config(agreed, "join.input[0]").scale == 0.25


def test_a_prescribed_scale_holds_against_the_table(tmp_path: Path) -> None:
    rules = """
        [[op]]
        ops = ["Conv"]
        [[op]]
        ops = ["Sigmoid"]
        fixed_output = { scale = 0.00390625 }
        """
    b = ModelBuilder()
    b.node("Sigmoid", conv(b, image(b), "conv"), name="s", out="y")
    b.output("y")
    plan = planned(b.build(), own_target(tmp_path, rules))
    own = {"image": GivenScale.of(1.0), "conv_out": GivenScale.of(0.5)}
    same = given(plan, table(**own, y=GivenScale.of(2**-8, signed=False)))
    assert not same.notes
    other = given(plan, table(**own, y=GivenScale.of(0.5, signed=False)))
    assert config(other, "s.output[0]").scale == 2**-8
    assert "to a prescribed one (first: 'y')" in str(other.notes[0])


def test_names_that_are_not_quantized_are_counted_in_a_note() -> None:
    plan = planned(residual_net())
    bias = next(p for p in quantization_points(plan) if is_bias(p))
    scales = {name: GivenScale.of(0.5) for name, p in named(plan).items() if not p.is_constant}
    scales |= {str(bias.value.name): GivenScale.of(0.1), "elsewhere": GivenScale.of(0.1)}
    found = given(plan, table(**scales))
    assert [note.kind for note in found.notes] == [NoteKind.CALIBRATION]
    assert f"my.scale: 2 of {len(scales)} scales are not used" in str(found.notes[0])


def test_what_the_reader_left_out_is_counted_too() -> None:
    scales = {n: s.config.scale for n, s in named(calibrated(residual_net())).items()}
    full = table(**{n: GivenScale.of(np.asarray(s).tolist()) for n, s in scales.items()})
    left_out = ScaleTable("t", full.scales, {"LPBQ scales": 3})
    assert [str(n) for n in given(planned(residual_net()), left_out).notes] == [
        "t: 3 encoding(s) left out: LPBQ scales"
    ]


def test_a_given_weight_scale_stays_where_the_bias_overflows() -> None:
    b = ModelBuilder()
    weight = b.constant(np.full((4, 4, 1, 1), 1e-12, np.float32), "w")
    y = b.node("Conv", image(b), weight, b.constant(np.full(4, 5.0, np.float32)), name="c")
    b.node("Conv", y, b.weight(4, 4, 1, 1), out="y")
    b.output("y")
    plan = planned(b.build())
    feeds = random_inputs(b.build(), batch=2, seed=0)
    part = table(w=GivenScale.of(1e-12 / 127))
    found = assign(plan, statistics_of(plan, feeds), Method.of(plan.target), part)
    np.testing.assert_array_equal(config(found, "c.input[1]").scale, np.float32(1e-12 / 127))
    assert "saturates there, because the weight scale is given" in str(found.notes[0])

"""Which passes run where nobody names them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact import api, demo
from intact._extras import install_hint
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import MissingExtraError
from intact.graph import normalize
from intact.improve.passes import PASSES, Stage, requests_of
from intact.improve.presets import (
    PRESETS,
    Preset,
    Weakness,
    choose_passes,
    passes_of,
    weaknesses_of,
)
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides, build_plan
from intact.recipe.declare import options_of
from intact.recipe.options import QuantizeOptions
from intact.targets import in_blocks, load_target
from tests.block_nets import dense_net
from tests.improve.rewrite.networks import conv
from tests.models import ModelBuilder
from tests.plans import own_target

ONE_SCALE = """
[[op]]
ops = ["Conv"]
inputs = ["uint8", "int8"]
outputs = ["uint8"]
weight = { granularity = "per_tensor" }
"""


def test_every_pass_of_a_preset_exists_and_can_be_imported() -> None:
    for table in PRESETS.values():
        for names in table.values():
            assert requests_of(names)
    for name, each in PASSES.items():
        if not each.needs:
            assert callable(each.load()), name


def test_passes_run_in_the_order_of_the_table() -> None:
    stages = [each.stage for each in PASSES.values()]
    assert stages == sorted(stages, key=[Stage.REWRITE, Stage.REFINE].index)
    both = passes_of(Preset.BALANCED, [Weakness.FEW_ACTIVATION_BITS, Weakness.ONE_SCALE])
    assert both == ("smooth", "ranges", "rounding")


def test_weights_in_blocks_are_rounded_as_they_are() -> None:
    target = in_blocks(load_target("onnxruntime"), 32, 4)
    plan = build_plan(normalize(dense_net()), target)
    chosen = choose_passes(plan, (), "best", readable=True)
    assert [each.name for each in chosen.requests] == ["equalize", "ranges", "rounding"]
    asked = choose_passes(plan, ["smooth"], None, readable=True)
    assert [each.name for each in asked.requests] == ["smooth"]


@pytest.mark.parametrize(
    ("overrides", "target", "found"),
    [
        (None, "onnxruntime", ()),
        (Overrides(weight_bits=7), "onnxruntime", ()),
        (Overrides(weight_bits=4), "onnxruntime", (Weakness.FEW_WEIGHT_BITS,)),
        (Overrides(activation_bits=4), "onnxruntime", (Weakness.FEW_ACTIVATION_BITS,)),
        (None, "tengine", ()),
    ],
)
def test_what_makes_a_plan_lose(
    overrides: Overrides | None, target: str, found: tuple[Weakness, ...]
) -> None:
    graph = api.quantize(
        demo.model_path(), demo.calibration_path(), samples=2, preset="fast"
    ).plan.graph
    assert weaknesses_of(build_plan(graph, load_target(target), overrides)) == found


@pytest.mark.parametrize(("spread", "felt"), [(1.0, False), (8.0, True)])
def test_one_scale_is_felt_where_channels_are_unlike(
    tmp_path: Path, spread: float, felt: bool
) -> None:
    b = ModelBuilder(seed=1)
    b.output(conv(b, b.input("image", ["batch", 4, 8, 8]), 4, 6, "only", bias=0))
    model = b.build()
    for each in model.graph.initializer:
        if list(each.dims) == [6, 4, 3, 3]:
            weight = np.full((6, 4, 3, 3), 0.1, np.float32)
            weight[0] *= spread
            each.ClearField("raw_data")
            each.ClearField("float_data")
            each.float_data.extend(weight.reshape(-1).tolist())
    plan = build_plan(normalize(model), own_target(tmp_path, ONE_SCALE))
    assert (Weakness.ONE_SCALE in weaknesses_of(plan)) is felt


def test_targets_that_stand_for_another_tool_only_calibrate() -> None:
    for name in ("tengine-tool", "openvino-mqbench"):
        assert load_target(name).calibration.preset == "fast"


def test_a_preset_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS[Preset.BEST], Weakness.NONE, ("rounding", "reconstruct"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    plan = api.quantize(demo.model_path(), demo.calibration_path(), samples=2).plan
    found = choose_passes(plan, (), "best", readable=True)
    assert [each.name for each in found.requests] == ["rounding"]
    (note,) = found.notes
    assert "best ran without reconstruct: torch is not installed" in note.message
    assert note.remedy == install_hint("train")


def test_the_help_and_the_documents_name_every_pass() -> None:
    help_text = options_of(QuantizeOptions)["improve"].help
    page = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for name in PASSES:
        assert re.search(rf"\b{name}\b", help_text), name
        assert f"| `{name}` |" in page, name


def poor() -> onnx.ModelProto:
    """A net with channels of every kind that gives a pass nothing to go by."""
    b = ModelBuilder(seed=5)
    x = b.input("image", ["batch", 3, 6, 6])
    weight = np.random.default_rng(5).normal(size=(8, 3, 3, 3)).astype(np.float32)
    bias = np.zeros(8, np.float32)
    weight[0] = 0  # dead
    weight[1], bias[1] = 0, 0.7  # constant
    bias[2] = -1e3  # never active
    weight[4] = weight[3]  # twice the same: second moments are singular
    weight[5] *= 1e-38  # denormal
    weight[6] *= 1e6
    x = b.node("Conv", x, b.constant(weight), b.constant(bias), name="first", pads=[1, 1, 1, 1])
    x = b.node("Relu", x)
    x = b.node("Conv", x, b.weight(8, 1, 3, 3), b.weight(8), name="depthwise", group=8)
    x = b.node("Conv", b.node("Relu", x), b.weight(4, 8, 1, 1), b.weight(4), name="second")
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(5, 4), b.weight(5), name="dense", transB=1, out="y")
    b.output("y", ["batch", 5])
    return b.build()


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize(("target", "bits"), [("onnxruntime", 4), ("integer-pow2", 8)])
@pytest.mark.parametrize("preset", ["balanced", "best"])
def test_poor_channels_and_few_samples_do_no_harm(
    count: int, target: str, bits: int, preset: str
) -> None:
    random = np.random.default_rng(count)
    feeds = {"image": random.normal(size=(count, 3, 6, 6)).astype(np.float32)}
    feeds["image"][:, 2] = 0
    results = [
        api.quantize(
            poor(), feeds, target=target, weight_bits=bits, activation_bits=bits, preset=name
        )
        for name in ("fast", preset)
    ]
    wanted = FloatModel(results[0].plan.graph, threads=1).run(feeds)["y"]
    plain, better = (
        sqnr_db(wanted, Simulator(each.plan, threads=1).run(feeds)[0]["y"]) for each in results
    )
    assert np.isfinite(better)
    assert better >= plain


@pytest.mark.parametrize("name", [name for name, each in PASSES.items() if each.needs])
def test_a_pass_without_its_package_says_how_it_is_installed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    message = f"improve {name} needs {PASSES[name].needs}, .*\\[train\\]"
    with pytest.raises(MissingExtraError, match=message):
        requests_of([name])
    with pytest.raises(MissingExtraError, match=message):
        api.quantize(demo.model_path(), demo.calibration_path(), improve=[name])

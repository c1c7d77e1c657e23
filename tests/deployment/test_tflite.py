"""Written and read ``.tflite`` files in LiteRT against the integer engine."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import DataError
from intact.formats.base.format import Io
from intact.formats.tflite.read import TfliteModel, read_tflite_model
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_read_tflite, verify_tflite
from intact.plan import Overrides
from intact.program.passes.integer_io import integer_io
from intact.targets import load_target
from tests.deployment.networks import (
    batches,
    images,
    lowered,
    plan_for,
    with_wrong_bias,
    with_wrong_weight,
    written,
    wrong,
)
from tests.formats.tflite.read_cases import build
from tests.formats.tflite.small_files import random_feeds, reference
from tests.gallery.catalogue import GALLERY
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

pytestmark = pytest.mark.runtime_fact("ai-edge-litert")

PAIRS = [("tflite", Kernels.REF), ("tflite-xnnpack", Kernels.XNNPACK)]
each_runtime = pytest.mark.parametrize(("target", "kernels"), PAIRS)


@each_runtime
@pytest.mark.parametrize("io", list(Io))
def test_every_layer_has_the_runtimes_bits(target: str, kernels: Kernels, io: Io) -> None:
    plan = plan_for(target, curved=True)
    found = verify_tflite(plan, written(lowered(plan), io), batches(40), kernels)
    assert found.runtime.startswith("LiteRT ")
    assert f"{kernels} kernels" in found.runtime
    assert found.samples == 40
    names = {layer.tensor for layer in found.layers}
    assert {"stem_out", "pooled", "depthwise_out", "pointwise_out", "sum", "logits"} <= names
    assert ("probabilities_float" in names) is (io is Io.FLOAT and kernels is Kernels.XNNPACK)
    assert all(layer.values for layer in found.layers)
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 200)]
    assert found.outputs_sqnr_db == {"probabilities": np.inf}
    assert found.not_compared == found.in_float == {}


@each_runtime
@pytest.mark.parametrize("name", ["separable", "split_net", "similarity", "two_towers"])
def test_other_kinds_of_networks(name: str, target: str, kernels: Kernels) -> None:
    described = GALLERY[name]
    plan = calibrate(planned(described.model, target), dict(described.source(32, 1)))
    found = verify_tflite(plan, written(lowered(plan)), [dict(described.source(16, 2))], kernels)
    assert len(found.layers) > 5
    assert wrong(found.layers) == []
    assert sum(each.mismatches for each in found.outputs) == 0


def test_kernels_with_another_arithmetic_differ() -> None:
    plan = plan_for("tflite")
    found = verify_tflite(plan, written(lowered(plan)), batches(256), Kernels.XNNPACK)
    assert wrong(found.layers)
    assert max(layer.largest for layer in found.layers) == 1
    assert found.end_to_end == []


def test_float_operations_in_the_file_may_turn_the_integers_beside_them() -> None:
    described = GALLERY["prelu_net"]
    kept = planned(described.model, "tflite", Overrides(keep_float=("PRelu",)))
    plan = calibrate(kept, dict(described.source(32, 1)))
    found = verify_tflite(plan, written(lowered(plan)), [dict(described.source(16, 2))])
    assert len(found.layers) > 8
    assert wrong(found.layers) == []


@pytest.mark.parametrize("node", ["stem", "depthwise", "pointwise"])
def test_a_wrong_weight_shows_in_its_layer_only(node: str) -> None:
    plan = plan_for("tflite")
    content = written(with_wrong_weight(lowered(plan), node))
    found = verify_tflite(plan, content, batches(32))
    layer = f"{node}_out"
    assert wrong(found.layers) == [layer]
    names = [each.tensor for each in found.layers]
    assert set(wrong(found.end_to_end)) <= set(names[names.index(layer) :])
    assert layer in wrong(found.end_to_end)


@each_runtime
def test_a_wrong_bias_of_the_last_layer_shows_in_one_output(target: str, kernels: Kernels) -> None:
    plan = plan_for(target)
    found = verify_tflite(
        plan, written(with_wrong_bias(lowered(plan), "dense")), batches(16), kernels
    )
    assert found.outputs[0].mismatches == 16
    assert 0 < found.outputs_sqnr_db["logits"] < 40
    # Cut layers are written from the plan: what differs between file and plan shows at the end.
    assert wrong(found.layers) == (["logits"] if kernels is Kernels.REF else [])


def test_codes_are_taken_as_they_are() -> None:
    plan = plan_for("tflite")
    content = written(lowered(plan))
    codes = np.random.default_rng(0).integers(-128, 128, (16, 3, 8, 6)).astype(np.int8)
    found = verify_tflite(plan, content, [{"image": codes}])
    assert wrong(found.layers) == []
    assert found.samples == 16


@pytest.mark.parametrize("feeds", [{}, {"image": np.zeros((2, 3, 8, 6), np.int32)}])
def test_inputs_that_do_not_fit(feeds: dict[str, np.ndarray]) -> None:
    plan = plan_for("tflite")
    with pytest.raises(DataError, match="input 'image' is"):
        verify_tflite(plan, written(lowered(plan)), [feeds])


def test_a_file_of_another_plan() -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("picture", ["batch", 3, 8, 6]), 3, 4), ["batch", 4, 8, 6])
    plan = calibrate(planned(b.build(), "tflite"), {"picture": images(8)["image"]})
    with pytest.raises(DataError, match="the inputs of the file are picture, of its plan image"):
        verify_tflite(plan_for("tflite"), written(lowered(plan)), batches(4))


# ---- files that were read -----------------------------------------------------------------------


def input_of(model: TfliteModel) -> str:
    """The name of the only input: that of the file's tensor."""
    return str(model.plan.graph.inputs[0].name)


@each_runtime
@pytest.mark.parametrize("io", list(Io))
def test_a_file_that_was_read_has_the_runtimes_bits(target: str, kernels: Kernels, io: Io) -> None:
    content = written(lowered(plan_for(target, curved=True)), io)
    model = read_tflite_model(content, load_target(target))
    image = np.ascontiguousarray(images(20)["image"].transpose(0, 2, 3, 1))
    found = verify_read_tflite(model, content, [{input_of(model): image}], kernels)
    assert len(found.layers) >= 8
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 100)]
    assert found.not_compared == {}


@pytest.mark.parametrize("name", ["squeeze_excite", "segment", "parts", "one_type_to_another"])
@each_runtime
def test_files_with_odd_ends_and_layouts(name: str, target: str, kernels: Kernels) -> None:
    content = build(name)
    model = read_tflite_model(content, load_target(target))
    arrays = dict(random_feeds(reference(content), 0))
    values = (str(value.name) for value in model.plan.graph.inputs)
    feeds = {value: arrays[number] for value, number in zip(values, model.inputs, strict=True)}
    found = verify_read_tflite(model, content, [feeds], kernels)
    assert found.layers
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert {each.mismatches for each in found.outputs} == {0}


def test_a_plan_that_was_read_from_another_file() -> None:
    plan = plan_for("tflite")
    content, other = written(lowered(plan)), written(with_wrong_weight(lowered(plan), "pointwise"))
    model = read_tflite_model(content, load_target("tflite"))
    codes = np.random.default_rng(0).integers(-128, 128, (16, 8, 6, 3)).astype(np.int8)
    feeds = {input_of(model): codes}
    assert wrong(verify_read_tflite(model, content, [feeds]).layers) == []
    assert len(wrong(verify_read_tflite(model, other, [feeds]).layers)) == 1
    curved = plan_for("tflite", curved=True)
    with pytest.raises(DataError, match="another file"):
        verify_read_tflite(model, written(lowered(curved)), [feeds])


def test_only_some_ends_are_integers() -> None:
    plan = plan_for("tflite")
    for names in ({"image"}, {"logits"}):
        content = written(integer_io(lowered(plan), names), Io.FLOAT)
        found = verify_tflite(plan, content, batches(8))
        assert wrong(found.layers) == []
        assert found.outputs[0].mismatches == 0

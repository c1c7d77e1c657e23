"""Without data: samples that are drawn from BatchNormalizations, by noise and with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.calibrate.noise import matched_noise, smooth_noise
from intact.calibrate.remembered import remembered
from intact.data.signature import input_specs
from intact.engines.session import FloatModel
from intact.errors import DataError, UsageError
from intact.graph import normalize
from intact.plan import TensorEnd
from tests.command_lines import Say, refused
from tests.models import ModelBuilder, run_model

MEAN, DEVIATION = np.array([120.0, 90.0, 60.0]), 50.0
Images = npt.NDArray[np.float32]


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def photos(count: int = 64, seed: int = 9) -> Images:
    """Draw what the net was trained on: numbers of 0 to 255, smooth."""
    found = smooth_noise((count, 3, 12, 12), seed) * DEVIATION + MEAN.reshape(3, 1, 1)
    return np.asarray(found, np.float32)


def trained(batch: int | str = "batch", size: int | str = 12, *, dead: bool = False) -> Any:
    """Two convolutions with BatchNormalizations, which remember what photos gave."""
    statistics: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
    for _ in range(2):
        rows = run_model(_stage(statistics), {"image": photos()}, ["seen"])["seen"]
        statistics.append((rows.mean(axis=(0, 2, 3)), rows.var(axis=(0, 2, 3))))
    if dead:
        statistics[0][1][0] = 0
    return _stage(statistics, batch, size)


def _stage(
    statistics: list[Any], batch: int | str = "batch", size: int | str = 12
) -> onnx.ModelProto:
    b = ModelBuilder(seed=5)
    x, inputs = b.input("image", [batch, 3, size, size]), 3
    for mean, variance in statistics:
        y = b.node("Conv", x, b.weight(8, inputs, 3, 3), pads=[1] * 4)
        gamma, beta = np.full(8, 0.8, np.float32), np.linspace(-0.5, 1, 8, dtype=np.float32)
        arrays = (b.constant(np.asarray(e, np.float32)) for e in (gamma, beta, mean, variance))
        x, inputs = b.node("Relu", b.node("BatchNormalization", y, *arrays)), 8
    b.node("Conv", x, b.weight(8, inputs, 3, 3), pads=[1] * 4, out="seen")
    b.output("seen", [batch, 8, size, size])
    return b.build()


def test_noise_has_the_mean_and_the_deviation_that_the_first_layer_remembers() -> None:
    graph = normalize(trained())
    spec = input_specs(graph)["image"]
    noise, mean, deviation = matched_noise(graph, remembered(graph), spec, (16, 3, 12, 12))
    assert noise.std() == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(mean.reshape(-1), MEAN, rtol=0.05)
    assert deviation == pytest.approx(DEVIATION, rel=0.1)


def test_what_is_remembered_is_what_photos_give_and_dead_channels_tell_nothing() -> None:
    model = trained()
    graph = normalize(model)
    known = remembered(graph)
    assert len(known) == 2
    for value in known:
        model.graph.output.append(onnx.ValueInfoProto(name=str(value.name)))
    runs = run_model(model, {"image": photos()}, [str(value.name) for value in known])
    for value, each in known.items():
        rows = runs[str(value.name)]
        moments = rows.mean(axis=(0, 2, 3)), rows.var(axis=(0, 2, 3))
        assert each.mismatch(*moments) < 1e-3
    first = next(iter(remembered(normalize(trained(dead=True))).values()))
    assert first.live.tolist() == [False] + [True] * 7


@pytest.mark.usefixtures("without_torch")
def test_a_model_without_data_is_as_good_as_with(tmp_path: Path) -> None:
    result = intact.quantize(trained(), data_free=True, threads=1, output=tmp_path / "out")
    plan = result.plan
    assert plan.provenance.drawn == 32
    (note,) = [each for each in plan.notes if "calibrated on 32 images" in each.message]
    assert "2 BatchNormalizations" in note.message
    assert "intact-quantizer[train]" in note.remedy
    assert "data_free = true" in result.recipe
    assert [each.name for each in plan.provenance.improvements] == ["expected-bias"]
    test = {"image": photos(seed=3)}
    wanted = FloatModel(plan.graph, threads=1).run(test)["seen"]

    def decibels(made: Any) -> float:
        lost = intact.execute(made, test).outputs["seen"] - wanted
        return float(10 * np.log10(np.square(wanted).sum() / np.square(lost).sum()))

    with_data = intact.quantize(trained(), {"image": photos()}, threads=1)
    assert decibels(result) > decibels(with_data) - 3


@pytest.mark.usefixtures("without_torch")
def test_steps_for_data_are_kept_and_not_applied_to_what_is_drawn() -> None:
    plain = intact.quantize(trained(), data_free=True, threads=1).plan
    result = intact.quantize(trained(), data_free=True, threads=1, mean=[5.0], size=[12])
    assert result.preprocess.mean == (5.0,)
    assert result.preprocess.image.size == (12, 12)
    (end,) = [e for e in plain.configs if e == TensorEnd.input(str(plain.graph.nodes[0].name), 0)]
    assert result.plan.configs[end].scale == plain.configs[end].scale


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("batch", [1, 3])
def test_a_fixed_batch_is_filled(batch: int) -> None:
    drawn = intact.quantize(trained(batch), data_free=True, samples=4, threads=1)
    assert drawn.plan.provenance.drawn == -(-4 // batch) * batch


@pytest.mark.usefixtures("without_torch")
def test_a_recipe_draws_again(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(trained(), "net.onnx")
    say("quantize", "net.onnx", "--data-free", "--threads", "1", "--output", "out")
    recipe = "out/recipe.toml"
    say("quantize", "--recipe", recipe, "--threads", "1", "--output", "again")
    assert Path("again/plan.json").read_bytes() == Path("out/plan.json").read_bytes()


def _two_inputs() -> onnx.ModelProto:
    b = ModelBuilder(seed=1)
    x = b.node("Add", b.input("left", ["batch", 3, 4, 4]), b.input("right", ["batch", 3, 4, 4]))
    b.output(b.batch_norm(b.conv(x, 3, 4), 4), ["batch", 4, 4, 4])
    return b.build()


def _without_norm() -> onnx.ModelProto:
    b = ModelBuilder(seed=1)
    b.output(b.conv(b.input("image", ["batch", 3, 4, 4]), 3, 4), ["batch", 4, 4, 4])
    return b.build()


def _of_words() -> onnx.ModelProto:
    b = ModelBuilder(seed=1)
    ids = b.input("ids", ["batch", 4], onnx.TensorProto.INT64)
    words = b.node("Unsqueeze", b.node("Gather", b.weight(9, 3), ids), b.ints(1))
    words = b.node("Transpose", words, perm=[0, 3, 1, 2])
    b.output(b.batch_norm(b.conv(words, 3, 4), 4), ["batch", 4, 1, 4])
    return b.build()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (_without_norm, "no BatchNormalization"),
        (_two_inputs, "2 \\('left', 'right'\\)"),
        (_of_words, "'ids' takes int64"),
    ],
)
def test_models_that_tell_too_little_are_refused(model: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as refusal:
        intact.quantize(model(), data_free=True)
    assert "give samples with --data" in refusal.value.with_flags


def test_statistics_that_are_no_numbers_are_refused() -> None:
    model = trained()
    for each in model.graph.initializer:
        array = onnx.numpy_helper.to_array(each)
        if array.ndim == 1:
            each.CopyFrom(onnx.numpy_helper.from_array(np.full_like(array, np.nan), each.name))
    with pytest.raises(intact.IntactError):
        intact.quantize(model, data_free=True)


def test_open_sizes_are_asked_for_with_what_can_be_pasted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(trained(size="any"), "net.onnx")
    line = refused(capfd, "quantize", "net.onnx", "--data-free", "--output", "out", code=2)
    assert "--input-shape 'image=?,3,224,224'" in line
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": {"image": photos(2)}}, "--data and --data-free; leave one out"),
        ({"mask": "m"}, "--mask"),
        ({"no_batch": ["image"]}, "--no-batch"),
        ({"skip_bad": True}, "--skip-bad"),
        ({"transform": lambda each: each}, "transform"),
    ],
)
def test_data_beside_it_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        intact.quantize(trained(), data_free=True, **options)
    assert said in refusal.value.with_flags


def test_no_data_at_all_names_the_option_where_it_can_work() -> None:
    for model, offered in ((trained(), True), (_without_norm(), False)):
        with pytest.raises(UsageError) as refusal:
            intact.quantize(model)
        assert ("or try --data-free" in refusal.value.with_flags) is offered

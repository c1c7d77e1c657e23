"""Running models and plans by every executor, from Python and from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import intact
from intact import Preprocess, demo
from intact.cli import run as command
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import DataError, OutputError, UsageError
from intact.formats.tflite.run import TfliteRuntime
from intact.graph import normalize
from intact.plan import Overrides
from intact.results.execution import save_arrays
from intact.results.result import Result
from intact.targets import Target, Wrap, load_target
from tests.models import ModelBuilder

IMAGES = np.load(demo.test_path())["image"][:20]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("results") / "out"
    return intact.quantize(
        demo.model_path(), demo.calibration_path(), target="tflite", output=folder, threads=1
    )


@pytest.fixture(scope="module")
def folder(result: Result) -> Path:
    assert result.folder is not None
    return result.folder


@pytest.mark.parametrize("run", [intact.execute, intact.evaluate, intact.verify])
def test_a_list_of_other_objects_is_told_what_items_are(
    result: Result, run: Callable[..., Any]
) -> None:
    with pytest.raises(DataError, match="item 0 is of type object; give arrays, tensors or images"):
        run(result, [object()])


def floats(images: np.ndarray = IMAGES) -> dict[str, np.ndarray]:
    return {"image": images.astype(np.float32)}


def codes_of(result: Result, images: np.ndarray = IMAGES) -> np.ndarray:
    config = next(
        config
        for end, config in result.plan.configs.items()
        if result.plan.graph.consumers(result.plan.graph.inputs[0])[0][0].name == end.node
        and str(end).endswith("input[0]")
    )
    return config.quantize(images.astype(np.float32)).astype(np.int8)


def test_float_runs_the_float_model(result: Result) -> None:
    found = intact.execute(result, floats(), executor="float", threads=1, batch=7)
    wanted = FloatModel(result.plan.graph, threads=1).run(floats())
    assert found.samples == 20
    for name, array in wanted.items():
        np.testing.assert_allclose(found.outputs[name], array, rtol=1e-5, atol=1e-5)
    source = intact.execute(demo.model_path(), floats(), executor="float", threads=1, batch=7)
    assert source.outputs.keys() == wanted.keys()


def test_simulate_runs_the_simulation(result: Result) -> None:
    found = intact.execute(result, floats(), executor="simulate", threads=1, batch=20)
    wanted, _ = Simulator(result.plan, threads=1).run(floats())
    for name, array in wanted.items():
        np.testing.assert_array_equal(found.outputs[name], array)


def test_integers_are_those_of_the_written_file(result: Result, folder: Path) -> None:
    """Codes in, codes out: what LiteRT computes from the file, in the model's layout."""
    codes = codes_of(result)
    found = intact.execute(folder, {"image": codes}, threads=1, batch=6)
    assert found.codes == ("image",)
    runtime = TfliteRuntime((folder / "model.int8.tflite").read_bytes())
    (port,) = runtime.inputs.values()
    stored = codes.transpose(0, 2, 3, 1) if port.shape[1:] != codes.shape[1:] else codes
    outputs, _ = runtime.run({"image": np.ascontiguousarray(stored)})
    assert found.outputs.keys() == outputs.keys()
    for name, array in outputs.items():
        assert found.outputs[name].dtype == np.int8
        np.testing.assert_array_equal(found.outputs[name], array)


def test_floats_in_floats_out(result: Result) -> None:
    from_floats = intact.execute(result, floats(), threads=1)
    from_codes = intact.execute(result, {"image": codes_of(result)}, threads=1)
    (name,) = from_floats.outputs
    assert from_floats.codes == ()
    assert from_floats.outputs[name].dtype == np.float32
    steps = from_codes.outputs[name].astype(np.float32)
    assert np.array_equal(np.unique(steps).size, np.unique(from_floats.outputs[name]).size)
    assert np.corrcoef(steps.ravel(), from_floats.outputs[name].ravel())[0, 1] > 0.999999


def test_a_tflite_file_is_run_in_its_own_layout(result: Result, folder: Path) -> None:
    path = folder / "model.int8.tflite"
    runtime = TfliteRuntime(path.read_bytes())
    codes = codes_of(result).transpose(0, 2, 3, 1)
    outputs, _ = runtime.run({"image": np.ascontiguousarray(codes)})
    (given,) = intact.inspect(path).nodes[:1]
    assert given.quantized
    found = intact.execute(path, np.ascontiguousarray(codes), threads=1)
    assert len(found.codes) == 1
    (wanted,), (array,) = outputs.values(), found.outputs.values()
    np.testing.assert_array_equal(array, wanted)


def test_bytes_are_codes_only_where_nothing_is_done_to_them() -> None:
    """Pixels are bytes too: with a mean or a scale they are numbers."""
    steps = Preprocess(mean=(3.0,), scale=(0.25,))
    model, data = demo.model_path(), demo.calibration_path()
    prepared = intact.quantize(model, data, preprocess=steps, threads=1)
    pixels = intact.execute(prepared, {"image": IMAGES}, threads=1)
    assert pixels.codes == ()
    by_hand = intact.execute(
        prepared,
        {"image": (IMAGES.astype(np.float32) - np.float32(3)) * np.float32(0.25)},
        preprocess=Preprocess(),
        threads=1,
    )
    (name,) = pixels.outputs
    np.testing.assert_array_equal(pixels.outputs[name], by_hand.outputs[name])
    plain = intact.quantize(model, data, threads=1)
    assert intact.execute(plain, {"image": IMAGES}, threads=1).codes == ("image",)


def test_evaluation_takes_codes_as_their_numbers(result: Result) -> None:
    """What both models of the evaluation get is what the codes stand for."""
    with np.load(demo.test_path()) as found:
        images, labels = found["image"][:200], found["labels"][:200]
    plain = intact.evaluate(result, {**floats(images), "labels": labels}, threads=1)
    coded = intact.evaluate(
        result, {"image": codes_of(result, images), "labels": labels}, threads=1
    )
    assert plain.accuracy is not None
    assert coded.accuracy is not None
    assert coded.accuracy.top1[1] == plain.accuracy.top1[1]
    assert coded.accuracy.top1[0] == pytest.approx(plain.accuracy.top1[0], abs=2)
    assert (plain.codes, coded.codes) == ((), ("image",))
    assert "image: taken as codes" in str(coded)
    pixels = intact.evaluate(result, {"image": images.astype(np.uint8)}, threads=1)
    assert pixels.codes == ()
    few = {"image": codes_of(result)}
    losses = [intact.quant_loss(result, data, threads=1) for data in (few, floats())]
    assert losses[0].layers[-1].cosine == pytest.approx(losses[1].layers[-1].cosine, abs=0.01)


def test_codes_outside_of_the_range_are_refused() -> None:
    model = ModelBuilder()
    x = model.input("x", ["batch", 4])
    model.node("Gemm", x, model.weight(4, 4), out="y")
    model.output("y")
    data = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    plan = intact.quantize(model.build(), data, target="integer-pow2", threads=1)
    with pytest.raises(DataError, match=r"codes -128\.\.-128.*-127\.\.127"):
        intact.execute(plan, np.full((2, 4), -128, np.int8), threads=1)


def test_every_intermediate_on_request(result: Result) -> None:
    everything = intact.execute(result, floats(), observe=None, threads=1, batch=8)
    values = {str(value.name) for value in result.plan.graph.values}
    assert set(everything.tensors) <= values
    quantized = {str(p) for p in everything.tensors} - {"image"}
    name = sorted(quantized)[0]
    one = intact.execute(result, floats(), observe=[name], threads=1, batch=20)
    np.testing.assert_array_equal(one.tensors[name], everything.tensors[name])
    shape = result.plan.graph.value(name).shape
    assert shape is not None
    assert list(one.tensors[name].shape[1:]) == list(shape)[1:]  # as in the model


@pytest.mark.parametrize("executor", ["float", "simulate"])
def test_others_hand_out_no_intermediates(result: Result, executor: str) -> None:
    with pytest.raises(UsageError, match="integer engine"):
        intact.execute(result, floats(), executor=executor, observe=None)


def test_wrong_use(result: Result) -> None:
    with pytest.raises(UsageError, match="'image'"):
        intact.execute(result, floats(), observe=["imag"])
    with pytest.raises(UsageError, match="integer, simulate or float"):
        intact.execute(result, floats(), executor="fast")
    with pytest.raises(UsageError, match="the model is float"):
        intact.execute(demo.model_path(), floats())


def test_overflows_say_where_and_by_how_much() -> None:
    model = ModelBuilder()
    x = model.input("x", ["batch", 64])
    model.node("Gemm", x, model.constant(np.ones((64, 4), np.float32)), out="y", name="dense")
    model.output("y")
    data = np.linspace(0, 1, 64 * 8, dtype=np.float32).reshape(8, 64)
    narrow = intact.quantize(model.build(), data, target=_narrow(), threads=1, preset="fast")
    found = intact.execute(narrow, np.ones((3, 64), np.float32), threads=1)
    count, sums, largest, limit = found.overflows["dense"]
    assert (count, sums, limit) == (12, 12, 2**15 - 1)
    assert largest == 64 * (64 * 127)  # 64 products of 1.0 as 64/64 and as 127/128


def _narrow() -> Target:
    target = load_target("integer-pow2")
    arithmetic = msgspec.structs.replace(target.arithmetic, accumulator=Wrap(16))
    return msgspec.structs.replace(target, arithmetic=arithmetic)


def test_odd_names_and_equal_bytes(tmp_path: Path) -> None:
    arrays = {"a/b": np.arange(3), "file": np.array(2.5), "ß": np.zeros((0, 2), np.int8)}
    save_arrays(tmp_path / "one.npz", arrays)
    save_arrays(tmp_path / "two.npz", arrays)
    with np.load(tmp_path / "one.npz") as found:
        assert set(found.files) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
            assert found[name].shape == array.shape
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with pytest.raises(OutputError, match="cannot be written"):
        save_arrays(tmp_path / "nowhere" / "y.npz", arrays)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.npz", "two.npz"]


def test_the_command_line(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], result: Result
) -> None:
    data, output = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(data, image=codes_of(result))
    given = ["run", str(folder), "--data", str(data), "--output", str(output)]
    assert command([*given, "--integer", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["codes"] == ["image"]
    with np.load(output) as found:
        (name,) = found.files
        assert told["arrays"][name] == {"dtype": "int8", "shape": list(found[name].shape)}
    np.savez(data, image=floats()["image"])
    assert command([*given, "--all"]) == 0
    assert "tensors between" in capfd.readouterr().out
    assert command([*given, "--simulate", "--float"]) != 0
    assert "choose one" in capfd.readouterr().err
    source = ["run", str(demo.model_path()), *given[2:]]
    assert command([*source, "--float"]) == 0
    capfd.readouterr()
    assert command(source) != 0
    assert "the model is float" in capfd.readouterr().err


def test_what_is_computed_in_float_is_named(tmp_path: Path) -> None:
    model = ModelBuilder(13)
    x = model.conv(model.input("x", ["batch", 2, 4, 4]), 2, 2)
    sizes = model.constant(np.array([1, 1, 2, 2], np.float32))
    model.node("Resize", x, "", sizes, mode="cubic", name="cubic", out="y")
    model.output("y")
    data = np.random.default_rng(0).normal(size=(8, 2, 4, 4)).astype(np.float32)
    made = intact.quantize(
        model.build(),
        data,
        target="tflite",
        formats=["onnx_qdq"],
        overrides=Overrides(),
        threads=1,
    )
    assert list(intact.execute(made, data, threads=1).in_float) == ["cubic"]
    assert normalize(made.plan.graph.model).hash == made.plan.graph.hash


def test_arrays_are_written_to_a_file_of_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("o" * 250 + ".npz")
    save_arrays(path, {"y": np.ones(3)})
    with np.load(path) as found:
        assert found["y"].tolist() == [1, 1, 1]
    assert list(tmp_path.iterdir()) == [path]

from __future__ import annotations

import builtins
from importlib import metadata
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import intact
from intact.errors import DataError, ExportError, MissingExtraError
from intact.formats.base.comparison import stored_feeds
from intact.formats.base.format import Deployed, Io
from intact.formats.registry import FORMATS
from intact.formats.tflite.run import Kernels, Port, TfliteRuntime, litert_version
from intact.formats.tflite.write import program_to_tflite, write_tflite
from intact.program import Program, Tensor
from intact.program.operations import Reshape
from tests.formats.tflite.cases import CASES, X, codes_for, on_data
from tests.formats.tflite.classifier import classifier
from tests.models import ModelBuilder

pytestmark = pytest.mark.runtime_fact("ai-edge-litert")

IMAGE = np.random.default_rng(5).integers(-128, 128, (2, 6, 6, 2)).astype(np.int8)


def test_the_version_is_that_of_the_package() -> None:
    assert litert_version() == f"LiteRT {metadata.version('ai-edge-litert')}"


def test_ports_have_the_names_of_the_signature() -> None:
    runtime = TfliteRuntime(write_tflite(classifier()))
    (name, port), *others = runtime.inputs.items()
    assert (name, others) == ("image", [])
    scale = float(np.float32(0.05))
    assert port == Port("image_codes", (None, 6, 6, 2), np.dtype(np.int8), scale, 3)
    wanted = Port("shares", (None, 10), np.dtype(np.int8), 1 / 256, -128)
    assert runtime.outputs["probabilities"] == wanted


def test_float_ports_have_no_scale() -> None:
    runtime = TfliteRuntime(write_tflite(classifier(), io=Io.FLOAT))
    wanted = Port("image", (None, 6, 6, 2), np.dtype(np.float32), 0.0, 0)
    assert runtime.inputs["image"] == wanted


def test_inputs_are_fed_by_name() -> None:
    program = CASES["sub"]
    feeds = codes_for(program)
    runtime = TfliteRuntime(program_to_tflite(program))
    outputs, _ = runtime.run(feeds)
    turned, _ = runtime.run(dict(reversed(feeds.items())))
    np.testing.assert_array_equal(outputs["out0"], turned["out0"])


@pytest.mark.parametrize("kernels", [Kernels.REF, Kernels.OPTIMIZED])
def test_intermediate_tensors_are_observed_by_name(kernels: Kernels) -> None:
    runtime = TfliteRuntime(write_tflite(classifier()), kernels=kernels)
    outputs, seen = runtime.run({"image": IMAGE}, ["features", "flat", "image_codes", "shares"])
    assert set(seen) == {"features", "flat", "image_codes", "shares"}
    assert seen["features"].shape == (2, 3, 3, 4)
    assert len(np.unique(seen["features"])) > 10
    np.testing.assert_array_equal(seen["features"].reshape(2, 36), seen["flat"])
    np.testing.assert_array_equal(seen["image_codes"], IMAGE)
    np.testing.assert_array_equal(seen["shares"], outputs["probabilities"])
    assert {"features", "flat"} <= set(runtime.tensor_names())


def test_results_are_copies() -> None:
    runtime = TfliteRuntime(write_tflite(classifier()))
    first, _ = runtime.run({"image": IMAGE})
    kept = first["probabilities"].copy()
    runtime.run({"image": IMAGE[::-1]})
    np.testing.assert_array_equal(first["probabilities"], kept)


def test_xnnpack_shows_nothing_between_operators() -> None:
    runtime = TfliteRuntime(write_tflite(classifier()), kernels=Kernels.XNNPACK)
    with pytest.raises(ExportError, match="ref kernels"):
        runtime.run({"image": IMAGE}, ["features"])


def test_a_tensor_that_is_not_there_is_named() -> None:
    runtime = TfliteRuntime(write_tflite(classifier()))
    with pytest.raises(ExportError, match="no tensor 'nothing'"):
        runtime.run({"image": IMAGE}, ["nothing"])


@pytest.mark.parametrize(
    "feeds",
    [
        {},
        {"picture": IMAGE},
        {"image": IMAGE, "more": IMAGE},
        {"image": IMAGE.astype(np.float32)},
        {"image": IMAGE.astype(np.uint8)},
        {"image": IMAGE[:, :5]},
        {"image": IMAGE[0]},
    ],
)
def test_wrong_feeds_raise(feeds: dict[str, Any]) -> None:
    runtime = TfliteRuntime(write_tflite(classifier()))
    with pytest.raises(DataError, match="image"):
        runtime.run(feeds)


@pytest.mark.parametrize("kernels", [Kernels.REF, Kernels.OPTIMIZED])
def test_an_empty_batch_gives_empty_results(kernels: Kernels) -> None:
    runtime = TfliteRuntime(write_tflite(classifier()), kernels=kernels)
    assert runtime.run({"image": IMAGE[:0]})[0]["probabilities"].shape == (0, 10)
    assert runtime.run({"image": IMAGE})[0]["probabilities"].shape == (2, 10)


def test_a_fixed_batch_is_run_again_and_again() -> None:
    program = on_data(Reshape((2, 4)), (2, 2, 2), (2, 4))
    runtime = TfliteRuntime(program_to_tflite(program))
    codes = np.arange(24, dtype=np.int8).reshape(6, 2, 2)
    outputs, _ = runtime.run({"in0": codes})
    np.testing.assert_array_equal(outputs["out0"], codes.reshape(6, 4))
    with pytest.raises(ExportError, match="multiple of the file's batch"):
        runtime.run({"in0": codes[:5]})


def test_scalars() -> None:
    program = on_data(Reshape((1, 1)), (), (1, 1))
    outputs, _ = TfliteRuntime(program_to_tflite(program)).run({"in0": np.asarray(7, np.int8)})
    assert outputs["out0"].tolist() == [[7]]


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"TFL3" * 20])
def test_runtime_rejects_a_damaged_file(content: bytes) -> None:
    with pytest.raises(ExportError, match="LiteRT"):
        TfliteRuntime(content)


def test_equal_names_of_input_and_output_tensor() -> None:
    data = Tensor("codes", (1, 2), X)
    runtime = TfliteRuntime(program_to_tflite(Program({"x": data}, {"y": data}, ())))
    assert (list(runtime.inputs), list(runtime.outputs)) == (["x"], ["y"])


def test_without_the_extra_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_tflite(classifier())
    load = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("ai_edge_litert"):
            raise ImportError(name)
        return load(name, *rest, **more)

    def unknown(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[tflite\]"'):
        TfliteRuntime(content)
    monkeypatch.setattr(metadata, "version", unknown)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[tflite\]"'):
        litert_version()


def test_codes_are_made_once_of_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    b = ModelBuilder()
    b.output(b.node("Relu", b.conv(b.input("x", [1, 3, 8, 8]), 3, 4), out="y"))
    random = np.random.default_rng(0)
    data = {"x": random.normal(size=(8, 3, 8, 8)).astype(np.float32)}
    made = intact.quantize(b.build(), data, target="tflite", preset="fast")
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(1)
        return stored_feeds(*given)

    monkeypatch.setattr("intact.formats.base.comparison.stored_feeds", counted)
    runtime = FORMATS["tflite"].runtime
    assert runtime is not None
    run = runtime.runner(Deployed(made.plan, made.exports["tflite"], None, 1))
    first, second = ({"x": data["x"][k : k + 1]} for k in (0, 1))
    results = [run(feeds)[0]["y"].copy() for feeds in (first, dict(first), second, first)]
    assert len(calls) == 3
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[3])
    assert (results[0] != results[2]).any()

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.analyze.evaluation.figures import Evaluation
from intact.analyze.evaluation.run import evaluated_at_once
from intact.data.metric import Metric, MetricFunction
from intact.data.sources import open_samples
from intact.engines.exact_sums import EXACT, saturates_pairs
from intact.errors import DataError, UsageError
from intact.formats.base.format import Deployed
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.registry import FORMATS
from intact.graph import normalize
from intact.plan import Overrides
from intact.results.result import Result
from intact.targets import load_target
from intact.targets.advice import quantize_for_saturating_pairs
from tests.images import Images
from tests.models import ModelBuilder, run_model, transformer_block


@pytest.fixture(scope="module")
def digits(digits_model: object, digits_calib: Images) -> Result:
    return intact.quantize(digits_model, {"image": digits_calib.image})  # type: ignore[arg-type]


def test_accuracies_are_those_of_the_two_models(digits: Result, digits_test: Images) -> None:
    data: dict[str, npt.ArrayLike] = {
        "image": digits_test.image,
        "labels": digits_test.labels,
    }
    found = intact.evaluate(digits, data, batch=64)
    assert found.samples == len(digits_test.labels)
    assert found.accuracy is not None
    assert found.accuracy.top1[0] == pytest.approx(99.33, abs=0.01)
    assert found.accuracy.top1[1] > 98.5
    change = found.accuracy.top1[1] - found.accuracy.top1[0]
    assert found.accuracy.difference.difference == pytest.approx(change)
    assert found.accuracy.difference.low <= change <= found.accuracy.difference.high
    assert found.accuracy.top_k is not None
    assert found.accuracy.top_k[0] >= found.accuracy.top1[0]
    assert found.latency_batch == 1
    assert found.bytes[0] > found.bytes[1] > 0


def test_the_float_model_may_be_another(
    digits: Result, digits_model: object, digits_test: Images
) -> None:
    data = {"image": digits_test.image[:20]}
    own, given = (intact.evaluate(digits, data, float_model=each) for each in (None, digits_model))
    assert given.sqnr_db == pytest.approx(own.sqnr_db, abs=0.1)
    b = ModelBuilder()
    b.node("Relu", b.input("image", ["batch", 1, 8, 8]), out="other")
    b.output("other", ["batch", 1, 8, 8])
    with pytest.raises(UsageError, match=r"the float model has outputs .*give the model that was"):
        intact.evaluate(digits, data, float_model=b.build())
    with pytest.raises(UsageError, match="quantized already"):
        intact.evaluate(digits, data, float_model=digits.exported.model)


def test_without_labels_the_float_model_is_the_reference(
    digits: Result, digits_test: Images
) -> None:
    found = intact.evaluate(digits, {"image": digits_test.image})
    assert found.accuracy is None
    assert found.agreement is not None
    assert 97 < found.agreement <= 100
    assert found.sqnr_db > 20


def test_agreement_sqnr_and_cosine_compare_the_outputs_of_both_models(
    digits_model: Path, digits_calib: Images, digits_test: Images
) -> None:
    feeds = {"image": digits_test.image}
    coarse = Overrides(weight_bits=3, activation_bits=3)
    data = {"image": digits_calib.image}
    result = intact.quantize(digits_model, data, overrides=coarse, preset="fast")
    found = intact.evaluate(result, feeds)
    want = run_model(onnx.load(digits_model), feeds)["logits"].astype(np.float64)
    have = QdqRuntime(result.exported.model).run(feeds)[0]["logits"].astype(np.float64)
    agreement = 100 * np.mean(want.argmax(axis=1) == have.argmax(axis=1))
    assert 10 < agreement < 99  # something to tell
    assert found.agreement == pytest.approx(agreement, abs=0.4)
    noise = np.sum((want - have) ** 2)
    assert found.sqnr_db == pytest.approx(10 * np.log10(np.sum(want**2) / noise), abs=0.1)
    cosine = np.sum(want * have) / np.sqrt(np.sum(want**2) * np.sum(have**2))
    assert found.cosine == pytest.approx(cosine, abs=1e-3)
    assert cosine < 0.999


def test_wrong_labels_give_a_low_accuracy(digits: Result, digits_test: Images) -> None:
    wrong = (digits_test.labels + 1) % 10
    data: dict[str, npt.ArrayLike] = {"image": digits_test.image, "labels": wrong}
    found = intact.evaluate(digits, data)
    assert found.accuracy is not None
    assert found.accuracy.top1[0] < 5


def test_an_output_without_classes_has_errors_only() -> None:
    data = {"tokens": np.random.default_rng(0).normal(size=(20, 5, 8)).astype(np.float32)}
    found = intact.evaluate(intact.quantize(transformer_block(), data), data)
    assert found.accuracy is None
    assert found.agreement is None
    assert found.output == "features"
    assert found.sqnr_db > 15


def test_another_number_of_labels_is_refused(digits: Result, digits_test: Images) -> None:
    data: dict[str, npt.ArrayLike] = {
        "image": digits_test.image[:7],
        "labels": digits_test.labels[:6],
    }
    with pytest.raises(DataError, match="6 labels for 7 samples"):
        intact.evaluate(digits, data)


def test_few_samples_make_a_small_batch(digits: Result, digits_test: Images) -> None:
    found = intact.evaluate(digits, {"image": digits_test.image[:3]}, batch=100)
    assert (found.samples, found.latency_batch) == (3, 1)


def test_a_fixed_batch_is_kept() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", [4, 3, 8, 8]), 3, 8))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(8, 5), b.weight(5), out="logits")
    b.output("logits", [4, 5])
    data = {"image": np.random.default_rng(0).normal(size=(10, 3, 8, 8)).astype(np.float32)}
    found = intact.evaluate(intact.quantize(b.build(), data), data)
    assert (found.samples, found.latency_batch) == (10, 4)


def evaluated(
    result: Result, data: Mapping[str, Any], metric: MetricFunction | None, batch: int = 4
) -> Evaluation:
    opened = open_samples(data, result.plan.graph)
    return evaluate_result(result, opened, batch=batch, metric=metric and Metric.of(metric))


def box_model() -> onnx.ModelProto:
    """Three boxes for each sample, and their scores."""
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 8))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    corners = b.node("Gemm", x, b.weight(8, 12), b.weight(12))
    b.node("Reshape", corners, b.ints(-1, 3, 4), out="boxes")
    b.node("Gemm", x, b.weight(8, 3), b.weight(3), out="scores")
    b.output("boxes")
    b.output("scores")
    return b.build()


def recall(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> dict[str, float]:
    """Share of the reference boxes that a predicted box has almost at the same place."""
    hits = []
    for found, wanted in zip(outputs["boxes"], references["labels.boxes"], strict=True):
        distances = np.abs(wanted[:, None] - found[None]).max(axis=2)
        hits += list(distances.min(axis=1) < 0.25)
    return {"recall": float(np.mean(hits)), "boxes": len(hits)}


def test_a_metric_of_detections_sees_all_outputs_and_boxes_of_any_number() -> None:
    model = box_model()
    data = {"image": np.random.default_rng(0).normal(size=(11, 3, 8, 8)).astype(np.float32)}
    result = intact.quantize(model, data)
    boxes = run_model(model, data)["boxes"]
    references = [found[: index % 4] for index, found in enumerate(boxes)]
    references[-1] = references[-1] + 100  # none of the predictions is there
    found = evaluated(result, data | {"labels.boxes": references}, recall)
    assert found.metrics["boxes"] == (15, 15)
    assert found.metrics["recall"][0] == pytest.approx(13 / 15)
    assert found.metrics["recall"][1] > 0.5
    assert found.accuracy is None
    assert list(found.outputs) == ["boxes", "scores"]
    assert found.outputs["boxes"].sqnr_db == pytest.approx(found.sqnr_db)
    assert found.outputs["boxes"].cosine == pytest.approx(found.cosine)
    assert found.outputs["scores"].sqnr_db > 10


def token_model() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("tokens", ["batch", 5, 8]), b.weight(8, 6))
    b.node("MatMul", b.node("Relu", x), b.weight(6, 4), out="logits")
    b.output("logits")
    return b.build()


def token_accuracy(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> float:
    right = outputs["logits"].argmax(axis=2) == references["labels"]
    return float(right[references["labels_mask"]].mean())


def test_a_metric_of_texts_sees_labels_of_every_token_and_their_mask() -> None:
    model = token_model()
    random = np.random.default_rng(3)
    data = {"tokens": random.normal(size=(10, 5, 8)).astype(np.float32)}
    result = intact.quantize(model, data)
    classes = run_model(model, data)["logits"].argmax(axis=2)
    mask = random.random((10, 5)) < 0.6
    labels = np.where(mask, classes, (classes + 1) % 4)
    found = evaluated(result, data | {"labels": labels, "labels_mask": mask}, token_accuracy)
    assert found.metrics["token_accuracy"][0] == 1.0
    assert 0.8 < found.metrics["token_accuracy"][1] <= 1.0
    assert found.accuracy is None  # these labels are no classes of samples
    turned = evaluated(result, data | {"labels": labels, "labels_mask": ~mask}, token_accuracy)
    assert turned.metrics["token_accuracy"][0] == 0.0
    with pytest.raises(DataError, match="labels have shape"):
        evaluated(result, data | {"labels": labels}, None)


def test_a_metric_needs_no_labels_and_leaves_the_accuracy_in_place(
    digits: Result, digits_test: Images
) -> None:
    def spread(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> float:
        assert "labels" not in references or len(references["labels"]) == 30
        return float(np.std(next(iter(outputs.values()))))

    data: dict[str, Any] = {"image": digits_test.image[:30]}
    assert evaluated(digits, data, spread).metrics["spread"][0] > 0
    labelled = evaluated(digits, data | {"labels": digits_test.labels[:30]}, spread)
    assert labelled.accuracy is not None
    assert labelled.metrics["spread"][0] > 0
    assert labelled.outputs == {}
    assert evaluated(digits, data, None).metrics == {}


def test_a_metric_that_fails_or_changes_its_names_is_refused() -> None:
    data = {"tokens": np.ones((2, 5, 8), np.float32)}
    result = intact.quantize(token_model(), data)
    calls: list[int] = []

    def changing(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> dict[str, float]:
        calls.append(1)
        return {f"figure {len(calls)}": 1.0}

    with pytest.raises(DataError, match="metric changing: gives 'figure 1' for one of the two"):
        evaluated(result, data, changing)
    with pytest.raises(DataError, match="metric token_accuracy: raises KeyError: 'labels'"):
        evaluated(result, data, token_accuracy)


def test_detections_of_another_number_have_no_sqnr_but_a_metric() -> None:
    """A model that selects inside: how many boxes come out depends on the numbers.

    The totals may agree by chance, so that only a look at each sample tells.
    """
    b = ModelBuilder()
    x = b.node("Gemm", b.input("x", [1, 32]), b.weight(32, 64))
    x = b.node("Reshape", x, b.ints(16, 4))
    first = b.node("Gather", x, b.constant(np.int64(0)), axis=1)
    b.node("Compress", x, b.node("Greater", first, b.constant(np.float32(0))), out="y", axis=0)
    b.output("y")
    data = {"x": np.random.default_rng(0).normal(size=(12, 32)).astype(np.float32)}
    result = intact.quantize(b.build(), data, overrides=Overrides(activation_bits=4))

    def detections(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> float:
        assert len(outputs["y"]) == 12
        return float(sum(len(boxes) ** 2 for boxes in outputs["y"]))

    found = evaluated(result, data, detections)
    assert found.samples == 12
    before, after = found.metrics["detections"]
    assert 0 < before < 12 * 16**2
    assert before != after  # what this test is about
    assert np.isnan(found.sqnr_db)
    assert np.isnan(found.cosine)


def test_outputs_without_classes_are_not_kept_in_memory() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["n", 3, 16, 16]), 3, 8))
    b.output(b.conv(x, 8, 64))
    random = np.random.default_rng(0)
    part = {"image": random.normal(size=(8, 3, 16, 16)).astype(np.float32)}
    result = intact.quantize(b.build(), part)

    def peak(batches: int) -> tuple[int, Evaluation]:
        opened = open_samples([part] * batches, result.plan.graph)
        tracemalloc.start()
        found = evaluate_result(result, opened, batch=8)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top, found

    peak(1)
    (few, first), (many, last) = peak(2), peak(40)
    assert last.samples == 320
    assert last.sqnr_db == pytest.approx(first.sqnr_db)
    assert many < few + (8 << 20)  # both outputs of all samples have 40 MiB


def test_an_output_without_an_axis_for_the_samples_has_no_agreement() -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["n", 8]), b.weight(8, 4))
    b.output(b.node("Transpose", x, perm=[1, 0]))
    data = {"x": np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)}
    found = intact.evaluate(intact.quantize(b.build(), data), data, batch=10)
    assert found.agreement is None
    assert found.sqnr_db > 15
    with pytest.raises(DataError, match=r"has shape \[4, 10\] in a batch and no classes"):
        intact.evaluate(
            intact.quantize(b.build(), data), {**data, "labels": np.zeros(30, int)}, batch=10
        )


def test_the_right_class_among_the_k_best(digits: Result, digits_test: Images) -> None:
    data: dict[str, Any] = {"image": digits_test.image, "labels": digits_test.labels}
    found = {k: intact.evaluate(digits, data, top_k=k).accuracy for k in (1, 3, 10)}
    first, three, all_of_them = found[1], found[3], found[10]
    assert first is not None
    assert first.top_k == first.top1
    assert three is not None
    assert three.top_k is not None
    assert (three.k, three.top_k[0] > three.top1[0]) == (3, True)
    assert all_of_them is not None
    assert all_of_them.top_k is None  # of ten classes
    with pytest.raises(UsageError, match="top_k is 0"):
        intact.evaluate(digits, data, top_k=0)


@pytest.mark.parametrize("runtime", ["ONNX Runtime", f"ONNX Runtime, {EXACT}"])
def test_the_option_for_exact_sums_is_explained(runtime: str) -> None:
    found = Evaluation(
        1, "y", accuracy=None, agreement=None, sqnr_db=30.0, cosine=1.0, bytes=(4, 1),
        latency_ms=None, latency_batch=1, speedup=None, runtime=runtime,
        remedy=quantize_for_saturating_pairs(load_target("onnxruntime")),
    )  # fmt: skip
    explained = [line for line in found.figures().lines if "slower" in line]
    assert len(explained) == (EXACT in runtime)
    assert all("--target onnxruntime-avx2" in line for line in explained)


@pytest.mark.parametrize(
    ("target", "package", "name"),
    [
        ("openvino", "openvino", "OpenVINO"),
        ("tflite", "ai_edge_litert", "LiteRT"),
        ("ncnn", "ncnn", "ncnn"),
    ],
)
def test_the_runtime_that_is_installed_runs_and_is_timed(
    target: str, package: str, name: str, digits_model: Path, digits_test: Images
) -> None:
    pytest.importorskip(package)
    if target == "openvino" and saturates_pairs():
        pytest.skip("there it computes something else than the target")
    images = digits_test.image[:40]
    result = intact.quantize(digits_model, {"image": images}, target=target, preset="fast")
    found = intact.evaluate(result, {"image": images})
    assert found.runtime.startswith(name)
    assert found.latency_batch == 1
    assert found.latency_ms is not None
    assert all(each > 0 for each in found.latency_ms)
    assert found.verdict is not None
    exported = next(iter(result.exports))
    runtime, deployed = FORMATS[exported].runtime, Deployed(result.plan, result.exports[exported])
    assert runtime is not None
    run = runtime.opened(deployed)
    assert run is not None
    for feeds in ({"image": images[:8]}, {"image": images[8:16]}):  # it is loaded once
        found_here, wanted = run(feeds), runtime.run(deployed, feeds)
        for output, array in wanted.items():
            assert found_here[output].shape == array.shape
            assert (found_here[output].argmax(axis=1) == array.argmax(axis=1)).mean() > 0.8


@pytest.mark.parametrize(("side", "expected"), [(16, 100), (512, 8), (4096, 1)])
def test_fewer_samples_run_at_once_where_tensors_are_large(side: int, expected: int) -> None:
    b = ModelBuilder()
    b.node("Relu", b.conv(b.input("image", ["batch", 3, side, side]), 3, 8), out="y")
    b.output("y")
    assert evaluated_at_once(normalize(b.build())) == expected

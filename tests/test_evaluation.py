from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import intact
from intact.errors import DataError
from intact.result import Result
from tests.images import Images
from tests.models import ModelBuilder, transformer_block


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
    assert found.accuracy.top5 is not None
    assert found.accuracy.top5[0] >= found.accuracy.top1[0]
    assert found.latency_batch == 64
    assert found.bytes[0] > found.bytes[1] > 0


def test_without_labels_the_float_model_is_the_reference(
    digits: Result, digits_test: Images
) -> None:
    found = intact.evaluate(digits, {"image": digits_test.image})
    assert found.accuracy is None
    assert found.agreement is not None
    assert 97 < found.agreement <= 100
    assert found.sqnr_db > 20


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
    assert (found.samples, found.latency_batch) == (3, 3)


def test_a_fixed_batch_is_kept() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", [4, 3, 8, 8]), 3, 8))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(8, 5), b.weight(5), out="logits")
    b.output("logits", [4, 5])
    data = {"image": np.random.default_rng(0).normal(size=(10, 3, 8, 8)).astype(np.float32)}
    found = intact.evaluate(intact.quantize(b.build(), data), data)
    assert (found.samples, found.latency_batch) == (10, 4)

"""The public functions refuse mistakes early and take data in every form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from intact import api, demo
from intact.analyze.evaluation import result_evaluation
from intact.data.preprocess import Preprocess
from intact.data.stream import Samples
from intact.engines.cpu import detect_cpu
from intact.errors import CalibrationError, DataError, UsageError
from intact.formats.base.report import Verification
from intact.plan import Overrides


class Unread:
    """Samples that must not be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the samples were read")


@pytest.mark.parametrize(
    "options",
    [
        {"method": "mes"},
        {"weight_method": "mes"},
        {"method": "percentile", "method_options": {"percentil": 99.0}},
        {"method": "percentile", "method_options": {"percentile": -1.0}},
        {"method_options": {"percentile": 99.0}},
    ],
)
def test_a_wrong_method_is_found_before_the_samples_are_read(options: dict[str, Any]) -> None:
    with pytest.raises(CalibrationError):
        api.quantize(demo.model_path(), Unread(), **options)


def test_an_option_changes_the_ranges() -> None:
    def scales(percentile: float) -> list[float]:
        options = {"percentile": percentile}
        result = api.quantize(
            demo.model_path(),
            demo.calibration_path(),
            method="percentile",
            method_options=options,
        )
        return [
            float(config.scale.max())
            for config in result.plan.configs.values()
            if config.observer == "percentile" and config.scale is not None
        ]

    wide, narrow = scales(100.0), scales(90.0)
    assert wide
    assert all(a >= b for a, b in zip(wide, narrow, strict=True))
    assert wide != narrow


def test_data_in_every_form_gives_the_same_statistics() -> None:
    images = np.load(demo.calibration_path())["image"]
    forms: list[Any] = [
        demo.calibration_path(),
        images,
        images.astype(np.float64),
        {"image": images},
        [{"image": images[:7]}, {"image": images[7:]}],
        ({"image": image[None]} for image in images),
    ]
    results = [api.quantize(demo.model_path(), form) for form in forms]
    assert len({result.plan.provenance.statistics for result in results}) == 1


def test_verify_counts_the_samples_that_were_asked_for() -> None:
    result = api.quantize(demo.model_path(), demo.calibration_path(), samples=10)
    told: list[tuple[int, int | None]] = []
    found = api.verify(result, samples=21, progress=lambda *each: told.append(each))
    assert found.samples == 21
    assert told[-1] == (21, 21)
    with pytest.raises(DataError):
        api.verify(result, {"image": np.full((1, 1, 8, 8), np.nan)})


def test_evaluate_and_verify_do_to_the_samples_what_calibration_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = np.load(demo.calibration_path())["image"][:5].astype(np.float32)
    result = api.quantize(demo.model_path(), images, preprocess=Preprocess((3.0,), (0.5,)))
    seen: list[Any] = []

    def verified(_plan: Any, _model: Any, feeds: Any, **_: Any) -> Verification:
        seen.extend(feeds)
        return Verification("", "", detect_cpu(), 0, [])

    def evaluated(loaded: Any, samples: Samples, **_: Any) -> SimpleNamespace:
        seen.extend(batch for batch, _ in samples.batches(5))
        return SimpleNamespace(sqnr_db=100.0)

    monkeypatch.setattr("intact.formats.onnx_qdq.verify.verify_qdq", verified)
    monkeypatch.setattr(result_evaluation, "evaluate_result", evaluated)
    api.verify(result, images)
    api.evaluate(result, images)
    assert len(seen) == 2
    for batch in seen:
        np.testing.assert_array_equal(batch["image"], (images - 3) * 0.5)


@pytest.mark.parametrize("samples", [0, -1])
def test_a_number_of_samples_that_is_none_is_refused(samples: int) -> None:
    result = api.quantize(demo.model_path(), demo.calibration_path(), samples=5)
    calls: list[Callable[[], object]] = [
        lambda: api.quantize(demo.model_path(), demo.calibration_path(), samples=samples),
        lambda: api.evaluate(result, demo.test_path(), samples=samples),
        lambda: api.verify(result, demo.test_path(), samples=samples),
        lambda: api.verify(result, samples=samples),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=f"samples is {samples}; give 1 or more"):
            call()
    with pytest.raises(UsageError, match=f"batch is {samples}; give 1 or more"):
        api.evaluate(result, demo.test_path(), batch=samples)
    with pytest.raises(UsageError, match="threads is -1; give 0"):
        api.quantize(demo.model_path(), demo.calibration_path(), threads=-1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"method": "mse"}, "method"),
        ({"weight_method": "mse"}, "weight_method"),
        ({"method_options": {"percentile": 99.0}}, "method_options"),
        ({"overrides": Overrides(("Gemm",))}, "keep_float"),
        ({"mask": "real"}, "mask"),
        ({"max_memory": 1 << 30}, "max_memory"),
        ({"skip_bad": True}, "skip_bad"),
    ],
)
def test_what_only_completes_a_quantized_model_needs_samples(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=f"{named} is for completing"):
        api.read_quantized("nowhere.onnx", **options)

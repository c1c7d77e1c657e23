"""The public functions refuse mistakes early and take data in every form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from intact import api, demo
from intact.errors import CalibrationError, DataError


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
    assert len({result.plan.provenance["statistics"] for result in results}) == 1


def test_verify_counts_the_samples_that_were_asked_for() -> None:
    result = api.quantize(demo.model_path(), demo.calibration_path(), samples=10)
    told: list[tuple[int, int | None]] = []
    found = api.verify(result, samples=21, progress=lambda *each: told.append(each))
    assert found.samples == 21
    assert told[-1] == (21, 21)
    with pytest.raises(DataError):
        api.verify(result, {"image": np.full((1, 1, 8, 8), np.nan)})

"""Fixtures that every test may use: the zoo's models and images, and the demo's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from intact import demo
from tests.images import Images, Preprocessing, load_images

REPOSITORY = Path(__file__).resolve().parent.parent

# The first example compiles what numba has not cached, and a busy machine takes long for any.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder of trained models and real images, which is not part of the repository."""
    named = os.environ.get("INTACT_ZOO")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "zoo"
    if not (folder / "resnet20.onnx").is_file():
        pytest.skip(f"needs the model zoo, which is not in {folder}; set INTACT_ZOO to its folder")
    return folder


@pytest.fixture(scope="session")
def cifar(zoo: Path) -> Callable[..., Images]:
    """A function ``cifar("calib" | "test" | "train", count=None, preprocessing=NORMALIZED)``."""

    def load(
        part: str,
        count: int | None = None,
        preprocessing: Preprocessing = Preprocessing.NORMALIZED,
    ) -> Images:
        return load_images(zoo / f"cifar10-{part}.npz", count, preprocessing)

    return load


@pytest.fixture(scope="session")
def cifar_calib(cifar: Callable[..., Images]) -> Images:
    """The first 512 calibration images, normalised."""
    return cifar("calib", 512)


@pytest.fixture(scope="session")
def cifar_test(cifar: Callable[..., Images]) -> Images:
    """All 5,000 test images, normalised."""
    return cifar("test")


@pytest.fixture(scope="session")
def digits_model() -> Path:
    """The demo model: always there."""
    return demo.model_path()


@pytest.fixture(scope="session")
def digits_calib() -> Images:
    """The demo's 200 calibration images, pixels 0..16."""
    return load_images(demo.calibration_path())


@pytest.fixture(scope="session")
def digits_test() -> Images:
    """The demo's 600 test images, pixels 0..16."""
    return load_images(demo.test_path())

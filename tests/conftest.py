"""Fixtures that every test may use: the zoo's models and images, the demo's, a command line."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from intact import demo
from intact.cli import printing, run
from tests.images import Images, Preprocessing, load_images
from tests.runtimes import about_runtimes
from tests.selection import left_out

REPOSITORY = Path(__file__).resolve().parent.parent

# A busy machine takes long for what is quick: nothing is told of how far it is.
printing.SILENT = float("inf")

# Packages that import torch where they find it, as TVM does, find none then (see the Makefile).
if os.environ.get("INTACT_TESTS_WITHOUT_TORCH"):
    sys.modules["torch"] = None  # type: ignore[assignment]

# The first example compiles what numba has not cached, and a busy machine takes long for any.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts what it runs in the background with SIGINT ignored, and processes inherit that:
# tests that press Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = (
    *("deployment", "documentation", "documents", "examples", "faults", "fuzz", "heads", "nets"),
    *("analyze/diagnose/test_preprocessing.py", "flow/test_first_run.py"),
    *("flow/test_opsets.py", "flow/test_remedies.py", "flow/test_sharded.py"),
    *("flow/test_train.py", "formats/c/test_models.py", "formats/tengine/test_published.py"),
    *("graph/files/test_opset.py", "graph/passes/test_opset_forms.py", "recipe/test_file.py"),
    *("improve/learn/test_bits.py", "improve/learn/test_float_state.py"),
    *("improve/learn/test_loops.py", "improve/learn/test_reconstruct.py"),
    *("improve/learn/test_training.py", "improve/test_improvements.py"),
    *("improve/test_presets.py", "search/samplers"),
    *("search/test_pool.py", "search/test_same_results.py", "targets/test_openvino_constants.py"),
    *("targets/test_openvino_residuals.py", "targets/test_openvino_runtime.py"),
    *("test_action.py", "test_mistakes.py", "test_skill.py"),
    *("test_big_models.py", "test_cli_cluster.py", "test_cli_diagnose.py", "test_cli_images.py"),
    *(
        "test_cli_integers.py",
        "test_cli_search.py",
        "test_cli_targets.py",
        "test_comparison_page.py",
    ),
    *(
        "test_gallery.py",
        "test_light_models.py",
        "test_odd_models.py",
        "test_report_page.py",
        "test_search.py",
    ),
    *("test_several_targets.py", "test_zoo.py", "workers"),
)
"""What `make test` leaves to `make test-rest`: whole models, documents, random nets, examples, by
measured time. A kind of thing that is tested there is tested on something small here."""


@functools.cache
def is_long(path: Path) -> bool:
    """Tell whether a file or folder belongs to `make test-rest`."""
    return any(path.is_relative_to(REPOSITORY / "tests" / each) for each in LONG)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing that the marks leave out anyway: each process collects for itself."""
    leaves_out = "not long" in config.getoption("markexpr")
    return True if leaves_out and is_long(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, Any, Any]:
    """Look for examples in the docstrings of the package alone, not in those of tests."""
    found = yield
    return [each for each in found if not isinstance(each, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what belongs to `make test-rest`: a case of many, what is in the table, whole models."""
    whole = [each for each in items if "zoo" in getattr(each, "fixturenames", ())]
    for item in [*left_out(items), *whole, *(each for each in items if is_long(each.path))]:
        item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Let the garbage collector look seldom, and not at what stays until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Say of which runtimes a failing test holds a fact, with their versions."""
    report = yield
    if report.failed:
        for marker in item.iter_markers("runtime_fact"):
            report.sections.append(("runtime", about_runtimes(marker.args)))
    return report


@pytest.fixture(autouse=True)
def _modules_of_the_test(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Forget the modules that a test wrote: another test may write one of the same name."""
    before = set(sys.modules)
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(written):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _no_time_of_small_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out whether a net of a few microseconds is slower than float: chance tells that."""
    monkeypatch.setattr("intact.analyze.diagnose.runtime.SHORTEST_SECONDS", 2e-4)


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
    """The first 512 calibration images, normalized."""
    return cifar("calib", 512)


@pytest.fixture(scope="session")
def cifar_test(cifar: Callable[..., Images]) -> Images:
    """All 5,000 test images, normalized."""
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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the demo's model and data."""
    shutil.copy(demo.model_path(), tmp_path / "model.onnx")
    shutil.copy(demo.calibration_path(), tmp_path / "calib.npz")
    shutil.copy(demo.test_path(), tmp_path / "test.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command line that succeeds; return what it prints."""

    def call(*arguments: str) -> str:
        code, captured = run(arguments), capfd.readouterr()
        assert code == 0, captured.err
        return captured.out

    return call


@pytest.fixture
def fails(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command line that fails with one line; return it."""

    def call(*arguments: str) -> str:
        assert run(arguments) != 0
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        return captured.err

    return call

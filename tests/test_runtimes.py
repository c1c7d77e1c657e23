"""Failures of tests that hold facts about runtimes say which version, and what was tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtimes import about_runtimes, installed, known_version, newest_opset

pytest_plugins = ["pytester"]


def test_versions_are_those_of_the_constraints(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("numpy==0.1\nonnxruntime==1.2.3\n")
    assert known_version("onnxruntime", constraints) == "1.2.3"
    assert known_version("onnx", constraints) == known_version("numpy", tmp_path / "none") == ""
    assert installed("no-such-package") == ""


def test_drift_and_regression_read_differently(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"onnxruntime=={installed('onnxruntime')}\nopenvino==1.0\n")
    same = about_runtimes(["onnxruntime"], constraints)
    assert f"onnxruntime {installed('onnxruntime')}; the version that was tested" in same
    other = about_runtimes(["onnxruntime", "numpy"], constraints).splitlines()[1]
    assert other.startswith(f"this test holds a fact about numpy {installed('numpy')}; no known")
    assert other.endswith("the runtime may have changed")


def test_a_failing_test_with_the_marker_names_the_version(pytester: pytest.Pytester) -> None:
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    start = conftest.rindex("@pytest.hookimpl", 0, conftest.rindex("about_runtimes("))
    end = conftest.index("\n\n\n", start)
    head = "import pytest\nfrom tests.runtimes import about_runtimes\n"
    types = "from collections.abc import Generator\nfrom typing import Any\n"
    pytester.makeconftest(f"{head}{types}\n{conftest[start:end]}\n")
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.runtime_fact('onnxruntime')\n"
        "def test_drift(): assert False\n"
        "def test_other(): assert False\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=2)
    assert result.stdout.str().count(f"about onnxruntime {installed('onnxruntime')}") == 1


def test_the_newest_opset_is_asked_of_the_runtime() -> None:
    assert newest_opset() >= 23

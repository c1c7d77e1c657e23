"""``import intact`` is light, and its public names are there when asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import intact

REPOSITORY = Path(__file__).resolve().parent.parent
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "numba", "scipy", "click", "rich")
SECONDS = 0.5

MEASURE = """
import sys, time
start = time.process_time()
import intact
print(time.process_time() - start)
print(*sys.modules)
"""


def _import_in_a_fresh_interpreter() -> tuple[float, set[str]]:
    answer = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    seconds, modules = answer.stdout.splitlines()
    return float(seconds), set(modules.split())


def test_import_loads_no_heavy_package_and_is_quick() -> None:
    runs = [_import_in_a_fresh_interpreter() for _ in range(3)]
    assert runs[0][1].isdisjoint(HEAVY)
    assert min(seconds for seconds, _ in runs) < SECONDS


@pytest.mark.parametrize("name", intact.__all__)
def test_public_name_can_be_called(name: str) -> None:
    assert callable(getattr(intact, name))
    assert name in dir(intact)


@pytest.mark.parametrize("name", intact.__all__)
def test_no_module_is_called_like_a_public_name(name: str) -> None:
    # `import intact.verify` would set the attribute `verify` of the package to the module.
    assert find_spec(f"intact.{name}") is None


def test_unknown_name_is_an_attribute_error() -> None:
    misspelt = "quantse"
    with pytest.raises(AttributeError, match="no attribute 'quantse'"):
        getattr(intact, misspelt)


def test_version_is_the_projects() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", intact.__version__)
    assert f"## [{intact.__version__}]" in (REPOSITORY / "CHANGELOG.md").read_text("utf-8")

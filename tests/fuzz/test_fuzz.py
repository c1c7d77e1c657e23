"""Some thousand damaged files, the same in every run: each is read or refused with one line.

``make fuzz`` does the same with files that no run has seen.
"""

from __future__ import annotations

import pytest

from tests.fuzz.campaign import run_cases
from tests.fuzz.kinds import KINDS

CASES = {
    "onnx": 250,
    "quantize": 200,
    "quantized": 100,
    "fake_quantized": 100,
    "deployed": 50,
    "tensorrt": 50,
    "tflite": 1000,
    "tmfile": 200,
    "npz": 800,
    "statistics": 400,
    "plan": 600,
    "folder": 300,
    "integers": 400,
    "search_log": 500,
    "toml": 800,
    "preprocess": 500,
    "recipe": 500,
    "labels": 500,
    "scales": 200,
    "image": 600,
}
"""By kind, as the time of a case allows."""


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind: str) -> None:
    failures = [str(failure) for failure in run_cases(kind, 0, 0, CASES[kind])]
    assert not failures, f"{len(failures)} failures\n" + "\n\n".join(failures[:5])

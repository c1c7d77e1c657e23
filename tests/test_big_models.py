"""Models of more than 2 GiB: bounded memory, right integers, a result that works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact.engines.exact_sums import saturates_pairs
from intact.graph import load_model
from tests import big
from tests.conftest import REPOSITORY

MOST_FOR_QUANTIZING = 1200
"""MiB: the integers (576), and some copies of one weight (96 each); measured 810."""

MOST_WHERE_PAIRS_SATURATE = MOST_FOR_QUANTIZING + 3 * 576
"""ONNX Runtime stores integers of another type there, in two copies, to run what was written, and
what is written may not have gone yet; measured 1,660 to 2,470."""

MOST_FOR_RUNNING = 4000
"""MiB: ONNX Runtime holds the integer model and its packed copy."""
MOST_FOR_VERIFYING = 6500
"""MiB: two such, and the integer engine's weights as exact floats and as codes."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def run_apart(folder: Path, *steps: str) -> dict[str, Any]:
    """Take the big model through intact in a process whose memory is its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.big", str(folder), *steps],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def expected_codes(layer: int) -> dict[tuple[int, int], int]:
    """Return the integers that are not zero: 127 is the largest of its channel, 1.0."""
    return {(row, column): int(np.rint(value * 127)) for row, column, value in big.numbers(layer)}


def test_quantizing_two_gibibytes_takes_bounded_memory(tmp_path: Path) -> None:
    found = run_apart(tmp_path)
    assert (tmp_path / "model" / "weights.bin").stat().st_size > 2**31
    most = MOST_WHERE_PAIRS_SATURATE if saturates_pairs() else MOST_FOR_QUANTIZING
    assert found["quantize"] < most
    model = load_model(tmp_path / "result" / "model.int8.onnx")
    for layer in (0, 1, 2, len(big.KINDS) - 1):
        tensor = model.graph.initializers[f"w{layer}_quantized"].const_value
        assert tensor is not None
        codes = tensor.numpy().reshape(tensor.shape.numpy()[:2])
        assert codes.dtype == np.int8
        codes = codes if big.KINDS[layer] == "MatMul" else codes.T
        places = zip(*(axis.tolist() for axis in codes.nonzero()), strict=True)
        assert {place: int(codes[place]) for place in places} == expected_codes(layer)
    stored = load_model(tmp_path / "result" / "model.onnx")
    weight = stored.graph.initializers["w0"].const_value
    assert weight is not None
    row, column, value = big.numbers(0)[-1]
    assert weight.numpy()[column, row] == value  # a Gemm, transposed


@pytest.mark.slow
def test_a_result_of_two_gibibytes_is_evaluated_and_verified(tmp_path: Path) -> None:
    found = run_apart(tmp_path, "evaluate", "verify")
    assert found["sqnr_db"] > 30
    assert found["simulated_sqnr_db"] > 100
    assert found["mismatches"] == 0
    assert found["evaluate"] < MOST_FOR_RUNNING
    assert found["verify"] < MOST_FOR_VERIFYING

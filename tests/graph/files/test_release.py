"""Pages of mapped weights: what is let go counts no more, and is read again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.graph.files.external import release_pages
from intact.graph.files.load import read_model
from tests.models import ModelBuilder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_pages_take_no_memory(tmp_path: Path) -> None:
    builder = ModelBuilder(17)
    weight = np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)
    builder.node("MatMul", builder.input("x", ["n", 2048]), builder.constant(weight), out="y")
    builder.output("y")
    path = tmp_path / "model.onnx"
    onnx.save(builder.build(), path, save_as_external_data=True, location="weights")
    (tensor,) = (each.const_value for each in read_model(path).graph.initializers.values())
    assert tensor is not None

    def in_memory() -> int:
        """Bytes of the process that are pages of files."""
        found = re.search(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())
        assert found is not None
        return 1024 * int(found[1])

    np.testing.assert_array_equal(tensor.numpy(), weight)
    before = in_memory()
    release_pages()
    assert before - in_memory() > weight.nbytes / 2
    np.testing.assert_array_equal(tensor.numpy(), weight)

"""Sessions of large models: weights reach the runtime as they are, in files or in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intact.engines import session
from intact.engines.session import Optimization, make_session, run_session
from intact.graph import load_model, save_model
from intact.graph.files import save
from tests.models import ModelBuilder


def test_weights_in_memory_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = ModelBuilder()
    hidden = b.node("MatMul", b.input("x", ["n", 64]), b.weight(64, 80, name="kept"))
    b.node("MatMul", hidden, b.weight(80, 96, name="changed"), out="y")
    b.output("y")
    path = tmp_path / "model.onnx"
    save_model(ir.from_proto(b.build()), path, beside=True)
    model = load_model(path)
    value = model.graph.initializers["changed"]
    tensor = value.const_value
    assert tensor is not None
    doubled = ir.Tensor(tensor.numpy() * 2, name="changed")
    value.const_value = doubled
    for home in (save, session):
        monkeypatch.setattr(home, "STREAM_FROM", 1)
    monkeypatch.setattr(save, "_LARGE", 1)
    found = save.in_place(model)
    assert found is not None
    assert list(found.held) == ["changed"]
    assert found.folder == tmp_path
    feeds = {"x": np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)}
    whole, once = (
        run_session(make_session(model, optimization=each), feeds)[0]
        for each in (Optimization.ALL, Optimization.NONE)
    )
    np.testing.assert_allclose(once, whole, rtol=1e-5, atol=1e-5)

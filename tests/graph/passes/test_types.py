"""Element types behind operators that ONNX does not know."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.graph import normalize
from intact.graph.passes import types
from tests import models, odd
from tests.models import ModelBuilder


def test_the_runtime_knows_its_own_operators() -> None:
    graph = normalize(odd.contrib_operator())
    assert {value.dtype for value in graph.values} == {ir.DataType.FLOAT}
    assert all(value.shape is not None for value in graph.values)


def test_types_that_change_are_not_guessed() -> None:
    b = ModelBuilder()
    b.domains["com.microsoft"] = 1
    grid = (b.scalar(0.1), b.constant(np.uint8(3)))
    x = b.input("x", ["n", 6])
    codes = b.node("QuantizeLinear", x, *grid, domain="com.microsoft", out="codes")
    codes = b.node("Reshape", codes, b.ints(-1, 3), out="moved")
    x = b.node("DequantizeLinear", codes, *grid, domain="com.microsoft", out="numbers")
    b.node("Relu", x, out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [graph.value(name).dtype for name in ("codes", "moved", "numbers", "y")] == [
        ir.DataType.UINT8,
        ir.DataType.UINT8,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT,
    ]


def test_what_the_runtime_refuses_stays_unknown() -> None:
    graph = normalize(models.custom_domain())
    assert any(value.dtype is None for value in graph.values)


def test_it_is_not_asked_where_types_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "_inferred_by_runtime", lambda _: pytest.fail("it was asked"))
    for name in ("residual", "transformer", "detector", "control_flow"):
        normalize(models.MODELS[name].build(18))

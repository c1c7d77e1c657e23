"""Quantization while running, against exact arithmetic and ONNX Runtime's own operator."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper

from intact.errors import ConfigError, DataError
from intact.numerics.dynamic import DynamicQuantizer
from intact.numerics.levels import Factor, Rounding

_UINT8 = DynamicQuantizer(0, 255)
_ROWS = DynamicQuantizer(-127, 127, symmetric=True, rows=True, factor=Factor.RECIPROCAL)


@functools.cache
def _session() -> ort.InferenceSession:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"])
    types = {"codes": TensorProto.UINT8, "scale": TensorProto.FLOAT, "zero": TensorProto.UINT8}
    graph = helper.make_graph(
        [node],
        "dynamic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()],
    )
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString())


def _assert_as_runtime(values: np.ndarray[Any, Any]) -> None:
    codes, scale, zero = _session().run(None, {"x": values})
    params = _UINT8.params(values)
    assert params.scale.view(np.uint32) == np.asarray(scale).view(np.uint32)
    assert params.zero_point == zero
    np.testing.assert_array_equal(_UINT8.codes(values, params), codes)


_ODD = [
    [],
    [0, 0],
    [-0.0],
    [3],
    [-3],
    [5] * 17,
    [-1, -2],
    [1e-45],
    [1e-45, -1e-45],
    [1e-38, -1e-40],
    [300 * 1e-45],
    [3e38],
    [3e38, -3e38],
    [np.inf, 1],
    [-np.inf, 1],
    [np.inf, -np.inf],
    [0.5, 127.5, 255, 1.5],
    [-128, 127, 0.5, -0.5, 1.5, 2.5],
]


@pytest.mark.parametrize("values", _ODD, ids=str)
def test_odd_values_are_quantized_as_the_runtime_does(values: list[float]) -> None:
    _assert_as_runtime(np.asarray(values, np.float32))


_FINITE = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=20),
    elements=st.floats(-(2.0**126), 2.0**126, width=32),
)


@given(_FINITE)
def test_any_values_are_quantized_as_the_runtime_does(values: np.ndarray[Any, Any]) -> None:
    _assert_as_runtime(values)


_KINDS = {
    "tensor": _UINT8,
    "rows": _ROWS,
    "unsigned rows": DynamicQuantizer(0, 255, rows=True),
    "blocks": DynamicQuantizer(-127, 127, symmetric=True, rows=True, block=3),
    "inverted": DynamicQuantizer(-128, 127, rows=True, factor=Factor.INVERTED),
    "codes over range": DynamicQuantizer(
        -127, 127, symmetric=True, rows=True, factor=Factor.CODES_OVER_RANGE
    ),
}


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=30)
@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=3, max_side=8),
        elements=st.floats(-(2.0**20), 2.0**20, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6),
    )
)
def test_each_value_is_within_half_a_step_of_its_code(
    kind: str, values: np.ndarray[Any, Any]
) -> None:
    quantizer = _KINDS[kind]
    params = quantizer.params(values)
    codes = quantizer.codes(values, params)
    scale = np.broadcast_to(quantizer.spread(params.scale, values.shape), values.shape)
    zero = np.broadcast_to(quantizer.spread(params.zero_point, values.shape), values.shape)
    assert quantizer.quant_min <= codes.min(initial=0)
    assert codes.max(initial=0) <= quantizer.quant_max
    # A rounded zero point moves the range by half a step: its end is half a step further out.
    most = (0.5 if quantizer.symmetric else 1.0) + 1e-4
    # Exact in float64: a product has 24 bits and those of a code.
    lost = np.abs(values.astype(np.float64) - (codes - zero) * scale.astype(np.float64))
    assert (lost <= most * scale).all()


def test_scales_are_those_of_rows_and_blocks() -> None:
    values = np.array([[127, -1, 0, 254], [0, 0, 0, 12.7]], np.float32)
    rows = _ROWS.params(values)
    np.testing.assert_array_equal(rows.scale, np.array([[2], [np.float32(12.7) / 127]], np.float32))
    blocks = DynamicQuantizer(-127, 127, symmetric=True, rows=True, block=3)
    found = blocks.params(values)
    assert found.scale.shape == (2, 2)
    np.testing.assert_array_equal(found.scale[:, 0], np.array([1, 1], np.float32))
    np.testing.assert_array_equal(blocks.codes(values, found)[0], [127, -1, 0, 127])


def test_ties_follow_the_rounding() -> None:
    values = np.array([[127, 0.5, -0.5, 1.5]], np.float32)
    away = DynamicQuantizer(
        -127, 127, symmetric=True, rows=True, rounding=Rounding.HALF_AWAY_FROM_ZERO
    )
    np.testing.assert_array_equal(away.codes(values, away.params(values)), [[127, 1, -1, 2]])
    np.testing.assert_array_equal(_ROWS.codes(values, _ROWS.params(values)), [[127, 0, 0, 2]])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
@pytest.mark.parametrize("kind", _KINDS)
def test_empty_rows_have_scale_1(kind: str, shape: tuple[int, int]) -> None:
    values = np.zeros(shape, np.float32)
    params = _KINDS[kind].params(values)
    assert (params.scale == 1).all()
    assert _KINDS[kind].codes(values, params).shape == shape


def test_nan_is_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        _UINT8.params(np.array([1, np.nan], np.float32))


def test_impossible_quantizers_are_refused() -> None:
    with pytest.raises(ConfigError):
        DynamicQuantizer(0, 255, symmetric=True)
    with pytest.raises(ConfigError):
        DynamicQuantizer(-127, 127, symmetric=True, block=8)

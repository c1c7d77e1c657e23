"""Which type holds which codes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.config import PerChannel, PerTensor, TensorQuantConfig, make_policy
from intact.formats.onnx_qdq.reader.parameters import container_for

TYPES = ir.DataType


def config(low: int, high: int, axis: int | None = None) -> TensorQuantConfig:
    granularity = PerTensor() if axis is None else PerChannel(axis)
    return TensorQuantConfig(
        policy=make_policy(granularity, symmetric=False),
        granularity=granularity,
        bits=32,
        quant_min=low,
        quant_max=high,
    )


@pytest.mark.parametrize(
    ("low", "high", "constant", "activation", "opset"),
    [
        (-8, 7, TYPES.INT4, TYPES.INT8, 10),
        (-2, 1, TYPES.INT4, TYPES.INT8, 10),
        (0, 15, TYPES.UINT4, TYPES.UINT8, 10),
        (0, 16, TYPES.UINT8, TYPES.UINT8, 10),
        (-9, 7, TYPES.INT8, TYPES.INT8, 10),
        (-128, 127, TYPES.INT8, TYPES.INT8, 10),
        (0, 255, TYPES.UINT8, TYPES.UINT8, 10),
        (0, 256, TYPES.UINT16, TYPES.UINT16, 21),
        (-129, 0, TYPES.INT16, TYPES.INT16, 21),
        (-(2**31), 2**31 - 1, TYPES.INT32, TYPES.INT32, 10),
    ],
)
def test_the_smallest_type(
    low: int, high: int, constant: TYPES, activation: TYPES, opset: int
) -> None:
    stored = container_for(config(low, high), is_constant=True)
    computed = container_for(config(low, high), is_constant=False)
    assert stored is not None
    assert computed is not None
    assert (stored.data_type, computed.data_type) == (constant, activation)
    assert computed.opset_for(config(low, high)) == opset
    assert computed.opset_for(config(low, high, axis=1)) == max(opset, 13)
    codes = np.array([low, high]).astype(computed.numpy).astype(np.int64)
    assert codes.tolist() == [low, high]
    assert computed.holds_exactly(config(computed.low, computed.high))
    assert not computed.holds_exactly(config(computed.low, computed.high - 1))


def test_no_type_is_wide_enough() -> None:
    assert container_for(config(0, 2**20), is_constant=True) is None

"""Which ONNX integer type holds the codes of a config, and the opset that it needs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.plan.stored_weights import is_stored


class Container(msgspec.Struct, frozen=True):
    """An ONNX integer type.

    Attributes:
        data_type: The ONNX type.
        numpy: The NumPy type of its arrays.
        low: Smallest integer it holds.
        high: Largest integer it holds.
        opset: First default opset whose QuantizeLinear takes it.
    """

    data_type: ir.DataType
    numpy: npt.DTypeLike
    low: int
    high: int
    opset: int

    def opset_for(self, config: TensorQuantConfig) -> int:
        """Return the first opset that expresses a config: scales by channel came with 13."""
        return self.opset if config.granularity.axis is None else max(self.opset, _PER_CHANNEL)

    @property
    def in_bytes(self) -> Container:
        """The smallest type of whole bytes that holds the same codes: what kernels read."""
        family = _SIGNED if self.low < 0 else _UNSIGNED
        return family[1] if self.is_packed else self

    @property
    def is_packed(self) -> bool:
        """Whether a byte holds two codes."""
        return self.data_type.bitwidth < _BYTE

    @property
    def codes(self) -> np.dtype[Any]:
        """The NumPy type in which codes are kept: without the 4-bit types that NumPy lacks."""
        return np.dtype(f"{'i' if self.low < 0 else 'u'}{max(self.data_type.bitwidth // 8, 1)}")

    def holds_exactly(self, config: TensorQuantConfig) -> bool:
        """Check whether saturating to the type is saturating to the config's range."""
        return (config.quant_min, config.quant_max) == (self.low, self.high)


_PER_CHANNEL = 13
_BYTE = 8

_SIGNED = (
    Container(ir.DataType.INT4, ml_dtypes.int4, -8, 7, 21),
    Container(ir.DataType.INT8, np.int8, -128, 127, 10),
    Container(ir.DataType.INT16, np.int16, -(2**15), 2**15 - 1, 21),
    Container(ir.DataType.INT32, np.int32, -(2**31), 2**31 - 1, 10),
)
_UNSIGNED = (
    Container(ir.DataType.UINT4, ml_dtypes.uint4, 0, 15, 21),
    Container(ir.DataType.UINT8, np.uint8, 0, 255, 10),
    Container(ir.DataType.UINT16, np.uint16, 0, 2**16 - 1, 21),
)


_BY_TYPE = {container.data_type: container for container in (*_SIGNED, *_UNSIGNED)}


def container_of(data_type: ir.DataType | None) -> Container | None:
    """Return the container that an ONNX type is; None for what holds no codes."""
    return None if data_type is None else _BY_TYPE.get(data_type)


def container_for(config: TensorQuantConfig, *, is_constant: bool) -> Container | None:
    """Return the smallest type that holds a config's range; None if ONNX has none.

    A weight of a float node takes 8 bits at least: older opsets look up whole bytes only.

    Activations take 8 bits at least: ONNX Runtime 1.31 refuses a model in which a Clip stands
    before a 4-bit QuantizeLinear, and gives no 4-bit tensors.
    """
    may_pack = is_constant and not is_stored(config)
    return container_of_range(config.quant_min, config.quant_max, may_pack=may_pack)


def container_of_range(low: int, high: int, *, may_pack: bool = False) -> Container | None:
    """Return the smallest type that holds a range, of 8 bits or more unless it may be packed."""
    family = _SIGNED if low < 0 else _UNSIGNED
    return next(
        (
            container
            for container in (family if may_pack else family[1:])
            if container.low <= low and high <= container.high
        ),
        None,
    )

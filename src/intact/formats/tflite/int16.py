"""Which operators take int16 codes, and from which version on.

Source: ``op_version.cc`` of LiteRT; with each, 0 integers differ between its reference kernels
(2.3.0) and the engine. Left out is what they refuse, and GELU, whose table depends on the last bits
of the C library's erfc.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from intact.errors import Unsupported

INT16_VERSIONS: Mapping[str, int] = MappingProxyType(
    {
        "ABS": 3,
        "ADD": 3,
        "AVERAGE_POOL_2D": 3,
        "BATCH_MATMUL": 3,
        "BATCH_TO_SPACE_ND": 1,
        "BROADCAST_TO": 3,
        "CONCATENATION": 3,
        "CONV_2D": 4,
        "DEPTHWISE_CONV_2D": 5,
        "DEQUANTIZE": 3,
        "EXP": 2,
        "EXPAND_DIMS": 1,
        "FULLY_CONNECTED": 7,
        "GATHER": 4,
        "LEAKY_RELU": 2,
        "LOGISTIC": 3,
        "MAXIMUM": 4,
        "MAX_POOL_2D": 3,
        "MEAN": 3,
        "MINIMUM": 4,
        "MIRROR_PAD": 1,
        "MUL": 4,
        "NEG": 1,
        "PACK": 3,
        "PAD": 3,
        "PADV2": 3,
        "PRELU": 1,
        "QUANTIZE": 2,
        "REDUCE_MAX": 3,
        "REDUCE_MIN": 3,
        "RELU": 3,
        "RELU6": 3,
        "RESHAPE": 1,
        "RESIZE_BILINEAR": 4,
        "RESIZE_NEAREST_NEIGHBOR": 4,
        "SLICE": 4,
        "SOFTMAX": 3,
        "SPACE_TO_BATCH_ND": 1,
        "SPLIT": 4,
        "SPLIT_V": 2,
        "SQUEEZE": 1,
        "STRIDED_SLICE": 4,
        "SUB": 5,
        "TANH": 3,
        "TILE": 1,
        "TRANSPOSE": 4,
        "TRANSPOSE_CONV": 3,
        "UNPACK": 1,
    }
)


def int16_version(code: str) -> int:
    """Return the first version of an operator that takes int16 codes.

    Raises:
        Unsupported: None does.
    """
    version = INT16_VERSIONS.get(code)
    if version is None:
        raise Unsupported(f"TFLite's {code} does not take int16 codes")
    return version

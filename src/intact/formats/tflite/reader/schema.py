"""Lists which slot of which table of a ``.tflite`` holds what, as its schema numbers them.

Source: ``schema.fbs`` of LiteRT, version 3; the numbers never change meaning. Only what reading
needs is listed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

IDENTIFIER = b"TFL3"
VERSION = 3


class Element(enum.IntEnum):
    """Element types of tensors."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    UINT8 = 3
    INT64 = 4
    STRING = 5
    BOOL = 6
    INT16 = 7
    COMPLEX64 = 8
    INT8 = 9
    FLOAT64 = 10
    COMPLEX128 = 11
    UINT64 = 12
    RESOURCE = 13
    VARIANT = 14
    UINT32 = 15
    UINT16 = 16
    INT4 = 17
    BFLOAT16 = 18
    INT2 = 19
    UINT4 = 20
    FLOAT8_E4M3FN = 21
    FLOAT8_E5M2 = 22


class Fused(enum.IntEnum):
    """Activations that operators hold inside."""

    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3
    TANH = 4
    SIGN_BIT = 5


class Padding(enum.IntEnum):
    """How windows go over the borders."""

    SAME = 0
    VALID = 1


OPERATORS: Mapping[int, str] = MappingProxyType(
    {
        0: "ADD", 1: "AVERAGE_POOL_2D", 2: "CONCATENATION", 3: "CONV_2D", 4: "DEPTHWISE_CONV_2D",
        5: "DEPTH_TO_SPACE", 6: "DEQUANTIZE", 7: "EMBEDDING_LOOKUP", 8: "FLOOR",
        9: "FULLY_CONNECTED", 11: "L2_NORMALIZATION", 12: "L2_POOL_2D",
        13: "LOCAL_RESPONSE_NORMALIZATION", 14: "LOGISTIC", 16: "LSTM", 17: "MAX_POOL_2D",
        18: "MUL", 19: "RELU", 20: "RELU_N1_TO_1", 21: "RELU6", 22: "RESHAPE",
        23: "RESIZE_BILINEAR", 24: "RNN", 25: "SOFTMAX", 26: "SPACE_TO_DEPTH", 27: "SVDF",
        28: "TANH", 31: "CALL", 32: "CUSTOM", 34: "PAD", 35: "UNIDIRECTIONAL_SEQUENCE_RNN",
        36: "GATHER", 37: "BATCH_TO_SPACE_ND", 38: "SPACE_TO_BATCH_ND", 39: "TRANSPOSE",
        40: "MEAN", 41: "SUB", 42: "DIV", 43: "SQUEEZE", 44: "UNIDIRECTIONAL_SEQUENCE_LSTM",
        45: "STRIDED_SLICE", 47: "EXP", 48: "TOPK_V2", 49: "SPLIT", 50: "LOG_SOFTMAX",
        51: "DELEGATE", 52: "BIDIRECTIONAL_SEQUENCE_LSTM", 53: "CAST", 54: "PRELU",
        55: "MAXIMUM", 56: "ARG_MAX", 57: "MINIMUM", 58: "LESS", 59: "NEG", 60: "PADV2",
        61: "GREATER", 62: "GREATER_EQUAL", 63: "LESS_EQUAL", 64: "SELECT", 65: "SLICE",
        66: "SIN", 67: "TRANSPOSE_CONV", 69: "TILE", 70: "EXPAND_DIMS", 71: "EQUAL",
        72: "NOT_EQUAL", 73: "LOG", 74: "SUM", 75: "SQRT", 76: "RSQRT", 77: "SHAPE", 78: "POW",
        79: "ARG_MIN", 80: "FAKE_QUANT", 81: "REDUCE_PROD", 82: "REDUCE_MAX", 83: "PACK",
        84: "LOGICAL_OR", 85: "ONE_HOT", 86: "LOGICAL_AND", 87: "LOGICAL_NOT", 88: "UNPACK",
        89: "REDUCE_MIN", 90: "FLOOR_DIV", 92: "SQUARE",
        93: "ZEROS_LIKE", 94: "FILL", 95: "FLOOR_MOD", 96: "RANGE",
        97: "RESIZE_NEAREST_NEIGHBOR", 98: "LEAKY_RELU", 99: "SQUARED_DIFFERENCE",
        100: "MIRROR_PAD", 101: "ABS", 102: "SPLIT_V", 104: "CEIL", 105: "REVERSE_V2",
        106: "ADD_N", 107: "GATHER_ND", 108: "COS", 109: "WHERE", 110: "RANK", 111: "ELU",
        114: "QUANTIZE", 116: "ROUND", 117: "HARD_SWISH", 118: "IF", 119: "WHILE",
        122: "SCATTER_ND", 123: "SELECT_V2", 124: "DENSIFY", 126: "BATCH_MATMUL", 128: "CUMSUM",
        129: "CALL_ONCE", 130: "BROADCAST_TO", 132: "CONV_3D", 142: "VAR_HANDLE",
        143: "READ_VARIABLE", 144: "ASSIGN_VARIABLE", 150: "GELU", 151: "DYNAMIC_UPDATE_SLICE",
        152: "RELU_0_TO_1", 158: "SIGN", 206: "STABLEHLO_COMPOSITE",
    }
)  # fmt: skip
"""Names of operators by code; others are called by their number."""


TEXT = "text"
"""Stands for the format of a field that is a string."""


@dataclass(frozen=True)
class OptionField:
    """A field of an operator's options: its slot, ``struct`` format or `TEXT`, and default."""

    slot: int
    form: str = "<i"
    default: float = 0


_PADDING = OptionField(0, "<b")
_FUSED = OptionField(0, "<b")
_WINDOW = {"padding": _PADDING, "stride_w": OptionField(1), "stride_h": OptionField(2)}
_RESIZE = ("align_corners", "half_pixel_centers")
_REDUCER = {"keep_dims": OptionField(0, "<?")}
_BLOCK = {"block_size": OptionField(0)}
_POOL = {
    **_WINDOW,
    "filter_w": OptionField(3),
    "filter_h": OptionField(4),
    "fused": OptionField(5, "<b"),
}
_DILATIONS = {
    "dilation_w": OptionField(4, "<i", 1),
    "dilation_h": OptionField(5, "<i", 1),
}

OPTIONS: Mapping[str, Mapping[str, OptionField]] = MappingProxyType(
    {
        "CONV_2D": {**_WINDOW, "fused": OptionField(3, "<b"), **_DILATIONS},
        "DEPTHWISE_CONV_2D": {
            **_WINDOW,
            "fused": OptionField(4, "<b"),
            "dilation_w": OptionField(5, "<i", 1),
            "dilation_h": OptionField(6, "<i", 1),
        },
        "CONV_3D": {
            "padding": _PADDING,
            "fused": OptionField(4, "<b"),
            **{f"stride_{axis}": OptionField(1 + k) for k, axis in enumerate("dwh")},
            **{f"dilation_{axis}": OptionField(5 + k, "<i", 1) for k, axis in enumerate("dwh")},
        },
        "TRANSPOSE_CONV": {**_WINDOW, "fused": OptionField(3, "<b")},
        "FULLY_CONNECTED": {
            "fused": _FUSED,
            "weights_format": OptionField(1, "<b"),
            "keep_num_dims": OptionField(2, "<?"),
        },
        "AVERAGE_POOL_2D": _POOL,
        "MAX_POOL_2D": _POOL,
        "SOFTMAX": {"beta": OptionField(0, "<f")},
        "ADD": {"fused": _FUSED, "pot_scale_int16": OptionField(1, "<?", 1)},
        "SUB": {"fused": _FUSED, "pot_scale_int16": OptionField(1, "<?", 1)},
        "MUL": {"fused": _FUSED},
        "DIV": {"fused": _FUSED},
        "L2_NORMALIZATION": {"fused": _FUSED},
        "CONCATENATION": {"axis": OptionField(0), "fused": OptionField(1, "<b")},
        "RESIZE_BILINEAR": {name: OptionField(2 + k, "<?") for k, name in enumerate(_RESIZE)},
        "RESIZE_NEAREST_NEIGHBOR": {name: OptionField(k, "<?") for k, name in enumerate(_RESIZE)},
        "MEAN": _REDUCER,
        "SUM": _REDUCER,
        "REDUCE_MAX": _REDUCER,
        "REDUCE_MIN": _REDUCER,
        "REDUCE_PROD": _REDUCER,
        "STRIDED_SLICE": {
            "begin_mask": OptionField(0),
            "end_mask": OptionField(1),
            "ellipsis_mask": OptionField(2),
            "new_axis_mask": OptionField(3),
            "shrink_axis_mask": OptionField(4),
            "offset": OptionField(5, "<?"),
        },
        "PACK": {"axis": OptionField(1)},
        "UNPACK": {"axis": OptionField(1)},
        "GATHER": {"axis": OptionField(0), "batch_dims": OptionField(1)},
        "LEAKY_RELU": {"alpha": OptionField(0, "<f")},
        "BATCH_MATMUL": {"adj_x": OptionField(0, "<?"), "adj_y": OptionField(1, "<?")},
        "DEPTH_TO_SPACE": _BLOCK,
        "SPACE_TO_DEPTH": _BLOCK,
        "MIRROR_PAD": {"mode": OptionField(0, "<b")},
        "GELU": {"approximate": OptionField(0, "<?")},
        "CUMSUM": {"exclusive": OptionField(0, "<?"), "reverse": OptionField(1, "<?")},
        "CALL_ONCE": {"init_subgraph_index": OptionField(0)},
        "WHILE": {"cond_subgraph_index": OptionField(0), "body_subgraph_index": OptionField(1)},
        "VAR_HANDLE": {"container": OptionField(0, TEXT), "shared_name": OptionField(1, TEXT)},
    }
)
"""Fields of the options that are read, by operator."""

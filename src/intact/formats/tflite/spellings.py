"""Lists how TFLite spells operators: tables that reader and writer follow, a row each.

Versions of int16 kernels: ``op_version.cc`` of LiteRT; with each, 0 integers differ between its
reference kernels (2.3.0) and the engine. Left out is what they refuse, and GELU, whose table
depends on the last bits of the C library's erfc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

from intact.errors import Unsupported
from intact.formats.tflite.reader.schema import Fused
from intact.ops import functions
from intact.ops.functions import Unary
from intact.ops.operators import (
    Add,
    And,
    ArgMax,
    ArgMin,
    AveragePool,
    Cast,
    CumSum,
    Declared,
    Div,
    Equal,
    GatherND,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Max,
    MaxPool,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    Pow,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    Resize,
    ScatterND,
    Sub,
    TopK,
    Where,
)
from intact.program.operations import Binary, Bounds, PoolKind, Reduction, ResizeMode

Ours = TypeVar("Ours")


@dataclass(frozen=True)
class Spelling(Generic[Ours]):
    """An operator of the schema.

    Attributes:
        ours: What it computes.
        code: The operator's name in the schema.
        onnx: ONNX's operator that does the same; "" where it takes several, or is not read.
        table: Its table of options, "" for none.
        integer: The version that takes int8; 0 if none does.
        fusable: Whether its options have a fused activation.
        options: Names of options in the schema, with ours.
        is_written: Runtimes have a kernel; otherwise such an operator is only read.
    """

    ours: Ours
    code: str
    onnx: str = ""
    table: str = ""
    integer: int = 2
    fusable: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    is_written: bool = True


def rows_by_ours(rows: Iterable[Spelling[Ours]]) -> Mapping[Ours, Spelling[Ours]]:
    """Return the rows that are written, by what they compute."""
    return {each.ours: each for each in rows if each.is_written}


def rows_by_code(rows: Iterable[Spelling[Ours]]) -> Mapping[str, Spelling[Ours]]:
    """Return the rows that ONNX has one operator for, by name in the schema."""
    return {each.code: each for each in rows if each.onnx}


def _function(
    function: Unary,
    code: str,
    table: str = "",
    *,
    integer: int = 2,
    options: Mapping[str, str] | None = None,
    is_written: bool = True,
) -> Spelling[Unary]:
    onnx = function.name if function.is_operator else ""
    return Spelling(
        function, code, onnx, table, integer, options=options or {}, is_written=is_written
    )


def _node(onnx: Declared, code: str, table: str, *, integer: int = 2) -> Spelling[str]:
    return Spelling(onnx.name, code, onnx.name, table, integer)


_ALPHA = {"alpha": "alpha"}

FUNCTIONS = (
    _function(functions.absolute, "ABS", "AbsOptions"),
    _function(functions.ceil, "CEIL", is_written=False),  # LiteRT 2.3.0 has no reference kernel
    _function(functions.cos, "COS", "CosOptions", integer=0),
    _function(functions.elu, "ELU", integer=1),  # its alpha is 1
    _function(functions.exp, "EXP", "ExpOptions"),
    _function(functions.floor, "FLOOR", integer=0),
    _function(functions.gelu, "GELU", "GeluOptions", options={"approximate": "approximate"}),
    _function(functions.hard_swish, "HARD_SWISH", "HardSwishOptions", integer=1),
    _function(functions.leaky_relu, "LEAKY_RELU", "LeakyReluOptions", options=_ALPHA),
    _function(functions.log, "LOG"),
    _function(functions.negative, "NEG", "NegOptions", integer=0),
    _function(functions.round_half_even, "ROUND", integer=0, is_written=False),
    _function(functions.rsqrt, "RSQRT"),
    _function(functions.sigmoid, "LOGISTIC"),
    _function(functions.sign, "SIGN", integer=0),
    _function(functions.sin, "SIN", integer=0),
    _function(functions.sqrt, "SQRT", integer=0),
    _function(functions.tanh, "TANH"),
)

APPROXIMATION = "tanh"
"""The word for which a flag stands, of options that are words."""

_EXTREMES = "MaximumMinimumOptions"
PAIRS = (
    Spelling(Binary.ADD, "ADD", Add.name, "AddOptions", fusable=True),
    Spelling(Binary.SUB, "SUB", Sub.name, "SubOptions", fusable=True),
    Spelling(Binary.MUL, "MUL", Mul.name, "MulOptions", fusable=True),
    Spelling(Binary.DIV, "DIV", Div.name, "DivOptions", integer=0, fusable=True),
    Spelling(Binary.SQUARED_DIFFERENCE, "SQUARED_DIFFERENCE", "", "SquaredDifferenceOptions"),
    Spelling(Binary.MINIMUM, "MINIMUM", Min.name, _EXTREMES),
    Spelling(Binary.MAXIMUM, "MAXIMUM", Max.name, _EXTREMES),
)
REDUCTIONS = (
    Spelling(Reduction.MEAN, "MEAN", ReduceMean.name, "ReducerOptions"),
    Spelling(Reduction.SUM, "SUM", ReduceSum.name, "ReducerOptions"),
    Spelling(Reduction.MAX, "REDUCE_MAX", ReduceMax.name, "ReducerOptions"),
    Spelling(Reduction.MIN, "REDUCE_MIN", ReduceMin.name, "ReducerOptions"),
)
PRODUCT = _node(ReduceProd, "REDUCE_PROD", "ReducerOptions", integer=0)
"""A reduction of floats and whole numbers only."""
POOLS = (
    Spelling(PoolKind.AVERAGE, "AVERAGE_POOL_2D", AveragePool.name, "Pool2DOptions"),
    Spelling(PoolKind.MAX, "MAX_POOL_2D", MaxPool.name, "Pool2DOptions"),
)
RESIZES = (
    Spelling(ResizeMode.LINEAR, "RESIZE_BILINEAR", Resize.name, "ResizeBilinearOptions"),
    Spelling(
        ResizeMode.NEAREST, "RESIZE_NEAREST_NEIGHBOR", Resize.name, "ResizeNearestNeighborOptions"
    ),
)
CAST = _node(Cast, "CAST", "CastOptions")
LESS = _node(Less, "LESS", "LessOptions")
COMPARISONS = (
    _node(Equal, "EQUAL", "EqualOptions"),
    _node(Greater, "GREATER", "GreaterOptions"),
    _node(GreaterOrEqual, "GREATER_EQUAL", "GreaterEqualOptions"),
    LESS,
    _node(LessOrEqual, "LESS_EQUAL", "LessEqualOptions"),
)
AND = _node(And, "LOGICAL_AND", "LogicalAndOptions")
ELEMENTWISE = (
    AND,
    _node(Mod, "FLOOR_MOD", "FloorModOptions", integer=0),
    _node(Not, "LOGICAL_NOT", "LogicalNotOptions"),
    _node(Or, "LOGICAL_OR", "LogicalOrOptions"),
    _node(Pow, "POW", "PowOptions", integer=0),
    _node(Where, "SELECT_V2", "SelectV2Options"),
)
NODES = (CAST, *COMPARISONS, *ELEMENTWISE)
"""Nodes of the float model that the engine runs as they are: ours are ONNX's operators."""
POSITIONS = (
    Spelling(Reduction.MAX, "ARG_MAX", ArgMax.name, "ArgMaxOptions"),
    Spelling(Reduction.MIN, "ARG_MIN", ArgMin.name, "ArgMinOptions"),
)
SELECTIONS = (
    _node(CumSum, "CUMSUM", "CumsumOptions", integer=0),
    _node(GatherND, "GATHER_ND", "GatherNdOptions"),
    _node(ScatterND, "SCATTER_ND", "ScatterNdOptions"),
    _node(TopK, "TOPK_V2", "TopKV2Options"),
)
"""What finds, takes and puts elements, or sums them: ours are ONNX's operators."""
FUSED: Mapping[Fused, Bounds] = {
    Fused.NONE: Bounds(),
    Fused.RELU: Bounds(0),
    Fused.RELU_N1_TO_1: Bounds(-1, 1),
    Fused.RELU6: Bounds(0, 6),
}
"""Activations inside of operators, and their bounds; as operators they have the same names."""


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
        "TOPK_V2": 3,
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

"""How TFLite spells functions of one tensor: one table, which the reader and the writer follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from intact.ops import functions
from intact.ops.functions import Unary


@dataclass(frozen=True)
class Spelling:
    """An operator of the schema that computes a function.

    Attributes:
        function: The function.
        code: The operator's name in the schema.
        table: Its table of options, "" for none.
        integer: The version that takes int8; 0 if none does.
        options: Names of options in the schema, with ours.
        is_written: Runtimes have a kernel; otherwise such an operator is only read.
    """

    function: Unary
    code: str
    table: str = ""
    integer: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    is_written: bool = True


_ALPHA = {"alpha": "alpha"}

SPELLINGS = (
    Spelling(functions.absolute, "ABS", "AbsOptions"),
    Spelling(functions.ceil, "CEIL", is_written=False),  # LiteRT 2.3.0 has no reference kernel
    Spelling(functions.cos, "COS", "CosOptions", integer=0),
    Spelling(functions.elu, "ELU", integer=1),  # its alpha is 1
    Spelling(functions.exp, "EXP", "ExpOptions"),
    Spelling(functions.floor, "FLOOR", integer=0),
    Spelling(functions.gelu, "GELU", "GeluOptions", options={"approximate": "approximate"}),
    Spelling(functions.hard_swish, "HARD_SWISH", "HardSwishOptions", integer=1),
    Spelling(functions.leaky_relu, "LEAKY_RELU", "LeakyReluOptions", options=_ALPHA),
    Spelling(functions.log, "LOG"),
    Spelling(functions.negative, "NEG", "NegOptions", integer=0),
    Spelling(functions.round_half_even, "ROUND", integer=0, is_written=False),
    Spelling(functions.rsqrt, "RSQRT"),
    Spelling(functions.sigmoid, "LOGISTIC"),
    Spelling(functions.sign, "SIGN", integer=0),
    Spelling(functions.sin, "SIN", integer=0),
    Spelling(functions.sqrt, "SQRT", integer=0),
    Spelling(functions.tanh, "TANH"),
)

WRITTEN: Mapping[Unary, Spelling] = {each.function: each for each in SPELLINGS if each.is_written}

READ: Mapping[str, Spelling] = {each.code: each for each in SPELLINGS if each.function.is_operator}
"""By name in the schema; what ONNX spells with several operators is read by a function."""

APPROXIMATION = "tanh"
"""The word for which a flag stands, of options that are words."""

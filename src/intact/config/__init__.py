"""How one tensor end is quantized: policy, grid, state, scale and offset, and shared scales."""

from intact.config.grid import Grid
from intact.config.policy import (
    Granularity,
    PerChannel,
    PerTensor,
    QuantPolicy,
    make_policy,
    parse_policy,
)
from intact.config.state import LEGAL_TRANSITIONS, MEANING, NEEDS_SCALE, QuantState, StateMeaning
from intact.config.tensor_config import JsonValue, TensorQuantConfig, copy_configs
from intact.numerics.rounding import Rounding

__all__ = [
    "LEGAL_TRANSITIONS",
    "MEANING",
    "NEEDS_SCALE",
    "Granularity",
    "Grid",
    "JsonValue",
    "PerChannel",
    "PerTensor",
    "QuantPolicy",
    "QuantState",
    "Rounding",
    "StateMeaning",
    "TensorQuantConfig",
    "copy_configs",
    "make_policy",
    "parse_policy",
]

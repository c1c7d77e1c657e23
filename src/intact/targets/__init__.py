"""Hardware descriptions: strict, frozen, read from TOML. Adding a target is adding a file.

``scheme``, ``arithmetic``, ``rules``, ``schema``  what a target can say
``match``                                          which rule holds for a node
``load``                                           files: names, ``extends``, errors
"""

from intact.targets.arithmetic import (
    Arithmetic,
    ArithmeticOverride,
    Functions,
    Overflow,
    Requantize,
    ScalePrecision,
    ZeroPointOrder,
)
from intact.targets.load import (
    load_target,
    target_from_json,
    target_names,
    target_source,
    target_to_json,
)
from intact.targets.match import matches
from intact.targets.rules import (
    Condition,
    FixedOutput,
    Fusion,
    Groups,
    OpRule,
    ScaleRule,
    Signature,
)
from intact.targets.schema import Calibration, Target, Topology, Unsigned
from intact.targets.scheme import (
    BiasScheme,
    DType,
    Granularity,
    SchemeOverride,
    Spacing,
    TensorScheme,
    full_range,
)

__all__ = [
    "Arithmetic",
    "ArithmeticOverride",
    "BiasScheme",
    "Calibration",
    "Condition",
    "DType",
    "FixedOutput",
    "Functions",
    "Fusion",
    "Granularity",
    "Groups",
    "OpRule",
    "Overflow",
    "Requantize",
    "ScalePrecision",
    "ScaleRule",
    "SchemeOverride",
    "Signature",
    "Spacing",
    "Target",
    "TensorScheme",
    "Topology",
    "Unsigned",
    "ZeroPointOrder",
    "full_range",
    "load_target",
    "matches",
    "target_from_json",
    "target_names",
    "target_source",
    "target_to_json",
]

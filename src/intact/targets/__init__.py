"""Hardware descriptions, read from TOML and checked. A new target is one new file.

``scheme``, ``arithmetic``, ``rules``, ``schema``  the contents of a target
``match``                                          matching rules to nodes
``load``                                           files: names, ``extends``, errors
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact._lazy import lazy

if TYPE_CHECKING:
    from intact.targets.arithmetic import Addition as Addition
    from intact.targets.arithmetic import Arithmetic as Arithmetic
    from intact.targets.arithmetic import ArithmeticOverride as ArithmeticOverride
    from intact.targets.arithmetic import Exact as Exact
    from intact.targets.arithmetic import FixedPoint as FixedPoint
    from intact.targets.arithmetic import Float as Float
    from intact.targets.arithmetic import FloatEnds as FloatEnds
    from intact.targets.arithmetic import FloatInTurn as FloatInTurn
    from intact.targets.arithmetic import FloatOnce as FloatOnce
    from intact.targets.arithmetic import FloatType as FloatType
    from intact.targets.arithmetic import FoldedEnds as FoldedEnds
    from intact.targets.arithmetic import Functions as Functions
    from intact.targets.arithmetic import InstructionSet as InstructionSet
    from intact.targets.arithmetic import Multiplier as Multiplier
    from intact.targets.arithmetic import PairSaturate as PairSaturate
    from intact.targets.arithmetic import Product as Product
    from intact.targets.arithmetic import ScalePrecision as ScalePrecision
    from intact.targets.arithmetic import Shift as Shift
    from intact.targets.arithmetic import TargetArithmetic as TargetArithmetic
    from intact.targets.arithmetic import Wrap as Wrap
    from intact.targets.arithmetic import ZeroPointOrder as ZeroPointOrder
    from intact.targets.blocks import BlockForm as BlockForm
    from intact.targets.blocks import Blocks as Blocks
    from intact.targets.blocks import ScaleType as ScaleType
    from intact.targets.blockwise import in_blocks as in_blocks
    from intact.targets.load import is_target_name as is_target_name
    from intact.targets.load import load_target as load_target
    from intact.targets.load import target_from_json as target_from_json
    from intact.targets.load import target_names as target_names
    from intact.targets.load import target_source as target_source
    from intact.targets.load import target_to_json as target_to_json
    from intact.targets.match import matches as matches
    from intact.targets.rules import Condition as Condition
    from intact.targets.rules import FixedOutput as FixedOutput
    from intact.targets.rules import Fusion as Fusion
    from intact.targets.rules import Groups as Groups
    from intact.targets.rules import OpRule as OpRule
    from intact.targets.rules import ScaleRule as ScaleRule
    from intact.targets.rules import Signature as Signature
    from intact.targets.schema import Calibration as Calibration
    from intact.targets.schema import Target as Target
    from intact.targets.schema import Topology as Topology
    from intact.targets.schema import Unsigned as Unsigned
    from intact.targets.scheme import BiasScheme as BiasScheme
    from intact.targets.scheme import DeadChannels as DeadChannels
    from intact.targets.scheme import DType as DType
    from intact.targets.scheme import Granularity as Granularity
    from intact.targets.scheme import SchemeOverride as SchemeOverride
    from intact.targets.scheme import Spacing as Spacing
    from intact.targets.scheme import TensorScheme as TensorScheme
    from intact.targets.scheme import full_range as full_range
else:
    # `intact targets` and every error that names targets load the loader, and nothing that matches
    # nodes of models.
    __getattr__, __all__ = lazy(
        __name__,
        {
            "arithmetic": (
                "Addition Arithmetic ArithmeticOverride Exact FixedPoint Float FloatEnds "
                "FloatInTurn FloatOnce FloatType FoldedEnds Functions InstructionSet Multiplier "
                "PairSaturate Product ScalePrecision Shift TargetArithmetic Wrap ZeroPointOrder"
            ),
            "blocks": "BlockForm Blocks ScaleType",
            "blockwise": "in_blocks",
            "load": (
                "is_target_name load_target target_from_json target_names target_source "
                "target_to_json"
            ),
            "match": "matches",
            "rules": "Condition FixedOutput Fusion Groups OpRule ScaleRule Signature",
            "schema": "Calibration Target Topology Unsigned",
            "scheme": (
                "BiasScheme DeadChannels DType Granularity SchemeOverride Spacing TensorScheme "
                "full_range"
            ),
        },
    )

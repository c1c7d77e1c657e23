"""How one tensor end is quantized: policy, grid, state, scale and offset, and shared scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact._lazy import lazy
from intact.numerics.levels import Rounding as Rounding

if TYPE_CHECKING:
    from intact.config.grid import Grid as Grid
    from intact.config.policy import Granularity as Granularity
    from intact.config.policy import PerBlock as PerBlock
    from intact.config.policy import PerChannel as PerChannel
    from intact.config.policy import PerRow as PerRow
    from intact.config.policy import PerTensor as PerTensor
    from intact.config.policy import QuantPolicy as QuantPolicy
    from intact.config.policy import make_policy as make_policy
    from intact.config.policy import parse_policy as parse_policy
    from intact.config.state import LEGAL_TRANSITIONS as LEGAL_TRANSITIONS
    from intact.config.state import MEANING as MEANING
    from intact.config.state import NEEDS_SCALE as NEEDS_SCALE
    from intact.config.state import UNBAKED as UNBAKED
    from intact.config.state import QuantState as QuantState
    from intact.config.state import StateMeaning as StateMeaning
    from intact.config.tensor_config import JsonValue as JsonValue
    from intact.config.tensor_config import TensorQuantConfig as TensorQuantConfig
    from intact.config.tensor_config import copy_configs as copy_configs
else:
    __getattr__, __all__ = lazy(
        __name__,
        {
            "grid": "Grid",
            "policy": (
                "Granularity PerBlock PerChannel PerRow PerTensor QuantPolicy make_policy "
                "parse_policy"
            ),
            "state": "LEGAL_TRANSITIONS MEANING NEEDS_SCALE UNBAKED QuantState StateMeaning",
            "tensor_config": "JsonValue TensorQuantConfig copy_configs",
        },
    )

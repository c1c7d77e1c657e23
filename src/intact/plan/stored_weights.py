"""The configs of weights that float nodes have as integers: smaller files, arithmetic as it was.

They are marked, because no data flows there whose range calibration could see: such a scale follows
from the constant alone.
"""

from __future__ import annotations

from intact.config import TensorQuantConfig
from intact.plan.schemes import config_from_scheme
from intact.targets import TensorScheme

_MARK = "stored"


def stored_config(scheme: TensorScheme, axis: int, bits: int | None) -> TensorQuantConfig:
    """Make the INITIAL config of a stored weight; FP32 for a float scheme.

    Args:
        scheme: The target's scheme for it.
        axis: Along which scales differ, if they do.
        bits: A width that replaces the scheme's.
    """
    config = config_from_scheme(scheme, axis, bits)
    if not scheme.is_float:
        config.detail[_MARK] = True
    return config


def is_stored(config: TensorQuantConfig) -> bool:
    """Tell whether an end is a weight of a float node that is stored as integers."""
    return config.detail.get(_MARK) is True

"""The eleven states of a tensor config, what each means, and how one becomes another.

The states are those of [ppq]. The transitions are those PPQ practises, written
down as a table and enforced; PPQ itself guards none of them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class QuantState(enum.StrEnum):
    """Where a config stands between creation and execution."""

    INITIAL = "initial"
    """Just created, no parameters yet."""
    ACTIVATED = "activated"
    """In effect with parameters of its own or of its dominator."""
    BAKED = "baked"
    """A weight whose stored values are already quantized."""
    OVERLAPPED = "overlapped"
    """An activation that another config quantizes, usually because operators are fused."""
    DEACTIVATED = "deactivated"
    """Switched off by a decision that can be taken back."""
    DEQUANTIZED = "dequantized"
    """Switched off for a while; the state before is remembered."""
    SOI = "soi"
    """Shape or index: never quantized."""
    PASSIVE = "passive"
    """In effect with parameters derived from other tensors (bias, clip bounds, pad value)."""
    PASSIVE_INIT = "passive_init"
    """Will be passive; the tensors it follows have no parameters yet."""
    PASSIVE_BAKED = "passive_baked"
    """A passive tensor whose stored values are already quantized."""
    FP32 = "fp32"
    """The operator takes or gives this tensor as float32."""


class StateMeaning(enum.Enum):
    """What an executor or a format does with a tensor in some state."""

    REFUSED = "refused"
    """Not ready: running or exporting is an error."""
    QUANTIZES = "quantizes"
    """Quantize the tensor here."""
    BAKED = "baked"
    """Use the values as they are: they are quantized already."""
    GOVERNED = "governed"
    """Use the values as they are: the dominator quantizes them."""
    PASSES = "passes"
    """Use the values as they are: they stay float."""


MEANING: Mapping[QuantState, StateMeaning] = MappingProxyType(
    {
        QuantState.INITIAL: StateMeaning.REFUSED,
        QuantState.PASSIVE_INIT: StateMeaning.REFUSED,
        QuantState.ACTIVATED: StateMeaning.QUANTIZES,
        QuantState.PASSIVE: StateMeaning.QUANTIZES,
        QuantState.BAKED: StateMeaning.BAKED,
        QuantState.PASSIVE_BAKED: StateMeaning.BAKED,
        QuantState.OVERLAPPED: StateMeaning.GOVERNED,
        QuantState.DEACTIVATED: StateMeaning.PASSES,
        QuantState.DEQUANTIZED: StateMeaning.PASSES,
        QuantState.FP32: StateMeaning.PASSES,
        QuantState.SOI: StateMeaning.PASSES,
    }
)

_NEXT: Mapping[QuantState, tuple[QuantState, ...]] = {
    QuantState.INITIAL: (
        QuantState.ACTIVATED,
        QuantState.OVERLAPPED,
        QuantState.FP32,
        QuantState.SOI,
        QuantState.PASSIVE,
        QuantState.PASSIVE_INIT,
        QuantState.DEACTIVATED,
    ),
    QuantState.ACTIVATED: (
        QuantState.INITIAL,
        QuantState.BAKED,
        QuantState.OVERLAPPED,
        QuantState.PASSIVE,
        QuantState.DEACTIVATED,
    ),
    QuantState.PASSIVE_INIT: (QuantState.PASSIVE, QuantState.FP32, QuantState.DEACTIVATED),
    QuantState.PASSIVE: (
        QuantState.PASSIVE_INIT,
        QuantState.PASSIVE_BAKED,
        QuantState.DEACTIVATED,
    ),
    QuantState.OVERLAPPED: (QuantState.FP32, QuantState.DEACTIVATED),
    # A config switched off before calibration was INITIAL or PASSIVE_INIT, and goes back there.
    QuantState.DEACTIVATED: (
        QuantState.INITIAL,
        QuantState.ACTIVATED,
        QuantState.PASSIVE_INIT,
        QuantState.PASSIVE,
    ),
    # Baked values cannot be unbaked; FP32 and SOI are facts about the operator.
    QuantState.BAKED: (),
    QuantState.PASSIVE_BAKED: (),
    QuantState.FP32: (),
    QuantState.SOI: (),
}

LEGAL_TRANSITIONS: Mapping[QuantState, frozenset[QuantState]] = MappingProxyType(
    {
        **{state: frozenset((*to, QuantState.DEQUANTIZED)) for state, to in _NEXT.items()},
        # Only back to the state it came from, which the config remembers: see `requantize`.
        QuantState.DEQUANTIZED: frozenset(),
    }
)

NEEDS_SCALE: frozenset[QuantState] = frozenset(
    {QuantState.ACTIVATED, QuantState.PASSIVE, QuantState.BAKED, QuantState.PASSIVE_BAKED}
)
"""States that cannot be entered before a scale is known."""

"""Declares the twelve states of a tensor config, their meaning and legal transitions.

But for DYNAMIC the states are those of [ppq]. The transitions are those that occur in PPQ; here
they are a table and checked.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class QuantState(enum.StrEnum):
    """The state of a config."""

    __hash__ = str.__hash__  # that of an enum is a Python function, and states are keys everywhere

    INITIAL = "initial"
    """Created, without scale."""
    ACTIVATED = "activated"
    """Quantizes, with its own scale or its dominator's."""
    DYNAMIC = "dynamic"
    """Quantizes, with a scale that is computed from the values at hand while the model runs."""
    BAKED = "baked"
    """A weight whose stored values are already quantized."""
    OVERLAPPED = "overlapped"
    """An activation that another config quantizes, usually because operators are fused."""
    DEACTIVATED = "deactivated"
    """Switched off; can be reversed."""
    DEQUANTIZED = "dequantized"
    """Switched off temporarily; the state before is stored."""
    SOI = "soi"
    """Shape or index: never quantized."""
    PASSIVE = "passive"
    """Quantizes, with a scale derived from other tensors (bias, clip bounds, pad value)."""
    PASSIVE_INIT = "passive_init"
    """Will be PASSIVE; the tensors that it depends on have no scale yet."""
    PASSIVE_BAKED = "passive_baked"
    """A PASSIVE tensor whose stored values are already quantized."""
    FP32 = "fp32"
    """The operator reads or writes this tensor as float32."""


class StateMeaning(enum.Enum):
    """How an executor or a format treats a tensor in a given state."""

    REFUSED = "refused"
    """Not ready: running or exporting is an error."""
    QUANTIZES = "quantizes"
    """Quantize the tensor here."""
    QUANTIZES_RUNNING = "quantizes_running"
    """Quantize the tensor here, by the scale that its values give."""
    BAKED = "baked"
    """Use the values as they are: already quantized."""
    GOVERNED = "governed"
    """Use the values as they are: quantized by the dominator."""
    PASSES = "passes"
    """Use the values as they are: float."""


MEANING: Mapping[QuantState, StateMeaning] = MappingProxyType(
    {
        QuantState.INITIAL: StateMeaning.REFUSED,
        QuantState.PASSIVE_INIT: StateMeaning.REFUSED,
        QuantState.ACTIVATED: StateMeaning.QUANTIZES,
        QuantState.PASSIVE: StateMeaning.QUANTIZES,
        QuantState.DYNAMIC: StateMeaning.QUANTIZES_RUNNING,
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
        QuantState.DYNAMIC,
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
    QuantState.DYNAMIC: (QuantState.DEACTIVATED,),
    QuantState.PASSIVE_INIT: (QuantState.PASSIVE, QuantState.FP32, QuantState.DEACTIVATED),
    QuantState.PASSIVE: (
        QuantState.PASSIVE_INIT,
        QuantState.PASSIVE_BAKED,
        QuantState.DEACTIVATED,
    ),
    QuantState.OVERLAPPED: (QuantState.FP32, QuantState.DEACTIVATED),
    # A config that was switched off before calibration returns to INITIAL or PASSIVE_INIT.
    QuantState.DEACTIVATED: (
        QuantState.INITIAL,
        QuantState.ACTIVATED,
        QuantState.DYNAMIC,
        QuantState.PASSIVE_INIT,
        QuantState.PASSIVE,
    ),
    # Baked values cannot be restored; FP32 and SOI are properties of the operator.
    QuantState.BAKED: (),
    QuantState.PASSIVE_BAKED: (),
    QuantState.FP32: (),
    QuantState.SOI: (),
}

LEGAL_TRANSITIONS: Mapping[QuantState, frozenset[QuantState]] = MappingProxyType(
    {
        **{state: frozenset((*to, QuantState.DEQUANTIZED)) for state, to in _NEXT.items()},
        # Only back to the stored state: see `requantize`.
        QuantState.DEQUANTIZED: frozenset(),
    }
)

NEEDS_SCALE: frozenset[QuantState] = frozenset(
    {QuantState.ACTIVATED, QuantState.PASSIVE, QuantState.BAKED, QuantState.PASSIVE_BAKED}
)
"""States that require a scale."""

UNBAKED: Mapping[QuantState, QuantState] = MappingProxyType(
    {
        QuantState.BAKED: QuantState.ACTIVATED,
        QuantState.PASSIVE_BAKED: QuantState.PASSIVE,
    }
)
"""What quantizes again what is baked, where the values before are still there."""

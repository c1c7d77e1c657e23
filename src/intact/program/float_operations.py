"""Declares float operations that formats write, and that the integer engine lacks.

The engine runs such nodes as they are (`FloatNodes`); only lowering for formats makes these
operations.
Each is a class of its own, so that no kernel mistakes it for one that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from intact.plan import QuantizedGraph


@dataclass(frozen=True)
class Identity:
    """Input: one operand, which is the output under another name."""


@dataclass(frozen=True)
class Flatten:
    """Joins all axes behind the first, also where their lengths are not known."""


@dataclass(frozen=True)
class PixelShuffle:
    """DepthToSpace of data ``[N, C, H, W]`` whose depth is (channel, block row, block column)."""

    block: int


@dataclass(frozen=True)
class BatchNormalization:
    """Inputs: data ``[N, C, ...]``, then scale, bias, mean and variance, each ``[C]``."""

    epsilon: float


@dataclass(frozen=True)
class LayerNormalization:
    """Inputs: data, scale, bias or None; runs over the axes from ``axis`` (not negative) on."""

    axis: int
    epsilon: float


@dataclass(frozen=True)
class GroupNormalization:
    """Inputs: data ``[N, C, ...]``, scale and bias ``[C]``; each group of channels by itself."""

    groups: int
    epsilon: float


@dataclass(frozen=True)
class LocalResponse:
    """Input: data ``[N, C, ...]``, divided by ``(bias + alpha * mean of squares) ** beta``.

    The mean is that of ``size`` neighbouring channels, those that do not exist are 0.
    """

    size: int
    alpha: float
    beta: float
    bias: float


@dataclass(frozen=True)
class CumulativeSum:
    """Input: data, summed along an axis up to each place."""

    axis: int


@dataclass(frozen=True)
class Recurrent:
    """Inputs: data ``[T, N, I]``, ONNX's weights, recurrent weights and biases or None.

    Outputs are ONNX's Y, Y_h and for an LSTM Y_c, from states of zeros; GRU resets behind the
    product. ``is_sample``: Data and outputs have no axis of samples in front of others but the
    first; outputs hold ``[T, directions * H]`` and ``[directions * H]`` of each, in some shape.
    """

    kind: str
    direction: str
    is_sample: bool = False
    read: tuple[bool, ...] = ()
    """Which outputs are read."""


@dataclass(frozen=True, eq=False)
class Loop:
    """Takes turns until a condition ends them.

    Inputs: the most turns or None, whether there is a first turn or None, the values that turns
    change, then what turns read of what is computed around them. Outputs: the values.

    Attributes:
        turn: A turn, of floats. Its inputs are its number, whether it was to be, and those of the
            Loop from the values on.
        results: What a turn gives, the next condition and the values: names of the turn's outputs,
            or of inputs that it hands on.
    """

    turn: QuantizedGraph
    results: tuple[str, ...]


FloatOperation: TypeAlias = (
    BatchNormalization
    | CumulativeSum
    | Flatten
    | GroupNormalization
    | Identity
    | LayerNormalization
    | LocalResponse
    | Loop
    | PixelShuffle
    | Recurrent
)

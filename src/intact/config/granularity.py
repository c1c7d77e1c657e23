"""How many scales a tensor has, as a sum type: the axis lives where it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from intact.errors import ConfigError


@dataclass(frozen=True)
class PerTensor:
    """One scale and one offset for the whole tensor, both of shape ``[]``."""

    @property
    def axis(self) -> None:
        """Always ``None``: what the functions of ``numerics.affine`` take as ``axis``."""
        return None


@dataclass(frozen=True)
class PerChannel:
    """One scale and one offset for each index of ``axis``, both of shape ``[channels]``.

    Raises:
        ConfigError: If the axis is negative. An axis counted from the end would mean another
            channel as soon as a dimension is added, so it has to be resolved before.
    """

    axis: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ConfigError(
                f"per-channel axis is {self.axis}", remedy="count the axis from 0, add the rank"
            )


Granularity: TypeAlias = PerTensor | PerChannel

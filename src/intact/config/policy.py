"""Declares the kind of quantization of a tensor, as a set of flags.

Seven of the properties are those of [ppq]. Most subsets are impossible; :meth:`QuantPolicy.check`
gives the reason.
"""

from __future__ import annotations

import enum
from functools import cache
from typing import TypeAlias

import msgspec

from intact.errors import ConfigError, nearest


class PerTensor(msgspec.Struct, frozen=True):
    """One scale and one offset for the whole tensor, both of shape ``[]``."""

    @property
    def axis(self) -> None:
        """Always ``None``, as the functions of ``numerics.affine`` expect."""
        return None


class PerChannel(msgspec.Struct, frozen=True):
    """One scale and one offset for each index of ``axis``, both of shape ``[channels]``.

    Raises:
        ConfigError: If the axis is negative. A negative axis would change its meaning when a
            dimension is added, so it must be resolved first.
    """

    axis: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ConfigError(
                f"per-channel axis is {self.axis}", remedy="count the axis from 0, add the rank"
            )


class PerBlock(msgspec.Struct, frozen=True):
    """One scale and one offset for each ``size`` neighbours along ``axis``.

    Both have the shape of the tensor with the length K of ``axis`` replaced by ``ceil(K / size)``,
    as ONNX's DequantizeLinear with ``block_size`` has them. The last block may be shorter.

    Raises:
        ConfigError: If the axis is negative, or a block is empty.
    """

    axis: int
    size: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ConfigError(
                f"the axis of blocks is {self.axis}", remedy="count the axis from 0, add the rank"
            )
        if self.size < 1:
            raise ConfigError(f"blocks of {self.size}", remedy="give a size of 1 or more")

    def scales_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scales of a tensor.

        >>> PerBlock(axis=0, size=32).scales_shape((100, 3))
        (4, 3)
        """
        blocks = -(-shape[self.axis] // self.size)
        return (*shape[: self.axis], blocks, *shape[self.axis + 1 :])


class PerRow(msgspec.Struct, frozen=True):
    """One scale and one offset for each vector along the last axis, or for each block of it.

    For what is quantized while the model runs: how many there are is known only then.

    Raises:
        ConfigError: If a block is empty.
    """

    block: int | None = None

    def __post_init__(self) -> None:
        if self.block is not None and self.block < 1:
            raise ConfigError(f"blocks of {self.block}", remedy="give a size of 1 or more")

    @property
    def axis(self) -> None:
        """Always ``None``: the scales are no array along one axis."""
        return None


Granularity: TypeAlias = PerTensor | PerChannel | PerBlock | PerRow


class QuantPolicy(enum.Flag):
    """Properties of a quantization; a valid policy has one of each group that exclude each other.

    >>> policy = QuantPolicy.PER_TENSOR | QuantPolicy.LINEAR | QuantPolicy.SYMMETRICAL
    >>> policy.check().spelled
    'PER_TENSOR+LINEAR+SYMMETRICAL'

    ``+`` joins properties too, as in [ppq]:

    >>> policy == QuantPolicy.PER_TENSOR + QuantPolicy.LINEAR + QuantPolicy.SYMMETRICAL
    True
    """

    PER_TENSOR = enum.auto()
    PER_CHANNEL = enum.auto()
    PER_BLOCK = enum.auto()
    PER_ROW = enum.auto()
    LINEAR = enum.auto()
    EXPONENTIAL = enum.auto()
    SYMMETRICAL = enum.auto()
    ASYMMETRICAL = enum.auto()
    POWER_OF_2 = enum.auto()

    def __add__(self, other: QuantPolicy) -> QuantPolicy:
        """Join properties; each counts once."""
        return self | other

    def check(self) -> QuantPolicy:
        """Check that a tensor can be quantized this way; return the policy.

        Raises:
            ConfigError: If several or none of a group are set, or two properties exclude each
                other.
        """
        for group in _EXCLUSIVE:
            chosen = self & group
            if len(chosen) > 1:
                raise ConfigError(
                    f"policy {self.spelled} sets both {_either(chosen, 'and')}", remedy="keep one"
                )
            if not chosen:
                raise ConfigError(
                    f"policy {self.spelled or '(empty)'} sets neither {_either(group, 'nor')}",
                    remedy="add one",
                )
        for combination, reason, remedy in _IMPOSSIBLE:
            if self & combination == combination:
                raise ConfigError(f"policy {self.spelled} is impossible: {reason}", remedy=remedy)
        return self

    @property
    def spelled(self) -> str:
        """The names of the flags, joined by ``+``; :func:`parse_policy` reads them."""
        return "+".join(flag.name or "" for flag in self)


_EXCLUSIVE: tuple[QuantPolicy, ...] = (
    QuantPolicy.PER_TENSOR | QuantPolicy.PER_CHANNEL | QuantPolicy.PER_BLOCK | QuantPolicy.PER_ROW,
    QuantPolicy.LINEAR | QuantPolicy.EXPONENTIAL,
    QuantPolicy.SYMMETRICAL | QuantPolicy.ASYMMETRICAL,
)

_IMPOSSIBLE: tuple[tuple[QuantPolicy, str, str], ...] = (
    (
        QuantPolicy.EXPONENTIAL | QuantPolicy.ASYMMETRICAL,
        "logarithmic levels are a sign and an exponent, so code 0 is 0 and has no offset",
        "use SYMMETRICAL",
    ),
    (
        QuantPolicy.EXPONENTIAL | QuantPolicy.POWER_OF_2,
        "a power-of-two scale turns requantization into a shift, which needs linear levels",
        "use LINEAR or drop POWER_OF_2",
    ),
    (
        QuantPolicy.PER_BLOCK | QuantPolicy.EXPONENTIAL,
        "no hardware has logarithmic levels in blocks",
        "use LINEAR",
    ),
    (
        QuantPolicy.PER_ROW | QuantPolicy.EXPONENTIAL,
        "no hardware has logarithmic levels by row",
        "use LINEAR",
    ),
)

_OF_GRANULARITY: dict[type[Granularity], QuantPolicy] = {
    PerTensor: QuantPolicy.PER_TENSOR,
    PerChannel: QuantPolicy.PER_CHANNEL,
    PerBlock: QuantPolicy.PER_BLOCK,
    PerRow: QuantPolicy.PER_ROW,
}


def granularity_flag(granularity: Granularity) -> QuantPolicy:
    """Return the property that a granularity has."""
    return _OF_GRANULARITY[type(granularity)]


@cache
def make_policy(
    granularity: Granularity,
    *,
    symmetric: bool,
    exponential: bool = False,
    power_of_two: bool = False,
) -> QuantPolicy:
    """Build and check a policy.

    Raises:
        ConfigError: If the choices exclude each other.
    """
    policy = granularity_flag(granularity)
    policy |= QuantPolicy.EXPONENTIAL if exponential else QuantPolicy.LINEAR
    policy |= QuantPolicy.SYMMETRICAL if symmetric else QuantPolicy.ASYMMETRICAL
    if power_of_two:
        policy |= QuantPolicy.POWER_OF_2
    return policy.check()


def parse_policy(text: str) -> QuantPolicy:
    """Parse and check a policy as :attr:`QuantPolicy.spelled` writes it.

    Raises:
        ConfigError: If a name is unknown or the set is impossible.
    """
    policy = QuantPolicy(0)
    for name in text.split("+"):
        flag = QuantPolicy.__members__.get(name.strip())
        if flag is None:
            raise ConfigError(
                f"unknown policy {name.strip()!r}", remedy=nearest(name, QuantPolicy.__members__)
            )
        policy |= flag
    return policy.check()


def _either(group: QuantPolicy, conjunction: str) -> str:
    return f" {conjunction} ".join(flag.name or "" for flag in group)

"""The kind of quantization of a tensor, as a set of flags.

The seven properties are those of [ppq]. Most of the 128 subsets are impossible;
:meth:`QuantPolicy.check` gives the reason.
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


Granularity: TypeAlias = PerTensor | PerChannel


class QuantPolicy(enum.Flag):
    """Properties of a quantization; a valid policy has one of each pair.

    >>> policy = QuantPolicy.PER_TENSOR | QuantPolicy.LINEAR | QuantPolicy.SYMMETRICAL
    >>> policy.check().spelled
    'PER_TENSOR+LINEAR+SYMMETRICAL'

    ``+`` joins properties too, as in [ppq]:

    >>> policy == QuantPolicy.PER_TENSOR + QuantPolicy.LINEAR + QuantPolicy.SYMMETRICAL
    True
    """

    PER_TENSOR = enum.auto()
    PER_CHANNEL = enum.auto()
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
            ConfigError: If both or neither of a pair are set, or two properties exclude each other.
        """
        for pair in _EXCLUSIVE_PAIRS:
            chosen = self & pair
            if chosen == pair:
                raise ConfigError(
                    f"policy {self.spelled} sets both {_either(pair, 'and')}", remedy="keep one"
                )
            if not chosen:
                raise ConfigError(
                    f"policy {self.spelled or '(empty)'} sets neither {_either(pair, 'nor')}",
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


_EXCLUSIVE_PAIRS: tuple[QuantPolicy, ...] = (
    QuantPolicy.PER_TENSOR | QuantPolicy.PER_CHANNEL,
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
)


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
    per_channel = isinstance(granularity, PerChannel)
    policy = QuantPolicy.PER_CHANNEL if per_channel else QuantPolicy.PER_TENSOR
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


def _either(pair: QuantPolicy, conjunction: str) -> str:
    return f" {conjunction} ".join(flag.name or "" for flag in pair)

"""Declares how values are rounded to codes, and which codes a range is chosen for."""

from __future__ import annotations

import enum

import msgspec

from intact.errors import ConfigError


class Rounding(enum.StrEnum):
    """How a value is rounded to an integer; the names say what happens to a tie.

    =====================  ====  ====  =====  =====
    mode                   0.5   1.5   -0.5   -1.5
    =====================  ====  ====  =====  =====
    HALF_EVEN, NEAREST      0     2     0      -2
    HALF_UP                 1     2     0      -1
    HALF_DOWN               0     1    -1      -2
    HALF_TOWARD_ZERO        0     1     0      -1
    HALF_AWAY_FROM_ZERO     1     2    -1      -2
    UP                      1     2     0      -1
    =====================  ====  ====  =====  =====
    """

    HALF_EVEN = "half_even"
    HALF_UP = "half_up"
    HALF_DOWN = "half_down"
    HALF_TOWARD_ZERO = "half_toward_zero"
    HALF_AWAY_FROM_ZERO = "half_away_from_zero"
    NEAREST = "nearest"
    """PPQ's ROUND_TO_NEAR_INT, deprecated there; a name for HALF_EVEN that old plans may hold."""
    UP = "up"
    """Toward positive infinity, for every value and not only for ties."""


class Factor(enum.StrEnum):
    """How a value that is quantized while a model runs becomes a number of steps."""

    SCALE = "scale"
    """It is divided by the scale (ONNX's DynamicQuantizeLinear)."""
    RECIPROCAL = "reciprocal"
    """It is multiplied by the reciprocal of the scale (MatMulNBits)."""
    CODES_OVER_RANGE = "codes_over_range"
    """It is multiplied by the number of codes over the range: the reciprocal of a scale that was
    never rounded (TFLite)."""
    INVERTED = "inverted"
    """It is multiplied so too, and the scale is the reciprocal of that factor. The zero point is
    that of the end of the range which is larger in codes (XNNPACK)."""


STEPS_PER_OCTAVE = 16
"""Logarithmic levels between a magnitude and its double, where nothing else is said (NNIE's)."""
MOST_STEPS = 1024
"""More would be closer than 0.07 %, which no code of up to 16 bits needs."""


class Scheme(enum.StrEnum):
    """Where the range of a tensor may lie."""

    SYMMETRIC = "symmetric"
    """``-threshold..threshold``; zero point 0, codes of both signs."""
    ONE_SIDED = "one_sided"
    """``0..threshold``; zero point 0, codes from 0: for what cannot be negative."""
    ASYMMETRIC = "asymmetric"
    """``low..high`` around 0, with a zero point."""


class Levels(msgspec.Struct, frozen=True):
    """The integer codes and the scheme that gives them their meaning.

    Raises:
        ConfigError: If the codes do not fit the scheme.
    """

    quant_min: int
    quant_max: int
    scheme: Scheme
    steps_per_octave: int | None = None
    """How many logarithmic levels an octave has; None where the levels are equally far apart."""
    power_of_two: bool = False
    """Whether the distance of two levels has to be a power of two."""

    def __post_init__(self) -> None:
        """Refuse codes that do not fit the scheme."""
        fits = {
            Scheme.SYMMETRIC: self.quant_min < 0 < self.quant_max,
            Scheme.ONE_SIDED: self.quant_min == 0 < self.quant_max,
            Scheme.ASYMMETRIC: self.quant_min < self.quant_max,
        }
        if not fits[self.scheme]:
            raise ConfigError(
                f"codes {self.quant_min}..{self.quant_max} for a {self.scheme.value} scheme",
                remedy="symmetric codes have both signs, one-sided ones start at 0",
            )

    @property
    def steps(self) -> int:
        """Steps between the end of the range and 0 (between both ends when asymmetric)."""
        if self.scheme is Scheme.SYMMETRIC:
            return min(-self.quant_min, self.quant_max)
        return self.quant_max - self.quant_min

    @property
    def number(self) -> int:
        """How many codes there are."""
        return self.quant_max - self.quant_min + 1

    def range_of_threshold(self, threshold: float) -> tuple[float, float]:
        """Return the range of a threshold under a symmetric or one-sided scheme."""
        return (0.0 if self.scheme is Scheme.ONE_SIDED else 0.0 - threshold), threshold

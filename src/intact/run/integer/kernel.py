"""What a kernel of the integer engine is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from intact.program import Array, Step

Kernel: TypeAlias = Callable[..., tuple[Array, ...]]
"""Takes the arrays of a step's activations (``Step.activations``), gives those of its outputs.

Codes come and go in their encoding's dtype. Arrays that are given are not written to; what is
returned may be a view of them.
"""


@dataclass
class Overflow:
    """Sums of one step that left the accumulator.

    Attributes:
        sums: How many sums were computed.
        overflows: How many of them left it.
        largest: The largest magnitude that a sum had, before anything was done about it.
        limit: The largest magnitude that the accumulator holds.
    """

    sums: int = 0
    overflows: int = 0
    largest: int = 0
    limit: int = 0


@dataclass
class Overflows:
    """What every step counts, by its name."""

    by_step: dict[str, Overflow] = field(default_factory=dict)

    def of(self, step: Step) -> Overflow:
        """Return the counter of a step, new or not."""
        return self.by_step.setdefault(step.name, Overflow())


Prepare: TypeAlias = Callable[[Step, Overflows], Kernel]
"""Makes the kernel of a step: all that does not depend on activations is computed here."""

"""Defines what a kernel of the integer engine is, and the table in which kernels are registered.

A kernel is made in two stages. ``prepare(step, overflows)`` is called once: it computes what
depends on constants alone (tables, multipliers) and returns the kernel. The kernel takes the
integers of the step's activations and returns those of its outputs, and is called for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from intact.errors import PlanError
from intact.program import Array, Encoding, Step, Tensor
from intact.program.handlers import Handlers

Kernel: TypeAlias = Callable[..., tuple[Array, ...]]

"""Takes the arrays of a step's activations (``Step.activations``), gives those of its outputs.

Codes come and go in their encoding's dtype. Arrays that are given are not written to; what is
returned may be a view of them.
"""


@dataclass
class Overflow:
    """Count of one step's sums that left the accumulator.

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
    """Counts of all steps, by name."""

    by_step: dict[str, Overflow] = field(default_factory=dict)

    def counter(self, step: Step) -> Overflow:
        """Return the counter of a step, new or not."""
        return self.by_step.setdefault(step.name, Overflow())


Prepare: TypeAlias = Callable[[Step, Overflows], Kernel]

"""Makes the kernel of a step: all that does not depend on activations is computed here."""

KERNELS: Handlers[Prepare] = Handlers("the integer engine has no {}")

OperationT = TypeVar("OperationT")

Compute: TypeAlias = Callable[..., Array]

"""Takes one array for each input of a step, gives the array of its output."""


def kernel_of(step: Step, compute: Compute) -> Kernel:
    """Return the kernel of a step with one output, from a function of all its inputs."""
    with_constants = constants_inserter(step)

    def kernel(*activations: Array) -> tuple[Array, ...]:
        return (compute(*with_constants(activations)),)

    return kernel


def constants_inserter(step: Step) -> Callable[[Sequence[Array]], list[Array]]:
    """Make the function that puts the step's constants between activations, in input order."""
    present = [tensor for tensor in step.inputs if tensor is not None]

    def with_constants(activations: Sequence[Array]) -> list[Array]:
        # Constants as they are, with no copy: kernels do not write to what they are given.
        arrays = iter(activations)
        return [next(arrays) if tensor.data is None else tensor.data for tensor in present]

    return with_constants


def operation_of(step: Step, kind: type[OperationT]) -> OperationT:
    """Return a step's operation, which the caller knows to be of this kind.

    Raises:
        PlanError: It is of another.
    """
    if not isinstance(step.operation, kind):
        raise PlanError(f"step {step.name!r} is no {kind.__name__}")
    return step.operation


def encoding_of(step: Step, tensor: Tensor | None) -> Encoding:
    """Return a tensor's encoding.

    Raises:
        PlanError: The tensor is absent, or float.
    """
    if tensor is None or tensor.encoding is None:
        name = "an input" if tensor is None else repr(tensor.name)
        raise PlanError(
            f"step {step.name!r} computes on integers, but {name} is float",
            remedy="quantize it, or run the node in float",
        )
    return tensor.encoding


def per_tensor(step: Step, tensor: Tensor | None) -> Encoding:
    """Return a tensor's encoding, which has one scale.

    Raises:
        PlanError: It is float, or has a scale for each channel.
    """
    encoding = encoding_of(step, tensor)
    if encoding.axis is not None:
        name = tensor.name if tensor is not None else ""
        raise PlanError(
            f"step {step.name!r} takes no scales by channel, but {name!r} has them",
            remedy="quantize it per tensor",
        )
    return encoding

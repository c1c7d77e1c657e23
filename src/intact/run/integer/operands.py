"""What a kernel is given: the constants of its step between the arrays of the activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from intact.errors import PlanError
from intact.program import Array, Encoding, Step, Tensor
from intact.run.integer.kernel import Kernel

OperationT = TypeVar("OperationT")

Compute: TypeAlias = Callable[..., Array]
"""Takes one array for each input of a step, gives the array of its output."""


def kernel_of(step: Step, compute: Compute) -> Kernel:
    """Return the kernel of a step with one output, from a function of all its inputs."""
    weave = weaver(step)

    def kernel(*activations: Array) -> tuple[Array, ...]:
        return (compute(*weave(activations)),)

    return kernel


def weaver(step: Step) -> Callable[[Sequence[Array]], list[Array]]:
    """Return what puts the arrays of activations and the step's constants in the order of slots."""
    present = [tensor for tensor in step.inputs if tensor is not None]

    def weave(activations: Sequence[Array]) -> list[Array]:
        arrays = iter(activations)
        return [next(arrays) if tensor.data is None else tensor.data for tensor in present]

    return weave


def operation_of(step: Step, kind: type[OperationT]) -> OperationT:
    """Return a step's operation, which the caller knows to be of this kind.

    Raises:
        PlanError: It is of another.
    """
    if not isinstance(step.operation, kind):
        raise PlanError(f"step {step.name!r} is no {kind.__name__}")
    return step.operation


def encoding_of(step: Step, tensor: Tensor | None) -> Encoding:
    """Return what a tensor's codes stand for.

    Raises:
        PlanError: The tensor is absent, or float.
    """
    if tensor is None or tensor.encoding is None:
        name = "an input" if tensor is None else repr(tensor.name)
        raise PlanError(
            f"step {step.name!r} computes on integers, but {name} is float",
            remedy="quantise it, or run the node in float",
        )
    return tensor.encoding


def per_tensor(step: Step, tensor: Tensor | None) -> Encoding:
    """Return what a tensor's codes stand for, if it has one scale.

    Raises:
        PlanError: It is float, or has a scale for each channel.
    """
    encoding = encoding_of(step, tensor)
    if encoding.axis is not None:
        name = tensor.name if tensor is not None else ""
        raise PlanError(
            f"step {step.name!r} takes no scales by channel, but {name!r} has them",
            remedy="quantise it per tensor",
        )
    return encoding

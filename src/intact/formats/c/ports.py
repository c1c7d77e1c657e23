"""What goes into a program and comes out of it, as parameters of a C function."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from intact.formats.c.library import reserved
from intact.formats.c.names import Identifiers, identifier
from intact.program import Program, Tensor
from intact.program.passes.inference import Lengths


@dataclass(frozen=True)
class Port:
    """One input or output.

    Attributes:
        name: The model's.
        parameter: The C function's.
        shape: For one sample.
        tensor: Of the program.
    """

    name: str
    parameter: str
    shape: Lengths
    tensor: Tensor

    @property
    def size(self) -> int:
        """How many codes there are."""
        return math.prod(self.shape)


def ports_of(
    program: Program, shapes: Mapping[str, Lengths], taken: Iterable[str]
) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the inputs and the outputs of a program, in its order.

    Args:
        program: The program.
        shapes: Of its tensors.
        taken: Identifiers that no parameter may have.
    """
    names = Identifiers([*taken, *reserved()])

    def port(name: str, tensor: Tensor) -> Port:
        parameter = names.unique(identifier(name).lower())
        return Port(name, parameter, shapes[tensor.name], tensor)

    inputs = tuple(port(name, tensor) for name, tensor in program.inputs.items())
    return inputs, tuple(port(name, tensor) for name, tensor in program.outputs.items())


def signature(name: str, inputs: Iterable[Port], outputs: Iterable[Port]) -> str:
    """Return the head of the function that runs a model."""
    parameters = [f"const int8_t *{port.parameter}" for port in inputs]
    parameters += [f"int8_t *{port.parameter}" for port in outputs]
    return f"void {name}_run({', '.join(parameters) or 'void'})"


def scale_text(scale: np.float32) -> str:
    """Return a float32 as a C literal that reads back the same.

    >>> scale_text(np.float32(0.1)), scale_text(np.float32(1e-7))
    ('0.1f', '1e-07f')
    """
    return f"{np.float32(scale)!s}f"

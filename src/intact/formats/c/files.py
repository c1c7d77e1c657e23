"""Writes what a caller of the C function sees: its header, its inputs and outputs, an example."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from intact import __version__
from intact.formats.c.layer import Sources, encoding_of
from intact.formats.c.library import Identifiers, comment, identifier, reserved
from intact.formats.c.requantization import zero_point
from intact.program import Program, Shape, Step, Tensor
from intact.program.passes.inference import Lengths, output_shapes


@dataclass(frozen=True)
class Port:
    """One input or output.

    Attributes:
        name: The model's.
        parameter: The C function's.
        shape: For one sample.
        tensor: What it is in the program.
    """

    name: str
    parameter: str
    shape: Lengths
    tensor: Tensor

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def type(self) -> str:
        """The C type of an element: a code, or a whole number."""
        # Token ids and masks have no scale; everything else at the ends is a code.
        return "int8_t" if self.tensor.encoding is not None else "int32_t"

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return self.size * (1 if self.tensor.encoding is not None else 4)


def ports_of(
    program: Program, shapes: Mapping[str, Lengths], taken: Iterable[str]
) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the inputs and the outputs of a program, in its order.

    Args:
        program: The program.
        shapes: Lengths of its tensors, by name.
        taken: Identifiers that no parameter may have.
    """
    names = Identifiers([*taken, *reserved()])

    def port(name: str, tensor: Tensor) -> Port:
        # In lower case, because macros of the same name in capitals follow.
        parameter = names.unique(identifier(name).lower())
        return Port(name, parameter, shapes[tensor.name], tensor)

    inputs = tuple(port(name, tensor) for name, tensor in program.inputs.items())
    return inputs, tuple(port(name, tensor) for name, tensor in program.outputs.items())


def signature(name: str, inputs: Iterable[Port], outputs: Iterable[Port]) -> str:
    """Return the head of the function that runs a model."""
    parameters = [f"const {port.type} *{port.parameter}" for port in inputs]
    parameters += [f"{port.type} *{port.parameter}" for port in outputs]
    return f"void {name}_run({', '.join(parameters) or 'void'})"


def scale_text(scale: np.float32) -> str:
    """Return a float32 as a C literal that reads back the same.

    >>> scale_text(np.float32(0.1)), scale_text(np.float32(1e-7))
    ('0.1f', '1e-07f')
    """
    # NumPy prints the shortest decimal that reads back to the same float32.
    return f"{np.float32(scale)!s}f"


_MOST_ELEMENTS = 2**31 - 1
"""What an int32 index reaches."""


class OpenShapes(Exception):  # noqa: N818 - it never leaves the exporter
    """Some shapes are not known; ``tensors`` has the reason of each."""

    def __init__(self, tensors: dict[str, str]) -> None:
        super().__init__()
        self.tensors = tensors


def static_shapes(program: Program) -> dict[str, Lengths]:
    """Return the shape of each tensor for one sample: an open first axis of an input is 1.

    Raises:
        OpenShapes: Another axis is open, or a tensor is empty or too large for an int32 index.
    """
    shapes: dict[str, Lengths] = {}
    faults: dict[str, str] = {}
    # Both are known before any step; what is not, each step tells from these.
    for tensor in (*program.inputs.values(), *_constants(program)):
        _note(tensor, _as_declared(tensor.shape), shapes, faults)
    for step in program.steps:
        for tensor, lengths in zip(step.outputs, _made(step, shapes), strict=True):
            _note(tensor, lengths, shapes, faults)
    if faults:
        raise OpenShapes(faults)
    return shapes


def _constants(program: Program) -> list[Tensor]:
    # An output may be a constant that no step reads.
    candidates = itertools.chain(program.tensors(), program.outputs.values())
    return [tensor for tensor in candidates if tensor.is_constant]


def _made(step: Step, shapes: Mapping[str, Lengths]) -> list[Shape]:
    """Return the shapes of a step's results: computed, or as declared where they cannot be."""
    inputs = [None if tensor is None else shapes.get(tensor.name) for tensor in step.inputs]
    present = [tensor is None or tensor.name in shapes for tensor in step.inputs]
    # An open batch is one sample here, and what follows from it is computed anew.
    computed = output_shapes(step, inputs) if all(present) else None
    if computed is not None and len(computed) == len(step.outputs):
        return list(computed)
    return [_as_declared(tensor.shape) for tensor in step.outputs]


def _as_declared(shape: Shape) -> Shape:
    return tuple(1 if length is None and axis == 0 else length for axis, length in enumerate(shape))


def _note(
    tensor: Tensor, lengths: Shape, shapes: dict[str, Lengths], faults: dict[str, str]
) -> None:
    known = tuple(length for length in lengths if length is not None)
    if len(known) < len(lengths):
        faults[tensor.name] = f"the length of an axis is open ({_text(tensor.shape)})"
    # C99 has no array without elements.
    elif not 0 < math.prod(known) <= _MOST_ELEMENTS:
        faults[tensor.name] = f"it has {math.prod(known)} elements"
    elif not _agree(known, tensor.shape):
        faults[tensor.name] = f"it is {_text(known)}, not {_text(tensor.shape)}"
    else:
        shapes[tensor.name] = known


def _agree(lengths: Lengths, declared: Shape) -> bool:
    return len(lengths) == len(declared) and all(
        wanted is None or wanted == length for length, wanted in zip(lengths, declared, strict=True)
    )


def _text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if length is None else str(length) for length in shape)


def shape_text(lengths: Sequence[int]) -> str:
    """Return a shape for a reader.

    >>> shape_text((1, 32, 32, 3)), shape_text(())
    ('[1, 32, 32, 3]', '[]')
    """
    return f"[{', '.join(map(str, lengths))}]"


def header_file(
    name: str,
    origin: str,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    arena: int,
    flash: int,
) -> str:
    """Return the header that callers include."""
    prefix = name.upper()
    ports = [_port(prefix, "Input", port) for port in inputs]
    ports += [_port(prefix, "Output", port) for port in outputs]
    return f"""\
/* {name}.h: {origin}

   {name}_run reads its inputs, writes its outputs and uses {arena} bytes of static memory besides:

{_example(name, inputs, outputs)}

   A code stands for (code - zero point) * scale; to make one of a number, divide it by the scale,
   round, add the zero point and clamp to -128..127. Nothing is allocated. Inputs and outputs belong
   to the caller and must not overlap. Calls share the static memory: one at a time. */

#ifndef {prefix}_H
#define {prefix}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Static memory for activations, and constants in flash, in bytes. */
#define {prefix}_ARENA_BYTES {arena}
#define {prefix}_CONSTANT_BYTES {flash}

{"".join(ports)}\
{_wrapped(signature(name, inputs, outputs))};

#ifdef __cplusplus
}}
#endif

#endif
"""


def _example(name: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> str:
    """Return how the function is called, for the header's head."""
    ports = (*inputs, *outputs)
    lines = [
        f"static {port.type} {port.parameter}[{name.upper()}_{port.parameter.upper()}_SIZE];"
        for port in ports
    ]
    lines.append(f"{name}_run({', '.join(port.parameter for port in ports)});")
    return "\n".join(f"       {line}" for line in lines)


def _port(prefix: str, what: str, port: Port) -> str:
    macro = f"{prefix}_{port.parameter.upper()}"
    if port.tensor.encoding is None:
        return f"""\
/* {what} {comment(repr(port.name))}: int32 {shape_text(port.shape)}, whole numbers */
#define {macro}_SIZE {port.size}

"""
    encoding = encoding_of(port.tensor)
    # Written into the header, because a caller with an image in the model's order would feed
    # nonsense silently.
    order = port.tensor.permutation
    axes = (
        "" if order is None else f", its axes those of the model in the order {shape_text(order)}"
    )
    return f"""\
/* {what} {comment(repr(port.name))}: int8 {shape_text(port.shape)}{axes} */
#define {macro}_SIZE {port.size}
#define {macro}_SCALE {scale_text(encoding.scale.reshape(-1)[0])}
#define {macro}_ZERO_POINT ({zero_point(encoding)})

"""


def source_file(
    name: str,
    origin: str,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    arena: int,
    sources: Sources,
) -> str:
    """Return the program."""
    prefix = name.upper()
    memory = ""
    local = ""
    if arena:
        memory = f"""\
/* Memory of the activations, aligned for kernels that read words. */
static union {{
    int32_t words;
    int8_t bytes[{prefix}_ARENA_BYTES];
}} memory;

"""
        local = "    int8_t *const arena = memory.bytes;\n\n"
    # Compilers warn of a parameter that nothing reads.
    unread = [port for port in inputs if not _is_named(port.parameter, sources.calls)]
    voids = "".join(f"    (void){port.parameter};\n" for port in unread)
    calls = "\n".join(sources.calls)
    structures = "\n".join(sources.structures)
    return f"""\
/* {name}.c: {origin}

   Integers only. Activations are int8 with channels last, sums int32. Arena: {arena} bytes. */

#include "{name}.h"

#include <string.h>

#include "{name}_data.h"

/* ------------------------------------------------------------------------------------ kernels */

{sources.library.text()}
/* ------------------------------------------------------------------------------------- layers */

{structures}
/* -------------------------------------------------------------------------------------- model */

{memory}\
{_wrapped(signature(name, inputs, outputs))}
{{
{local}{voids}{calls}
}}
"""


def _is_named(parameter: str, calls: Iterable[str]) -> bool:
    # A layer's comment may hold a name that equals a parameter.
    words = " ".join(line for line in calls if "/*" not in line)
    return parameter in words.replace("(", " ").replace(",", " ").replace(")", " ").split()


def data_file(name: str, origin: str, sources: Sources) -> str:
    """Return the constants, which the program includes and nothing else."""
    prefix = name.upper()
    return f"""\
/* {name}_data.h: {origin}

   Constants of {name}.c, {sources.constants.flash} bytes. */

#ifndef {prefix}_DATA_H
#define {prefix}_DATA_H

#include <stdint.h>

{sources.constants.text()}
#endif
"""


def origin(target: str) -> str:
    """Return who wrote a file, for whom."""
    return f"written by intact {__version__}{f' for {comment(target)}' if target else ''}."


def _wrapped(head: str) -> str:
    """Return a function's head in lines of a hundred columns."""
    if len(head) <= 99:
        return head
    # Names of parameters come from the model, and may be as long as a line.
    start, _, rest = head.partition("(")
    return f"{start}(\n    {rest.replace(', ', f',{chr(10)}    ')}"

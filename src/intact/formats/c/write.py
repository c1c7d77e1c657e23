"""Writes a program as self-contained C99 for microcontrollers.

Constants follow CMSIS-NN's conventions: weights ``[out, height, width, in]`` (depthwise
``[1, height, width, out]``), int32 biases, int32 Q31 multipliers and shifts that are positive to
the left, input offsets that are negated zero points. Nothing is allocated: activations lie in one
static arena, whose size is computed here, and in the caller's own buffers.

Models take token ids and masks as int64, a C program takes them as int32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from intact.errors import Unsupported
from intact.formats.base.comparison import in_codes
from intact.formats.c import copies, elementwise, products, spatial
from intact.formats.c.files import (
    OpenShapes,
    Port,
    data_file,
    header_file,
    origin,
    ports_of,
    shape_text,
    source_file,
    static_shapes,
)
from intact.formats.c.layer import WRITERS, Layer, Sources, encoding_of, in_float
from intact.formats.c.library import Identifiers, identifier
from intact.formats.c.storage import plan_places
from intact.plan import Note, NoteKind
from intact.program import Encoding, Program, Step
from intact.program.operations import Dequantize, FloatNodes, Lookup, Quantize
from intact.program.passes.inference import Lengths
from intact.program.passes.whole_inputs import is_whole
from intact.program.unsupported import UnsupportedNodes

_LARGEST_TABLE = 1 << 12
"""Bytes of the codes of the numbers that do not saturate."""


@WRITERS.register(Lookup)
def write_lookup(layer: Layer) -> None:
    """Write a look-up by computed indices: an embedding."""
    operation, data, indices = layer.step.operation, layer.input(), layer.input(1)
    if not isinstance(operation, Lookup) or not is_whole(indices):
        raise Unsupported(f"its indices {indices.name!r} are {indices.dtype}", "give int64 ones")
    if not encoding_of(data).same_as(encoding_of(layer.output)):
        raise Unsupported(
            f"{data.name!r} has another scale than the result", "tie the scales of the two"
        )
    shape, axis = layer.shape(data), operation.axis
    layer.call(
        "embed",
        layer.pointer(indices),
        layer.size(indices),
        int(np.prod(shape[:axis])),
        shape[axis],
        int(np.prod(shape[axis + 1 :])),
        layer.pointer(data),
        layer.pointer(layer.output),
    )


@WRITERS.register(Quantize)
def write_quantize(layer: Layer) -> None:
    """Write the codes of whole numbers as a table; those beyond its ends saturate."""
    source = layer.input()
    if not is_whole(source):
        # Quantizing floats takes floats, which these processors lack.
        raise in_float(layer.step)
    least, codes = codes_of_whole(encoding_of(layer.output))
    layer.call(
        "code_of_whole",
        layer.pointer(source),
        layer.size(source),
        least,
        codes.size,
        layer.array(codes, "_codes", f"codes of {least} to {least + codes.size - 1}"),
        layer.pointer(layer.output),
    )


def codes_of_whole(encoding: Encoding) -> tuple[int, np.ndarray]:
    """Return the codes of whole numbers from one that is the smallest code to one of the largest.

    Raises:
        Unsupported: There are too many.
    """
    scale, zero = float(encoding.scale.reshape(-1)[0]), int(encoding.zero_point.reshape(-1)[0])
    # One step beyond the range on each side: the ends of the table are codes that saturate.
    least = int(np.floor((encoding.quant_min - zero - 1) * scale))
    most = int(np.ceil((encoding.quant_max - zero + 1) * scale))
    if most - least >= _LARGEST_TABLE:
        raise Unsupported(
            f"{most - least + 1} whole numbers have codes, a table has {_LARGEST_TABLE} at most",
            "scale them in front of the model, and feed floats",
        )
    # By the quantizer of the plan, so that ties fall as they do there.
    codes = in_codes(np.arange(least, most + 1, dtype=np.float32), encoding)
    return least, codes.astype(np.int8)


_MODULES = (copies, elementwise, products, spatial)
"""Their writers are registered when they are imported."""

_CANNOT = "C cannot hold"


@dataclass(frozen=True)
class CProgram:
    """What was written.

    Attributes:
        name: Prefix of its files, functions and macros.
        files: Text by file name: ``NAME.h``, ``NAME.c`` and ``NAME_data.h``, which only the
            second includes.
        inputs: The parameters of ``NAME_run`` that are read, in order.
        outputs: The parameters that are written, in order behind them.
        arena_bytes: Static memory for activations.
        arena_lower_bound: Bytes of activations that are alive at one time.
        flash_bytes: Weights, multipliers, tables and parameters of layers.
        notes: What a user should know.
    """

    name: str
    files: Mapping[str, str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arena_bytes: int
    arena_lower_bound: int
    flash_bytes: int
    notes: tuple[Note, ...]


def write_c(
    program: Program,
    name: str = "model",
    *,
    target: str = "",
) -> CProgram:
    """Write a program whose inputs and outputs are integers; it is not changed.

    Args:
        program: With codes at its ends (`integer_io` leaves out what lies before
            and behind them).
        name: Prefix of the files and of what the header declares; made an identifier.
        target: Name of the plan's target, for the files' head.

    Raises:
        ExportError: C cannot hold some steps; all of them are listed, each with a remedy.
    """
    name = identifier(name)
    # Lengths first: places, loops and sizes of buffers all follow from them.
    shapes = _shapes(program)
    inputs, outputs = ports_of(program, shapes, [f"{name}_run"])
    places = plan_places(
        program,
        shapes,
        {port.name: port.parameter for port in inputs},
        {port.name: port.parameter for port in outputs},
    )
    identifiers = Identifiers(port.parameter for port in (*inputs, *outputs))
    sources = Sources(shapes, places, identifiers)
    _write_steps(program, sources)
    _copy_out(sources, outputs)
    return _program(name, origin(target), inputs, outputs, sources)


def _program(
    name: str,
    source: str,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    sources: Sources,
) -> CProgram:
    arena = sources.places.arena
    flash = sources.constants.flash + sources.structure_bytes
    files = {
        f"{name}.h": header_file(name, source, inputs, outputs, arena.size, flash),
        f"{name}.c": source_file(name, source, inputs, outputs, arena.size, sources),
        f"{name}_data.h": data_file(name, source, sources),
    }
    memory = (
        f"the arena takes {arena.size} bytes of RAM ({arena.lower_bound} are alive at one time), "
        f"inputs {sum(port.bytes for port in inputs)} and outputs "
        f"{sum(port.bytes for port in outputs)} besides; constants take {flash} bytes of flash"
    )
    notes = (Note(NoteKind.EXPORT, "", memory),)
    return CProgram(name, files, inputs, outputs, arena.size, arena.lower_bound, flash, notes)


def _shapes(program: Program) -> dict[str, Lengths]:
    try:
        return static_shapes(program)
    except OpenShapes as wrong:
        unsupported = UnsupportedNodes(_CANNOT, program=program)
        for name, reason in wrong.tensors.items():
            unsupported.add(f"tensor {name!r}", Unsupported(reason, "fix all axes but the batch"))
        for step in program.steps:
            if type(step.operation) not in WRITERS:
                unsupported.add_step(step, _no_kernel(step))
        raise unsupported.error() from wrong


def _write_steps(program: Program, sources: Sources) -> None:
    """Write every step.

    Raises:
        ExportError: Some cannot be.
    """
    unsupported = UnsupportedNodes(_CANNOT, program=program)
    for what, ends in (("input", program.inputs), ("output", program.outputs)):
        for name, tensor in ends.items():
            with unsupported.collect(f"{what} {name!r}"):
                if what == "output" or not is_whole(tensor):
                    encoding_of(tensor)
    for number, step in enumerate(program.steps):
        layer, mark = Layer(number, step, sources), len(sources.calls)
        try:
            _write_layer(layer)
        except Unsupported as reason:
            unsupported.add_step(step, reason)
        else:
            _say(layer, number, sources, mark)
    unsupported.raise_any()


def _write_layer(layer: Layer) -> None:
    write = WRITERS.get(type(layer.step.operation))
    if write is None:
        raise _no_kernel(layer.step)
    write(layer)


def _no_kernel(step: Step) -> Unsupported:
    """Return why there is no kernel for a step's operation."""
    if isinstance(step.operation, FloatNodes | Quantize | Dequantize):
        return in_float(step)
    name = type(step.operation).__name__
    return Unsupported(f"there is no C kernel for {name}", "keep it out of the part on the chip")


def _say(layer: Layer, number: int, sources: Sources, mark: int) -> None:
    """Put a comment before the calls of a layer, which begin at ``mark``."""
    step = layer.step
    ins = ", ".join(shape_text(layer.shape(tensor)) for tensor in step.activations)
    outs = ", ".join(shape_text(layer.shape(tensor)) for tensor in step.outputs)
    still = " (in place)" if len(sources.calls) == mark else ""
    # Written behind the calls, since only then is it known whether there are any.
    written, sources.calls[mark:] = sources.calls[mark:], []
    which = getattr(step.operation, "kind", "")
    kind = f"{type(step.operation).__name__}{f' {which}' if which else ''}"
    layer.comment(f"{number}: {kind} {step.name!r}: {ins} -> {outs}{still}")
    sources.calls += written


def _copy_out(sources: Sources, outputs: tuple[Port, ...]) -> None:
    """Copy outputs that lie elsewhere to the caller."""
    places = sources.places
    for port in outputs:
        if port.name not in places.copies:
            continue
        data = port.tensor.data
        start = (
            places.pointer(port.tensor.name)
            if data is None
            else sources.constants.add(data, port.parameter, "_constant", f"output {port.name}")
        )
        sources.calls.append(f"    memcpy({port.parameter}, {start}, {port.size});")

"""Programs as ``.tflite``: full-integer files for LiteRT, TFLite Micro and what reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from intact.errors import ExportError, Unsupported
from intact.formats.base.format import Io
from intact.formats.tflite.writing import moves, operators, spatial
from intact.formats.tflite.writing.builder import WRITERS, FileBuilder, add_rescaled
from intact.formats.tflite.writing.flatbuffer import serialize
from intact.formats.tflite.writing.rules import moves_codes, open_axes, refusals_of
from intact.program import Program, Step, Tensor
from intact.program.passes.inference import open_lengths
from intact.program.passes.integer_io import integer_io

_MODULES = (moves, operators, spatial)
"""Their writers are registered when they are imported."""

_KEEP_FLOAT = (
    "keep them float with --keep-float, or quantize for --target tflite; cut from the model what "
    "TFLite has no operator for in float either"
)
_FIX = "fix them, for instance with `python -m onnxruntime.tools.make_dynamic_shape_fixed`"

_DESCRIPTION = "Written by intact"


def write_tflite(program: Program, *, io: Io = Io.INT8) -> bytes:
    """Return a lowered plan as the bytes of a ``.tflite`` file; equal programs give equal bytes.

    The file has one subgraph and a signature ``serving_default`` with the model's own input and
    output names. An open first axis is written as a batch of 1 that ``resize_tensor_input`` may
    change.

    Args:
        program: What to write; its float inputs and outputs are quantized by steps of its own.
        io: Whether those steps are kept.

    Raises:
        ExportError: Steps that TFLite does not have; all are listed.
        MissingExtraError: ai-edge-litert or flatbuffers is not installed.
    """
    if io is Io.FLOAT:
        return program_to_tflite(program)
    try:
        integers = integer_io(program)
    except ExportError as error:  # its steps are asked too, so that all is told at once
        raise _error(tflite_refusals(program), str(error)) from error
    return program_to_tflite(integers)


def program_to_tflite(program: Program) -> bytes:
    """Return a program as it stands; see :func:`write_tflite`."""
    builder, refused = _drafted(program)
    if refused:
        raise _error(refused)
    return serialize(builder, program.inputs, program.outputs, _DESCRIPTION)


def tflite_refusals(program: Program) -> tuple[Unsupported, ...]:
    """Return everything that keeps a program from being written, in the order of its steps."""
    return _drafted(program)[1]


def _error(refused: Collection[Unsupported], ends: str = "") -> ExportError:
    """Return the error that tells of all refusals, and of what is wrong at the ends."""
    if not refused:
        return ExportError(ends)
    also = f"; {ends}" if ends else ""
    return ExportError(
        f"TFLite cannot hold {'; '.join(_listed(refused))}{also}",
        remedy=next((each.remedy for each in refused if each.remedy), _KEEP_FLOAT),
        listed=[*(f"{each.node}: {each.reason}" for each in refused), *([ends] if ends else [])],
    )


def _listed(refused: Iterable[Unsupported]) -> list[str]:
    """Return all refusals, those of one reason together."""
    steps: dict[str, list[str]] = {}
    for each in refused:
        steps.setdefault(each.reason, []).append(repr(each.node))
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in steps.items()]


def _drafted(program: Program) -> tuple[FileBuilder, tuple[Unsupported, ...]]:
    builder = FileBuilder((tensor.name for tensor in program.tensors()), open_lengths(program))
    refused: list[Unsupported] = []
    for name, tensor in program.inputs.items():
        builder.mention(tensor)
        if None in tensor.shape[1:]:
            shown = open_axes(tensor)
            refused.append(
                Unsupported(
                    f"input [{shown}] has open axes, only the first may be", _FIX, node=name
                )
            )
    for step in () if refused else program.steps:  # open axes would be refused all the way down
        reasons = list(refusals_of(step))
        if not reasons:
            try:
                _write(step, builder)
            except Unsupported as error:
                reasons.append(str(error))
        refused += [Unsupported(reason, node=step.name) for reason in dict.fromkeys(reasons)]
    return builder, tuple(refused)


def _write(step: Step, builder: FileBuilder) -> None:
    if moves_codes(step.operation):
        step = _rescaled_first(step, builder)
    WRITERS.of(step.operation)(step.operation, step, builder)


def _rescaled_first(step: Step, builder: FileBuilder) -> Step:
    """Return a step that moves codes, with inputs of its output's encoding.

    Kernels that move codes do not rescale. Rescaling before the move gives the codes that
    rescaling after it would.
    """
    encoding = step.outputs[0].encoding

    def rescaled(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or encoding is None or encoding.same_as(tensor.encoding):
            return tensor
        return add_rescaled(builder, tensor, encoding, tensor.name)

    return replace(step, inputs=tuple(rescaled(tensor) for tensor in step.inputs))

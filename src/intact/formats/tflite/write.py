"""Writes a program as ``.tflite``, for LiteRT, TFLite Micro and other readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from intact.errors import ExportError, Unsupported
from intact.formats.base.format import Io
from intact.formats.tflite.writer import floats, loops, moves, operators, spatial
from intact.formats.tflite.writer.builder import FileBuilder
from intact.formats.tflite.writer.flatbuffer import serialize
from intact.formats.tflite.writer.rules import shape_text
from intact.formats.tflite.writer.steps import is_in_float, write_step
from intact.program import Program
from intact.program.passes.inference import open_lengths
from intact.program.passes.integer_io import integer_io
from intact.program.unsupported import UnsupportedNodes
from intact.targets import Target
from intact.targets.advice import advice, quantize_for

_MODULES = (floats, loops, moves, operators, spatial)
"""Their writers are registered when they are imported."""

_KEEP_FLOAT = "keep them float with --keep-float"
_CUT = "cut them from the model, and compute them apart"
_FIX = "calibrate on samples of one shape, or give the sizes with --input-shape"

_LACKING: dict[str, dict[str, Unsupported]] = {
    "ref": {
        "FULLY_CONNECTED blocks": Unsupported(
            "LiteRT's reference kernels compute nonsense from blocks"
        )
    },
    "micro": dict.fromkeys(
        ("CONV_3D", "GELU", "POW", "REDUCE_PROD", "SCATTER_ND", "SIGN", "TOPK_V2"),
        Unsupported("TensorFlow Lite Micro has no operator for it", _CUT),
    )
    | dict.fromkeys(
        ("ARG_MAX int64", "ARG_MIN int64"),
        Unsupported("TensorFlow Lite Micro has no kernel for what reads its places", _CUT),
    )
    | {"WHILE": Unsupported("intact writes no loops for TensorFlow Lite Micro", _CUT)}
    | {"FULLY_CONNECTED blocks": Unsupported("TensorFlow Lite Micro has no weights in blocks")},
}
"""Operators of the schema that kernels lack, of those that are written, and how that is said; some
only of one result.

TensorFlow Lite Micro: tflite-micro 0.dev20261023 was asked.
"""

_MOST_AXES: dict[str, dict[str, int]] = {
    "micro": {"BROADCAST_TO": 5, "STRIDED_SLICE": 4, "TRANSPOSE": 5},
}
"""Axes that kernels take, where these are fewer than LiteRT's; asked like `_LACKING`."""

_DESCRIPTION = "Written by intact"


def write_tflite(
    program: Program,
    *,
    io: Io = Io.INT8,
    target: Target | None = None,
    made: Mapping[str, str] = {},
) -> bytes:
    """Write a lowered plan as the bytes of a ``.tflite`` file; equal programs give equal bytes.

    The file has one subgraph and a signature ``serving_default`` with the model's own input and
    output names. An open first axis is written as a batch of 1 that ``resize_tensor_input`` may
    change.

    Args:
        program: The program; its float inputs and outputs are quantized by steps of their own.
        io: Whether those steps are kept.
        target: What it was quantized for, on which operators there are and the remedy depend.
        made: What the file says of who made it, as metadata.

    Raises:
        ExportError: Steps that TFLite does not have; all are listed.
        MissingExtraError: ai-edge-litert or flatbuffers is not installed.
    """
    if io is Io.FLOAT:
        return program_to_tflite(program, target, made)
    try:
        integers = integer_io(program)
    except ExportError as error:
        # Both kinds of reasons at once: a user who mends one would meet the other in the next run.
        _raise_with_ends(_build(program, target)[1], error)
    return program_to_tflite(integers, target, made)


def refuse_structure(program: Program, io: Io, target: Target | None = None) -> None:
    """Refuse what no scales would make expressible: operators in float, open axes, too many axes.

    Integers at ends that are read or made in float are among it: what stays float to lose less was
    quantized before, and nothing that is float becomes integer later.

    Raises:
        ExportError: All such steps are listed.
    """
    unsupported = _build(program, target, with_scales=False)[1]
    if io is Io.INT8:
        try:
            integer_io(program)
        except ExportError as error:
            _raise_with_ends(unsupported, error)
    unsupported.raise_any()


def _raise_with_ends(unsupported: UnsupportedNodes, ends: ExportError) -> NoReturn:
    """Raise that the ends are no integers, in one error with the unsupported steps if any are."""
    if not unsupported:
        raise ends
    unsupported.add("inputs and outputs", ends.with_flags)
    raise unsupported.error() from ends


def program_to_tflite(
    program: Program, target: Target | None = None, made: Mapping[str, str] = {}
) -> bytes:
    """Write a program as it stands; see `write_tflite`."""
    builder, unsupported = _build(program, target)
    unsupported.raise_any()
    return serialize(builder, program.inputs, program.outputs, _DESCRIPTION, made)


def _build(
    program: Program, target: Target | None, *, with_scales: bool = True
) -> tuple[FileBuilder, UnsupportedNodes]:
    """Build a file; without scales, of those that codes have nothing is refused."""
    names = (tensor.name for tensor in program.tensors())
    # Asked of the target, because other runtimes take such a file.
    kernels = target.kernels if target else ""
    lacking, most_axes = _LACKING.get(kernels, {}), _MOST_AXES.get(kernels, {})
    builder = FileBuilder(names, open_lengths(program), lacking, most_axes)
    unsupported = UnsupportedNodes(
        "TFLite cannot hold",
        lambda: advice(_KEEP_FLOAT, quantize_for("tflite", target.name if target else "")),
    )
    for name, tensor in program.inputs.items():
        builder.mention(tensor)
        if None in tensor.shape[1:]:
            reason = f"input [{shape_text(tensor)}] has open axes, only the first may be"
            unsupported.add(repr(name), Unsupported(reason, _FIX))
    # Open axes of an input would be reported again for every step behind it.
    for step in () if unsupported else program.steps:
        instead = _CUT if is_in_float(step) else ""
        for found in write_step(step, builder, with_scales=with_scales):
            why = Unsupported(found.reason, found.remedy or instead)
            unsupported.add(repr(found.node or step.name), why)
    return builder, unsupported

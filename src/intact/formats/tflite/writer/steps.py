"""Writes the steps of a program, one by one, or says why one cannot be."""

from __future__ import annotations

from dataclasses import replace

from intact.errors import Unsupported
from intact.formats.tflite.writer.builder import WRITERS, FileBuilder, add_rescaled
from intact.formats.tflite.writer.rules import (
    WEIGHTED,
    moves_codes,
    unsupported_nodes,
    unsupported_of,
    unsupported_shapes,
)
from intact.program import Step, Tensor
from intact.program.operations import FloatNodes


def write_step(step: Step, builder: FileBuilder, *, with_scales: bool = True) -> list[Unsupported]:
    """Write a step, unless there are reasons why that cannot be; return them."""
    # Before scales are known, no step of codes is refused for them.
    has_codes = not (with_scales or is_in_float(step))
    reasons = dict.fromkeys(unsupported_shapes(step) if has_codes else unsupported_of(step))
    found = [*unsupported_nodes(step.operation), *map(Unsupported, reasons)]
    # Weights take long to write, and nothing of theirs is refused for what it is.
    if not found and not (has_codes and isinstance(step.operation, WEIGHTED)):
        try:
            _write(step, builder)
        except Unsupported as refusal:
            found.append(refusal)
    return found


def is_in_float(step: Step) -> bool:
    """Tell whether a step takes and gives no codes."""
    if isinstance(step.operation, FloatNodes):
        return True
    return all(
        tensor is None or tensor.encoding is None for tensor in (*step.inputs, *step.outputs)
    )


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

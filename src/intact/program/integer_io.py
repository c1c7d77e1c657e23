"""Leaving out the quantise at the inputs and the dequantise at the outputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from intact.errors import ExportError
from intact.program.operations import Dequantize, Quantize
from intact.program.program import Program, Step, Tensor


def integer_io(program: Program, names: Collection[str] | None = None) -> Program:
    """Return a program whose inputs and outputs are the integers.

    Inputs and outputs that are integers already, and inputs that nothing reads, stay as they are.

    Args:
        program: The program; not changed.
        names: Inputs and outputs that are made integers; None takes all.

    Raises:
        ExportError: An input that something reads as floats or through two quantisers that
            differ, or an output that is computed in float; all are named.
    """
    wrong: list[str] = []
    inputs: dict[str, Tensor] = {}
    renamed: dict[str, Tensor] = {}
    for name, tensor in program.inputs.items():
        inputs[name] = tensor
        if not _is_float(tensor) or _is_left(name, names):
            continue
        readers = [step for step in program.steps if tensor in step.inputs]
        reason = _why_not(tensor, readers, program)
        if reason:
            wrong.append(f"input {name!r} {reason}")
        elif readers:
            codes = readers[0].outputs[0]
            inputs[name] = codes
            renamed |= {step.outputs[0].name: codes for step in readers}
    stripped = {name for name, tensor in inputs.items() if tensor is not program.inputs[name]}
    floats = {program.inputs[name].name for name in stripped}
    steps = [_reading(step, renamed) for step in program.steps if not _reads(step, floats)]
    makers = {tensor.name: step for step in steps for tensor in step.outputs}
    outputs: dict[str, Tensor] = {}
    for name, tensor in program.outputs.items():
        outputs[name] = renamed.get(tensor.name, tensor)
        maker = makers.get(tensor.name)
        if not _is_float(outputs[name]) or _is_left(name, names):
            continue
        if maker is None or not isinstance(maker.operation, Dequantize):
            made = f"by {maker.name!r}" if maker else "outside of the steps"
            wrong.append(f"output {name!r} is made in float {made}")
        else:
            outputs[name] = maker.activations[0]
    if wrong:
        raise ExportError(
            f"no integers at the ends of the model: {'; '.join(wrong)}",
            remedy="keep floats there with --io float",
        )
    used = {tensor.name for tensor in outputs.values()}
    used |= {tensor.name for step in steps for tensor in step.activations}
    left = (step for step in steps if not _is_idle(step, used))
    return replace(program, inputs=inputs, outputs=outputs, steps=tuple(left))


def _is_float(tensor: Tensor) -> bool:
    """Tell whether a tensor holds numbers, and neither codes nor indices."""
    return tensor.dtype.kind == "f"


def _is_left(name: str, names: Collection[str] | None) -> bool:
    return names is not None and name not in names


def _why_not(tensor: Tensor, readers: list[Step], program: Program) -> str:
    """Return why an input cannot be the codes, "" if it can."""
    in_float = [step.name for step in readers if not isinstance(step.operation, Quantize)]
    if in_float:
        return f"is read as floats by {', '.join(map(repr, in_float[:3]))}"
    if tensor in program.outputs.values():
        return "is an output too, as floats"
    encodings = [step.outputs[0].encoding for step in readers]
    if any(first is None or not first.same_as(encodings[0]) for first in encodings):
        return "is quantised in two ways"
    return ""


def _reads(step: Step, names: set[str]) -> bool:
    return any(tensor.name in names for tensor in step.activations)


def _reading(step: Step, renamed: dict[str, Tensor]) -> Step:
    inputs = tuple(renamed.get(each.name, each) if each else None for each in step.inputs)
    return replace(step, inputs=inputs)


def _is_idle(step: Step, used: set[str]) -> bool:
    return isinstance(step.operation, Dequantize) and step.outputs[0].name not in used

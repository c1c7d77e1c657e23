"""Leaving out the quantize at the inputs and the dequantize at the outputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from intact.errors import ExportError
from intact.program.operations import Dequantize, FloatNodes, Quantize
from intact.program.program import Program, Step, Tensor


def integer_io(program: Program, names: Collection[str] | None = None) -> Program:
    """Return a program whose inputs and outputs are the integers.

    Inputs and outputs that are integers already, inputs that nothing reads, and outputs that are
    decoded in float because integers lose more, stay as they are.

    Args:
        program: The program; not changed.
        names: Inputs and outputs that are made integers; None takes all.

    Raises:
        ExportError: An input that something reads as floats or through two quantizers that
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
        if not _is_float(outputs[name]) or _is_left(name, names):
            continue
        if names is None and name in program.float_outputs:
            continue
        made_of = _codes_of(tensor, makers.get(tensor.name))
        if isinstance(made_of, Tensor):
            outputs[name] = made_of
        else:
            wrong.append(f"output {name!r} is made in float {made_of}")
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
    in_float = [
        name
        for step in readers
        if not isinstance(step.operation, Quantize)
        for name in _readers_of(tensor, step)
    ]
    if in_float:
        return f"is read as floats by {', '.join(map(repr, in_float[:3]))}"
    if tensor in program.outputs.values():
        return "is an output too, as floats"
    encodings = [step.outputs[0].encoding for step in readers]
    if any(first is None or not first.same_as(encodings[0]) for first in encodings):
        return "is quantized in two ways"
    return ""


def _readers_of(tensor: Tensor, step: Step) -> list[str]:
    """Return which nodes of a step read a tensor, or what the step is called."""
    operation = step.operation
    if not isinstance(operation, FloatNodes):
        return [step.name]
    pairs = zip(operation.inputs, step.inputs, strict=True)
    values = {value for value, each in pairs if each is tensor}
    names = [str(node.name) for node in operation.nodes if values.intersection(node.inputs)]
    return names or [step.name]


def _codes_of(tensor: Tensor, maker: Step | None) -> Tensor | str:
    """Return the codes that a float output is made of, or who makes it where there are none."""
    if maker is None:
        return "outside of the steps"
    operation = maker.operation
    if isinstance(operation, Dequantize):
        return maker.activations[0]
    node = None
    if isinstance(operation, FloatNodes):
        node = operation.outputs[maker.outputs.index(tensor)].producer()
    name = maker.name if node is None else str(node.name)
    return f"by {name!r}"


def _reads(step: Step, names: set[str]) -> bool:
    return any(tensor.name in names for tensor in step.activations)


def _reading(step: Step, renamed: dict[str, Tensor]) -> Step:
    inputs = tuple(renamed.get(each.name, each) if each else None for each in step.inputs)
    return replace(step, inputs=inputs)


def _is_idle(step: Step, used: set[str]) -> bool:
    return isinstance(step.operation, Dequantize) and step.outputs[0].name not in used

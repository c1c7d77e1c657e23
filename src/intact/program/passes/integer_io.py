"""Leaves out the quantize at the inputs and the dequantize at the outputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from intact.errors import ExportError
from intact.program.operations import Dequantize, FloatNodes, Quantize, Requantize
from intact.program.program import Program, Step, Tensor


def integer_io(program: Program, names: Collection[str] | None = None) -> Program:
    """Return a program whose inputs and outputs are the integers.

    An input that is quantized in several ways has the codes of the smallest step: what a join reads
    on another scale is requantized from these.

    Inputs and outputs that are integers already, inputs that nothing reads, and the ends that stay
    floats (`Program.float_ends`), stay as they are.

    Args:
        program: The program; not changed.
        names: Inputs and outputs that are made integers; None takes all.

    Raises:
        ExportError: An input that something reads as floats or in codes of several widths, or an
            output that is computed in float; all are named.
    """
    wrong: list[str] = []
    inputs: dict[str, Tensor] = {}
    renamed: dict[str, Tensor] = {}
    requantized: dict[str, Tensor] = {}
    for name, tensor in program.inputs.items():
        inputs[name] = tensor
        if not _is_float(tensor) or _is_left(name, names, program):
            continue
        readers = [step for step in program.steps if tensor in step.inputs]
        reason = _why_not(tensor, readers, program)
        if reason:
            wrong.append(f"input {name!r} {reason}")
        elif readers:
            # The finest step: requantizing to a coarser scale loses less than the other way round.
            codes = min((step.outputs[0] for step in readers), key=_step)
            inputs[name] = codes
            again = [step for step in readers if not _is_same(step.outputs[0], codes)]
            requantized |= {step.name: codes for step in again}
            renamed |= {step.outputs[0].name: codes for step in readers if step not in again}
    stripped = {name for name, tensor in inputs.items() if tensor is not program.inputs[name]}
    floats = {program.inputs[name].name for name in stripped}
    steps = [
        _requantize_input(step, requantized[step.name])
        if step.name in requantized
        else _rename_inputs(step, renamed)
        for step in program.steps
        if step.name in requantized or not _reads(step, floats)
    ]
    makers = {tensor.name: step for step in steps for tensor in step.outputs}
    outputs: dict[str, Tensor] = {}
    for name, tensor in program.outputs.items():
        outputs[name] = renamed.get(tensor.name, tensor)
        if not _is_float(outputs[name]) or _is_left(name, names, program):
            continue
        made_of = _codes_of(tensor, makers.get(tensor.name))
        if isinstance(made_of, Tensor):
            outputs[name] = _call_output(tensor, made_of)
        else:
            wrong.append(f"output {name!r} is made in float {made_of}")
    if wrong:
        raise ExportError(
            f"no integers at the ends of the model: {'; '.join(wrong)}",
            remedy="keep floats there with --io float",
        )
    used = {tensor.name for tensor in outputs.values()}
    used |= {tensor.name for step in steps for tensor in step.activations}
    # A Dequantize whose floats were an output only is nobody's now.
    left = (step for step in steps if not _is_idle(step, used))
    return replace(program, inputs=inputs, outputs=outputs, steps=tuple(left))


def _is_float(tensor: Tensor) -> bool:
    """Tell whether a tensor holds numbers, and neither codes nor indices."""
    return tensor.dtype.kind == "f"


def _is_left(name: str, names: Collection[str] | None, program: Program) -> bool:
    return name in program.float_ends if names is None else name not in names


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
    # An end cannot be floats to one side and codes to the other.
    if tensor in program.outputs.values():
        return "is an output too, as floats"
    found = [step.outputs[0] for step in readers]
    if any(not _is_same(each, found[0]) and not _are_alike(each, found[0]) for each in found):
        return "is quantized in two ways"
    return ""


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.encoding is not None and one.encoding.same_as(other.encoding)


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Tell whether codes of one kind differ in scale and zero point alone, and have one of each."""
    first, second = one.encoding, other.encoding
    # Requantize has one scale on either side.
    if first is None or second is None or first.scale.size != 1 or second.scale.size != 1:
        return False
    return first.dtype == second.dtype


def _step(tensor: Tensor) -> float:
    """Return the smallest step of codes."""
    return float("inf") if tensor.encoding is None else float(tensor.encoding.scale.min())


def _requantize_input(step: Step, codes: Tensor) -> Step:
    """Return what makes the codes of a Quantize of other codes."""
    return replace(step, operation=Requantize(), inputs=(codes,))


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


def _call_output(output: Tensor, codes: Tensor) -> Tensor:
    """Return codes as the output that they are: what moved axes before may stand for another
    value, of which the axes lie otherwise.
    """
    if codes.value == output.value:
        return codes
    return replace(codes, value=output.value, permutation=output.permutation)


def _reads(step: Step, names: set[str]) -> bool:
    return any(tensor.name in names for tensor in step.activations)


def _rename_inputs(step: Step, renamed: dict[str, Tensor]) -> Step:
    inputs = tuple(renamed.get(each.name, each) if each else None for each in step.inputs)
    return replace(step, inputs=inputs)


def _is_idle(step: Step, used: set[str]) -> bool:
    return isinstance(step.operation, Dequantize) and step.outputs[0].name not in used

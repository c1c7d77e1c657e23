"""Changes codes without changing their numbers: signed, unsigned, or as prescribed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from intact.graph.names import Names
from intact.ops.operators import QuantizeLinear
from intact.plan import QuantizedGraph
from intact.program.operations import (
    MOVING,
    BatchMatMul,
    Convolution,
    Pool,
    PoolKind,
    Requantize,
    Resize,
    ResizeMode,
)
from intact.program.program import Encoding, Program, Step, Tensor
from intact.targets import Arithmetic, OpRule, Target

_SHIFT = 128

_UNSIGNED = (0, 255)


def signed(program: Program) -> Program:
    """Return a program whose 8-bit codes have a sign; floats and other widths stay as they are.

    Each code and its zero point become smaller by 128, so that every real number stays what it is:
    ``(code - 128) - (zero_point - 128)``. Scales are kept to the bit.

    >>> signed(Program({}, {}, ())).steps
    ()
    """
    known: dict[str, Tensor] = {}

    def shifted(tensor: Tensor) -> Tensor:
        if tensor.name not in known:
            known[tensor.name] = _shifted(tensor)
        return known[tensor.name]

    steps = tuple(
        replace(
            step,
            inputs=tuple(shifted(each) if each is not None else None for each in step.inputs),
            outputs=tuple(shifted(each) for each in step.outputs),
        )
        for step in program.steps
    )
    inputs = {name: shifted(tensor) for name, tensor in program.inputs.items()}
    outputs = {name: shifted(tensor) for name, tensor in program.outputs.items()}
    return replace(program, inputs=inputs, outputs=outputs, steps=steps)


def _shifted(tensor: Tensor) -> Tensor:
    encoding = tensor.encoding
    if encoding is None or (encoding.quant_min, encoding.quant_max) != _UNSIGNED:
        return tensor
    data = tensor.data
    if data is not None:
        data = (data.astype(np.int16) - _SHIFT).astype(np.int8)
    return replace(tensor, encoding=_shifted_encoding(encoding), data=data)


def _shifted_encoding(encoding: Encoding) -> Encoding:
    return replace(
        encoding,
        zero_point=np.asarray(encoding.zero_point - _SHIFT, np.int64),
        quant_min=_UNSIGNED[0] - _SHIFT,
        quant_max=_UNSIGNED[1] - _SHIFT,
    )


def unsigned_inputs(program: Program) -> Program:
    """Return a program whose convolutions read unsigned codes, where their arithmetic says so.

    Codes and zero point become larger by the same number, so that every real number stays what it
    is, and so does the rounding of whatever is made and read elsewhere. What stands in for the
    weights of a product of two activations is converted back: those always have a sign, which
    decides which pairs of products saturate.

    >>> unsigned_inputs(Program({}, {}, ())).steps
    ()
    """
    moved = _names_of_unsigned(program.steps)
    if not moved:
        return program

    def held(tensor: Tensor) -> Tensor:
        return _make_unsigned(tensor) if tensor.name in moved else tensor

    steps: list[Step] = []
    again = _Signs(program)
    for step in program.steps:
        inputs = [None if each is None else held(each) for each in step.inputs]
        right = step.inputs[1] if isinstance(step.operation, BatchMatMul) else None
        if right is not None and right.name in moved:
            inputs[1] = again.of(held(right), right, step.arithmetic, steps)
        outputs = tuple(held(each) for each in step.outputs)
        steps.append(replace(step, inputs=tuple(inputs), outputs=outputs))
    results = {name: held(tensor) for name, tensor in program.outputs.items()}
    return replace(program, outputs=results, steps=tuple(steps))


class _Signs:
    """Adds the steps that give unsigned codes their signs again, one for each tensor."""

    def __init__(self, program: Program) -> None:
        self._names = _names(program)
        self._made: dict[str, Tensor] = {}

    def of(
        self, source: Tensor, wanted: Tensor, arithmetic: Arithmetic, steps: list[Step]
    ) -> Tensor:
        """Return a tensor with the codes that are wanted, made of ``source`` at most once."""
        if source.name not in self._made:
            name = self._names.fresh(f"{source.name}_signed")
            made = replace(wanted, name=name, value="", end=None)
            self._made[source.name] = made
            converted = self._names.fresh(name)
            steps.append(Step(converted, Requantize(), (source,), (made,), arithmetic))
        return self._made[source.name]


def _names(program: Program) -> Names:
    """Return the names that a program's tensors and steps have."""
    return Names([*(t.name for t in program.tensors()), *(s.name for s in program.steps)])


def _names_of_unsigned(steps: Iterable[Step]) -> set[str]:
    """Return the names of the tensors that become unsigned."""
    steps = tuple(steps)
    found = {
        step.activations[0].name
        for step in steps
        if isinstance(step.operation, Convolution)
        and step.arithmetic.unsigned_inputs
        and step.activations
        and _is_signed(step.activations[0])
    }
    # Until nothing more is found: codes that are only moved have one sign from end to end, else
    # every move would need a conversion.
    before = -1
    while len(found) > before:
        before = len(found)
        for step in steps:
            around = [each for each in (*step.activations, *step.outputs) if _is_signed(each)]
            if _only_moves(step) and any(each.name in found for each in around):
                found |= {each.name for each in around}
    return found


def _only_moves(step: Step) -> bool:
    operation = step.operation
    if isinstance(operation, Pool):
        return operation.kind is PoolKind.MAX
    if isinstance(operation, Resize):
        return operation.mode is ResizeMode.NEAREST
    return isinstance(operation, MOVING)


def _is_signed(tensor: Tensor) -> bool:
    encoding = tensor.encoding
    return encoding is not None and not tensor.is_constant and encoding.dtype == np.int8


def _make_unsigned(tensor: Tensor) -> Tensor:
    encoding = tensor.encoding
    if encoding is None:
        return tensor
    up = -encoding.quant_min
    higher = np.asarray(encoding.zero_point + up, np.int64)
    codes: Encoding = replace(
        encoding, zero_point=higher, quant_min=0, quant_max=encoding.quant_max + up
    )
    return replace(tensor, encoding=codes)


_CONVERSION = QuantizeLinear.name

"""The operator whose arithmetic conversions follow."""

_CODES = 256


def write_prescribed_codes(program: Program, plan: QuantizedGraph) -> Program:
    """Return a program in which each operator writes the codes that its target prescribes.

    Where the plan has others (others chose its scales, and these are kept) the step's result is
    brought to them by a step of its own. Plans that were made for the target have none of these.

    Args:
        program: The steps of ``plan``; not changed.
        plan: What they were made of.
    """
    nodes = {str(node.name): node for node in plan.graph.nodes}
    names = _names(program)
    steps: list[Step] = []
    for step in program.steps:
        last = nodes.get(step.nodes[-1]) if step.nodes else None
        rule = plan.target.rule_for(last) if last is not None else None
        wanted = None if rule is None else _prescribed_encoding(step, rule, plan.target)
        if wanted is None:
            steps.append(step)
            continue
        output = step.outputs[0]
        name = names.fresh(f"{output.name}_prescribed")
        made = replace(output, name=name, encoding=wanted, value="", end=None)
        arithmetic = plan.target.arithmetic_for(_CONVERSION)
        steps += [
            replace(step, outputs=(made,)),
            Step(
                names.fresh(f"{step.name}_rescaled"), Requantize(), (made,), (output,), arithmetic
            ),
        ]
    return program.with_steps(tuple(steps))


def _prescribed_encoding(step: Step, rule: OpRule, target: Target) -> Encoding | None:
    """Return the encoding that a step has to write, None where that is what it writes."""
    fixed, found = rule.fixed_output, step.outputs[0].encoding
    if fixed is None or found is None or found.axis is not None:
        return None
    # Prescribed outputs are those of 8 bits; the offset is counted from the lowest code of either
    # sign.
    if found.quant_max - found.quant_min != _CODES - 1:
        return None
    lowest = target.activation_scheme(rule).quant_min
    wanted = replace(
        found,
        scale=np.asarray(fixed.scale, np.float32),
        zero_point=np.asarray(fixed.offset - lowest + found.quant_min, np.int64),
    )
    return None if wanted.same_as(found) else wanted

"""Joins neighbouring float nodes to one step: one session runs them all."""

from __future__ import annotations

import onnx_ir as ir

from intact.graph import is_constant
from intact.graph.graph import values_read_inside
from intact.program.operations import FloatNodes
from intact.program.program import Program, Step, Tensor
from intact.targets.float16 import Rounded


def join_islands(program: Program) -> Program:
    """Return the program with each run of float steps, one after the other, as one step."""
    steps: list[Step] = []
    run: list[Step] = []
    arrays: dict[ir.Value, str] = {}
    takes_more = True
    for step in program.steps:
        is_float = isinstance(step.operation, FloatNodes)
        if is_float and takes_more and _fits(arrays, step):
            run.append(step)
            continue
        steps += _join(program, run)
        run, arrays, takes_more = [], {}, True
        if is_float:
            run, takes_more = [step], _fits(arrays, step)
        else:
            steps.append(step)
    steps += _join(program, run)
    return program.with_steps(tuple(steps))


def _fits(arrays: dict[ir.Value, str], step: Step) -> bool:
    """Note which array each value of a step is; tell whether none would have to be two of them."""
    return all(arrays.setdefault(value, name) == name for value, name in _tensor_names(step))


def _tensor_names(step: Step) -> list[tuple[ir.Value, str]]:
    """Return which tensor each value is for a step; none is called "", a constant of the model."""
    operation = step.operation
    if not isinstance(operation, FloatNodes):
        return []
    tensors = [tensor.name for tensor in step.inputs if tensor is not None]
    pairs = list(zip(operation.inputs, tensors, strict=True))
    pairs += [(v, t.name) for v, t in zip(operation.outputs, step.outputs, strict=True)]
    given = {value for value, _ in pairs}
    for node in operation.nodes:
        read = {value for value in (*node.inputs, *values_read_inside(node)) if value is not None}
        pairs += [(value, "") for value in read - given if is_constant(value)]
    return pairs


def _join(program: Program, run: list[Step]) -> list[Step]:
    if len(run) < 2:
        return run
    inside = {id(step) for step in run}
    # Only what is read outside leaves the session: other results need no copy into numpy.
    outside = {tensor.name for tensor in program.outputs.values()}
    for step in program.steps:
        if id(step) not in inside:
            outside |= {tensor.name for tensor in step.activations}
    nodes: list[ir.Node] = []
    reasons: dict[str, None] = {}
    functions: tuple[ir.Function, ...] = ()
    narrowed = [each for step in run if isinstance(each := step.operation, FloatNodes)]
    float16 = frozenset(name for each in narrowed for name in each.float16)
    rounded = next((each.rounded for each in narrowed if each.float16), Rounded.VALUES)
    inputs: dict[ir.Value, Tensor] = {}
    outputs: dict[ir.Value, Tensor] = {}
    made: set[str] = set()
    for step in run:
        operation = step.operation
        if not isinstance(operation, FloatNodes):
            continue
        nodes += operation.nodes
        reasons |= {operation.reason: None} if operation.reason else {}
        functions = operation.functions
        for value, tensor in zip(operation.inputs, step.inputs, strict=True):
            if tensor is not None and tensor.name not in made:
                inputs.setdefault(value, tensor)
        for value, tensor in zip(operation.outputs, step.outputs, strict=True):
            made.add(tensor.name)
            if tensor.name in outside:
                outputs[value] = tensor
    return [
        Step(
            run[0].name,
            FloatNodes(
                tuple(nodes),
                tuple(inputs),
                tuple(outputs),
                functions,
                "; ".join(reasons),
                float16,
                rounded,
            ),
            tuple(inputs.values()),
            tuple(outputs.values()),
            run[0].arithmetic,
            tuple(name for step in run for name in step.nodes),
        )
    ]


def without_unused(program: Program) -> Program:
    """Return the program without steps that lead to no output."""
    wanted = {tensor.name for tensor in program.outputs.values()}
    kept: list[Step] = []
    for step in reversed(program.steps):
        if any(tensor.name in wanted for tensor in step.outputs):
            kept.append(step)
            wanted |= {tensor.name for tensor in step.inputs if tensor is not None}
    return program.with_steps(tuple(reversed(kept)))

"""Lets operations read whole-number inputs, as token ids are, without float nodes.

Exports give such an input another shape or type before a table is looked up by it, or before it
becomes a float. Its numbers stay in their order, so that a format may read the input itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.graph import facts, is_constant
from intact.graph.graph import values_read_inside
from intact.program.float_operations import Identity
from intact.program.operations import FloatNodes, Lookup, Operation, Reshape
from intact.program.program import Program, Step, Tensor
from intact.targets.float16 import Rounded


def join_islands(program: Program) -> Program:
    """Return the program with each run of float steps, one after the other, as one step."""
    steps: list[Step] = []
    run: list[Step] = []
    for step in program.steps:
        if isinstance(step.operation, FloatNodes) and not _conflicts(run, step):
            run.append(step)
            continue
        steps += _join(program, run)
        run = [step] if isinstance(step.operation, FloatNodes) else []
        if not run:
            steps.append(step)
    steps += _join(program, run)
    return program.with_steps(tuple(steps))


def _conflicts(run: list[Step], step: Step) -> bool:
    """Tell whether a value would have to be two different arrays inside one island."""
    arrays: dict[ir.Value, str] = {}
    for each in (*run, step):
        for value, name in _tensor_names(each):
            if arrays.setdefault(value, name) != name:
                return True
    return False


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


_INT32 = np.dtype(np.int32)
_TYPES = tuple(map(np.dtype, (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64)))


def is_whole(tensor: Tensor) -> bool:
    """Tell whether a tensor holds whole numbers, and no codes."""
    return tensor.encoding is None and tensor.dtype in _TYPES


def with_views(program: Program, readers: tuple[type, ...]) -> Program:
    """Return a program in which some operations read inputs of whole numbers themselves.

    Args:
        program: Not changed.
        readers: Operations that read a view of the input, where nodes between change shape and
            type only. A view has the input's type, and stands for its value.
    """
    roots = _roots(program)
    steps: list[Step] = []
    for step in program.steps if roots else ():
        root = _root_of(step, roots)
        if root is not None:
            output = step.outputs[0]
            view = Tensor(f"{output.name}_whole", output.shape, value=root.value, plain=root.plain)
            steps.append(
                replace(step, operation=_reshape_to(view), inputs=(root,), outputs=(view,))
            )
            roots[output.name] = view
        inputs = tuple(roots.get(t.name, t) if t else None for t in step.inputs)
        steps.append(replace(step, inputs=inputs) if isinstance(step.operation, readers) else step)
    return without_unused(program.with_steps(tuple(steps))) if roots else program


def with_floats(program: Program) -> Program:
    """Return a program that takes whole numbers as floats, where it only makes floats of them."""
    for name, tensor in program.inputs.items():
        if is_whole(tensor):
            program = _read_as_floats(program, name, tensor)
    return program


def _read_as_floats(program: Program, name: str, tensor: Tensor) -> Program:
    floats = {tensor.name: replace(tensor, plain=np.dtype(np.float32))}
    steps: list[Step] = []
    for step in program.steps:
        root = _root_of(step, floats)
        if root is not None:
            result = replace(step.outputs[0], plain=np.dtype(np.float32))
            floats[result.name] = result
            same = result.shape == root.shape
            operation = Identity() if same else _reshape_to(result)
            steps.append(replace(step, operation=operation, inputs=(root,), outputs=(result,)))
        # Something needs the whole numbers themselves: the program stays as it was.
        elif any(t.name in floats and is_whole(t) for t in step.activations):
            return program
        else:
            steps.append(step)
    if any(t.name in floats and is_whole(t) for t in program.outputs.values()):
        return program
    inputs = {**program.inputs, name: floats[tensor.name]}
    return replace(program, inputs=inputs, steps=tuple(steps))


def with_int32(program: Program) -> Program:
    """Return a program that takes whole numbers as int32, where look-ups and Casts read them."""
    for name, tensor in program.inputs.items():
        if is_whole(tensor) and tensor.dtype != _INT32:
            program = _read_as_int32(program, name, tensor)
    return program


def _read_as_int32(program: Program, name: str, tensor: Tensor) -> Program:
    narrow = {tensor.name: replace(tensor, plain=_INT32)}
    steps: list[Step] = []
    for step in program.steps:
        root = _root_of(step, narrow)
        read = tuple(narrow.get(t.name, t) if t else None for t in step.inputs)
        if root is not None and is_whole(step.outputs[0]):
            result = narrow[step.outputs[0].name] = replace(step.outputs[0], plain=_INT32)
            steps.append(
                replace(step, operation=_reshape_to(result), inputs=read, outputs=(result,))
            )
        elif root is not None or isinstance(step.operation, Lookup) or read == step.inputs:
            steps.append(replace(step, inputs=read))
        else:
            return program
    if any(t.name in narrow for t in program.outputs.values()):
        return program
    inputs = {**program.inputs, name: narrow[tensor.name]}
    return replace(program, inputs=inputs, steps=tuple(steps))


def _roots(program: Program) -> dict[str, Tensor]:
    tensors = program.inputs.values()
    # Where the axes lie otherwise, a view would give the numbers in another order.
    return {t.name: t for t in tensors if is_whole(t) and t.permutation is None}


def _reshape_to(tensor: Tensor) -> Operation:
    return Reshape(tuple(-1 if length is None else length for length in tensor.shape))


def _root_of(step: Step, roots: dict[str, Tensor]) -> Tensor | None:
    """Return the whole numbers that a step only gives another shape or type."""
    if len(step.activations) != 1 or len(step.outputs) != 1:
        return None
    (source,), (output,) = step.activations, step.outputs
    keeps = isinstance(step.operation, Reshape) or _keeps_order(step, source)
    is_plain = output.permutation is None and output.encoding is None
    # A Reshape, which the view becomes, has place for one open length.
    if not (keeps and is_plain) or output.shape.count(None) > 1:
        return None
    return roots.get(source.name)


def _keeps_order(step: Step, source: Tensor) -> bool:
    operation = step.operation
    if not isinstance(operation, FloatNodes):
        return False
    before = operation.inputs[step.inputs.index(source)]
    for node in operation.nodes:
        known = facts(node)
        if not (known.reshapes or known.converts) or node.inputs[0] is not before:
            return False
        before = node.outputs[0]
        # Narrower types would cut numbers off, which a view of the input does not; a bool is 0 or
        # 1.
        if before.dtype not in (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT):
            return False
    return True

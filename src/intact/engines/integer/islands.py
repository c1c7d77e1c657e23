"""Runs float nodes inside an integer program, in ONNX Runtime, as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from intact.engines.integer.kernel import Kernel, constants_inserter, operation_of
from intact.engines.session import make_session, run_session
from intact.errors import PlanError
from intact.graph.graph import values_read_inside
from intact.graph.ops import is_constant
from intact.program import Array, Step
from intact.program.operations import FloatNodes

_IR_VERSION = 10
"""The version of ONNX's format; every ONNX Runtime that has the opsets in use reads it."""


def float_island(step: Step, threads: int = 0) -> Kernel:
    """Return the kernel that runs a step's nodes in one session, made here.

    Arrays come and go in the layout of the model. What a node reads and no node of the step and no
    input gives is a constant of the model.

    Args:
        step: Its operation is `FloatNodes`.
        threads: Threads of the session; 0 lets it choose.

    Raises:
        PlanError: A node reads a value that the step does not get.
        ModelError: The runtime rejects the nodes.
    """
    operation = operation_of(step, FloatNodes)
    run, with_constants = compiled_nodes(step.name, operation, threads), constants_inserter(step)
    return lambda *activations: tuple(run(with_constants(activations)))


def compiled_nodes(
    name: str, operation: FloatNodes, threads: int = 0
) -> Callable[[Iterable[Array]], list[Array]]:
    """Return what runs nodes alone, in one session: from the operation's inputs to its outputs.

    Args:
        name: What runs them, for errors.
        operation: The nodes.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        PlanError: A node reads a value that is none of the inputs.
        ModelError: The runtime rejects the nodes.
    """
    session = make_session(model_of_nodes(name, operation), threads=threads)
    names = [str(value.name) for value in operation.inputs]
    outputs = [str(value.name) for value in operation.outputs]

    def run(arrays: Iterable[Array]) -> list[Array]:
        # `ascontiguousarray` would give scalars an axis.
        laid = (np.asarray(array, order="C") for array in arrays)
        return run_session(session, dict(zip(names, laid, strict=True)), outputs)

    return run


def model_of_nodes(name: str, operation: FloatNodes) -> ir.Model:
    """Return a model of the nodes alone; nodes and values are copies, constants are shared.

    A constant among the operation's inputs is fed like any other.

    Raises:
        PlanError: A node reads a value that is none of its inputs; ``name`` is the step's.
    """
    constants = _constants(name, operation)
    owner = operation.nodes[0].graph
    # A view and its clone, since the nodes belong to the model's graph and may belong to no other.
    view = ir.GraphView(
        operation.inputs,
        operation.outputs,
        nodes=operation.nodes,
        initializers=constants,
        opset_imports={} if owner is None else dict(owner.opset_imports),
        name="island",
    )
    graph = view.clone()
    if owner is None or not _has_any_batch(owner):
        _forget_lengths(graph)
    for value in graph.inputs:
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    functions = [function.clone() for function in operation.functions]
    model = ir.Model(graph, ir_version=_IR_VERSION, functions=functions)
    if operation.float16:
        from intact.plan.float16 import compute  # which few plans need

        compute(model, operation.float16, operation.rounded)
    return model


def _has_any_batch(owner: ir.Graph | ir.Function) -> bool:
    """Tell whether the lengths in a model hold for every batch that the engine may be given.

    The runtime then fuses the nodes as it does those of the whole model: for that it has to know
    that nothing is broadcast.
    """
    shapes = [value.shape for value in owner.inputs]
    return all(shape and not isinstance(shape[0], int) for shape in shapes)


def _forget_lengths(graph: ir.Graph) -> None:
    """Keep the ranks alone: the lengths are those of the model's own batch."""
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        if value.dtype is ir.DataType.INT64:
            continue  # a list of lengths has one for each axis, and that is how many there are
        rank = None if value.shape is None else value.shape.rank()
        value.shape = None if rank is None else ir.Shape([None] * rank)


def _constants(name: str, operation: FloatNodes) -> list[ir.Value]:
    """List the constants that nodes, and the bodies in them, read."""
    known = {*operation.inputs, *(value for node in operation.nodes for value in node.outputs)}
    constants: dict[ir.Value, None] = {}
    for node in operation.nodes:
        inside = (value for value in values_read_inside(node) if value.graph is node.graph)
        for value in (*node.inputs, *inside):
            if value is None or value in known:
                continue
            if not is_constant(value):
                raise PlanError(
                    f"step {name!r} runs node {node.name!r}, which reads {value.name!r}, but the "
                    "step does not get it",
                    remedy="make the value one of its inputs",
                )
            constants[value] = None
    return list(constants)

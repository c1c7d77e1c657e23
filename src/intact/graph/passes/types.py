"""Element types that ONNX shape inference cannot find because an unknown operator came before."""

from __future__ import annotations

import onnx_ir as ir

from intact.graph.ops import OpKind, Role, input_role, op_spec

_KEEPS_TYPE = {
    OpKind.COMPUTE,
    OpKind.ELEMENTWISE,
    OpKind.ACTIVATION,
    OpKind.POOL,
    OpKind.NORMALIZATION,
    OpKind.JOIN,
    OpKind.MOVE,
}
_CHANGES_TYPE = {"Cast", "CastLike"}


def infer_types(model: ir.Model) -> int:
    """Give an output of unknown type the type of its node's data, weight or bias input.

    ONNX demands that these agree for the operators concerned.

    Returns:
        How many values got a type.
    """
    found = 0
    for node in model.graph:
        spec = op_spec(node)
        if spec is None or spec.kind not in _KEEPS_TYPE or node.op_type in _CHANGES_TYPE:
            continue
        known = _input_type(node)
        for value in node.outputs[:1]:
            if known is not None and value.type is None:
                value.type = known
                found += 1
    return found


def _input_type(node: ir.Node) -> ir.TypeProtocol | None:
    for slot, value in enumerate(node.inputs):
        steering = input_role(node, slot) in {Role.SHAPE, Role.PARAMETER}
        if value is not None and value.type is not None and not steering:
            return value.type
    return None

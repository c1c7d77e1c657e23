"""Functions of one blob, element by element, and operations on two."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.ncnn.draft import Draft, Write, floats
from intact.formats.ncnn.shapes import Parameter, Sample, lengths, present, rank_of, sample
from intact.graph import constant_array, input_value
from intact.program.lower.attributes import bounds_of

_LARGEST = float(np.finfo(np.float32).max)

_BINARY = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5}
_REVERSED = {"Sub": 7, "Div": 8, "Add": 0, "Mul": 2, "Max": 4, "Min": 5}
"""With the operands changed round."""
_SQUARE, _ROOT = 4, 5
_UNARY = {
    "Neg": 1,
    "Floor": 2,
    "Ceil": 3,
    "Sqrt": _ROOT,
    "Exp": 7,
    "Log": 8,
    "Sin": 9,
    "Cos": 10,
    "Reciprocal": 15,
}
_LAYERS = {
    "Erf": "Erf",
    "Relu": "ReLU",
    "Sigmoid": "Sigmoid",
    "Tanh": "TanH",
    "Abs": "AbsVal",
    "Mish": "Mish",
}


def layer(kind: str) -> Write:
    """A function with a layer of its own and no parameters."""
    return lambda draft, node: draft.unary(kind, node)


def unary_operation(number: int) -> Write:
    """A function that ``UnaryOp`` knows by number."""
    return lambda draft, node: draft.unary("UnaryOp", node, {0: number})


def clip(draft: Draft, node: ir.Node) -> None:
    """Clip."""
    try:
        bounds = bounds_of(node)
    except Unsupported as reason:
        raise Unsupported(str(reason)) from None
    if bounds is None or not bounds.low <= bounds.high:
        raise Unsupported("its bounds are not in order")
    low, high = (max(min(end, _LARGEST), -_LARGEST) for end in (bounds.low, bounds.high))
    draft.unary("Clip", node, {0: low, 1: high})


def leaky_relu(draft: Draft, node: ir.Node) -> None:
    """LeakyRelu: ``ReLU`` with a slope."""
    draft.unary("ReLU", node, {0: node.attributes.get_float("alpha", 0.01)})


def prelu(draft: Draft, node: ir.Node) -> None:
    """PRelu with one slope, or one a channel."""
    slope = constant_array(present(node, 1))
    rank, channels = rank_of(present(node, 0)), sample(present(node, 0))[0]
    if slope is None or slope.size not in (1, channels):
        raise Unsupported("its slopes are not one constant, or one for each channel")
    along_channels = (channels, *(1,) * (rank - 2))
    if slope.size > 1 and slope.shape[-rank + 1 :] != along_channels:
        raise Unsupported("its slopes do not run along the channels")
    draft.unary("PReLU", node, {0: slope.size}, floats(slope))


def elu(draft: Draft, node: ir.Node) -> None:
    """Elu."""
    draft.unary("ELU", node, {0: node.attributes.get_float("alpha", 1.0)})


def hard_sigmoid(draft: Draft, node: ir.Node) -> None:
    """HardSigmoid."""
    alpha, beta = (node.attributes.get_float(n, d) for n, d in (("alpha", 0.2), ("beta", 0.5)))
    draft.unary("HardSigmoid", node, {0: alpha, 1: beta})


def hard_swish(draft: Draft, node: ir.Node) -> None:
    """HardSwish: ``x * clip(x / 6 + 1 / 2, 0, 1)``."""
    draft.unary("HardSwish", node, {0: 1 / 6, 1: 0.5})


def gelu(draft: Draft, node: ir.Node) -> None:
    """Gelu, by the error function or by the hyperbolic tangent."""
    fast = node.attributes.get_string("approximate", "none") == "tanh"
    draft.unary("GELU", node, {0: int(fast)})


def batch_normalization(draft: Draft, node: ir.Node) -> None:
    """BatchNormalization that was not folded into a product."""
    arrays = [constant_array(present(node, slot)) for slot in (1, 3, 4, 2)]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays):
        raise Unsupported("its statistics are computed")
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    data = b"".join(floats(array) for array in known)  # slope, mean, variance, bias
    draft.unary("BatchNorm", node, {0: known[0].size, 1: epsilon}, data)


def power(draft: Draft, node: ir.Node) -> None:
    """Pow: squares and roots; ncnn's own power takes logarithms, which negative numbers lack."""
    exponent = constant_array(present(node, 1))
    kinds = {2.0: _SQUARE, 0.5: _ROOT}
    if exponent is None or exponent.size != 1 or float(exponent.item()) not in kinds:
        raise Unsupported("it is neither a square nor a root")
    draft.unary("UnaryOp", node, {0: kinds[float(exponent.item())]})


def binary(draft: Draft, node: ir.Node) -> None:
    """Add, Sub, Mul, Div, Max, Min of two operands that broadcast; a constant may be one."""
    if len(node.inputs) != 2:
        raise Unsupported(f"it has {len(node.inputs)} operands")
    top = draft.blob(node.outputs[0])
    arrays = [constant_array(value) for value in node.inputs]
    for slot, number in ((1, _BINARY), (0, _REVERSED)):
        array = arrays[slot]
        if array is not None and array.size == 1 and node.op_type in number:
            if rank_of(present(node, 1 - slot)) < array.ndim:
                raise Unsupported("its constant has more axes than its data")
            scalar: dict[int, Parameter] = {0: number[node.op_type], 1: 1, 2: float(array.item())}
            draft.emit("BinaryOp", str(node.name), [draft.read(node, 1 - slot)], [top], scalar)
            return
    bottoms = [_operand(draft, node, slot) for slot in (0, 1)]
    draft.emit("BinaryOp", str(node.name), bottoms, [top], {0: _BINARY[node.op_type]})


def _operand(draft: Draft, node: ir.Node, slot: int) -> str:
    """Return the blob of an operand, with as many axes as the result has."""
    value, result = present(node, slot), node.outputs[0]
    axes = rank_of(result) - 1
    array = constant_array(value)
    if array is not None:
        return draft.constant(value, _without_batch(array.shape, axes))
    if rank_of(value) == axes + 1:
        return draft.read(node, slot)
    raise Unsupported("its operands have different numbers of axes, so a batch meets no batch")


def _without_batch(shape: tuple[int, ...], axes: int) -> Sample:
    """Return the shape of a constant that broadcasts against a sample of so many axes."""
    if len(shape) > axes:
        if len(shape) > axes + 1 or shape[0] != 1:
            raise Unsupported("its constant operand differs between samples")
        shape = shape[1:]
    found = (1,) * (axes - len(shape)) + tuple(shape)
    lengths(found)
    return found


def softmax(draft: Draft, node: ir.Node) -> None:
    """Softmax along one axis of a sample."""
    rank = rank_of(present(node, 0))
    axis = node.attributes.get_int("axis", -1) % rank
    opset = 13 if node.graph is None else node.graph.opset_imports.get("", 13)
    if axis == 0 or (opset < 13 and rank != 2):
        raise Unsupported("it does not run along one axis of a sample")
    draft.unary("Softmax", node, {0: axis - 1, 1: 1})


def layer_normalization(draft: Draft, node: ir.Node) -> None:
    """LayerNormalization over the last axes."""
    rank = rank_of(present(node, 0))
    axis = node.attributes.get_int("axis", -1) % rank
    size = sample(present(node, 0))[axis - 1 :]
    gamma, beta = constant_array(present(node, 1)), constant_array(input_value(node, 2))
    if axis != rank - 1 or gamma is None or (input_value(node, 2) is not None and beta is None):
        raise Unsupported("it runs over several axes, or its factors are computed")
    if len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("it hands out mean and deviation")
    factors = (gamma, np.zeros(1, np.float32) if beta is None else beta)
    data = b"".join(floats(np.broadcast_to(each.reshape(-1), size)) for each in factors)
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    draft.unary("LayerNorm", node, {0: size[0], 1: epsilon, 2: 1}, data)


TABLE: dict[str, Write] = {
    **{op: layer(kind) for op, kind in _LAYERS.items()},
    **{op: unary_operation(number) for op, number in _UNARY.items()},
    **dict.fromkeys(_BINARY, binary),
    "BatchNormalization": batch_normalization,
    "Clip": clip,
    "Elu": elu,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Identity": layer("Noop"),
    "LayerNormalization": layer_normalization,
    "LeakyRelu": leaky_relu,
    "PRelu": prelu,
    "Pow": power,
    "Softmax": softmax,
}

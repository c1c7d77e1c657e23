"""Folds BatchNormalization and per-channel factors and offsets into a layer beside them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.batch_norm import INPUT_KEY, BatchNorm, recall, remember
from intact.graph.ops import OpKind, constant_array, facts, input_value, output_channels
from intact.graph.passes.pattern import constant, either, op, value
from intact.graph.passes.replace import replace_constant, replace_value
from intact.ops.operators import (
    BIASED,
    Add,
    BatchNormalization,
    ConvTranspose,
    Gemm,
    Mul,
    Sub,
    is_a,
)

_Doubles = npt.NDArray[np.float64]


_LINEAR = op(BIASED, value(), constant(), constant(optional=True))
_NUMBERS = constant()
_NORMED = op(BatchNormalization, _LINEAR.sole, *(constant() for _ in range(4)))
_SCALED = either(_LINEAR.sole * _NUMBERS, _LINEAR.sole + _NUMBERS, _LINEAR.sole - _NUMBERS)


def absorb(
    graph: ir.Graph,
    linear: ir.Node,
    ratio: npt.NDArray[np.floating],
    mean: npt.NDArray[np.floating],
    beta: npt.NDArray[np.floating],
) -> bool:
    """Change the constants of a linear node, so that ``y`` becomes ``ratio * (y - mean) + beta``.

    Computed in float64, stored in the weight's type.

    Args:
        graph: The graph of the node.
        linear: A Conv, ConvTranspose or Gemm.
        ratio: ``[channels]``.
        mean: ``[channels]``.
        beta: ``[channels]``.

    Returns:
        Whether it was done. It is not for computed weights, for a bias that differs within a
        channel, or where a result would not be finite.
    """
    weight = constant_array(input_value(linear, 1))
    bias_value = input_value(linear, 2)
    bias = constant_array(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    with np.errstate(all="ignore"):
        shift = _bias_row(linear, bias, ratio.shape[0])
        scaled = _scale_weight(linear, weight, ratio)
        if shift is None or scaled is None:
            return False
        new_weight = scaled.astype(weight.dtype)
        new_bias = (ratio * (shift - mean) + beta).astype(weight.dtype)
    # A variance of 0 without epsilon, say: then the node stays, whatever it gives.
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return False
    replace_constant(graph, linear, 1, new_weight, f"{linear.name}_weight")
    replace_constant(graph, linear, 2, new_bias, f"{linear.name}_bias")
    if is_a(linear, Gemm):
        linear.attributes.pop("beta", None)  # now inside the bias
    return True


def _bias_row(linear: ir.Node, bias: np.ndarray | None, channels: int) -> _Doubles | None:
    """Return the bias as one number per channel; None if it differs within a channel."""
    if bias is None:
        return np.zeros(channels)
    if bias.ndim > 1 and bias.size != bias.shape[-1]:
        return None  # Gemm may add a whole matrix
    factor = Gemm.of(linear).beta
    row = bias.astype(np.float64).reshape(-1) * factor
    return np.broadcast_to(row, (channels,)) if row.size in {1, channels} else None


def _scale_weight(
    linear: ir.Node, weight: np.ndarray, ratio: npt.NDArray[np.floating]
) -> _Doubles | None:
    # Each fold rounds to the weight's type once.
    wide = weight.astype(np.float64)
    channels = ratio.shape[0]
    if is_a(linear, ConvTranspose):
        group = ConvTranspose.of(linear).group
        if weight.shape[0] % group or weight.shape[1] * group != channels:
            return None
        by_group = wide.reshape(group, -1, *weight.shape[1:])
        factors = ratio.reshape(group, 1, -1, *(1,) * (weight.ndim - 2))
        return (by_group * factors).reshape(weight.shape)
    axis = 1 if is_a(linear, Gemm) and not Gemm.of(linear).transB else 0
    if weight.shape[axis] != channels:
        return None
    return wide * ratio.reshape([-1 if each == axis else 1 for each in range(weight.ndim)])


def fold_batch_norms(model: ir.Model) -> int:
    """Fold every BatchNormalization whose input comes from a linear node and has no other reader.

    The linear node's output takes the name of the BatchNormalization's output, whose values it now
    has. The parameters are stored on the node, see `intact.graph.batch_norm`.

    Returns:
        The number of folded nodes; the others do not change.
    """
    return sum(_fold(model.graph, node) for node in tuple(model.graph))


def _fold(graph: ir.Graph, node: ir.Node) -> bool:
    """``BatchNormalization(linear(x))`` -> ``linear(x)`` with other constants."""
    norm, found = parameters_of(node), _NORMED.at(node)
    if norm is None or found is None:
        return False
    linear = found.node(_LINEAR)
    if not absorb(graph, linear, norm.ratio, norm.mean, norm.beta):
        return False
    remember(linear, norm)
    replace_value(node.outputs[0], linear.outputs[0])
    graph.remove(node, safe=True)
    return True


def parameters_of(node: ir.Node) -> BatchNorm | None:
    """Return the constants of a BatchNormalization at inference.

    None for other nodes, for one that trains or hands out its statistics, and where a parameter
    is computed.
    """
    if not is_a(node, BatchNormalization):
        return None
    options = BatchNormalization.of(node)
    if options.training_mode or any(_is_used(v) for v in node.outputs[1:]):
        return None
    arrays = [constant_array(input_value(node, slot)) for slot in (1, 2, 3, 4)]
    if any(array is None or array.ndim != 1 for array in arrays):
        return None
    if len({array.shape for array in arrays if array is not None}) != 1:
        return None
    gamma, beta, mean, variance = (np.asarray(array, dtype=np.float32) for array in arrays)
    names = tuple(str(value.name) for value in node.inputs[1:5] if value is not None)
    return BatchNorm(gamma, beta, mean, variance, options.epsilon, names)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def fold_scales(model: ir.Model) -> int:
    """Fold per-channel constants that are multiplied with or added to the result of a linear node.

    As with BatchNormalization, the linear node's output takes the name of the result. The stored
    parameters of a folded BatchNormalization are scaled and shifted too.

    Returns:
        The number of folded nodes; the others do not change.
    """
    return sum(_fold_constant(model.graph, node) for node in tuple(model.graph))


def _fold_constant(graph: ir.Graph, node: ir.Node) -> bool:
    """``linear(x) * c``, ``linear(x) + c``, ``linear(x) - c`` -> ``linear(x)``."""
    found = _SCALED.at(node)
    row = None if found is None else _row(found.node(_LINEAR), found.array(_NUMBERS))
    if found is None or row is None:
        return False
    linear, one, zero = found.node(_LINEAR), np.ones_like(row), np.zeros_like(row)
    ratio, beta = {Mul.name: (row, zero), Add.name: (one, row), Sub.name: (one, -row)}[node.op_type]
    if not absorb(graph, linear, ratio, zero, beta):
        return False
    _remember(linear, ratio, beta)
    replace_value(node.outputs[0], linear.outputs[0])
    graph.remove(node, safe=True)
    return True


_READ = value()
_CHANGED = either(_READ * _NUMBERS, _READ + _NUMBERS, _READ - _NUMBERS)


def fold_into_dense(model: ir.Model) -> int:
    """Fold what is multiplied with or added to each input of a Gemm into its constants.

    So a BatchNormalization goes that stands behind an activation, as Keras has it.

    Returns:
        The number of folded nodes; the others do not change.
    """
    folded = 0
    for node in tuple(model.graph):
        while is_a(node, Gemm) and _fold_read(model.graph, node):
            folded += 1
    return folded


def _fold_read(graph: ir.Graph, dense: ir.Node) -> bool:
    """``Gemm(x * c + d, w, b)`` -> ``Gemm(x, c * w, b + d w)``.

    Only with a number for each channel: one for all belongs to functions that are written out. And
    only behind activations: what brings a model's inputs to one range is needed before they are
    codes.
    """
    data, options = dense.inputs[0], Gemm.of(dense)
    weight, given = constant_array(input_value(dense, 1)), input_value(dense, 2)
    maker = None if data is None else data.producer()
    if data is None or maker is None or weight is None or weight.ndim != 2 or options.transA:
        return False
    if len(data.uses()) != 1 or data.is_graph_output():
        return False
    wide = weight.astype(np.float64).T if options.transB else weight.astype(np.float64)
    change = _change(maker, len(wide))
    bias = _bias_row(dense, constant_array(given), wide.shape[1])
    if change is None or bias is None or (given is not None and constant_array(given) is None):
        return False
    source, ratio, shift = change
    with np.errstate(all="ignore"):
        scaled = (wide * ratio[:, None]).astype(weight.dtype)
        sums = (bias + options.alpha * (shift @ wide)).astype(weight.dtype)
    if not (np.isfinite(scaled).all() and np.isfinite(sums).all()):
        return False
    scaled = np.ascontiguousarray(scaled.T if options.transB else scaled)
    replace_constant(graph, dense, 1, scaled, f"{dense.name}_weight")
    if given is not None or shift.any():
        replace_constant(graph, dense, 2, sums, f"{dense.name}_bias")
        dense.attributes.pop("beta", None)  # now inside the bias
    if (norm := parameters_of(maker)) is not None:
        remember(dense, norm, INPUT_KEY)
    dense.replace_input_with(0, source)
    graph.remove(maker, safe=True)
    return True


def _change(node: ir.Node, channels: int) -> tuple[ir.Value, _Doubles, _Doubles] | None:
    """Return what a node scales and shifts by channel, the factors and the sums; None of others."""
    norm, found = parameters_of(node), _CHANGED.at(node)
    if norm is not None and norm.ratio.size == channels:
        ratio = norm.ratio.astype(np.float64)
        source, change = node.inputs[0], (ratio, norm.beta - ratio * norm.mean)
    elif found is not None and found.array(_NUMBERS).size == channels > 1:
        numbers = found.array(_NUMBERS)
        if numbers.shape[-1] != channels:
            return None
        row = numbers.astype(np.float64).reshape(-1)
        one, zero = np.ones_like(row), np.zeros_like(row)
        source = found.value(_READ)
        change = {Mul.name: (row, zero), Add.name: (one, row), Sub.name: (one, -row)}[node.op_type]
    else:
        return None
    if source is None or source.shape is None or len(source.shape) != 2:
        return None
    before = source.producer()
    while before is not None and _CHANGED.at(before) is not None:  # the next to be folded
        before = before.inputs[0].producer() if before.inputs[0] is not None else None
    is_behind = before is not None and facts(before).kind is OpKind.ACTIVATION
    return (source, *change) if is_behind else None


def _row(linear: ir.Node, array: np.ndarray) -> npt.NDArray[np.float64] | None:
    """Return a constant as one number per channel; None if it is not constant within a channel."""
    weight, channels = constant_array(linear.inputs[1]), output_channels(linear)
    # More axes than the result has would add axes to it.
    if weight is None or channels is None or array.ndim > weight.ndim:
        return None
    shape = (1,) * (weight.ndim - array.ndim) + array.shape
    if shape[1] not in (1, channels) or any(size != 1 for size in (shape[0], *shape[2:])):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))


def _remember(
    linear: ir.Node, ratio: npt.NDArray[np.float64], beta: npt.NDArray[np.float64]
) -> None:
    norm = recall(linear)
    if norm is not None:
        gamma, shift = norm.gamma * ratio, norm.beta * ratio + beta
        scaled = gamma.astype(np.float32), shift.astype(np.float32)
        # Without names: no arrays of the given model hold these numbers.
        remember(linear, BatchNorm(*scaled, norm.mean, norm.variance, norm.epsilon))

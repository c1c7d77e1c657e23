"""What random nets are known to find: each with its reason, so that anything else is new."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from tests.models import run_model
from tests.nets.findings import Finding, RandomNet

_RARE = {"tensorrt": 0.02, "tvm": 0.2, "integer-pow2": 1.0, "vta": 1.0}
"""The share of a small tensor's codes that may be one step off where ONNX Runtime computes a file
for other hardware: it adds float biases, and rounds ties to even. Where scales are powers of two
every second sum is a tie, or with a constant each."""

_FEW_VALUES = {"Ceil", "Floor", "Hardmax", "Round", "Sign"}
"""Functions of which the results are few numbers: a tie there is one in many places."""
_CANCELLING = {"Div", "Sub"}
"""Functions that give one number where both operands are the same tensor."""

_FLOATS = {"Cos", "Exp", "GRU", "LSTM", "Log", "Pow", "RNN", "Sin"}
"""What LiteRT computes in float where codes have 16 bits."""
_LAST_BITS = 0.01
"""The share of 16-bit codes that the last bit of a float may move by one step."""
_WRONG_TYPE = "output_dtype INT8 does not match y_zero_point type UINT8"
_ZERO = 1e-4
"""Numbers below are what rounding leaves."""
_VOLUME_STEPS = 3
_VOLUME = 5
"""Axes of what a convolution of volumes reads."""
_LOST = 1e-3
"""A sum this small beside what was added has lost ten bits, of 24."""
_CANCELLED = 0.02
"""The share of codes that may then be one step off."""
_NORMALIZATIONS = {"InstanceNormalization", "LayerNormalization"}


def is_known(net: RandomNet, finding: Finding) -> bool:
    """Whether a finding is one of those below."""
    target, name = finding.pair
    operators = {node.op_type for node in net.model().graph.node}
    if name == "onnx_qdq" and finding.kind == "bits":
        share = 1.0 if _has_few_values(net) or _has_dead_weights(net) else _RARE.get(target, -1.0)
        return target in _RARE and finding.largest <= 1 and finding.share <= share
    if name == "onnx_qdq" and finding.kind == "agreement":
        # Each layer is compared by itself; behind, what a step off does grows without a bound: a
        # sign goes to its other end, a Hardmax to another place, a product to its double.
        return target in _RARE
    if name == "tflite" and finding.kind == "bits" and operators & _FLOATS and not finding.largest:
        return True  # floats alone, by their last bit
    if target == "tflite-16x8" and finding.kind == "bits" and operators & _FLOATS:
        # Codes of 16 bits show the last bit of a float: LiteRT's Exp is not NumPy's.
        return finding.largest <= 1 and finding.share <= _LAST_BITS
    if name == "onnx_qdq" and _WRONG_TYPE in finding.text:
        # Of opsets from 21 on ONNX Runtime 1.32.0 moves pairs of int8 behind a node that moves
        # values, as pairs of uint8 that still say int8, and refuses them. TensorRT reads the file.
        return finding.kind == "refused by the runtime"
    if name == "ncnn" and finding.kind == "agreement" and operators & _NORMALIZATIONS:
        # Of one number nothing is left but what ncnn's float sums round.
        return _are_zero(net, finding)
    if name == "openvino" and finding.kind == "bits" and _has_volumes_in_groups(net):
        # Of these OpenVINO computes other codes where they are asked for: what is deployed, whose
        # codes nobody asks for, agrees with the engine to 140 dB.
        return finding.largest <= _VOLUME_STEPS
    if name == "openvino" and finding.kind == "bits" and finding.largest <= 1 and _cancels(net):
        # What stays float differs by its last bits, which are all that a difference has left.
        return finding.share <= _CANCELLED
    if name == "openvino" and finding.kind == "bits" and _has_softmax_of_one(net):
        # Its result is 1, which OpenVINO knows: of what follows it folds a quantizer away.
        return finding.largest <= 1
    if name == "openvino" and "signal" in finding.text:
        # OpenVINO ends with a signal where its MVN, which normalizations become, is limited to
        # AVX2 on processors that have more.
        return bool(operators & _NORMALIZATIONS)
    return False


def _has_dead_weights(net: RandomNet) -> bool:
    """Whether a channel of some weight is 0: its result is one number, and a tie in all samples."""
    arrays = _constants(net).values()
    return any(
        not np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).any(axis=1).all()
        for array in arrays
        if array.ndim > 1 and array.dtype.kind == "f" and array.size
        for axis in (0, array.ndim - 1)
    )


def _are_zero(net: RandomNet, finding: Finding) -> bool:
    """Whether the outputs that a finding names are 0 in the float model."""
    outputs = run_model(net.model(), net.samples(1, seed=2)).items()
    named = [array for name, array in outputs if repr(name) in finding.text]
    return all(np.abs(array).max(initial=0) <= _ZERO for array in named)


def _cancels(net: RandomNet) -> bool:
    """Whether some sum or difference is small beside its operands."""
    model = net.model()
    sums = [node for node in model.graph.node if node.op_type in {"Add", "Sub", "Sum"}]
    if not sums:
        return False
    wanted = {name for node in sums for name in (*node.input, *node.output)}
    made = {name for node in model.graph.node for name in node.output} & wanted
    samples = net.samples(1, seed=2)  # a batch of 1 fits any net
    values = _constants(net) | samples | run_model(model, samples, sorted(made))
    largest = {name: np.abs(values[name]).max(initial=0) for name in wanted}
    return any(
        largest[node.output[0]] <= _LOST * max(largest[name] for name in node.input)
        for node in sums
    )


def _has_softmax_of_one(net: RandomNet) -> bool:
    """Whether some Softmax is one of single numbers."""
    names = [each.output[0] for each in net.model().graph.node if each.op_type == "Softmax"]
    found = run_model(net.model(), net.samples(1, seed=2), names) if names else {}
    return any((array == 1).all() for array in found.values())


def _has_volumes_in_groups(net: RandomNet) -> bool:
    ranks = {name: array.ndim for name, array in _constants(net).items()}
    return any(
        node.op_type == "Conv"
        and ranks.get(node.input[1]) == _VOLUME
        and any(each.name == "group" and each.i > 1 for each in node.attribute)
        for node in net.model().graph.node
    )


def _constants(net: RandomNet) -> dict[str, npt.NDArray[Any]]:
    graph = net.model().graph
    found = {each.name: each for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = node.attribute[0].t
    return {name: numpy_helper.to_array(each) for name, each in found.items()}


def _has_few_values(net: RandomNet) -> bool:
    """Whether some tensor has few numbers, or one, wherever the samples have which."""
    return any(
        node.op_type in _FEW_VALUES
        or (node.op_type in _CANCELLING and len(set(node.input)) < len(node.input))
        for node in net.model().graph.node
    )

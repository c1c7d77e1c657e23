"""What random nets are known to find: each with its reason, so that anything else is new."""

from __future__ import annotations

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
_NORMALIZATIONS = {"InstanceNormalization", "LayerNormalization"}


def is_known(net: RandomNet, finding: Finding) -> bool:
    """Whether a finding is one of those below."""
    target, name = finding.pair
    operators = {node.op_type for node in net.model().graph.node}
    if name == "onnx_qdq" and finding.kind == "bits":
        share = 1.0 if _has_few_values(net) else _RARE.get(target, -1.0)
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
    if name == "openvino" and "signal" in finding.text:
        # OpenVINO ends with a signal where its MVN, which normalizations become, is limited to
        # AVX2 on processors that have more.
        return bool(operators & _NORMALIZATIONS)
    return False


def _has_few_values(net: RandomNet) -> bool:
    """Whether some tensor has few numbers, or one, wherever the samples have which."""
    return any(
        node.op_type in _FEW_VALUES
        or (node.op_type in _CANCELLING and len(set(node.input)) < len(node.input))
        for node in net.model().graph.node
    )

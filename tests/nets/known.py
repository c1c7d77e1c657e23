"""What random nets are known to find: each with its reason, so that anything else is new."""

from __future__ import annotations

from tests.nets.findings import Finding
from tests.nets.nets import Net

_RARE = {"tensorrt": 0.01, "tvm": 0.2, "integer-pow2": 0.4, "vta": 0.4}
"""The share of a small tensor's codes that may be one step off where ONNX Runtime computes a file
for other hardware: it adds float biases, and rounds ties to even. Where scales are powers of two
every second sum is a tie."""

_NORMALIZATIONS = {"InstanceNormalization", "LayerNormalization"}


def is_known(net: Net, finding: Finding) -> bool:
    """Whether a finding is one of those below."""
    target, name = finding.pair
    if name == "onnx_qdq" and finding.kind == "bits":
        return finding.largest <= 1 and finding.share <= _RARE.get(target, -1.0)
    if name == "openvino" and "signal" in finding.text:
        # OpenVINO ends with a signal where its MVN, which normalizations become, is limited to
        # AVX2 on processors that have more.
        return any(each.operator in _NORMALIZATIONS for each in net.instructions)
    return False

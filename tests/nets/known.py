"""What random nets are known to find: each with its reason, so that anything else is new."""

from __future__ import annotations

from tests.nets.findings import Finding
from tests.nets.nets import Net

_BY_ORT = ("onnxruntime", "onnxruntime-avx2")
_NORMALIZATIONS = {"InstanceNormalization", "LayerNormalization"}


def is_known(net: Net, finding: Finding) -> bool:
    """Whether a finding is one of those below."""
    target, name = finding.pair
    if name == "onnx_qdq" and target not in _BY_ORT and finding.kind in ("bits", "agreement"):
        # ONNX Runtime rounds ties to even and adds float biases, which these targets do not.
        return True
    if target == "openvino-avx2":
        # OpenVINO ends with a signal where its MVN, which normalizations become, is limited to
        # AVX2 on processors that have more.
        operators = {each.operator for each in net.instructions}
        return "signal" in finding.text and bool(operators & _NORMALIZATIONS)
    return False

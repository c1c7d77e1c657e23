"""What random nets are known to find: each with its reason, so that anything else is new."""

from __future__ import annotations

from tests.nets.findings import Finding
from tests.nets.nets import Net

_BY_ORT = ("onnxruntime", "onnxruntime-avx2")


def is_known(_net: Net, finding: Finding) -> bool:
    """Whether a finding is one of those below."""
    target, name = finding.pair
    if name == "onnx_qdq" and target not in _BY_ORT and finding.kind in ("bits", "agreement"):
        # ONNX Runtime rounds ties to even and adds float biases, which these targets do not.
        return True
    # ncnn refuses some float layers only when it loads them.
    return name == "ncnn" and finding.kind == "refused by the runtime"

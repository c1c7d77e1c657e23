"""What random nets are known to find: each with its reason, so that anything else is new."""

from __future__ import annotations

from tests.nets.findings import Finding
from tests.nets.nets import Net

_BY_ORT = ("onnxruntime", "onnxruntime-avx2")


def is_known(net: Net, finding: Finding) -> bool:
    """Whether a finding is one of those below."""
    target, name = finding.pair
    if name == "onnx_qdq" and target not in _BY_ORT and finding.kind in ("bits", "agreement"):
        # ONNX Runtime rounds ties to even and adds float biases, which these targets do not.
        return True
    if "MatMulIntegerToFloat" in finding.text:
        # ONNX Runtime refuses zero points by channel of a weight [1, K, N].
        return True
    if target == "openvino-avx2":
        # OpenVINO ends with a signal where LayerNormalization is limited to AVX2, on processors
        # that have more; and what a MatMul hands to a convolution there has rare other codes.
        operators = {each.operator for each in net.instructions}
        ended = "signal" in finding.text and "LayerNormalization" in operators
        dense = finding.kind in ("bits", "agreement") and operators & {"MatMul", "Gemm", "Einsum"}
        return ended or bool(dense)
    # ncnn refuses some float layers only when it loads them.
    return name == "ncnn" and finding.kind == "refused by the runtime"

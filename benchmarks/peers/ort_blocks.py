"""Quantize weights with ONNX Runtime's tools: MODEL SAMPLES.npz OUTPUT SCHEME METHOD.

SAMPLES.npz has, for each input of the model, the values of all samples along a first axis. Schemes
are ``int4`` (blocks of 32, activations in float) and ``int4-dynamic`` (level 4), with the methods
``nearest`` and ``asymmetric``, ``kquant``, ``gptq`` and ``hqq`` (which needs torch) of
`MatMulNBitsQuantizer`; and ``int8-dynamic`` with the method ``dynamic``, which is
`quantize_dynamic`.
"""

import json
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort

# This folder holds scripts with names of packages.
sys.path.pop(0)

from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic
from onnxruntime.quantization import matmul_nbits_quantizer as nbits

_BLOCK = 32


class _Reader(CalibrationDataReader):
    def __init__(self, samples: "dict[str, np.ndarray]") -> None:
        count = len(next(iter(samples.values())))
        self._left = iter([{name: all_[i] for name, all_ in samples.items()} for i in range(count)])

    def get_next(self) -> "dict[str, np.ndarray] | None":
        return next(self._left, None)

    def __iter__(self) -> "_Reader":
        return self

    def __next__(self) -> "dict[str, np.ndarray]":
        return next(self._left)

    def __deepcopy__(self, memo: object) -> "_Reader":
        return self


def _algorithm(method: str, samples_path: str) -> "nbits.WeightOnlyQuantConfig":
    if method == "kquant":
        return nbits.KQuantWeightOnlyQuantConfig()
    if method == "gptq":
        reader = _Reader(dict(np.load(samples_path)))
        return nbits.GPTQWeightOnlyQuantConfig(reader, block_size=_BLOCK)
    if method == "hqq":
        return nbits.HQQWeightOnlyQuantConfig(block_size=_BLOCK, bits=4)
    return nbits.DefaultWeightOnlyQuantConfig(
        block_size=_BLOCK,
        is_symmetric=method == "nearest",
        op_types_to_quantize=("MatMul", "Gather"),
    )


def main() -> None:
    """Read, quantize, write; print the seconds that took."""
    model_path, samples_path, output, scheme, method = sys.argv[1:]
    start = time.perf_counter()
    if method == "dynamic":
        quantize_dynamic(model_path, output, per_channel=True, weight_type=QuantType.QInt8)
    else:
        level = 4 if scheme == "int4-dynamic" else 0
        algorithm = _algorithm(method, samples_path)
        algorithm.accuracy_level = level
        quantizer = nbits.MatMulNBitsQuantizer(
            onnx.load(model_path),
            block_size=_BLOCK,
            is_symmetric=method == "nearest",
            accuracy_level=level,
            algo_config=algorithm,
        )
        quantizer.process()
        onnx.save(quantizer.model.model, output)
    seconds = time.perf_counter() - start
    print(json.dumps({"version": ort.__version__, "seconds": seconds}))


if __name__ == "__main__":
    main()

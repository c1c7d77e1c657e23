"""Quantize an ONNX model with ONNX Runtime's tool: MODEL SAMPLES.npy OUTPUT BITS METHOD.

Method ``minmax`` is what its documentation recommends for a CPU: pre-processing, QDQ, unsigned
8-bit activations, signed 8-bit weights by channel; other settings as they are.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

# This folder holds scripts with names of packages.
sys.path.pop(0)

from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

_METHODS = {"minmax": CalibrationMethod.MinMax, "entropy": CalibrationMethod.Entropy}


class _Reader(CalibrationDataReader):
    def __init__(self, name: str, samples: np.ndarray) -> None:
        self._left = iter([{name: sample[None]} for sample in samples])

    def get_next(self) -> "dict[str, np.ndarray] | None":
        return next(self._left, None)


def main() -> None:
    """Read, quantize, write; print the seconds that took."""
    model_path, samples_path, output, bits, method = sys.argv[1:]
    if bits not in ("W8A8", "tensor"):
        sys.exit(f"the peer script of ONNX Runtime has no {bits}")
    start = time.perf_counter()
    samples = np.load(samples_path)
    source = Path(model_path).resolve()
    prepared = Path(output).resolve().with_suffix(".prepared.onnx")
    with contextlib.chdir(prepared.parent):  # it leaves files where it runs
        try:
            quant_pre_process(source, prepared)
        except Exception:  # as its documentation advises where symbols stay unknown
            quant_pre_process(source, prepared, skip_symbolic_shape=True)
    session = ort.InferenceSession(prepared, providers=["CPUExecutionProvider"])
    quantize_static(
        prepared,
        output,
        _Reader(session.get_inputs()[0].name, samples),
        quant_format=QuantFormat.QDQ,
        per_channel=bits != "tensor",
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=_METHODS[method],
    )
    seconds = time.perf_counter() - start
    print(json.dumps({"version": ort.__version__, "seconds": seconds}))


if __name__ == "__main__":
    main()

"""Quantize an ONNX model with Quark: MODEL SAMPLES.npy OUTPUT BITS METHOD.

Methods: ``plain``, ``adaround`` (its own defaults: equalization, then learned rounding) and
``adaround-N`` with N steps.
"""

import sys

import numpy as np

# This folder holds scripts with names of packages.
sys.path.pop(0)

from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

_BITS = ("W8A8", "tensor")


class _Reader(CalibrationDataReader):
    def __init__(self, name: str, samples: np.ndarray) -> None:
        self._feeds = [{name: sample[None]} for sample in samples]
        self._left = iter(self._feeds)

    def get_next(self) -> "dict[str, np.ndarray] | None":
        return next(self._left, None)

    def reset_iter(self) -> None:
        self._left = iter(self._feeds)


def main() -> None:
    """Read, quantize, write."""
    import onnx

    model_path, samples_path, output, bits, method = sys.argv[1:]
    if bits not in _BITS:
        sys.exit(f"Quark has no {bits} for ONNX: its types are of 8 bits and more")
    samples = np.load(samples_path)
    name = onnx.load(model_path).graph.input[0].name
    learned = method.startswith("adaround")
    config = get_default_config("S8S8_AAWS_ADAROUND" if learned else "S8S8_AAWS")
    config.per_channel = bits != "tensor"
    if learned:
        tuned = config.extra_options["FastFinetune"]
        tuned["DataSize"] = len(samples)
        tuned["NumIterations"] = int(method.partition("-")[2] or tuned["NumIterations"])
    quantizer = ModelQuantizer(Config(global_quant_config=config))
    quantizer.quantize_model(model_path, output, _Reader(name, samples))


if __name__ == "__main__":
    main()

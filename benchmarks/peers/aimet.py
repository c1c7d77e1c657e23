"""Quantize an ONNX model with AIMET: MODEL SAMPLES.npy OUTPUT BITS METHOD.

Methods: ``plain``, ``cle`` (cross-layer equalization first), ``adaround`` (learned rounding, 10,000
steps a layer as by default) or ``adaround-N`` with N steps.
"""

import sys

import numpy as np
import onnx

# This folder holds scripts with names of packages.
sys.path.pop(0)

import aimet_onnx
from aimet_onnx import QuantizationSimModel
from aimet_onnx.common.quantsim_config.utils import (
    get_path_for_per_tensor_config,
)
from aimet_onnx.cross_layer_equalization import equalize_model

_BITS = {"W8A8": (8, 8), "tensor": (8, 8), "W4A8": (4, 8), "W4A4": (4, 4)}
_BATCH = 32


def main() -> None:
    """Read, quantize, write."""
    model_path, samples_path, output, bits, method = sys.argv[1:]
    if bits not in _BITS:
        sys.exit(f"AIMET has no {bits}")
    weight_bits, activation_bits = _BITS[bits]
    model, samples = onnx.load(model_path), np.load(samples_path)
    name = model.graph.input[0].name
    batches = [{name: samples[at : at + _BATCH]} for at in range(0, len(samples), _BATCH)]
    if method == "cle":
        equalize_model(model)
    sim = QuantizationSimModel(
        model,
        param_type=f"int{weight_bits}",
        activation_type="int8",
        quant_scheme="tf_enhanced",
        config_file=get_path_for_per_tensor_config() if bits == "tensor" else None,
        dummy_input={name: samples[:1]},
        providers=["CPUExecutionProvider"],
    )
    if activation_bits < 8:
        for each in sim.get_all_quantizers()[1]:
            each.set_bitwidth(activation_bits)
    if method.startswith("adaround"):
        steps = int(method.partition("-")[2] or 10_000)
        aimet_onnx.apply_adaround(sim, batches, steps)
    sim.compute_encodings(batches)
    onnx.save(sim.to_onnx_qdq(), output)


if __name__ == "__main__":
    main()

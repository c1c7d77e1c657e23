"""Quantize an ONNX model with NNCF: MODEL SAMPLES.npy OUTPUT BITS METHOD.

Methods: ``fast`` (fast bias correction, its default), ``full`` (bias correction layer by layer) and
``accuracy`` (layers go back to float until the answers agree with the float model's on 99 % of
the samples: there are no labels). NNCF has 8 bits only; ``W7A8`` are those that leave a bit of
every weight unused, for processors whose sums of two products saturate.
"""

import json
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort

# This file has the name of the package: its folder must not be searched for it.
sys.path.pop(0)

import nncf
from nncf.quantization.advanced_parameters import (
    AdvancedQuantizationParameters,
    OverflowFix,
    QuantizationParameters,
)

_ALLOWED_DISAGREEMENT = 0.01


def main() -> None:
    """Read, quantize, write; print the seconds that took."""
    model_path, samples_path, output, bits, method = sys.argv[1:]
    if bits not in ("W8A8", "W7A8", "tensor"):
        sys.exit(f"NNCF has no {bits} for ONNX")
    start = time.perf_counter()
    model, samples = onnx.load(model_path), np.load(samples_path)
    name = model.graph.input[0].name
    weights = QuantizationParameters(per_channel=False) if bits == "tensor" else None
    advanced = AdvancedQuantizationParameters(
        weights_quantization_params=weights,
        overflow_fix=OverflowFix.ENABLE if bits == "W7A8" else None,
    )
    dataset = nncf.Dataset([sample[None] for sample in samples], lambda sample: {name: sample})
    common = {"subset_size": len(samples), "fast_bias_correction": method != "full"}
    if method != "accuracy":
        made = nncf.quantize(model, dataset, advanced_parameters=advanced, **common)
    else:
        session = ort.InferenceSession(model_path)
        answers = [int(session.run(None, {name: x[None]})[0].argmax()) for x in samples]
        pairs = nncf.Dataset(list(zip(samples, answers, strict=True)), lambda pair: pair[0])

        def agreement(tried, _):
            other = ort.InferenceSession(tried.SerializeToString())
            right = [
                float(int(other.run(None, {name: x[None]})[0].argmax()) == answer)
                for x, answer in zip(samples, answers, strict=True)
            ]
            return float(np.mean(right)), right

        made = nncf.quantize_with_accuracy_control(
            model,
            dataset,
            pairs,
            agreement,
            max_drop=_ALLOWED_DISAGREEMENT,
            advanced_quantization_parameters=advanced,
            **common,
        )
    onnx.save(made, output)
    print(json.dumps({"version": nncf.__version__, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()

"""One image classifier for ONNX Runtime, OpenVINO, LiteRT and ncnn, from one calibration.

    pip install "intact-quantizer[openvino,tflite,ncnn]"
    python examples/classifier_four_runtimes.py
    python examples/classifier_four_runtimes.py --model my.onnx --data photos/ --test test/ \
        --normalize imagenet

Without options it takes the digits that come with intact. The samples are read once; each runtime
gets a model that its own rules decide, and each is run and compared with the integers of its plan.
The same on the command line:

    intact quantize model.onnx --data photos/ --target onnxruntime --target openvino \
        --target tflite --target ncnn -o out/classifier
    intact verify out/classifier --data test/
"""

from __future__ import annotations

import argparse

import intact
from intact import demo

TARGETS = ("onnxruntime", "openvino", "tflite", "ncnn")  # all of them: intact targets


def main() -> None:
    """Quantize for four runtimes, run all four, print what each gives."""
    options = arguments()

    # 1. One pass over the samples, a folder for each runtime.
    results = intact.quantize_for(
        options.model,
        options.data,
        targets=TARGETS,
        normalize=options.normalize,
        output=options.output,
    )
    for target, error in results.refused.items():
        print(f"{target} cannot take this model: {error}")

    # 2. Each written model runs in its runtime, and each layer is compared with the integer engine.
    print(f"{'target':12} {'top-1, %':>9} {'values':>12} {'differ':>7} {'size':>6}  runtime")
    for found in intact.verify_all(options.output, options.test, samples=options.samples):
        if found.refused:  # the package of the runtime is not installed, say
            print(f"{found.target:12} {found.refused}")
            continue
        values = sum(layer.values for layer in found.layers)
        differ = sum(layer.mismatches for layer in found.layers)
        top1 = "-" if found.top1 is None else f"{found.top1[0]:.2f}"  # without labels
        float_bytes, deployed = results[found.target].sizes()
        size = f"{deployed / float_bytes:.0%}"
        print(f"{found.target:12} {top1:>9} {values:12,} {differ:7,} {size:>6}  {found.runtime}")

    # 3. What the float model gives on the same samples.
    first = next(iter(results.values()))
    evaluation = intact.evaluate(first, options.test, samples=options.samples)
    if evaluation.accuracy is not None:
        print(f"{'float':12} {evaluation.accuracy.top1[0]:9.2f}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="One classifier for four runtimes.")
    parser.add_argument("--model", default=demo.model_path(), help="a float .onnx")
    parser.add_argument("--data", default=demo.calibration_path(), help="samples to calibrate on")
    parser.add_argument("--test", default=demo.test_path(), help="others, with labels")
    parser.add_argument("--normalize", help="imagenet, imagenet-caffe, 0..1 or -1..1")
    parser.add_argument("--samples", type=int, default=200, help="of the test")
    parser.add_argument("--output", default="out/classifier", help="folder for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""An ONNX model for TensorFlow Lite with weights of few bits, trained to win back what is lost.

    python examples/finetune_onnx_to_tflite.py

No training code and no labels are needed: the float model is the teacher. The same on the command
line:

    intact quantize model.onnx --data images.npz --target tflite --weight-bits 3 -o out/quantized
    intact train out/quantized --data images.npz --epochs 20 -o out/finetuned
    intact evaluate out/finetuned --data test.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import intact
from intact import demo


def main() -> None:
    """Quantize, train, compare."""
    options = arguments()

    # Your own: the path of an ONNX model, and images or arrays as it takes them (docs/data.md).
    model = demo.model_path()
    with np.load(demo.calibration_path()) as file:
        images = {"image": file["image"][: options.samples]}  # without labels
    test = demo.test_path()  # an .npz with images and labels

    quantized = intact.quantize(model, images, target="tflite", weight_bits=options.weight_bits)
    before = intact.evaluate(quantized, test)

    # A tenth of the samples is held out, and the epoch that loses least on them is kept.
    trained = intact.train(
        quantized, images, epochs=options.epochs, output=options.output, report=print
    )
    after = intact.evaluate(trained, test)

    for name, found in (("quantized", before), ("trained", after)):
        if found.accuracy is not None:  # there are labels
            print(f"{name}: {found.accuracy.top1[1]:.1f} % of the test images are right")
    for path in sorted(Path(options.output).glob("*.tflite")):
        print(f"{path}: {path.stat().st_size} bytes")
    print(intact.verify(trained, test))  # LiteRT's integers against those of the plan


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fine-tune a quantized ONNX model for TFLite.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=200, help="images to train on")
    parser.add_argument("--weight-bits", type=int, default=3)
    parser.add_argument("--output", default="out/finetuned", help="folder for the result")
    return parser.parse_args()


if __name__ == "__main__":
    main()

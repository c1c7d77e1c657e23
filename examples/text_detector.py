"""A detector, judged by a metric of its own: where is text in an image?

    pip install "intact-quantizer[image]"
    pip install --no-deps rapidocr-onnxruntime  # for the model alone
    python examples/text_detector.py
    python examples/text_detector.py --model text_detector.onnx --target openvino

The model is PP-OCRv4's text detector (Apache-2.0), as the package rapidocr-onnxruntime ships it: it
gives each pixel a probability; what makes boxes of these is code of yours, and so is the metric.
The images are drawn here, because then it is known where the text is: put yours in their place.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

import intact

SIDE, LINES = 320, 4  # pixels of an image, lines of text in it
WORDS = ("scale", "zero", "point", "range", "clip", "round", "shift", "layer", "weight", "bits")
PIXEL_IS_TEXT, BOX_IS_FOUND = 0.3, 0.5  # a probability; the overlap (IoU) with the true box
GROWTH = 1.6  # the model marks the core of a line only: PP-OCR grows what it finds by this ratio
SMALLEST = 20  # pixels


def main() -> None:
    """Quantize the detector, score both versions, compare the bits."""
    options = arguments()
    calibration, _ = draw_pages(options.samples, seed=0)
    pages, boxes = draw_pages(options.samples, seed=1)

    result = intact.quantize(
        options.model,
        {"x": calibration},
        target=options.target,
        normalize="-1..1",  # what the model was trained with
        output=options.output,
    )
    # What the data has under `labels...` comes to the metric, and never to the model.
    test = {"x": pages, "labels.boxes": boxes}
    found = intact.evaluate(result, test, metric=detections, batch=4)
    print(f"{'':10} {'float':>8} {options.target:>12}")
    for name, (before, after) in found.metrics.items():
        print(f"{name:10} {before:8.3f} {after:12.3f}")
    print(f"signal to quantization noise: {found.sqnr_db:.1f} dB")
    print(intact.verify(result, {"x": pages}, samples=1))


def detections(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> dict[str, float]:
    """Count the boxes that both a model and the truth have.

    Args:
        outputs: The model's, by name: the only one has probabilities [N, 1, rows, columns].
        references: ``labels.boxes``, [N, lines, 4]: left, top, right, bottom in pixels.
    """
    (maps,) = outputs.values()
    hits = found = 0
    for probabilities, truth in zip(maps, references["labels.boxes"], strict=True):
        boxes = boxes_of(probabilities[0])
        hits += sum(any(overlap(true, box) >= BOX_IS_FOUND for box in boxes) for true in truth)
        found += len(boxes)
    true = sum(len(truth) for truth in references["labels.boxes"])
    return {"recall": hits / true, "precision": hits / max(found, 1)}


def boxes_of(probabilities: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float64]]:
    """Return a box around each connected patch of text, grown as the model was trained for."""
    patches, _ = ndimage.label(probabilities > PIXEL_IS_TEXT)
    boxes = []
    for rows, columns in ndimage.find_objects(patches):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if height * width >= SMALLEST:
            edge = GROWTH * height * width / (2 * (height + width))
            box = columns.start - edge, rows.start - edge, columns.stop + edge, rows.stop + edge
            boxes.append(np.array(box))
    return boxes


def overlap(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Return the intersection over union of two boxes."""
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    common = float(np.prod(np.maximum(high - low, 0)))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (one, other)]
    return common / (sum(areas) - common)


def draw_pages(count: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    """Draw lines of words on shaded paper: images [N, 3, rows, columns], boxes [N, lines, 4]."""
    random = np.random.default_rng(seed)
    images, boxes = [], []
    for _ in range(count):
        shade = np.linspace(random.uniform(90, 255), random.uniform(90, 255), SIDE)
        paper = shade[:, None, None] + random.normal(0, 6, (SIDE, SIDE, 3))
        image = Image.fromarray(paper.clip(0, 255).astype(np.uint8))
        pen = ImageDraw.Draw(image)
        for line in range(LINES):
            font = ImageFont.load_default(random.uniform(16, 32))
            text = " ".join(random.choice(WORDS, 2))
            at = random.uniform(8, 40), 16 + line * SIDE // LINES + random.uniform(0, 20)
            pen.text(at, text, fill=(int(random.integers(60)),) * 3, font=font)
            boxes.append(pen.textbbox(at, text, font=font))
        images.append(np.asarray(image).transpose(2, 0, 1))
    return np.stack(images), np.reshape(boxes, (count, LINES, 4)).astype(np.float64)


def shipped_model() -> Path | None:
    """Return the detector in the installed package, or None."""
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Quantize a text detector.")
    parser.add_argument("--model", default=shipped_model(), help="a float .onnx")
    parser.add_argument("--target", default="onnxruntime", help="see: intact targets")
    parser.add_argument("--samples", type=int, default=16, help="pages to calibrate on, to test on")
    parser.add_argument("--output", default="out/text-detector", help="folder for the result")
    options = parser.parse_args()
    if options.model is None:
        sys.exit("no model: pip install --no-deps rapidocr-onnxruntime, or give --model FILE.onnx")
    return options


if __name__ == "__main__":
    main()

"""Draws what a detector finds in float, in int8, and in int8 with its decoding too, as an SVG.

    python benchmarks/detections_picture.py FOLDER [--net joined] [--target tflite]
        [--output docs/detectors.svg]

The net is one that `drawn_detectors.py` trained into FOLDER; images are drawn shapes, which the
picture draws again from their labels. Boxes with a score of 0.25 or more are shown.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import intact
from drawn_detectors import CLASSES, SIDE, Drawn, draw
from intact.data.detections import DetectionMetric
from intact.limits import CONFIDENT
from intact.numerics.detections import Detections

COLOURS = ("#c2410c", "#1d4ed8", "#15803d")
"""Of boxes, by class."""
WIDE, GAP, TOP = 2, 14, 26
"""Pixels for one of an image; between images; above them for a title."""


MOST, READABLE = 40, 8
"""Boxes of an image that are drawn; up to which each has its class and score beside it."""


def boxes_of(
    outputs: dict[str, npt.NDArray[Any]],
    in_float: dict[str, npt.NDArray[Any]],
    metric: DetectionMetric,
) -> list[Detections]:
    """Read the boxes that a user sees, as those of the float model are read."""
    found = metric.detections(outputs, in_float)
    return [each.at(each.scores >= CONFIDENT) for each in found]


def shape(kind: int, box: npt.NDArray[Any], x: float, y: float) -> str:
    """Draw one shape from its label."""
    left, top, right, bottom = (box * WIDE + [x, y, x, y]).round(1)
    fill = 'fill="#d6d3d1"'
    match CLASSES[kind]:
        case "circle":
            middle = f'cx="{(left + right) / 2}" cy="{(top + bottom) / 2}"'
            radii = f'rx="{(right - left) / 2:.1f}" ry="{(bottom - top) / 2:.1f}"'
            return f"<ellipse {middle} {radii} {fill}/>"
        case "triangle":
            points = f"{(left + right) / 2},{top} {right},{bottom} {left},{bottom}"
            return f'<polygon points="{points}" {fill}/>'
        case _:
            size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
            return f'<rect x="{left}" y="{top}" {size} {fill}/>'


def panel(drawn: Drawn, found: list[Detections], at: int, title: str) -> list[str]:
    """Draw a row of images with boxes, and the title over them."""
    y = at * (SIDE * WIDE + TOP + GAP) + TOP
    lines = [f'<text x="0" y="{y - 8}" font-size="14" fill="#1c1917">{title}</text>']
    for number, each in enumerate(found):
        x = number * (SIDE * WIDE + GAP)
        side = SIDE * WIDE
        lines.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="#44403c"/>')
        truth = zip(drawn.boxes[number], drawn.classes[number], strict=True)
        lines += [shape(int(kind), box, x, y) for box, kind in truth]
        best = each.at(np.argsort(-each.scores, kind="stable")[:MOST])
        for box, score, kind in zip(best.boxes, best.scores, best.classes, strict=True):
            left, top, right, bottom = (np.clip(box, 0, SIDE) * WIDE + [x, y, x, y]).round(1)
            colour = COLOURS[int(kind)]
            size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
            edge = f'fill="none" stroke="{colour}" stroke-width="2"'
            lines.append(f'<rect x="{left}" y="{top}" {size} {edge}/>')
            if len(each.scores) > READABLE:
                continue
            said = f"{CLASSES[int(kind)]} {score:.2f}"
            text = f'x="{left + 2}" y="{top + 10}" font-size="9" fill="#ffffff"'
            lines.append(f"<text {text}>{said}</text>")
    return lines


def main() -> None:
    """Quantize twice, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--net", default="joined")
    parser.add_argument("--target", default="tflite")
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("docs/detectors.svg"))
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    model, calibration = given.folder / f"{given.net}.onnx", draw(64, 1).images
    shown = draw(given.images, 3)
    results = [
        intact.quantize(model, {"image": calibration}, target=given.target, quantize_heads=undo)
        for undo in (False, True)
    ]
    metric = DetectionMetric.of_model(results[0].plan.graph)
    if metric is None:
        raise SystemExit(f"{given.net}: its outputs do not look like boxes and scores")
    feeds = {"image": shown.images}
    outputs = [intact.execute(results[0], feeds, executor="float").outputs]
    outputs += [intact.execute(each, feeds).outputs for each in results]
    kept = [boxes_of(each, outputs[0], metric) for each in outputs]
    counts = [sum(len(each.scores) for each in found) for found in kept]
    titles = (
        f"float: {counts[0]} boxes",
        f"int8 for {given.target}, decoding kept in float: {counts[1]} boxes",
        f"int8 for {given.target}, decoding in int8 too (--quantize-heads): {counts[2]} boxes",
    )
    width = given.images * (SIDE * WIDE + GAP) - GAP
    height = len(titles) * (SIDE * WIDE + TOP + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif">'
    ]
    for at, (title, found) in enumerate(zip(titles, kept, strict=True)):
        lines += panel(shown, found, at, title)
    given.output.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")
    print("\n".join(titles))


if __name__ == "__main__":
    main()

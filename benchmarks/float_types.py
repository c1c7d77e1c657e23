"""What each type of numbers costs and gains: float16 and int8, alone and together.

    python benchmarks/float_types.py [--models resnet20,vit] [--targets onnxruntime,tensorrt]
        [--detectors FOLDER] [--samples 128] [--json]

For each model and target four ways: ``float32``; ``float16`` (``--activations float --float
float16``); ``int8``; ``int8+16`` (integers, and float16 for what stays float). The figures are
signal to noise of the worst output, dB, beside the percent of float's best classes, or of its
detections for nets that `drawn_detectors.py` trained into FOLDER; the size of the file; and the
time of one sample in the target's own runtime. TensorRT is simulated and has no times here. (A file
named `types.py` would hide the standard library's from all scripts of this folder.)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import intact
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.data.detections import KEPT, DetectionMetric
from intact.data.sources import open_samples
from intact.errors import IntactError
from intact.results.result import Result
from zoo import CALIBRATION, MODELS, TEST

TARGETS = ("onnxruntime", "openvino", "tensorrt")
HALF = {"float_type": "float16"}
WAYS: dict[str, dict[str, Any]] = {
    "float16": {"activations": "float", **HALF},
    "int8": {},
    "int8+16": HALF,
}


@dataclass(frozen=True)
class Case:
    """A model with its samples."""

    name: str
    model: Path
    calibration: dict[str, Any]
    test: dict[str, Any]
    is_detector: bool = False


@dataclass
class Row:
    """One model on one target in one way; milliseconds are of one sample."""

    model: str
    target: str
    way: str
    decibels: float | None = None
    agreement: float | None = None
    kilobytes: float | None = None
    milliseconds: float | None = None
    said: str = ""


def zoo_cases(names: list[str], count: int) -> Iterator[Case]:
    """Yield classifiers of the zoo on CIFAR-10."""
    for model in (each for each in MODELS if each.name in names):
        images = [
            np.asarray(model.preprocess("image", np.load(file)["image"][:count]), np.float32)
            for file in (CALIBRATION, TEST)
        ]
        yield Case(model.name, model.path, {"image": images[0]}, {"image": images[1]})


def drawn_cases(folder: Path, count: int) -> Iterator[Case]:
    """Yield the detectors that lie in a folder, on drawn images."""
    from drawn_detectors import NETS, draw  # which needs torch

    for name in (each for each in NETS if (folder / f"{each}.onnx").exists()):
        images = [draw(min(count, 64), seed).images for seed in (1, 2)]
        model = folder / f"{name}.onnx"
        yield Case(name, model, {"image": images[0]}, {"image": images[1]}, is_detector=True)


def measure(case: Case, target: str) -> Iterator[Row]:
    """Quantize a model in all ways; the first row is the float model's."""
    in_float = Row(case.name, target, "float32", kilobytes=case.model.stat().st_size / 1000)
    rows = []
    for way, options in WAYS.items():
        row = Row(case.name, target, way)
        rows.append(row)
        try:
            result = intact.quantize(
                case.model, dict(case.calibration), target=target, threads=1, **options
            )
            times = fill(row, result, case)
        except IntactError as error:
            row.said = str(error)
            continue
        in_float.milliseconds = in_float.milliseconds or times
    return iter([in_float, *rows])


def fill(row: Row, result: Result, case: Case) -> float | None:
    """Evaluate a result; return the milliseconds of the float model."""
    metric = None
    if case.is_detector:
        metric = DetectionMetric.of_model(result.plan.graph)
    samples = open_samples(case.test, result.plan.graph)
    found = evaluate_result(
        result, samples, metric=metric, timed=row.target != "tensorrt", batch=32, threads=1
    )
    levels = [each.sqnr_db for each in found.outputs.values()] or [found.sqnr_db]
    row.decibels = min(each for each in levels if not math.isnan(each))
    row.agreement = found.metrics[KEPT][1] if case.is_detector else found.agreement
    row.kilobytes = result.sizes()[1] / 1000
    if found.latency_ms is None:
        return None
    before, row.milliseconds = found.latency_ms
    return before


def show(rows: list[Row]) -> None:
    """Print the table, then what was refused."""
    table = Table("model", "target", "type", "dB", "same answers %", "kB", "ms")
    for row in rows:
        figures = (row.decibels, row.agreement, row.kilobytes)
        shown = ["-" if each is None else f"{each:.1f}" for each in figures]
        spent = "-" if row.milliseconds is None else f"{row.milliseconds:.2f}"
        table.add_row(row.model, row.target, row.way, *shown, spent)
    Console(width=100).print(table)
    for row in (each for each in rows if each.said):
        print(f"{row.model}, {row.target}, {row.way}: {row.said}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet20,mobilenetv2,vit")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--detectors", type=Path, help="where drawn_detectors.py has trained nets")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    cases = [*zoo_cases(given.models.split(","), given.samples)]
    cases += [] if given.detectors is None else drawn_cases(given.detectors, given.samples)
    rows: list[Row] = []
    for case in cases:
        for target in given.targets.split(","):
            rows += measure(case, target)
            print(".", end="", file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1)) if given.json else show(rows)


if __name__ == "__main__":
    main()

"""One calibration, every runtime: does each compute what its plan says, and as accurately?

    python benchmarks/targets.py [--models a,b] [--targets a,b] [--images 2000]
        [--calibration 512] [--json]

Each model is observed once; plans for all targets follow from that. What is written of each is run
in its real runtime on images that calibration did not see: layers are compared alone with the
integer engine, on the runtime's own integers; agreement and top-1 are from end to end. The
simulator's and the float model's top-1 are of the same images. mlperf_vww has no images here: it is
fed random ones, and agreement is all that they tell. TensorRT has no runtime here: its row is ONNX
Runtime's, beside the documented rules. Tengine has none either: its row is the integer engine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import intact
from intact.engines.cpu import detect_cpu
from intact.errors import ExportError, IntactError
from intact.formats.base.report import Verification
from intact.graph import load_model
from intact.results.result import Result
from zoo import MODELS, PIXELS, TEST, ZooModel, calibration_images

CNNS = (*(model for model in MODELS if model.is_cnn), ZooModel("mlperf_vww", PIXELS))
DEPLOYED: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("onnx_qdq",),
    "openvino": ("openvino",),
    "openvino-avx2": ("openvino",),
    "ncnn": ("ncnn",),
    "tflite": ("tflite",),
    "tflite-xnnpack": ("tflite",),
    "tflite-micro": ("c",),
    "integer-pow2": ("onnx_integer", "c"),
    "tvm": ("tvm", "onnx_integer"),
    "tensorrt": ("tensorrt",),
    "tengine": (),
}
"""The formats of each target that are run; none where the integer engine alone computes it."""
MOST_POINTS = 0.3
"""How far the top-1 of a runtime may be from the simulator's."""
THREADS = 2

Images = npt.NDArray[np.float32]


@dataclass
class Row:
    """One deployed model in its runtime.

    Attributes:
        model: Which.
        target: For what.
        format: As what.
        runtime: What ran it, with its version.
        layers: Layers compared.
        values: Values compared.
        differ: How many differ.
        most: By how many steps at most.
        in_float: Nodes planned for integers that run in float.
        agreement: Share of images of which runtime and engine decide alike, percent.
        top1: Of runtime, simulator and float model, percent; None without labels.
        seconds: What verifying took.
    """

    model: str
    target: str
    format: str
    runtime: str
    layers: int
    values: int
    differ: int
    most: float
    in_float: int
    agreement: float | None
    top1: tuple[float, float, float] | None
    seconds: float

    @property
    def is_close(self) -> bool:
        """Whether the runtime is as accurate as the simulator."""
        if self.top1 is None:
            return True
        return round(abs(self.top1[0] - self.top1[1]), 6) <= MOST_POINTS


def test_data(model: ZooModel, count: int) -> tuple[Images, npt.NDArray[np.int64] | None]:
    """Return preprocessed images and their labels."""
    if model.name == "mlperf_vww":
        return np.random.default_rng(5).random((min(count, 100), 3, 96, 96), np.float32), None
    with np.load(TEST) as data:
        images, labels = data["image"][:count], data["labels"][:count]
    return np.asarray(model.preprocess("image", images), np.float32), labels


def observed(model: ZooModel, targets: list[str], count: int) -> dict[str, Result]:
    """Return a result for each target, of one pass over the images."""
    name = str(load_model(model.path).graph.inputs[0].name)
    if model.name == "mlperf_vww":
        images = np.random.default_rng(6).random((100, 3, 96, 96), np.float32)
    else:
        images = calibration_images(model, count)
    return intact.quantize_for(
        model.path, {name: images}, targets=targets, formats=["encodings"], threads=THREADS
    )


def top1(result: Result, images: Images, labels: npt.NDArray[np.int64], executor: str) -> float:
    """Return how often an executor is right, percent."""
    name = str(result.plan.graph.inputs[0].name)
    found = intact.execute(result, {name: images}, executor=executor, batch=100, threads=THREADS)
    scores = next(iter(found.outputs.values()))
    return 100.0 * float((scores.reshape(len(labels), -1).argmax(axis=1) == labels).mean())


def compared(models: list[ZooModel], targets: list[str], images: int, count: int) -> Iterator[Row]:
    """Yield one row for each model, target and format."""
    for model in models:
        pixels, labels = test_data(model, images)
        results = observed(model, targets, count)
        in_float = None
        for target, result in results.items():
            simulated = None
            if labels is not None:
                simulated = top1(result, pixels, labels, "simulate")
                in_float = in_float or top1(result, pixels, labels, "float")
            for name in DEPLOYED[target] or (None,):
                started = time.perf_counter()
                try:
                    found = run(result, name, pixels, labels)
                except ExportError as error:
                    print(f"{model.name} for {target} as {name}: {error}", file=sys.stderr)
                    continue
                yield row(model.name, found, simulated, in_float, time.perf_counter() - started)


def run(
    result: Result, name: str | None, pixels: Images, labels: npt.NDArray[np.int64] | None
) -> Verification:
    """Write a plan in a format and verify it; without a format, run the engine alone."""
    key = str(result.plan.graph.inputs[0].name)
    if name is None:
        found = Verification(result.plan.target.name, "integer engine", detect_cpu(), 0, [])
        if labels is not None:
            accuracy = top1(result, pixels, labels, "integer")
            found.top1 = accuracy, accuracy
        return found
    written = intact.export(result, formats=[name])
    data: dict[str, Any] = {key: pixels} if labels is None else {key: pixels, "labels": labels}
    return intact.verify(written, data, deployed=name, samples=len(pixels))


def row(
    model: str,
    found: Verification,
    simulated: float | None,
    in_float: float | None,
    seconds: float,
) -> Row:
    """Return what the table says of one verification."""
    layers = found.layers or found.outputs
    accuracy = None
    if found.top1 is not None and simulated is not None and in_float is not None:
        accuracy = found.top1[0], simulated, in_float
    return Row(
        model,
        found.target,
        found.format or "-",
        found.runtime,
        len(found.layers),
        sum(each.values for each in layers),
        sum(each.mismatches for each in layers),
        max((each.largest for each in layers), default=0.0),
        len(found.float_nodes) + len(found.in_float),
        found.agreement,
        accuracy,
        seconds,
    )


def cells(each: Row) -> tuple[str, ...]:
    """Return a row as text."""
    top = ("-", "-", "-", "-")
    if each.top1 is not None:
        deployed, simulated, in_float = each.top1
        top = (
            f"{deployed:.2f}",
            f"{simulated:.2f}",
            f"{deployed - simulated:+.2f}",
            f"{in_float:.2f}",
        )
    return (
        each.model,
        each.target,
        each.format,
        each.runtime,
        str(each.layers) if each.layers else "outputs" if each.values else "-",
        f"{each.values:,}",
        f"{each.differ:,}",
        f"{each.most:g}",
        str(each.in_float),
        "-" if each.agreement is None else f"{each.agreement:.2f}",
        *top,
        f"{each.seconds:.0f}",
    )


def chosen(given: str, known: list[str]) -> list[str]:
    """Return the names of a list that the caller wants."""
    names = given.split(",")
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def main() -> None:
    """Print one table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(model.name for model in CNNS))
    parser.add_argument("--targets", default=",".join(DEPLOYED))
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--calibration", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    models = chosen(arguments.models, [model.name for model in CNNS])
    targets = chosen(arguments.targets, list(DEPLOYED))
    cpu = detect_cpu()
    table = Table(title=f"one calibration, every runtime, {cpu.name} ({cpu.instruction_set})")
    for heading in ("model", "target", "format", "runtime"):
        table.add_column(heading)
    for heading in (
        *("layers", "values", "differ", "most", "in float", "agree %"),
        *("top-1", "simulator", "points", "float model", "s"),
    ):
        table.add_column(heading, justify="right")
    rows = []
    wanted = [model for model in CNNS if model.name in models]
    for each in compared(wanted, targets, arguments.images, arguments.calibration):
        rows.append(each)
        table.add_row(*cells(each))
        print(" ".join(cells(each)), file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps([asdict(each) for each in rows]))
    else:
        Console(width=None if sys.stdout.isatty() else 240).print(table)
    far = [f"{each.model} in {each.runtime}" for each in rows if not each.is_close]
    if far:
        sys.exit(f"further than {MOST_POINTS} points from the simulator: {', '.join(far)}")


if __name__ == "__main__":
    try:
        main()
    except IntactError as error:
        sys.exit(f"error: {error}")

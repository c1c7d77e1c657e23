"""The integer engine against the runtimes, on the zoo: every value, layer by layer.

    python benchmarks/verification.py [--models a,b] [--images 256] [--calibration 256]
        [--parts onnxruntime,tflite,xnnpack,read,micro,c,shifts] [--json]

Layers are compared alone: the engine computes each from the runtime's own integers, or where the
runtime hides them (XNNPACK) the runtime computes each from the engine's. Final outputs are compared
from end to end. The models are quantized for the target whose arithmetic the runtime has; ``read``
compares the files that others quantized, with both kinds of LiteRT's kernels. Images of CIFAR-10;
mlperf_vww and the files that were read are fed random ones, from fixed seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

import intact
from intact.engines.cpu import detect_cpu
from intact.engines.session import Feeds
from intact.errors import ExportError, IntactError
from intact.formats.base.report import Verification
from intact.formats.c.format import c_program
from intact.formats.c.run import verify_c
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.tflite.micro import verify_micro
from intact.formats.tflite.read import read_tflite_model
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_read_tflite, verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.graph import load_model
from intact.plan import QuantizedGraph
from intact.program.deployed import deployed_program
from intact.targets import load_target
from zoo import MODELS, PIXELS, TEST, ZOO, ZooModel, calibration_images

CNNS = (*(model for model in MODELS if model.is_cnn), ZooModel("mlperf_vww", PIXELS))
BATCH = 16
THREADS = 2


@dataclass
class Row:
    """One comparison.

    Attributes:
        model: What was compared.
        found: The outcome.
        seconds: What comparing took, quantizing not counted.
    """

    model: str
    found: Verification
    seconds: float


def random_images(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return images of 0..1, float32."""
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def has_images(model: ZooModel) -> bool:
    """Whether the zoo has images for a model."""
    return model.name != "mlperf_vww"


def test_images(model: ZooModel, count: int) -> np.ndarray:
    """Return preprocessed images that calibration did not see, [count, 3, height, width]."""
    if not has_images(model):
        return random_images((count, 3, 96, 96), 5)
    images = np.load(TEST)["image"][:count]
    return np.asarray(model.preprocess("image", images), np.float32)


def plan_for(model: ZooModel, target: str, count: int) -> QuantizedGraph:
    """Return a model's calibrated plan."""
    name = str(load_model(model.path).graph.inputs[0].name)
    if has_images(model):
        images = calibration_images(model, count)
    else:
        images = random_images((count, 3, 96, 96), 6)
    return intact.quantize(model.path, {name: images}, target=target, threads=THREADS).plan


def batches(name: str, images: np.ndarray) -> Iterator[Feeds]:
    """Cut images into batches."""
    for start in range(0, len(images), BATCH):
        yield {name: images[start : start + BATCH]}


def file_of(plan: QuantizedGraph) -> bytes:
    """Return a plan as a full-integer ``.tflite``."""
    return write_tflite(deployed_program(plan, float_operations=True))


def in_onnxruntime(plan: QuantizedGraph, feeds: Iterator[Feeds]) -> Verification:
    """Compare with ONNX Runtime's fused kernels."""
    return verify_qdq(plan, write_qdq(plan), feeds, threads=THREADS)


def in_litert(plan: QuantizedGraph, feeds: Iterator[Feeds]) -> Verification:
    """Compare with LiteRT's reference kernels."""
    return verify_tflite(plan, file_of(plan), feeds, Kernels.REF, threads=THREADS)


def in_xnnpack(plan: QuantizedGraph, feeds: Iterator[Feeds]) -> Verification:
    """Compare with XNNPACK."""
    return verify_tflite(plan, file_of(plan), feeds, Kernels.XNNPACK, threads=THREADS)


def in_micro(plan: QuantizedGraph, feeds: Iterator[Feeds]) -> Verification:
    """Compare with TensorFlow Lite Micro."""
    return verify_micro(plan, file_of(plan), feeds)


def in_c(plan: QuantizedGraph, feeds: Iterator[Feeds]) -> Verification:
    """Compare with the C program."""
    return verify_c(plan, c_program(plan), feeds)


PARTS: dict[str, tuple[str, Callable[[QuantizedGraph, Iterator[Feeds]], Verification]]] = {
    "onnxruntime": ("onnxruntime", in_onnxruntime),
    "tflite": ("tflite", in_litert),
    "xnnpack": ("tflite-xnnpack", in_xnnpack),
    "micro": ("tflite-micro", in_micro),
    "c": ("tflite-micro", in_c),
    "shifts": ("integer-pow2", in_c),
}
"""Target and comparison, by the part's name; ``read`` is one more."""


def compared(parts: list[str], models: list[str], images: int, count: int) -> Iterator[Row]:
    """Yield one row for each comparison."""
    plans: dict[tuple[str, str], QuantizedGraph] = {}
    for part in (name for name in PARTS if name in parts):
        target, compare = PARTS[part]
        for model in (model for model in CNNS if model.name in models):
            if (model.name, target) not in plans:
                plans[model.name, target] = plan_for(model, target, count)
            plan = plans[model.name, target]
            feeds = batches(str(plan.graph.inputs[0].name), test_images(model, images))
            started = time.perf_counter()
            try:
                found = compare(plan, feeds)
            except ExportError as error:  # a mean of 3 x 3 elements is no shift
                print(f"{model.name} for {target}: {error}", file=sys.stderr)
                continue
            yield Row(model.name, found, time.perf_counter() - started)
    if "read" in parts:
        for path in sorted((ZOO / "tflite").glob("*.tflite")):
            yield from read_file(path, images)


def read_file(path: Path, images: int) -> Iterator[Row]:
    """Compare a file that others quantized, with both kinds of kernels."""
    content = path.read_bytes()
    for target, kernels in (("tflite", Kernels.REF), ("tflite-xnnpack", Kernels.XNNPACK)):
        model = read_tflite_model(content, load_target(target))
        value = model.plan.graph.inputs[0]
        shape = [length for length in value.shape if isinstance(length, int)]
        codes = np.random.default_rng(3).integers(-128, 128, (images, *shape)).astype(np.int8)
        feeds = batches(str(value.name), codes)
        started = time.perf_counter()
        found = verify_read_tflite(model, content, feeds, kernels, threads=THREADS)
        yield Row(path.name, found, time.perf_counter() - started)


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text."""
    layers, outputs = row.found.layers, row.found.outputs
    values = sum(layer.values for layer in layers)
    wrong = sum(layer.mismatches for layer in layers)
    worst = max((layer.rate for layer in layers), default=0.0)
    return (
        row.model,
        row.found.target,
        row.found.runtime,
        str(row.found.samples),
        str(len(layers)) if layers else "-",
        f"{values:,}" if layers else "-",
        f"{wrong:,}" if layers else "-",
        f"{max((layer.largest for layer in layers), default=0):g}" if layers else "-",
        f"{worst:.4%}" if layers else "-",
        f"{sum(each.mismatches for each in outputs):,} of {sum(o.values for o in outputs):,}",
        str(len(row.found.not_compared)),
        f"{row.seconds:.1f}",
    )


def main() -> None:
    """Print one table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(model.name for model in CNNS))
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--calibration", type=int, default=256)
    parser.add_argument("--parts", default=",".join([*PARTS, "read"]))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    parts, models = arguments.parts.split(","), arguments.models.split(",")
    unknown = {*parts} - {*PARTS, "read"} | {*models} - {model.name for model in CNNS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    cpu = detect_cpu()
    table = Table(title=f"the integer engine against runtimes, {cpu.name} ({cpu.instruction_set})")
    for heading in ("model", "target", "runtime"):
        table.add_column(heading)
    for heading in (
        *("images", "layers", "values", "differ", "largest", "worst layer"),
        *("final outputs differ", "not compared", "s"),
    ):
        table.add_column(heading, justify="right")
    rows = []
    for row in compared(parts, models, arguments.images, arguments.calibration):
        rows.append(row)
        table.add_row(*cells(row))
        if sys.stderr.isatty():
            print(" ".join(cells(row)), file=sys.stderr)
    if arguments.json:
        print(json.dumps([{"model": r.model, **msgspec.to_builtins(r.found)} for r in rows]))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    try:
        main()
    except IntactError as error:
        sys.exit(f"error: {error}")

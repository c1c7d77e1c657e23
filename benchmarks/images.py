"""What a folder of images costs beside arrays, and what a bound on memory costs.

    python benchmarks/images.py [--images 512] [--repeats 5]

Three tables:

1. reading: in one process, in turn: a plain loop that decodes, resizes and scales one image after
   the other with Pillow and NumPy; the same images through ``open_samples``; medians, and the
   median of paired ratios. The floor is the loop's processor time over the number of cores.
2. command: ``intact quantize`` of a ResNet-50 as a whole process, from the folder and from an .npy
   of the same pixels, in turn; and its peak memory with a quarter of the images and with all.
3. memory: ``collect`` on convolutions at 512 x 512 without a bound and with smaller and smaller
   ones: time, what the peak grows by (Linux), and that the statistics are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from resnet50 import build_resnet50
from zoo import CALIBRATION

MEAN, SCALE = (123.675, 116.28, 103.53), (0.0171, 0.0175, 0.0174)
SHORTER, CROP = 256, 224
BOUNDS = (None, 400, 200, 100)  # MiB
OPTIONS = (
    *("--mean", ",".join(map(str, MEAN)), "--scale", ",".join(map(str, SCALE))),
    *("--method", "minmax", "--samples", "1000000"),
)


def write_images(folder: Path, count: int) -> None:
    """Write JPEG files of 500 x 375 made of the zoo's small images."""
    folder.mkdir()
    with np.load(CALIBRATION) as calibration:
        images = calibration["image"]
    for number in range(count):
        tiles = [images[(number * 12 + k) % len(images)].transpose(1, 2, 0) for k in range(12)]
        rows = [np.concatenate(tiles[k : k + 4], axis=1) for k in (0, 4, 8)]
        picture = Image.fromarray(np.concatenate(rows)).resize((500, 375))
        picture.save(folder / f"{number:05}.jpg", quality=90)


def plain_loop(folder: Path) -> np.ndarray:
    """Read the images as a simple script would, [N, 3, 224, 224]."""
    ready = []
    for path in sorted(folder.iterdir()):
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        width, height = picture.size
        size = (SHORTER * width // height, SHORTER) if width > height else (SHORTER, SHORTER)
        picture = picture.resize(size, Image.Resampling.BILINEAR)
        left, top = (size[0] - CROP) // 2, (size[1] - CROP) // 2
        pixels = np.asarray(picture.crop((left, top, left + CROP, top + CROP)), np.float32)
        scaled = (pixels - np.float32(MEAN)) * np.float32(SCALE)
        ready.append(scaled.transpose(2, 0, 1))
    return np.stack(ready)


def print_reading(folder: Path, model: Path, repeats: int) -> None:
    """Table 1."""
    from intact.data.images.steps import ImageSteps
    from intact.data.preprocess import Preprocess
    from intact.data.sources import open_samples
    from intact.graph import normalize

    graph = normalize(model)
    steps = Preprocess(MEAN, SCALE, ImageSteps(shorter_side=SHORTER))

    def through_intact() -> np.ndarray:
        batches = open_samples(folder, graph, preprocess=steps).batches(32)
        return np.concatenate([batch["image"][:count] for batch, count in batches])

    jobs: dict[str, Callable[[], np.ndarray]] = {
        "loop": lambda: plain_loop(folder),
        "intact": through_intact,
    }
    wall: dict[str, list[float]] = {job: [] for job in jobs}
    processor: dict[str, list[float]] = {job: [] for job in jobs}
    first = {job: run() for job, run in jobs.items()}
    for _ in range(repeats):
        for job, run in jobs.items():
            start, used = time.perf_counter(), time.process_time()
            run()
            wall[job].append(time.perf_counter() - start)
            processor[job].append(time.process_time() - used)
    count = len(first["loop"])
    ratio = statistics.median(a / b for a, b in zip(wall["loop"], wall["intact"], strict=True))
    floor = statistics.median(processor["loop"]) / (os.cpu_count() or 1)
    table = Table(title=f"reading {count} JPEGs of 500 x 375")
    for heading in ("", "images / s", "CPU ms / image"):
        table.add_column(heading, justify="right")
    for job in jobs:
        cpu = 1e3 * statistics.median(processor[job]) / count
        table.add_row(job, f"{count / statistics.median(wall[job]):.0f}", f"{cpu:.2f}")
    Console(width=120).print(table)
    difference = float(np.abs(first["loop"] - first["intact"]).max())
    print(f"{ratio:.2f} x faster than the loop (paired median), largest difference {difference:g};")
    print(f"{statistics.median(wall['intact']) / floor:.2f} x the floor of {floor:.2f} s\n")


def quantize(model: Path, data: Path, *options: str) -> tuple[float, float]:
    """Run the command line; return seconds and peak MiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "intact", "quantize", str(model), "-d", str(data)]
        command += ["-o", f"{folder}/out", "--json", *OPTIONS, *options]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def print_commands(folder: Path, model: Path, count: int, repeats: int) -> None:
    """Table 2."""
    arrays = folder.parent / "pixels.npy"
    pixels = plain_loop(folder) / np.float32(SCALE).reshape(1, 3, 1, 1)
    np.save(arrays, np.rint(pixels + np.float32(MEAN).reshape(1, 3, 1, 1)).astype(np.uint8))
    steps = ("--shorter-side", str(SHORTER))
    runs: dict[str, list[tuple[float, float]]] = {"npy": [], "folder": [], "a quarter": []}
    for _ in range(repeats):
        runs["npy"].append(quantize(model, arrays))
        runs["folder"].append(quantize(model, folder, *steps))
        runs["a quarter"].append(quantize(model, folder, *steps, "--samples", str(count // 4)))
    table = Table(title=f"intact quantize resnet50, {count} images")
    for heading in ("data", "seconds", "peak MiB"):
        table.add_column(heading, justify="right")
    for name, found in runs.items():
        seconds, peak = (statistics.median(column) for column in zip(*found, strict=True))
        table.add_row(name, f"{seconds:.2f}", f"{peak:.0f}")
    Console(width=120).print(table)
    pairs = zip(runs["folder"], runs["npy"], strict=True)
    ratio = statistics.median(images[0] / array[0] for images, array in pairs)
    print(f"the folder takes {ratio:.2f} x as long as the array (paired median)\n")


def observe(bound: int | None) -> None:
    """Collect once in this process, and print what it took as JSON."""
    import onnx
    from onnx import helper, numpy_helper

    from intact.calibrate.collect import collect
    from intact.data.sources import open_samples
    from intact.graph import normalize

    generator = np.random.default_rng(0)
    nodes, weights, x = [], [], "image"
    for layer in range(10):
        weight = generator.normal(size=(16, 3 if layer == 0 else 16, 3, 3)).astype(np.float32) / 12
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(
            helper.make_node(
                "Conv", [x, f"w{layer}"], [f"c{layer}"], pads=[1] * 4, name=f"c{layer}"
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"], name=f"r{layer}"))
        x = f"r{layer}"
    ports = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", channels, 512, 512])
        for name, channels in (("image", 3), (x, 16))
    ]
    graph = normalize(
        helper.make_model(
            helper.make_graph(nodes, "large", ports[:1], ports[1:], weights),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
    )
    images = generator.standard_normal((12, 3, 512, 512), np.float32)
    tensors = [f"{kind}{layer}" for layer in range(10) for kind in "cr"]
    samples = open_samples({"image": images}, graph)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _peak()
    start = time.perf_counter()
    memory = None if bound is None else bound << 20
    found = collect(graph, samples, tensors, threads=2, max_memory=memory)
    seconds = time.perf_counter() - start
    growth = _peak() - before
    print(json.dumps({"seconds": seconds, "growth": growth, "hash": found.hash()}))


def _peak() -> float:
    """Return the peak resident memory of this process, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def print_memory(repeats: int) -> None:
    """Table 3."""
    table = Table(title="collect, 10 layers of 16 x 512 x 512, 2 threads")
    for heading in ("bound MiB", "seconds", "peak grows by MiB", "same statistics"):
        table.add_column(heading, justify="right")
    hashes = set()
    runs: dict[int | None, list[dict[str, float]]] = {bound: [] for bound in BOUNDS}
    for _ in range(repeats):
        for bound, found in runs.items():
            command = [sys.executable, __file__, "--observe", str(bound or 0)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.append(json.loads(output))
            hashes.add(found[-1].pop("hash"))
    for bound, found in runs.items():
        seconds, growth = (
            statistics.median(r[key] for r in found) for key in ("seconds", "growth")
        )
        same = "yes" if len(hashes) == 1 else "NO"
        table.add_row(str(bound or "none"), f"{seconds:.1f}", f"{growth:.0f}", same)
    Console(width=120).print(table)


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--observe", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.observe is not None:
        observe(arguments.observe or None)
        return
    with tempfile.TemporaryDirectory() as folder:
        photos, model = Path(folder) / "photos", Path(folder) / "resnet50.onnx"
        write_images(photos, arguments.images)
        build_resnet50(model)
        print_reading(photos, model, arguments.repeats)
        print_commands(photos, model, arguments.images, max(1, arguments.repeats // 2))
        print_memory(max(1, arguments.repeats // 2))


if __name__ == "__main__":
    main()

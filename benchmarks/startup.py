"""What a command costs as a whole process, and where its tenths of a second go.

    python benchmarks/startup.py [--models resnet20,...] [--repeats 7]
        [--parts commands,zoo,kl,breakdown]

Processes run in turn, so that a busy machine slows all of them alike; medians. Four tables:

1. commands: the floor (``import numpy, onnx, onnxruntime``), ``import intact; intact.quantize``,
   ``intact --help`` and ``intact targets``; seconds, and how many modules are loaded.
2. zoo: ``intact quantize`` with the target's own method against a process that does nothing but
   ONNX Runtime's ``quantize_static`` with min-max on the same data.
3. kl: ``intact quantize --method kl`` on MobileNetV2 against ONNX Runtime's entropy calibration:
   the call alone, without the start of its process.
4. breakdown: one ``intact quantize`` of each model by step, and its imports by package.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ZOO = Path(os.environ.get("INTACT_ZOO", Path(__file__).parents[2] / "shared" / "zoo"))
THREADS = 2
FLOOR = "import numpy, onnx, onnxruntime"
API = "import intact; intact.quantize"
MEAN, SCALE = (125.307, 122.961, 113.8575), (0.0158768, 0.0161050, 0.0149907)
PARTS = ("commands", "zoo", "kl", "breakdown")
SAMPLES = {
    "resnet20": 512,
    "mobilenetv2": 512,
    "mobilenetv2-raw": 512,
    "vit": 512,
    "mlperf_resnet8": 512,
    "mlperf_vww": 64,
    "efficientnet_lite1": 16,
}
NORMALIZED = ("resnet20", "mobilenetv2", "mobilenetv2-raw", "vit")
NO_CIFAR = {"mlperf_vww": (3, 96, 96), "efficientnet_lite1": (3, 224, 224)}
"""Models that get random numbers instead of images, and the shape of a sample."""

# All that the process of ONNX Runtime does: no module of ours, nothing that it can do without.
ONNXRUNTIME = """
import sys, time
import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static,
)
model, data, samples, method, mean, scale, output = sys.argv[1:]
images = np.load(data)["image"][: int(samples)]
if mean:
    mean, scale = (np.array(eval(x), np.float32).reshape(-1, 1, 1) for x in (mean, scale))
    images = (images - mean) * scale
images = images.astype(np.float32)
class Reader(CalibrationDataReader):
    def __init__(self):
        self.batches = iter([{"image": images[k : k + 64]} for k in range(0, len(images), 64)])
    def get_next(self):
        return next(self.batches, None)
start = time.perf_counter()
quantize_static(
    model, output, Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    calibrate_method=CalibrationMethod[method],
)
print("seconds", time.perf_counter() - start)
"""
MODULES = """
import sys
print("modules", len(sys.modules), sum(name.split(".")[0] == "intact" for name in sys.modules))
"""
STEPS: Mapping[str, tuple[str, ...]] = {
    "intact.flow.stages": ("open_source", "shaped", "run_once"),
    "intact.results.job": ("build_plan", "export"),
    "intact.flow.calibration": ("collect", "choose"),
    "intact.results.result": ("save_model", "save_plan"),
}
"""Functions whose time is taken, by the module that calls them."""


def environment() -> dict[str, str]:
    """Make the environment of the processes: modules are compiled once, as if installed."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def seconds_of(line: Sequence[str]) -> float:
    """Run a process and take its time."""
    start = time.perf_counter()
    subprocess.run(line, check=True, capture_output=True, env=environment())
    return time.perf_counter() - start


def in_turn(jobs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Run jobs in turn; the first round, which fills caches, does not count."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(repeats + 1):
        for name, job in jobs.items():
            seconds = job()
            if round_:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


# ---- the processes -------------------------------------------------------------------------------


def data_of(name: str, folder: Path) -> Path:
    """Find the calibration samples of a model; random ones where the zoo has none."""
    if name not in NO_CIFAR:
        return ZOO / "cifar10-calib.npz"
    path = folder / f"{name}.npz"
    if not path.exists():
        import numpy as np

        shape = (SAMPLES[name], *NO_CIFAR[name])
        np.savez(path, image=np.random.default_rng(0).random(shape, dtype=np.float32))
    return path


def intact_line(name: str, folder: Path, *options: str) -> list[str]:
    """Make the command line of `intact quantize`."""
    prepared = []
    if name in NORMALIZED:
        prepared = ["--mean", ",".join(map(str, MEAN)), "--scale", ",".join(map(str, SCALE))]
    return [
        *("quantize", str(ZOO / f"{name}.onnx"), "--data", str(data_of(name, folder)), *prepared),
        *("--samples", str(SAMPLES[name]), "--threads", str(THREADS), *options),
        *("--output", str(folder / "intact")),
    ]


def onnxruntime_seconds(name: str, folder: Path, method: str, *, call_alone: bool = False) -> float:
    """Run ONNX Runtime's quantizer in a process; the time of it all, or of the call in it."""
    mean, scale = (repr(MEAN), repr(SCALE)) if name in NORMALIZED else ("", "")
    line = [sys.executable, "-c", ONNXRUNTIME, str(ZOO / f"{name}.onnx")]
    line += [str(data_of(name, folder)), str(SAMPLES[name]), method, mean, scale]
    line += [str(folder / "onnxruntime.onnx")]
    start = time.perf_counter()
    done = subprocess.run(line, check=True, capture_output=True, text=True, env=environment())
    seconds = time.perf_counter() - start
    return float(done.stdout.split("seconds")[1]) if call_alone else seconds


def intact_seconds(name: str, folder: Path, *options: str) -> float:
    """Run `intact quantize` in a process; there is no older result to replace."""
    shutil.rmtree(folder / "intact", ignore_errors=True)
    return seconds_of([sys.executable, "-m", "intact", *intact_line(name, folder, *options)])


# ---- where the time goes -------------------------------------------------------------------------


def timed_steps(line: Sequence[str]) -> dict[str, float]:
    """Run a command in this process; take the time of its steps."""
    steps: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                steps[name] = steps.get(name, 0.0) + time.perf_counter() - start

        return call

    start = time.perf_counter()
    from intact.cli.entry import run

    steps["imports: cli"] = time.perf_counter() - start
    start = time.perf_counter()
    for module, names in STEPS.items():
        found = __import__(module, fromlist=["_"])
        for name in names:
            setattr(found, name, timed(name, getattr(found, name)))
    steps["imports: api"] = time.perf_counter() - start
    run(line)
    return steps


def breakdown(name: str, folder: Path) -> tuple[dict[str, float], dict[str, tuple[float, int]]]:
    """Take the time of one command by step, and of its imports by package, in milliseconds."""
    line = intact_line(name, folder)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--steps", json.dumps(line)],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    whole = time.perf_counter() - start
    steps: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    steps["all else"] = whole - sum(steps.values())
    steps["whole process"] = whole
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "intact", *line],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    packages: dict[str, tuple[float, int]] = {}
    for own, module in _imports(done.stderr):
        milliseconds, count = packages.get(module, (0.0, 0))
        packages[module] = milliseconds + own, count + 1
    return steps, packages


def _imports(report: str) -> Iterator[tuple[float, str]]:
    """Read what ``-X importtime`` reports: own milliseconds and package of each module."""
    for found in re.finditer(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\w+)", report, re.MULTILINE):
        yield int(found[1]) / 1000, found[2]


# ---- tables --------------------------------------------------------------------------------------


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below headings, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    print(f"\n{title}")
    for row in (headings, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))


def print_commands(repeats: int) -> None:
    """Table 1."""
    lines = {
        "numpy, onnx, onnxruntime": ["-c", FLOOR],
        "import intact; intact.quantize": ["-c", API],
        "intact --help": ["-m", "intact", "--help"],
        "intact targets": ["-m", "intact", "targets"],
    }
    jobs = {n: functools.partial(seconds_of, [sys.executable, *x]) for n, x in lines.items()}
    rows = []
    for name, seconds in in_turn(jobs, repeats).items():
        line = lines[name]
        code = line[1] if line[0] == "-c" else f"from intact.cli.entry import run; run({line[2:]})"
        done = subprocess.run(
            [sys.executable, "-c", code + MODULES], check=True, capture_output=True, text=True
        )
        _, everything, own = done.stdout.splitlines()[-1].split()
        rows.append([name, f"{seconds:.2f}", everything, own])
    print_table("commands", ["", "s", "modules", "of intact"], rows)


def print_zoo(names: Sequence[str], folder: Path, repeats: int) -> None:
    """Table 2."""
    rows = []
    for name in names:
        found = in_turn(
            {
                "intact": functools.partial(intact_seconds, name, folder),
                "onnxruntime": functools.partial(onnxruntime_seconds, name, folder, "MinMax"),
            },
            repeats,
        )
        ratio = found["onnxruntime"] / found["intact"]
        seconds = (f"{found[tool]:.2f}" for tool in ("intact", "onnxruntime"))
        rows.append([f"{name} ({SAMPLES[name]})", *seconds, f"{ratio:.2f}"])
    headings = ["model (samples)", "intact s", "ONNX Runtime min-max s", "times as fast"]
    print_table("whole processes, default method", headings, rows)


def print_kl(folder: Path, repeats: int) -> None:
    """Table 3."""
    name = "mobilenetv2"
    entropy = functools.partial(onnxruntime_seconds, name, folder, "Entropy", call_alone=True)
    kl = functools.partial(intact_seconds, name, folder, "--method", "kl")
    found = in_turn({"intact": kl, "entropy": entropy}, repeats)
    ratio = found["entropy"] / found["intact"]
    print_table(
        "KL on MobileNetV2, 512 images",
        ["intact, whole process s", "ONNX Runtime's entropy call s", "times as fast"],
        [[f"{found['intact']:.2f}", f"{found['entropy']:.2f}", f"{ratio:.2f}"]],
    )


def print_breakdown(names: Sequence[str], folder: Path) -> None:
    """Table 4."""
    found = {name: breakdown(name, folder) for name in names}
    steps = list(dict.fromkeys(step for times, _ in found.values() for step in times))
    rows = [[step, *(f"{times.get(step, 0):.2f}" for times, _ in found.values())] for step in steps]
    print_table("seconds by step", ["", *names], rows)
    for name, (_, packages) in list(found.items())[:1]:
        largest = sorted(packages.items(), key=lambda item: -item[1][0])[:12]
        rows = [[package, f"{ms:.0f}", str(count)] for package, (ms, count) in largest]
        print_table(f"imports of {name}", ["package", "ms", "modules"], rows)


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(SAMPLES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--steps", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps:
        print("\n" + json.dumps(timed_steps(json.loads(arguments.steps))))
        return
    names, parts = arguments.models.split(","), arguments.parts.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "commands" in parts:
            print_commands(arguments.repeats)
        if "zoo" in parts:
            print_zoo(names, folder, arguments.repeats)
        if "kl" in parts:
            print_kl(folder, arguments.repeats)
        if "breakdown" in parts:
            print_breakdown(names, folder)


if __name__ == "__main__":
    main()

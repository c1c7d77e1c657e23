"""What calibration costs: time and memory, beside a plain float pass and ONNX Runtime's quantizer.

    python benchmarks/calibration.py [--models resnet20,mobilenetv2,mlperf_resnet8,vit,resnet50]
        [--repeats 5] [--samples 512] [--resnet50-samples 64]
        [--parts ratio,command,memory]

Three tables:

1. ratio: in one process, in turn: a plain float pass (session and all samples), and ``collect``
   plus the scales (session, all samples, KL or min-max); medians, and median of paired ratios.
2. command: each tool as a whole process from start to written model, in turn; medians.
3. memory: peak resident memory of each tool in its own process, at 128 and at 2048 samples.
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
from rich.console import Console
from rich.table import Table

from resnet50 import build_resnet50
from zoo import CALIBRATION, MODELS, PIXELS, calibration_images

TOOLS = ("float", "intact-minmax", "intact-kl", "ort-minmax", "ort-entropy", "ort-percentile")
THREADS = 2
_RESNET50_IN_MEMORY = 16


def _model_and_data(name: str, samples: int) -> tuple[Path, np.ndarray]:
    if name == "resnet50":
        path = Path(tempfile.gettempdir()) / f"intact-benchmark-resnet50-{os.getuid()}.onnx"
        if not path.exists():
            build_resnet50(path)
        generator = np.random.default_rng(0)
        return path, generator.standard_normal((samples, 3, 224, 224), dtype=np.float32)
    model = next(m for m in MODELS if m.name == name)
    return model.path, calibration_images(model, samples)


# ---- one process, in turn ------------------------------------------------------------------------


def measure_ratios(name: str, samples: int, repeats: int) -> dict[str, list[float]]:
    """Return seconds of each repeat for the float pass and for collect + scales."""
    from intact.calibrate.assign import Method, assign, required_tensors
    from intact.calibrate.collect import collect
    from intact.data.sources import open_samples
    from intact.graph import normalize
    from intact.plan import build_plan
    from intact.targets import load_target

    path, images = _model_and_data(name, samples)
    graph = normalize(path)
    target = load_target("onnxruntime")
    plan = build_plan(graph, target)
    opened = open_samples({"image": images}, graph)

    def float_pass() -> None:
        run_float(path, images)

    def calibrate(method: str) -> Callable[[], None]:
        def run() -> None:
            found = collect(graph, opened, required_tensors(plan), threads=THREADS)
            assign(plan, found, Method.of(target, method))

        return run

    jobs = {"float": float_pass, "minmax": calibrate("minmax"), "kl": calibrate("kl")}
    times: dict[str, list[float]] = {job: [] for job in jobs}
    for job in jobs.values():
        job()
    for _ in range(repeats):
        for job, function in jobs.items():
            start = time.perf_counter()
            function()
            times[job].append(time.perf_counter() - start)
    return times


# ---- whole processes -----------------------------------------------------------------------------


def command(tool: str, name: str, samples: int, folder: Path) -> list[str]:
    """Return the command line that does one tool's whole job: the same files in, a model out."""
    path, data, options = _files(name, samples)
    if not tool.startswith("intact-"):
        return [
            sys.executable,
            __file__,
            "--tool",
            tool,
            "--models",
            name,
            "--samples",
            str(samples),
        ]
    return [
        *(sys.executable, "-m", "intact", "quantize", str(path), "--data", str(data), *options),
        *("--method", tool.removeprefix("intact-"), "--samples", str(samples)),
        *("--threads", str(THREADS), "--output", str(folder / "out")),
    ]


def _files(name: str, samples: int) -> tuple[Path, Path, list[str]]:
    """Return model, data and the options that describe the data."""
    if name == "resnet50":
        path, images = _model_and_data(name, samples)
        data = path.with_suffix(f".{samples}.npz")
        if not data.exists():
            np.savez(data, image=images)
        return path, data, []
    model = next(m for m in MODELS if m.name == name)
    numbers = {"--mean": model.preprocess.mean, "--scale": model.preprocess.scale}
    options = [
        part
        for option, values in numbers.items()
        if values
        for part in (option, ",".join(map(str, values)))
    ]
    return model.path, CALIBRATION, options


def child(tool: str, name: str, samples: int) -> tuple[float, float] | None:
    """Run a tool in a process of its own; return seconds and peak MiB, None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        line = command(tool, name, samples, Path(folder))
        start = time.perf_counter()
        with subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        ) as process:
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
    return None if process.returncode else (seconds, usage.ru_maxrss / 1024)


def run_float(path: Path, images: np.ndarray) -> None:
    """Build a session as everybody does, with the runtime's own defaults, and run all images."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(path), options)
    for start in range(0, len(images), 64):
        session.run(None, {"image": images[start : start + 64]})


def run_tool(tool: str, name: str, samples: int) -> None:
    """Do the job of a tool that is not ours in this process."""
    path, data, _ = _files(name, samples)
    preprocess = next((m.preprocess for m in MODELS if m.name == name), PIXELS)
    images = preprocess("image", np.load(data)["image"][:samples]).astype(np.float32)
    if tool == "float":
        run_float(path, images)
        return
    _run_onnxruntime(tool.removeprefix("ort-"), path, images)


def _run_onnxruntime(method: str, path: Path, images: np.ndarray) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches = iter([{"image": images[k : k + 64]} for k in range(0, len(images), 64)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._batches, None)

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    quantize_static(
        str(path),
        "ort.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=methods[method],
    )


# ---- tables --------------------------------------------------------------------------------------


def _median(values: list[float]) -> float:
    return statistics.median(values)


def print_ratios(names: list[str], samples: dict[str, int], repeats: int) -> None:
    """Table 1."""
    table = Table(title="collect + scales against a plain float pass, one process, in turn")
    for heading in (
        "model",
        "samples",
        "float s",
        "min-max s",
        "KL s",
        "min-max / float",
        "KL / float",
    ):
        table.add_column(heading, justify="right")
    for name in names:
        line = [sys.executable, __file__, "--ratios", "--models", name]
        line += ["--samples", str(samples[name]), "--repeats", str(repeats)]
        # In a process of its own: a child's peak memory includes what its parent held.
        found = subprocess.run(line, stdout=subprocess.PIPE, check=True)
        times: dict[str, list[float]] = json.loads(found.stdout)
        ratios = [
            _median([a / b for a, b in zip(times[m], times["float"], strict=True)])
            for m in ("minmax", "kl")
        ]
        seconds = [f"{_median(values):.3f}" for values in times.values()]
        table.add_row(name, str(samples[name]), *seconds, *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=140).print(table)


def print_commands(names: list[str], samples: dict[str, int], repeats: int) -> None:
    """Table 2."""
    table = Table(title="whole process: seconds (median) and peak MiB")
    table.add_column("model")
    for tool in TOOLS:
        table.add_column(tool, justify="right")
    for name in names:
        runs: dict[str, list[tuple[float, float] | None]] = {tool: [] for tool in TOOLS}
        for _ in range(repeats):
            for tool in TOOLS:
                runs[tool].append(child(tool, name, samples[name]))
        table.add_row(f"{name} ({samples[name]})", *(_cell(found) for found in runs.values()))
    Console(width=140).print(table)


def print_memory(names: list[str]) -> None:
    """Table 3."""
    memory = Table(title="peak MiB of intact-kl by number of samples")
    for heading in ("model", "128", "2048", "growth"):
        memory.add_column(heading, justify="right")
    for name in names:
        peaks = [
            _median([found[1] for _ in range(3) if (found := child("intact-kl", name, n))])
            for n in (128, 2048)
        ]
        memory.add_row(
            name, *(f"{peak:.0f}" for peak in peaks), f"{100 * (peaks[1] / peaks[0] - 1):+.1f} %"
        )
    Console(width=140).print(memory)


def _cell(runs: list[tuple[float, float] | None]) -> str:
    done = [run for run in runs if run is not None]
    if not done:
        return "failed"
    return f"{_median([s for s, _ in done]):.2f} s, {_median([m for _, m in done]):.0f}"


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="resnet20,mobilenetv2,mlperf_resnet8,vit,resnet50")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--resnet50-samples", type=int, default=64)
    parser.add_argument("--parts", default="ratio,command,memory")
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    parser.add_argument("--ratios", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.models.split(",")
    if arguments.tool:
        run_tool(arguments.tool, names[0], arguments.samples)
        return
    if arguments.ratios:
        print(json.dumps(measure_ratios(names[0], arguments.samples, arguments.repeats)))
        return
    samples = {
        name: arguments.resnet50_samples if name == "resnet50" else arguments.samples
        for name in names
    }
    parts = arguments.parts.split(",")
    if "ratio" in parts:
        print_ratios(names, samples, arguments.repeats)
    if "resnet50" in samples:  # the others keep every activation: 64 samples would not fit
        samples["resnet50"] = min(samples["resnet50"], _RESNET50_IN_MEMORY)
    if "command" in parts:
        print_commands(names, samples, arguments.repeats)
    if "memory" in parts:
        print_memory([name for name in names if name != "resnet50"])


if __name__ == "__main__":
    main()

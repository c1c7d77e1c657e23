"""intact against ONNX Runtime's quantizer and NNCF: accuracy, size, time, latency.

    make bench                                       # installs NNCF and writes docs/benchmarks.md
    python benchmarks/quantizers.py [--models resnet20,vit] [--rounds 3] [--output FILE.md]

Each quantizes the zoo's classifiers with its defaults (without the zoo, the model that comes with
intact), on the same float32 samples, in a process of its own, in turn, round after round. The
models that they write run in ONNX Runtime. Nothing is printed that was not measured in this run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort

import figures
from figures import Figures
from improving import LITE, Images, images_of
from intact import demo
from intact.engines.cpu import detect_cpu
from intact.engines.exact_sums import exact_sums, saturates_pairs
from intact.numerics.metrics import AccuracyDifference, accuracy_difference, sqnr_db
from zoo import MODELS, ZooModel

PEERS = Path(__file__).parent / "peers"
THREADS = 2
BATCH = {LITE.name: 10}
LATENCY_ROUNDS = 15
BLOCK = 50
"""Images that are run at once for accuracies."""


@dataclass(frozen=True)
class Tool:
    """A quantizer.

    Attributes:
        title: As the tables have it.
        script: In `peers/`.
        method: What it is called with.
    """

    title: str
    script: str
    method: str


TOOLS = {
    "intact": Tool("intact", "own", "default"),
    "onnxruntime": Tool("ONNX Runtime", "ort", "minmax"),
    "nncf": Tool("NNCF", "nncf", "fast"),
}


@dataclass(frozen=True)
class Case:
    """A float model; ``images`` reads those to calibrate on and those to test on."""

    name: str
    path: Path
    images: Callable[[], tuple[Images, Images]]


@dataclass
class Made:
    """What a tool made of a model.

    Attributes:
        seconds: From reading to the written file, once a round; process and imports left out.
        process: Of the whole process, once a round.
        error: Why there is no model.
        right: For each test image, whether the answer is right.
        sqnr: Of the outputs against the float model's, dB.
        size: Bytes of the file.
        latency: Milliseconds of a batch, once a round.
    """

    seconds: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)
    error: str = ""
    right: npt.NDArray[np.bool_] | None = None
    sqnr: float = 0.0
    size: int = 0
    latency: list[float] = field(default_factory=list)


@dataclass
class Row:
    """What was measured of a model: the float model, and what each tool made of it."""

    case: Case
    float_model: Made
    made: dict[str, Made]
    batch: int


def cases(wanted: Sequence[str]) -> list[Case]:
    """Return the classifiers; the demo's where there is no zoo."""
    known = [Case("digits", demo.model_path(), _digits)]
    if all(model.path.is_file() for model in (*MODELS, LITE)):
        known += [Case(each.name, each.path, _of_zoo(each)) for each in (*MODELS, LITE)]
    if not wanted:
        return known[1:] or known
    by_name = {each.name: each for each in known}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        sys.exit(f"no model {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in wanted]


def _digits() -> tuple[Images, Images]:
    """Read the demo's images."""
    read = []
    for path in (demo.calibration_path(), demo.test_path()):
        with np.load(path) as file:
            read.append(Images(file["image"].astype(np.float32), file["labels"]))
    return read[0], read[1]


def _of_zoo(model: ZooModel) -> Callable[[], tuple[Images, Images]]:
    return lambda: images_of(model)


# ---- measuring -----------------------------------------------------------------------------------


def measure(case: Case, tools: Mapping[str, Tool], rounds: int, versions: dict[str, str]) -> Row:
    """Quantize by every tool in turn, and run what they wrote."""
    calibration, test = case.images()
    batch = BATCH.get(case.name, 100)
    row = Row(case, Made(size=case.path.stat().st_size), {name: Made() for name in tools}, batch)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "samples.npy", calibration.arrays)
        for _ in range(rounds):
            for key, tool in tools.items():
                if not row.made[key].error:
                    quantize(case, tool, folder, folder / f"{key}.onnx", row.made[key], versions)
        files = {"float": case.path} | {
            key: folder / f"{key}.onnx" for key, made in row.made.items() if not made.error
        }
        judge(row, files, test)
        race(row, files, test.arrays[:batch])
    return row


def quantize(
    case: Case, tool: Tool, folder: Path, output: Path, made: Made, versions: dict[str, str]
) -> None:
    """Quantize once, in a process of its own."""
    script = PEERS / f"{tool.script}.py"
    arguments = (case.path, folder / "samples.npy", output, "W8A8", tool.method)
    output.unlink(missing_ok=True)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(THREADS)},
    )
    seconds = time.perf_counter() - start
    if done.returncode or not output.is_file():
        said = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()
        made.error = said[-1][:120]
        return
    said = json.loads(done.stdout.strip().splitlines()[-1])
    versions[tool.title] = said["version"]
    made.seconds.append(said["seconds"])
    made.process.append(seconds)
    made.size = output.stat().st_size


def judge(row: Row, files: Mapping[str, Path], test: Images) -> None:
    """Run every model over the test images; sums of products are exact on every processor."""
    reference = None
    for key, path in files.items():
        made = row.float_model if key == "float" else row.made[key]
        options = ort.SessionOptions()
        ready = ir.to_proto(exact_sums(ir.load(path), options)).SerializeToString()
        session = ort.InferenceSession(ready, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        scores = np.concatenate(
            [
                session.run(None, {name: test.arrays[at : at + BLOCK]})[0]
                for at in range(0, len(test.labels), BLOCK)
            ]
        )
        made.right = scores.argmax(1) == test.labels
        reference = scores if reference is None else reference
        made.sqnr = sqnr_db(reference, scores)


def race(row: Row, files: Mapping[str, Path], images: npt.NDArray[np.float32]) -> None:
    """Run a batch by every model in turn, with the runtime's own options."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    sessions = {
        key: ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for key, path in files.items()
    }
    for number in range(LATENCY_ROUNDS + 1):
        for key, session in sessions.items():
            start = time.perf_counter()
            session.run(None, {session.get_inputs()[0].name: images})
            if number:  # the first run allocates
                made = row.float_model if key == "float" else row.made[key]
                made.latency.append(1000 * (time.perf_counter() - start))


# ---- what is written -----------------------------------------------------------------------------


def ratio(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the median of paired ratios."""
    pairs = zip(first, second, strict=True)
    return f"{statistics.median(one / other for one, other in pairs):.2f}"


def change(row: Row, made: Made) -> AccuracyDifference:
    """Return the change of the accuracy in points, with its interval."""
    assert row.float_model.right is not None
    assert made.right is not None
    found = accuracy_difference(row.float_model.right, made.right)
    return AccuracyDifference(*(100 * each for each in found))


def accuracy_cells(row: Row, made: Made) -> str:
    """Write top-1 with its change and the error of the outputs."""
    assert made.right is not None
    points = change(row, made)
    top1 = 100 * made.right.mean()
    return f"{top1:.2f} ({points.difference:+.2f} [{points.low:+.2f}, {points.high:+.2f}])"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table in Markdown."""
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
    ]


def report(
    rows: Sequence[Row], tools: Mapping[str, Tool], versions: Mapping[str, str], rounds: int
) -> str:
    """Write the page."""
    cpu, titles = detect_cpu(), [tool.title for tool in tools.values()]
    known = {"Python": platform.python_version(), "ONNX Runtime": ort.__version__, **versions}

    def cells(write: Callable[[Row, Made], str]) -> list[list[str]]:
        return [
            [row.case.name, *(made.error or write(row, made) for made in row.made.values())]
            for row in rows
        ]

    return "\n".join(
        [
            "# Benchmarks: against other quantizers",
            "",
            "`make bench` (`benchmarks/quantizers.py`) measured and wrote all of this; the models "
            "and images are not part of the repository (`INTACT_ZOO` names their folder; without "
            "it the model that comes with intact is measured).",
            "",
            f"- date: {datetime.date.today().isoformat()}",
            f"- machine: {cpu.name}, {os.cpu_count()} cores, {cpu.instruction_set}; "
            f"{platform.system()} {platform.machine()}",
            f"- versions: {', '.join(f'{name} {version}' for name, version in known.items())}",
            f"- rounds: {rounds}; in each, every tool quantizes the model once, in turn",
            f"- load of the machine at the end: {os.getloadavg()[0]:.0f} processes",
            "",
            "Each has its defaults: intact `--target onnxruntime`; ONNX Runtime "
            "`quant_pre_process` and `quantize_static` with QDQ, min-max, weights by channel, "
            "uint8 activations and int8 weights, as it recommends for CPUs; NNCF `nncf.quantize` "
            "with fast bias correction, on all samples. These two get one sample at a time, as in "
            "their examples. All get the same samples: 512 CIFAR images calibrate and 5,000 test, "
            "200 and 300 of ImageNet.",
            "",
            "## Accuracy",
            "",
            "Top-1 in percent, in brackets the change with its paired 95 % interval. Run in ONNX "
            "Runtime with exact sums (`session.x64quantprecision` where the processor saturates "
            f"pairs of products; this one {'does' if saturates_pairs() else 'does not'}).",
            "",
            *table(
                ["model", "float", *titles],
                [
                    [cells[0], f"{100 * np.mean(row.float_model.right):.2f}", *cells[1:]]
                    for row, cells in zip(rows, cells(accuracy_cells), strict=True)
                ],
            ),
            "Signal to quantization noise of the outputs, dB:",
            "",
            *table(["model", *titles], cells(lambda _, made: f"{made.sqnr:.1f}")),
            "## Time to quantize",
            "",
            "Relative to intact, median of paired ratios; in brackets the seconds of this run, "
            "other work beside it. From reading the model to the written file, after its import:",
            "",
            *table(["model", *titles], cells(lambda row, made: _time(row, made, "seconds"))),
            "The whole process:",
            "",
            *table(["model", *titles], cells(lambda row, made: _time(row, made, "process"))),
            "## Latency and size",
            "",
            "How many times as fast as the float model, median of paired ratios of "
            f"{LATENCY_ROUNDS} runs in turn, {THREADS} threads, batch 100 ({BATCH[LITE.name]} of "
            "ImageNet), the session's options as they are:",
            "",
            *table(
                ["model", *titles],
                cells(lambda row, made: ratio(row.float_model.latency, made.latency)),
            ),
            "Size of the file, percent of the float model's:",
            "",
            *table(
                ["model", *titles],
                cells(lambda row, made: f"{100 * made.size / row.float_model.size:.0f}"),
            ),
        ]
    )


def figures_of(rows: Sequence[Row], versions: Mapping[str, str], rounds: int) -> Figures:
    """Return what pages quote of a run; see `figures.py`."""
    cpu = detect_cpu()
    known = {"Python": platform.python_version(), "ONNX Runtime": ort.__version__, **versions}
    machine = f"{cpu.name}, {os.cpu_count()} cores, {cpu.instruction_set}"
    run = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{machine}; {platform.system()} {platform.machine()}",
        "versions": known,
        "rounds": rounds,
    }
    return {"run": run, "models": {row.case.name: _quoted(row) for row in rows}}


def _quoted(row: Row) -> dict[str, Any]:
    before = row.float_model.right
    if before is None:
        raise ValueError(f"{row.case.name}: the float model was not run")
    made: dict[str, Any] = {}
    for name, each in row.made.items():
        if each.right is None:
            made[name] = {"error": each.error}
            continue
        found = change(row, each)
        made[name] = {
            "top1": round(100 * float(each.right.mean()), 2),
            "low": round(found.low, 2),
            "high": round(found.high, 2),
            "sqnr_db": round(each.sqnr, 1),
            "speed": float(ratio(row.float_model.latency, each.latency)),
            "size_percent": round(100 * each.size / row.float_model.size),
        }
    top1 = round(100 * float(before.mean()), 2)
    return {"images": len(before), "float": top1, "int8": made}


def _time(row: Row, made: Made, kind: str) -> str:
    """Write a time beside that of the first tool, or alone where that has none."""
    own = getattr(next(iter(row.made.values())), kind)
    seconds = f"{statistics.median(getattr(made, kind)):.1f} s"
    return f"{ratio(getattr(made, kind), own)} ({seconds})" if own else seconds


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="", help="names, with commas; all by default")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="where the page is written, too")
    parser.add_argument("--figures", type=Path, help="the file that pages quote, to be brought up")
    given = parser.parse_args()
    tools = {name: TOOLS[name] for name in given.tools.split(",")}
    versions: dict[str, str] = {}
    rows: list[Row] = []
    page = ""
    for case in cases([name for name in given.models.split(",") if name]):
        rows.append(measure(case, tools, given.rounds, versions))
        page = report(rows, tools, versions, given.rounds)
        if given.output is not None:  # what was measured stays if a later model fails
            given.output.write_text(page, encoding="utf-8")
        if given.figures is not None:
            figures.write(figures_of(rows, versions, given.rounds), given.figures)
        print(f"measured {case.name}", file=sys.stderr, flush=True)
    print(page)


if __name__ == "__main__":
    main()

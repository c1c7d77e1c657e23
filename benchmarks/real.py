"""Models as people have them, on every target, beside ONNX Runtime's quantizer.

    python benchmarks/real.py [--models a,b] [--targets a,b] [--sets real,light,gallery,packages]
        [--packages FOLDER] [--limit SECONDS] [--json]

Every step is a process of its own, as a user starts it: `intact quantize`, `evaluate`, `verify`.
Columns: what became of it; nodes as integers; signal to noise of the worst output on samples that
calibration did not see, and how far it is behind what ONNX Runtime's `quantize_static` (min-max,
a weight scale for each channel) reaches on the same samples; layers compared, and values that
differ of how many; time against the float model; seconds and MB (peak) of the three processes.
Below the table stand the reasons for refusals, by count. A folder of models is like the zoo's
`real`: NAME/model.onnx, calib.npz and test.npz (arrays by input name, samples first). The set
`packages` takes models from where pip installs them (`published.py`): --packages names that folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx.version_converter
import onnxruntime
from rich.console import Console
from rich.table import Table

from intact.limits import MOST_DB
from intact.numerics.metrics import sqnr_db
from zoo import ZOO

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # nets of the tests

TARGETS = ("onnxruntime", "openvino", "tflite", "ncnn", "tvm", "tflite-micro")
SETS = ("real", "light", "gallery", "packages")
SEQUENCES = {"silero_ov": ("stateN=state",), "silero_v5": ("stateN=state",)}
"""States of models whose samples are a sequence."""
VALUES = {"silero_v5": ("sr=16000",)}
"""Inputs that are fixed."""
CALIBRATION, TEST = 32, 16
BEHIND_DB = 0.5
PER_CHANNEL_OPSET = 13
"""What `quantize_static` needs for a weight scale of each channel."""
FLOAT_ENDS = "--io float"
"""The option of models of which the ends cannot be integers."""
LIMIT_S = 900
"""Of each process, where none is given."""

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A model with its samples.

    Attributes:
        name: Of the model.
        model: Its file.
        calibration: An .npz for `intact quantize`.
        test: An .npz with samples that calibration did not see.
        options: What `intact quantize` is told about the inputs.
    """

    name: str
    model: Path
    calibration: Path
    test: Path
    options: tuple[str, ...] = ()


@dataclass
class Ran:
    """One process.

    Attributes:
        code: Its exit code.
        output: What it printed to its standard output.
        error: The last line that it printed to its standard error.
        seconds: From start to end.
        megabytes: The most memory it had.
    """

    code: int
    output: str
    error: str
    seconds: float
    megabytes: float


@dataclass
class Row:
    """What became of a model on a target.

    Attributes:
        model: Which.
        target: For what.
        outcome: ``ok``, or why it was refused.
        integers: Nodes planned as integers, of how many.
        db: Signal to noise of each output, in dB; in the order of the names.
        reference_db: The same of ONNX Runtime's quantizer; empty where it refuses the model.
        layers: Compared.
        values: Compared.
        differ: How many of the values differ.
        speedup: Of the float model's latency; None where no runtime here tells.
        seconds: Of `quantize`, `evaluate` and `verify`.
        megabytes: The same.
        warnings: What `quantize` and `evaluate` warned of.
    """

    model: str
    target: str
    outcome: str = "ok"
    integers: tuple[int, int] = (0, 0)
    db: Mapping[str, float] = field(default_factory=dict)
    reference_db: Mapping[str, float] = field(default_factory=dict)
    layers: int = 0
    values: int = 0
    differ: int = 0
    speedup: float | None = None
    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def behind(self) -> float | None:
        """By how many dB an output is worse than ONNX Runtime's, the worst of them."""
        both = self.db.keys() & self.reference_db.keys()
        return max((self.reference_db[name] - self.db[name] for name in both), default=None)


# ---- the models ----------------------------------------------------------------------------------


def cases(sets: list[str], wanted: list[str], folder: Path, packages: Path) -> Iterator[Case]:
    """Yield the models of the sets asked for."""
    if "real" in sets:
        for found in sorted((ZOO / "real").iterdir()):
            if not wanted or found.name in wanted:
                files = (found / name for name in ("model.onnx", "calib.npz", "test.npz"))
                yield Case(found.name, *files, options=input_options(found.name))
    if "light" in sets:
        yield from light_cases(wanted, folder)
    if "gallery" in sets:
        yield from gallery_cases(wanted, folder)
    if "packages" in sets:
        yield from published_cases(wanted, folder, packages)


def input_options(name: str) -> tuple[str, ...]:
    """Return what the zoo's models need to be told."""
    states = [part for each in SEQUENCES.get(name, ()) for part in ("--state", each)]
    return (*states, *(part for each in VALUES.get(name, ()) for part in ("--input-value", each)))


def published_cases(wanted: list[str], folder: Path, packages: Path) -> Iterator[Case]:
    """Yield the models of packages that are installed; the others are named."""
    from published import MODELS

    for name, each in MODELS.items():
        model = each.find(packages)
        if wanted and name not in wanted:
            continue
        if model is None:
            print(f"{name}: {each.install(packages)}")
            continue
        case = Case(
            name,
            model,
            folder / f"{name}-calib.npz",
            folder / f"{name}-test.npz",
            (
                *each.options,
                *(
                    part
                    for value in each.values.items()
                    for part in ("--input-value", "{}={}".format(*value))
                ),
            ),
        )
        np.savez(case.calibration, **each.arrays(model, each.samples, 1))
        np.savez(case.test, **each.arrays(model, each.samples // 2, 2))
        yield case


def light_cases(wanted: list[str], folder: Path) -> Iterator[Case]:
    """Yield the onnx package's networks, with drawn weights."""
    from tests.light import FOLDER, images, with_drawn_weights

    for path in sorted(FOLDER.glob("light_*.onnx")):
        name = path.stem
        if not wanted or name in wanted:
            model = with_drawn_weights(onnx.load(path))
            yield written(name, model, images(model, 4, seed=1), images(model, 2, seed=2), folder)


def gallery_cases(wanted: list[str], folder: Path) -> Iterator[Case]:
    """Yield the nets of the tests that look like families of networks."""
    from tests.gallery.catalogue import GALLERY

    for name, each in GALLERY.items():
        if not wanted or name in wanted:
            samples = each.source(CALIBRATION, 1), each.source(TEST, 2)
            yield written(name, each.model, *samples, folder)


def written(
    name: str, model: onnx.ModelProto, calibration: Arrays, test: Arrays, folder: Path
) -> Case:
    """Write a model and its samples."""
    case = Case(name, *(folder / f"{name}{end}" for end in (".onnx", "-calib.npz", "-test.npz")))
    onnx.save(model, case.model)
    np.savez(case.calibration, **calibration)
    np.savez(case.test, **test)
    return case


# ---- ONNX Runtime's quantizer --------------------------------------------------------------------


def reference(case: Case, folder: Path) -> dict[str, float]:
    """Quantize with ONNX Runtime; the signal to noise of each output, or nothing if it refuses."""
    output = folder / f"{case.name}-reference.onnx"
    script = [sys.executable, __file__, "--reference", case.model, case.calibration, output]
    if run([str(each) for each in script]).code:
        return {}
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.x64quantprecision", "1")  # sums do not saturate
    try:
        found = session_outputs(output, case.test, settings)
    except Exception:  # the runtime raises its own kinds
        return {}
    expected = session_outputs(case.model, case.test, None)
    ratios = {
        name: sqnr_db(array, found[name])
        for name, array in expected.items()
        if array.dtype.kind == "f"
    }
    return {name: db for name, db in ratios.items() if np.isfinite(db)}  # others stay float


def session_outputs(
    model: Path, samples: Path, settings: onnxruntime.SessionOptions | None
) -> dict[str, npt.NDArray[Any]]:
    """Run a model over samples, one at a time; the outputs, stacked."""
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    runs = [session.run(names, feeds) for feeds in feeds_of(session, samples)]
    return {
        name: np.concatenate([np.ravel(run[k]) for run in runs]) for k, name in enumerate(names)
    }


def feeds_of(session: onnxruntime.InferenceSession, samples: Path) -> Iterator[dict[str, Any]]:
    """Yield each sample as the runtime takes it, with the axis of the batch where it has one."""
    ports = {each.name: each.shape for each in session.get_inputs()}
    with np.load(samples) as file:
        arrays = {name: file[name] for name in ports}
    for k in range(len(next(iter(arrays.values())))):
        yield {
            name: with_batch(np.asarray(array[k]), ports[name]) for name, array in arrays.items()
        }


def with_batch(array: npt.NDArray[Any], shape: list[Any]) -> npt.NDArray[Any]:
    """Insert the axis of the batch, if the shape of the input has one axis more."""
    if array.ndim == len(shape):
        return array
    for axis in range(len(shape)):
        longer = np.expand_dims(array, axis)
        pairs = zip(longer.shape, shape, strict=True)
        if all(not isinstance(size, int) or size in (0, -1, length) for length, size in pairs):
            return longer
    raise ValueError(f"a sample of shape {array.shape} does not fit {shape}")


def quantize_reference(model: Path, samples: Path, output: Path) -> None:
    """Quantize with ONNX Runtime, as its documentation recommends for convolutional networks."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
            self.feeds = feeds_of(session, samples)

        def get_next(self) -> dict[str, Any] | None:
            return next(self.feeds, None)

    prepared = output.with_suffix(".prepared.onnx")
    os.chdir(output.parent)  # it leaves files where it runs
    newer = onnx.load(model)
    if newer.opset_import[0].version < PER_CHANNEL_OPSET:
        newer = onnx.version_converter.convert_version(newer, PER_CHANNEL_OPSET)
    onnx.save(newer, prepared)
    with contextlib.suppress(Exception):  # it infers shapes that some models do not let it infer
        quant_pre_process(prepared, prepared)
    quantize_static(
        prepared,
        output,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


# ---- the processes -------------------------------------------------------------------------------


def run(line: list[str], limit: int = LIMIT_S) -> Ran:
    """Run a process and take its time and memory."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as error:
        start = time.perf_counter()
        process = subprocess.Popen(["timeout", str(limit), *line], stdout=output, stderr=error)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        output.seek(0)
        error.seek(0)
        lines = error.read().strip().splitlines() or [""]
        peak = usage.ru_maxrss / 1024  # of the process and what it waited for, the larger
        return Ran(process.returncode, output.read(), lines[-1], seconds, peak)


def intact(*arguments: str | Path, limit: int) -> Ran:
    """Run a command of intact."""
    return run([sys.executable, "-m", "intact", *(str(each) for each in arguments)], limit)


def measure(
    case: Case, target: str, reference_db: Mapping[str, float], folder: Path, limit: int
) -> Row:
    """Quantize, evaluate and verify one model for one target."""
    row = Row(case.name, target, reference_db=reference_db)
    output = folder / f"{case.name}-{target}"
    line = ("quantize", case.model, "--data", case.calibration, "--target", target, "--json")
    line = (*line, "--output", output, *case.options)
    made = _step(row, intact(*line, limit=limit))
    if made is None and FLOAT_ENDS in row.outcome:  # as the message says
        row.outcome, row.seconds, row.megabytes = "ok", [], []
        row.warnings.append(FLOAT_ENDS)
        made = _step(row, intact(*line, *FLOAT_ENDS.split(), limit=limit))
    if made is None:
        return row
    row.warnings += made.get("warnings", [])
    row.integers = made["quantized_nodes"], made["nodes"]
    found = _step(row, intact("evaluate", output, "--data", case.test, "--json", limit=limit))
    if found is not None:
        several = {name: db for name, (db, _) in found["outputs"].items()}
        several = several or {found["output"]: found["sqnr_db"]}
        row.db = {name: MOST_DB if db is None else db for name, db in several.items()}  # equal
        row.speedup = found["speedup"]
    verified = _step(row, intact("verify", output, "--data", case.test, "--json", limit=limit))
    if verified is not None:
        layers = [layer for each in verified["verified"] for layer in each["layers"]]
        row.layers = len(layers)
        row.values = sum(layer["values"] for layer in layers)
        row.differ = sum(layer["mismatches"] for layer in layers)
    return row


def _step(row: Row, ran: Ran) -> dict[str, Any] | None:
    """Note what a process took; what it printed, or None if it failed."""
    row.seconds.append(ran.seconds)
    row.megabytes.append(ran.megabytes)
    if ran.output.strip():
        try:
            found = json.loads(ran.output)
        except json.JSONDecodeError:
            found = None
        if isinstance(found, dict) and "error" not in found and ran.code in (0, 1):
            return found
    row.outcome = ran.error or f"exit code {ran.code}"
    return None


# ---- what is printed -----------------------------------------------------------------------------


def reason_of(outcome: str) -> str:
    """Shorten a refusal to what it has in common with others: names and numbers left out."""
    return re.sub(r"'[^']*'", "...", re.sub(r"\d+", "N", outcome))[:150]


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text."""
    if not row.db:
        state = "refused" if row.outcome != "ok" else "-"
        return (row.model, row.target, state, *[""] * 5, *resources(row))
    behind = row.behind
    return (
        row.model,
        row.target,
        "ok" if row.outcome == "ok" else "failed later",
        f"{row.integers[0]}/{row.integers[1]}",
        f"{min(row.db.values()):.1f}",
        "-" if behind is None else f"{behind:+.1f}{' !' if behind > BEHIND_DB else ''}",
        f"{row.layers}: {row.differ:,} of {row.values:,}",
        "-" if row.speedup is None else f"{row.speedup:.2f}x",
        *resources(row),
    )


def resources(row: Row) -> tuple[str, str]:
    """Return seconds and megabytes as text."""
    return (
        " ".join(f"{each:.1f}" for each in row.seconds),
        " ".join(f"{each:.0f}" for each in row.megabytes),
    )


def show(rows: list[Row]) -> None:
    """Print the table and the reasons."""
    table = Table()
    for heading in (
        *("model", "target", "", "integers", "dB", "behind", "layers: differ"),
        *("speed", "seconds", "MB"),
    ):
        table.add_column(heading, justify="left" if heading in ("model", "target") else "right")
    for row in rows:
        table.add_row(*cells(row))
    Console(width=150).print(table)
    reasons = Counter(reason_of(row.outcome) for row in rows if row.outcome != "ok")
    for reason, count in reasons.most_common():
        print(f"{count:4d}  {reason}")


def main() -> None:
    """Print one row for each model and target, then the reasons for refusals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--sets", default="real")
    parser.add_argument("--packages", type=Path, default=Path(sysconfig.get_paths()["purelib"]))
    parser.add_argument("--limit", type=int, default=LIMIT_S)
    parser.add_argument("--reference", nargs=3, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.reference:
        quantize_reference(*arguments.reference)
        return
    wanted = [name for name in arguments.models.split(",") if name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = cases(arguments.sets.split(","), wanted, Path(folder), arguments.packages)
        for case in chosen:
            reference_db = reference(case, Path(folder))
            for target in arguments.targets.split(","):
                rows.append(measure(case, target, reference_db, Path(folder), arguments.limit))
                print(" | ".join(cells(rows[-1])), rows[-1].outcome, file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()

"""Detections of quantized detectors against the float model's, in the real runtimes.

    python benchmarks/detectors.py FOLDER [--nets a,b] [--targets a,b] [--seconds 120] [--json]
        [--packages FOLDER] [--published a,b] [--peers ORT_PYTHON[,NNCF_PYTHON]]
        [--add MODEL.onnx:CALIBRATION.npz:TEST.npz[:BOXES]] [--rows ROWS.jsonl]

The nets are those of `drawn_detectors.py`, trained into FOLDER where they are not there yet, those
of packages that lie in a folder (`published.MODELS` says what installs them), and others that are
added with the arrays of their samples. For each net and target: percent of the float model's
detections that are found again (`--metric detections`), by default and with no tail kept in float
(`--quantize-heads`), mAP on the labels, nodes that stay float because integers lose too much there
with the first reason, and the time of one image against float in ONNX Runtime, both with one
thread and in turn. Peers quantize the same models from the same samples, and run in ONNX Runtime.
Each row is added to a file as soon as it is measured, so that a run that is cut short has them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import version_converter
from rich.console import Console
from rich.table import Table

import intact
from detector_nets import CLASSES
from drawn_detectors import NETS, draw, write_all
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.data.detections import KEPT, LIKE, MEAN, DetectionMetric
from intact.data.metric import ADDED, Compared, OutputRecord
from intact.data.sources import open_samples
from intact.engines.latency import latencies
from intact.engines.session import FloatModel
from intact.errors import IntactError
from intact.formats.base.format import Deployed
from intact.formats.registry import runtime_of
from intact.graph import Graph
from intact.plan import NoteKind
from intact.plan.topology import is_decoded
from intact.results.result import Result
from intact.results.sources import float_graph
from published import MODELS, photos
from published_detectors import DECODED, metric_of

TARGETS = ("onnxruntime", "openvino", "tflite", "ncnn")
OLDEST = 13
"""Opset that models of packages have at least."""
PUBLISHED = (*DECODED, "nudenet")
PEERS = Path(__file__).parent / "peers"

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A detector with its samples."""

    name: str
    model: Path
    calibration: Arrays
    test: Arrays
    boxes: str = ""

    @property
    def metric(self) -> DetectionMetric:
        """What reads the outputs."""
        return metric_of(self.name, self.boxes)


@dataclass
class Row:
    """One detector on one target; figures in percent, milliseconds of one image."""

    net: str
    target: str
    kept: float | None = None
    low: float | None = None
    high: float | None = None
    like: float | None = None
    undone: float | None = None
    added: float | None = None
    undone_added: float | None = None
    map_float: float | None = None
    map_quantized: float | None = None
    floats: int = 0
    why: str = ""
    passes: list[str] = field(default_factory=list)
    milliseconds: float | None = None
    milliseconds_float: float | None = None
    said: str = ""


def drawn_cases(folder: Path, names: list[str], seconds: float, count: int) -> Iterator[Case]:
    """Yield the nets trained on drawn shapes."""
    write_all(folder, names, seconds)
    calibration, test = draw(64, 1), draw(count, 2)
    labels = {
        "labels.boxes": test.boxes,
        "labels.classes": test.classes,
        "labels.listed": np.full(count, len(CLASSES)),
    }
    for name in names:
        yield Case(
            name,
            folder / f"{name}.onnx",
            {"image": calibration.images},
            {"image": test.images, **labels},
        )


def published_cases(packages: Path, names: list[str], folder: Path) -> Iterator[Case]:
    """Yield the detectors of packages that are there; say what installs the others."""
    for name in names:
        published = MODELS[name]
        found = published.find(packages)
        if found is None:
            print(f"{name}: {published.install(packages)}", file=sys.stderr)
            continue
        model = onnx.load(found)
        if model.opset_import[0].version < OLDEST:
            # Peers write no scales a channel for older ones, and their documents advise so.
            model = version_converter.convert_version(model, OLDEST)
        _fixed(model, published.shape)
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        if published.shape:
            (entry,) = published.inputs
            _, _, rows, columns = published.shape
            published = replace(published, inputs={entry: photos(rows, columns, 1.0)})
        count = min(published.samples, 32)
        samples = (published.arrays(path, each, seed) for each, seed in ((count, 1), (300, 2)))
        yield _telling(Case(name, path, *samples), 24)


def _telling(case: Case, count: int) -> Case:
    """Keep the first test samples on which the float model finds something: many photos have no
    face."""
    graph = float_graph(str(case.model))
    metric, in_float = case.metric.bound(graph), FloatModel(graph, threads=1)
    kept: list[int] = []
    for at in range(len(next(iter(case.test.values())))):
        if len(kept) == count:
            break
        outputs = in_float.run({name: each[at : at + 1] for name, each in case.test.items()})
        if metric.finds(outputs):
            kept.append(at)
    return replace(case, test={name: each[kept] for name, each in case.test.items()})


def _fixed(model: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    """Give the first input another shape; what follows from the old one is inferred anew."""
    if not shape:
        return
    weights = {each.name for each in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.value_info[:]
    for value, known in ((inputs[0], shape), *((each, ()) for each in model.graph.output)):
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, known or (0,) * len(dims), strict=True):
            dim.Clear()
            if size:
                dim.dim_value = size


def given_case(text: str) -> Case:
    """Read a model with its samples: MODEL.onnx:CALIBRATION.npz:TEST.npz[:BOXES]."""
    model, calibration, test, *boxes = text.split(":", 3)
    arrays = [dict(np.load(each)) for each in (calibration, test)]
    return Case(Path(model).stem, Path(model), *arrays, boxes=boxes[0] if boxes else "")


def measure(case: Case, target: str, *, timed: bool) -> Row:
    """Quantize a detector for a target, without and with the flag."""
    row = Row(case.name, target)
    try:
        result = intact.quantize(str(case.model), case.calibration, target=target)
        _take(row, detections(result, case))
    except IntactError as error:
        row.said = str(error)
        return row
    notes = [str(each) for each in result.plan.notes if each.kind is NoteKind.HEAD]
    row.floats = sum(is_decoded(each) for each in result.plan.decisions.values())
    row.why = notes[0] if notes else ""
    row.passes = [each.improvement.name for each in result.improvements if each.improvement.kept]
    if timed:
        row.milliseconds_float, row.milliseconds = times_of(result, case)
    row.undone, row.undone_added = row.kept, row.added
    if notes:  # without any the flag changes nothing
        undone = intact.quantize(
            str(case.model), case.calibration, target=target, quantize_heads=True
        )
        figures = detections(undone, case).figures
        row.undone, row.undone_added = (figures[each][1] for each in (KEPT, ADDED))
    return row


def _take(row: Row, found: Compared) -> None:
    """Add what a comparison says to a row."""
    row.kept, row.added, row.like = (found.figures[each][1] for each in (KEPT, ADDED, LIKE))
    row.low, row.high = (100 + each for each in found.intervals[KEPT])
    row.map_float, row.map_quantized = found.figures.get(MEAN, (None, None))


def detections(result: Result, case: Case) -> Compared:
    """Compare what was written, in its runtime, with the float model."""
    graph = result.plan.graph
    found = evaluate_result(
        result, open_samples(case.test, graph), metric=case.metric, timed=False, batch=16
    )
    return Compared(found.metrics, found.intervals)


def times_of(result: Result, case: Case) -> tuple[float, float]:
    """Time one image: float in ONNX Runtime, quantized in what it is deployed to."""
    one = {name: each[:1] for name, each in case.test.items() if not name.startswith("labels")}
    ((name, exported),) = result.exports.items()
    run = runtime_of(name).runner(Deployed(result.plan, exported, None, 1))
    in_float = FloatModel(result.plan.graph, threads=1)
    return latencies(lambda: in_float.run(one), lambda: run(one)).milliseconds


def measure_peer(case: Case, name: str, python: str, *, timed: bool) -> Row:
    """Quantize with a tool of others."""
    row = Row(case.name, f"{name} (peer)")
    method = {"ort": "minmax", "nncf": "fast"}[name]
    with tempfile.TemporaryDirectory() as folder:
        samples, output = Path(folder) / "samples.npy", Path(folder) / "peer.onnx"
        np.save(samples, next(iter(case.calibration.values())))
        command = [python, PEERS / f"{name}.py", case.model, samples, output, "W8A8", method]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            row.said = (ran.stderr.strip().splitlines() or ["no message"])[-1][:200]
            return row
        try:
            _compare_files(row, case, output, timed=timed)
        except Exception as error:  # whatever the runtime says of the file
            row.said = str(error)[:200]
    return row


def _compare_files(row: Row, case: Case, quantized: Path, *, timed: bool) -> None:
    """Compare another file with the float model, both in ONNX Runtime."""
    graph = float_graph(str(case.model))
    sessions = [_session(path) for path in (case.model, quantized)]
    records = [_record(each, case, graph) for each in sessions]
    labels = {name: each for name, each in case.test.items() if name.startswith("labels")}
    metric = case.metric.bound(graph)
    _take(row, metric.compare(records[0].outputs(), records[1].outputs(), labels))
    if timed:
        one = {n: each[:1] for n, each in case.test.items() if not n.startswith("labels")}
        runs = [partial(each.run, None, one) for each in sessions]
        row.milliseconds_float, row.milliseconds = latencies(*runs).milliseconds


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(path, options)


def _record(session: ort.InferenceSession, case: Case, graph: Graph) -> OutputRecord:
    names = [str(value.name) for value in graph.outputs]
    inputs = {n: each for n, each in case.test.items() if not n.startswith("labels")}
    record = OutputRecord()
    for at in range(len(next(iter(inputs.values())))):
        feeds: dict[str, npt.NDArray[Any]] = {n: each[at : at + 1] for n, each in inputs.items()}
        record.add(dict(zip(names, session.run(names, feeds), strict=True)), 1, 1)
    return record


def show(rows: list[Row]) -> None:
    """Print the table, then reasons and refusals."""
    columns = (
        "net",
        "target",
        "kept +added %",
        "95 %",
        "no tail kept",
        "mAP float",
        "mAP",
        "float nodes",
        "ms",
    )
    table = Table(*columns)
    for row in rows:
        pairs = ((row.kept, row.added), (row.undone, row.undone_added))
        shown = ["-" if a is None or b is None else f"{a:.1f} +{b:.1f}" for a, b in pairs]
        shown.insert(1, "-" if row.low is None else f"{row.low:.0f} to {row.high:.0f}")
        figures = (row.map_float, row.map_quantized)
        shown += ["-" if each is None else f"{each:.1f}" for each in figures]
        spent = "-"
        if row.milliseconds is not None:
            spent = f"{row.milliseconds_float:.2f} -> {row.milliseconds:.2f}"
        table.add_row(row.net, row.target, *shown, str(row.floats), spent)
    Console(width=110).print(table)
    for row in rows:
        for text in filter(None, (row.why, row.said)):
            print(f"{row.net}, {row.target}: {text}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=120, help="to train each net")
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--packages", type=Path, help="where packages with detectors lie")
    parser.add_argument("--published", default=",".join(PUBLISHED))
    parser.add_argument("--add", action="append", default=[], help="a model with its samples")
    parser.add_argument("--peers", default="", help="pythons with ONNX Runtime's tool and NNCF")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--rows", type=Path, help="a file that gets each row as a line of JSON")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    names = [name for name in given.nets.split(",") if name]
    cases = chain(
        drawn_cases(given.folder, names, given.seconds, given.images),
        published_cases(given.packages, given.published.split(","), given.folder)
        if given.packages
        else (),
        map(given_case, given.add),
    )
    timed = not given.no_times
    rows = []
    for case in cases:
        made = [partial(measure, case, each) for each in filter(None, given.targets.split(","))]
        for name, python in zip(("ort", "nncf"), given.peers.split(","), strict=False):
            made += [partial(measure_peer, case, name, python)] if python else []
        for each in made:
            rows.append(each(timed=timed))
            print(".", end="", file=sys.stderr, flush=True)
            if given.rows:
                with given.rows.open("a") as file:
                    print(json.dumps(asdict(rows[-1])), file=file)
    print(json.dumps([asdict(row) for row in rows], indent=1)) if given.json else show(rows)


if __name__ == "__main__":
    main()

"""Boxes and scores of quantized detectors against the float model's, in the real runtimes.

    python benchmarks/heads.py [--families a,b] [--targets a,b] [--calibration 32] [--images 48]
        [--preset best] [--json]

The detectors are those of `tests/heads/nets.py`: the heads of well-known families with ranges of
trained ones, and from the zoo BlazeFace, whose raw outputs are decoded here. A confident box of the
float model is matched where the quantized model has a box of the same class with an IoU of 0.9 and
a score within 0.1. Without a flag, and with `--quantize-heads`. On processors without 8-bit dot
products `openvino` is simulated there, and `openvino-avx2` runs. Where a runtime cannot choose in
the graph, boxes of all places are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

import intact
from intact.engines.exact_sums import saturates_pairs
from intact.engines.simulate import Simulator
from intact.errors import IntactError
from intact.formats.base.format import Deployed
from intact.formats.registry import runtime_of
from intact.plan import NoteKind
from intact.results.result import Result
from zoo import ZOO

sys.path.insert(0, str(Path(__file__).parents[1]))  # nets of the tests

from tests.heads.matching import matched
from tests.heads.nets import CHOOSING, FAMILIES, Family, images

TARGETS = ("onnxruntime", "openvino", "tflite", "ncnn")
NO_CHOICE = ("tflite", "ncnn")
"""Targets whose runtimes cannot choose the best places."""
FACES = "blazeface_front"

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A detector with its samples.

    Attributes:
        name: Of the family.
        family: How boxes are read.
        model: The float model.
        calibration: Samples.
        test: Others.
        read: Makes of the outputs what the family's boxes are read from.
    """

    name: str
    family: Family
    model: onnx.ModelProto
    calibration: Arrays
    test: Arrays
    read: Callable[[Arrays], npt.NDArray[Any]]


@dataclass
class Row:
    """One detector on one target.

    Attributes:
        family: Of the detector.
        target: What it was quantized for.
        boxes: Confident ones of the float model.
        matched: Percent of them, without a flag; None where the target cannot.
        undone: The same with `--quantize-heads`.
        floats: Nodes that stay float because of their gain.
        said: Why not, where the target cannot.
    """

    family: str
    target: str
    boxes: int = 0
    matched: float | None = None
    undone: float | None = None
    floats: int = 0
    said: str = ""


def made(name: str, calibration: int, count: int) -> Case:
    """Make a family's detector."""
    family = FAMILIES[name]
    given = {"image": images(calibration, seed=1)}, {"image": images(count, seed=2)}
    return Case(name, family, family.build(), *given, lambda outputs: outputs["detections"])


def faces(calibration: int, count: int) -> Case:
    """Read BlazeFace from the zoo."""
    folder = ZOO / "real" / FACES
    data = [dict(np.load(folder / f"{part}.npz")) for part in ("calib", "test")]
    first, second = (
        {name: array[:most] for name, array in each.items()}
        for each, most in zip(data, (calibration, count), strict=True)
    )
    family = Family(lambda: onnx.load(folder / "model.onnx"), "places", corners=True, classes=1)
    return Case(FACES, family, family.build(), first, second, _decoded_faces)


def _decoded_faces(outputs: Arrays) -> npt.NDArray[Any]:
    """Decode anchors of two grids: corners and score, ``[batch, 896, 5]``."""
    found = []
    for grid, each, scores, boxes in ((16, 2, "", "_2"), (8, 6, "_1", "_3")):
        y, x = np.mgrid[:grid, :grid].reshape(2, -1).repeat(each, 1)
        centres = (np.stack([x, y], 1) + 0.5) * (128 / grid)
        moved = outputs[f"Identity{boxes}:0"][..., :4]
        middle, half = moved[..., :2] + centres, moved[..., 2:] / 2
        score = 1 / (1 + np.exp(-np.clip(outputs[f"Identity{scores}:0"], -50, 50)))
        found.append(np.concatenate([middle - half, middle + half, score], axis=2))
    return np.concatenate(found, axis=1)


def cases(names: list[str], calibration: int, count: int) -> Iterator[Case]:
    """Yield the detectors."""
    for name in names:
        yield faces(calibration, count) if name == FACES else made(name, calibration, count)


def feeds_of(arrays: Arrays) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield the samples one by one."""
    for at in range(len(next(iter(arrays.values())))):
        yield {name: array[at : at + 1] for name, array in arrays.items()}


def joined(found: list[Arrays]) -> Arrays:
    """Join the outputs of samples."""
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def in_float(case: Case) -> Arrays:
    """Run the float model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(case.model.SerializeToString(), options)
    names = [each.name for each in session.get_outputs()]
    return joined(
        [dict(zip(names, session.run(names, f), strict=True)) for f in feeds_of(case.test)]
    )


def deployed(result: Result, case: Case, *, simulated: bool) -> Arrays:
    """Run what was written, in its runtime."""
    if simulated:
        simulator = Simulator(result.plan)
        return joined([simulator.run(feeds)[0] for feeds in feeds_of(case.test)])
    ((name, exported),) = result.exports.items()
    run = runtime_of(name).run
    subject = Deployed(result.plan, exported)
    return joined([run(subject, feeds) for feeds in feeds_of(case.test)])


def measure(case: Case, target: str, preset: str | None = None) -> Row:
    """Quantize a detector for a target, without and with the flag."""
    simulated = target == "openvino" and saturates_pairs()
    row = Row(case.name, f"{target} (simulated)" if simulated else target)
    wanted = case.read(in_float(case))
    for undo in (False, True):
        try:
            result = intact.quantize(
                case.model,
                case.calibration,
                target=target,
                quantize_heads=undo,
                preset=preset,
            )
            found = case.read(deployed(result, case, simulated=simulated))
        except IntactError as error:
            row.said = str(error)
            continue
        again = matched(case.family, wanted, found)
        row.boxes = again.boxes
        if undo:
            row.undone = round(100 * again.share, 1)
            continue
        row.matched = round(100 * again.share, 1)
        if any(note.kind is NoteKind.HEAD for note in result.plan.notes):
            reasons = (each.reason for each in result.plan.decisions.values())
            row.floats = sum(reason.startswith("decoded in float") for reason in reasons)
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    shown = [name for name in FAMILIES if name not in CHOOSING.values()]
    parser.add_argument("--families", default=",".join([*shown, FACES]))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--calibration", type=int, default=32)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--preset", help="of improvement passes; the target's unless given")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    targets = given.targets.split(",")
    if "openvino" in targets and saturates_pairs():
        targets.insert(targets.index("openvino") + 1, "openvino-avx2")
    rows = []
    for case in cases(given.families.split(","), given.calibration, given.images):
        for target in targets:
            is_dense = case.name in CHOOSING and target in NO_CHOICE
            name = CHOOSING[case.name] if is_dense else case.name
            chosen = made(name, given.calibration, given.images) if is_dense else case
            rows.append(measure(chosen, target, given.preset))
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table("detector", "target", "boxes", "matched", "--quantize-heads", "nodes in float")
    for row in rows:
        shares = ["-" if s is None else f"{s:.1f} %" for s in (row.matched, row.undone)]
        table.add_row(row.family, row.target, str(row.boxes), *shares, str(row.floats))
    Console(width=100).print(table)
    for row in rows:
        if row.said:
            print(f"{row.family}, {row.target}: {row.said}")


if __name__ == "__main__":
    main()

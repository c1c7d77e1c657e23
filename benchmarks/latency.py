"""Latency in ONNX Runtime: float, intact, intact --fastest, ONNX Runtime's quantizer and NNCF.

    python benchmarks/latency.py [--models a,b] [--batches 1,32] [--threads 2] [--seconds 6]
        [--weight-bits 4] [--target openvino] [--json]

Each model is quantized four ways (ONNX Runtime's: `quantize_static` to QDQ, min-max, a weight
scale for each channel; NNCF's, where it is installed: its defaults), all are loaded as applications
load them, and run in turn in one process;
times are the lower quartile over rounds of the fastest run in each, in milliseconds. SQNR is that
of the worst output on samples that calibration did not see. Machines that do other work besides
are noisy: compare ratios, and repeat.

The time that `--fastest` predicts from those of the pieces stands beside, as a part of float's.

With ``--target`` (openvino, tflite or ncnn) the same is measured in that target's runtime, where
float is the same model written for it with every layer in float, and there is no other quantizer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from rich.console import Console
from rich.table import Table

import intact
from intact.engines.cpu import detect_cpu
from intact.engines.latency import in_turn, lower_quartiles
from intact.errors import IntactError
from intact.formats.base.format import Deployed
from intact.formats.registry import FORMATS, runtime_of
from intact.numerics.metrics import sqnr_db
from intact.placement.choice import Fastest
from intact.targets import load_target
from nets import SIDE, mobilenet_v3, pp_lcnet, squeeze_excite_resnet
from zoo import CALIBRATION, MODELS, TEST, ZOO

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
_SAMPLES, _TESTED = 64, 16
TARGET = "onnxruntime-avx2" if detect_cpu().saturates_pairs else "onnxruntime"
"""Where sums of two products saturate, both quantizers get 7 bits for weights."""
_WAYS = ("float", "intact", "fastest", "peer", "nncf")
_NNCF = Path(__file__).parent / "peers" / "nncf.py"


# ---- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model with samples, by input name, as it takes them; `free` where batches may vary."""

    name: str
    path: Path
    calibration: Arrays
    test: Arrays
    options: Mapping[str, Any] = field(default_factory=dict)


def cases(folder: Path, wanted: set[str]) -> Iterator[Case]:
    """Yield the models, those that are made here last."""
    for each in MODELS:
        if each.name == "mobilenetv2-raw" or (wanted and each.name not in wanted):
            continue
        samples = [
            {
                "image": np.asarray(
                    each.preprocess("image", np.load(path)["image"][:count]), np.float32
                )
            }
            for path, count in ((CALIBRATION, _SAMPLES), (TEST, _TESTED))
        ]
        yield Case(each.name, each.path, *samples)
    if not wanted or "efficientnet_lite1" in wanted:
        path = ZOO / "efficientnet_lite1.onnx"
        name = onnx.load(path, load_external_data=False).graph.input[0].name
        yield Case(
            path.stem, path, *({name: _photos(kind, n)} for kind, n in (("calib", 32), ("test", 8)))
        )
    for path in sorted((ZOO / "real").glob("*/model.onnx")):
        name = path.parent.name
        if name.startswith("silero") or (wanted and name not in wanted):
            continue  # states: see benchmarks/real.py
        both = [dict(np.load(path.parent / f"{kind}.npz")) for kind in ("calib", "test")]
        yield Case(name, path, *({k: v[:32] for k, v in each.items()} for each in both))
    random = np.random.default_rng(7)
    for make in (mobilenet_v3, pp_lcnet, squeeze_excite_resnet):
        if wanted and make.__name__ not in wanted:
            continue
        path = folder / f"{make.__name__}.onnx"
        onnx.save(make(), path)
        images = random.normal(0, 1, (_SAMPLES + _TESTED, 3, SIDE, SIDE)).astype(np.float32)
        yield Case(make.__name__, path, {"x": images[:_SAMPLES]}, {"x": images[_SAMPLES:]})


def _photos(kind: str, count: int) -> npt.NDArray[np.float32]:
    from PIL import Image

    files = sorted((ZOO / "imagenet" / kind).rglob("*.j*g"))[:count]
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    return ((pixels.transpose(0, 3, 1, 2).astype(np.float32) - 127) / 128).astype(np.float32)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Arrays) -> None:
        count = len(next(iter(samples.values())))
        self._feeds = ({k: v[at : at + 1] for k, v in samples.items()} for at in range(count))

    def get_next(self) -> Any:
        """Return the next sample."""
        return next(self._feeds, None)


def by_peer(case: Case, folder: Path) -> Path | None:
    """Quantize with ONNX Runtime's own quantizer; None where it cannot."""
    prepared, made = folder / "prepared.onnx", folder / f"{case.name}.peer.onnx"
    path = case.path.resolve()
    try:
        with contextlib.chdir(folder):  # shape inference leaves files where it runs
            quant_pre_process(str(path), str(prepared))
        quantize_static(
            str(prepared),
            str(made),
            _Reader(case.calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=bool(detect_cpu().saturates_pairs),
        )
        session(made, 1)
    except Exception as error:  # whatever it raises is its answer
        print(f"{case.name}: ONNX Runtime's quantizer: {str(error)[:100]}", file=sys.stderr)
        made.unlink(missing_ok=True)
        return None
    return made


def by_nncf(case: Case, folder: Path) -> Path | None:
    """Quantize with NNCF, in a process of its own; None where it cannot, or is not installed."""
    if len(case.calibration) != 1 or find_spec("nncf") is None:
        return None
    (samples,) = case.calibration.values()
    stored, made = folder / "samples.npy", folder / f"{case.name}.nncf.onnx"
    np.save(stored, samples)
    bits = "W7A8" if detect_cpu().saturates_pairs else "W8A8"
    line = [sys.executable, str(_NNCF), str(case.path), str(stored), str(made), bits, "fast"]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder)
    if ran.returncode:
        said = ran.stderr.strip().splitlines()[-1:]
        print(f"{case.name}: NNCF: {''.join(said)[:100]}", file=sys.stderr)
        return None
    return made


# ---- measured ------------------------------------------------------------------------------------


@dataclass
class Row:
    """One model at one batch: by way, milliseconds, times of float, and decibels.

    What `--fastest` predicted is a ratio to float too: a machine that is shared has another speed
    a minute later, and both figures of the prediction are of one minute.
    """

    model: str
    batch: int
    ms: dict[str, float] = field(default_factory=dict)
    ratio: dict[str, float] = field(default_factory=dict)
    db: dict[str, float] = field(default_factory=dict)
    kept_float: int = 0
    predicted: float = float("nan")
    seconds: dict[str, float] = field(default_factory=dict)


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Load a model as applications do; idle threads do not hold the cores of the next."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measure(
    case: Case,
    batch: int,
    threads: int,
    seconds: float,
    folder: Path,
    weight_bits: int | None = None,
) -> Row:
    """Quantize in all ways, and time them in turn."""
    row = Row(case.name, batch)
    paths: dict[str, Path] = {"float": case.path}
    common: dict[str, Any] = {
        "threads": threads,
        "samples": _SAMPLES,
        "weight_bits": weight_bits,
        **case.options,
    }
    for way, more in (("intact", {}), ("fastest", {"fastest": True, "fastest_batch": batch})):
        begun = time.perf_counter()
        out = folder / f"{case.name}.{way}.{batch}"
        try:
            made = intact.quantize(
                case.path,
                dict(case.calibration),
                target=TARGET,
                output=out,
                **common,
                **more,
            )
        except IntactError as error:
            print(f"{case.name} {way} {batch}: {error}", file=sys.stderr)
            continue
        row.seconds[way] = time.perf_counter() - begun
        paths[way] = out / made.deployed_file
        if made.fastest is not None:
            row.kept_float, row.predicted = _foreseen(made.fastest)
    for way, quantize in (("peer", by_peer), ("nncf", by_nncf)):
        other = folder / f"{case.name}.{way}.onnx"
        found = other if other.exists() else quantize(case, folder)
        if found is not None:
            paths[way] = found
    feeds = {k: np.resize(v, (batch, *v.shape[1:])) for k, v in case.test.items()}
    runs: dict[str, Callable[[], object]] = {}
    outputs: dict[str, list[npt.NDArray[Any]]] = {}
    for way, path in paths.items():
        loaded = session(path, threads)
        with contextlib.suppress(Exception):  # a fixed batch
            loaded.run(None, feeds)
            runs[way] = lambda loaded=loaded: loaded.run(None, feeds)  # type: ignore[misc]
        outputs[way] = [loaded.run(None, {k: v[:1] for k, v in case.test.items()})]
        for at in range(1, len(next(iter(case.test.values())))):
            outputs[way].append(loaded.run(None, {k: v[at : at + 1] for k, v in case.test.items()}))
    for way, found in outputs.items():
        row.db[way] = _worst(outputs["float"], found)
    if "float" not in runs:
        return row
    ways = list(runs)
    rounds = in_turn(list(runs.values()), seconds=seconds * len(runs))
    row.ms = {w: 1e3 * each for w, each in zip(ways, lower_quartiles(rounds), strict=True)}
    row.ratio = {way: each / row.ms["float"] for way, each in row.ms.items()}
    return row


def measure_elsewhere(case: Case, batch: int, threads: int, seconds: float, target: str) -> Row:
    """Time a model in the runtime of another target: in float, as planned, and `--fastest`."""
    row = Row(case.name, batch)
    feeds = {k: np.resize(v, (batch, *v.shape[1:])) for k, v in case.test.items()}
    common: dict[str, Any] = {"threads": threads, "samples": _SAMPLES, "target": target}
    common |= {"io": "float"} if FORMATS[load_target(target).formats[0]].writer.has_io else {}
    runs: dict[str, Callable[[], object]] = {}
    names = [each.node for each in intact.inspect(case.path, target=target).nodes]
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("float", {"keep_float": names, "allow_empty": True}),
        ("intact", {}),
        ("fastest", {"fastest": True, "fastest_batch": batch}),
    )
    for way, more in ways:
        begun = time.perf_counter()
        try:
            made = intact.quantize(
                case.path, dict(case.calibration), **common, **case.options, **more
            )
            ((name, exported),) = made.exports.items()
            run = runtime_of(name).runner(Deployed(made.plan, exported, None, threads))
            run(feeds)
        except IntactError as error:
            print(f"{case.name} {way} {batch} {target}: {error}", file=sys.stderr)
            continue
        row.seconds[way] = time.perf_counter() - begun
        runs[way] = lambda run=run: run(feeds)  # type: ignore[misc]
        if made.fastest is not None:
            row.kept_float, row.predicted = _foreseen(made.fastest)
    if "float" not in runs:
        return row
    rounds = in_turn(list(runs.values()), seconds=seconds * len(runs))
    row.ms = {w: 1e3 * each for w, each in zip(runs, lower_quartiles(rounds), strict=True)}
    row.ratio = {way: each / row.ms["float"] for way, each in row.ms.items()}
    return row


def _foreseen(found: Fastest) -> tuple[int, float]:
    """Return the nodes that stay float, and the predicted time of the choice in times of float."""
    in_float = found.milliseconds.get("float", 0.0)
    ratio = found.predicted / in_float if in_float and found.predicted else float("nan")
    return len(found.kept_float), ratio


def _worst(expected: list[Any], found: list[Any]) -> float:
    pairs = []
    for at, each in enumerate(expected[0]):
        if each.dtype.kind == "f":
            stacked = [
                np.concatenate([np.ravel(run[at]) for run in runs]) for runs in (expected, found)
            ]
            if stacked[0].shape == stacked[1].shape:
                pairs.append(sqnr_db(*stacked))
    return min(pairs, default=float("nan"))


def _shown(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}"


def main() -> None:
    """Measure, print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each model and way")
    parser.add_argument("--weight-bits", type=int, help="of intact's; the other has 8")
    parser.add_argument("--target", default=TARGET, choices=(TARGET, "openvino", "tflite", "ncnn"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted = {name for name in given.models.split(",") if name}
    table = Table("model", "batch", "float ms")
    for name in ("intact", "--fastest", "ONNX Runtime's", "NNCF's"):
        table.add_column(f"{name} ms", justify="right")
        table.add_column("of float", justify="right")
        table.add_column("dB", justify="right")
    table.add_column("in float", justify="right")
    table.add_column("predicted, of float", justify="right")
    table.add_column("quantize s", justify="right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases(folder, wanted):
            for batch in map(int, given.batches.split(",")):
                how = batch, given.threads, given.seconds
                if given.target == TARGET:
                    row = measure(case, *how, folder, given.weight_bits)
                else:
                    row = measure_elsewhere(case, *how, given.target)
                if given.json:
                    print(json.dumps(asdict(row)), flush=True)
                if not row.ms:
                    continue
                cells = [row.model, str(batch), f"{row.ms['float']:.2f}"]
                for way in _WAYS[1:]:
                    cells += [
                        f"{row.ms[way]:.2f}" if way in row.ms else "-",
                        f"{row.ratio[way]:.2f}" if way in row.ratio else "-",
                        f"{row.db[way]:.1f}" if way in row.db else "-",
                    ]
                took = "/".join(f"{row.seconds.get(way, 0):.1f}" for way in ("intact", "fastest"))
                table.add_row(*cells, str(row.kept_float), _shown(row.predicted), took)
    if not given.json:
        Console(width=190).print(table)


if __name__ == "__main__":
    main()

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from rich.console import Console
from rich.table import Table

import intact
from intact.engines.cpu import detect_cpu
from intact.errors import IntactError
from intact.flow.fastest.choice import Fastest
from intact.flow.latency import in_turn, lower_quartiles
from intact.formats.base.format import Deployed
from intact.formats.registry import FORMATS
from intact.numerics.metrics import sqnr_db
from intact.targets import load_target
from zoo import CALIBRATION, MODELS, TEST, ZOO

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
_SAMPLES, _TESTED = 64, 16
TARGET = "onnxruntime-avx2" if detect_cpu().saturates_pairs else "onnxruntime"
"""Where sums of two products saturate, both quantizers get 7 bits for weights."""
_WAYS = ("float", "intact", "fastest", "peer", "nncf")
_NNCF = Path(__file__).parent / "peers" / "nncf.py"
_MADE = 96
"""Rows and columns of the images of nets that are made here."""


# ---- nets ----------------------------------------------------------------------------------------


class Net:
    """A net with random weights, as exporters of PyTorch write it."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{op_type.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], f"node_{name}", **attributes))
        return name

    def weight(self, array: npt.NDArray[Any]) -> str:
        """Add a constant and return its name."""
        name = f"w_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(
        self,
        x: str,
        ins: int,
        outs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        gain: float = 1.0,
    ) -> str:
        """Add a convolution of a bias, padded to the same size, its results times a gain."""
        fan = ins // groups * kernel * kernel
        spread = gain * (2.0 / fan) ** 0.5
        w = self._random.normal(0, spread, (outs, ins // groups, kernel, kernel))
        b = self._random.normal(0, 0.1 * gain, outs)
        names = [self.weight(each.astype(np.float32)) for each in (w, b)]
        pad = kernel // 2
        return self.add(
            "Conv",
            x,
            *names,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=groups,
        )

    def squeeze_excite(self, x: str, channels: int) -> str:
        """Multiply channels by a gate of their means."""
        s = self.add("GlobalAveragePool", x)
        s = self.add("Relu", self.conv(s, channels, max(channels // 4, 8)))
        s = self.conv(s, max(channels // 4, 8), channels)
        return self.add("Mul", x, self.add("HardSigmoid", s, alpha=1 / 6, beta=0.5))

    def head(self, x: str, channels: int, classes: int = 100) -> onnx.ModelProto:
        """Close the net with classes."""
        x = self.add("Flatten", self.add("GlobalAveragePool", x))
        w = self._random.normal(0, channels**-0.5, (classes, channels)).astype(np.float32)
        bias = self.weight(np.zeros(classes, np.float32))
        x = self.add("Gemm", x, self.weight(w), bias, transB=1)
        return self.close(x, (3, _MADE, _MADE), (classes,))

    def close(self, x: str, given: Sequence[int], taken: Sequence[int]) -> onnx.ModelProto:
        """Make a model of input `x` and this output; shapes are those of one sample."""
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
            for name, shape in (("x", given), (x, taken))
        ]
        graph = helper.make_graph(self._nodes, "net", ends[:1], ends[1:], self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        return model


def mobilenet_v3() -> onnx.ModelProto:
    """Make a small MobileNetV3: hard swish, depthwise convolutions, squeeze and excitation."""
    net = Net(1)
    x = net.add("HardSwish", net.conv("x", 3, 16, 3, 2))
    ins = 16
    for outs, wide, kernel, stride, gated, act in (
        (16, 16, 3, 2, True, "Relu"),
        (24, 72, 3, 2, False, "Relu"),
        (24, 88, 3, 1, False, "Relu"),
        (40, 96, 5, 2, True, "HardSwish"),
        (40, 240, 5, 1, True, "HardSwish"),
        (48, 120, 5, 1, True, "HardSwish"),
        (48, 144, 5, 1, True, "HardSwish"),
        (96, 288, 5, 2, True, "HardSwish"),
        (96, 576, 5, 1, True, "HardSwish"),
    ):
        y = net.add(act, net.conv(x, ins, wide))
        y = net.add(act, net.conv(y, wide, wide, kernel, stride, wide))
        y = net.squeeze_excite(y, wide) if gated else y
        y = net.conv(y, wide, outs)
        x = net.add("Add", x, y) if stride == 1 and ins == outs else y
        ins = outs
    x = net.add("HardSwish", net.conv(x, ins, 576))
    return net.head(x, 576)


def pp_lcnet() -> onnx.ModelProto:
    """Make a PP-LCNet: depthwise and pointwise convolutions, each with a hard swish."""
    net = Net(2)
    x = net.add("HardSwish", net.conv("x", 3, 16, 3, 2))
    ins = 16
    for outs, kernel, stride, gated in (
        (32, 3, 1, False),
        (64, 3, 2, False),
        (64, 3, 1, False),
        (128, 3, 2, False),
        (128, 3, 1, False),
        (256, 3, 2, False),
        (256, 5, 1, False),
        (256, 5, 1, False),
        (512, 5, 2, True),
        (512, 5, 1, True),
    ):
        x = net.add("HardSwish", net.conv(x, ins, ins, kernel, stride, ins))
        x = net.squeeze_excite(x, ins) if gated else x
        x = net.add("HardSwish", net.conv(x, ins, outs))
        ins = outs
    return net.head(x, ins)


def squeeze_excite_resnet() -> onnx.ModelProto:
    """Make a ResNet with a squeeze and excitation in each block."""
    net = Net(3)
    x = net.add("Relu", net.conv("x", 3, 32, 3, 2))
    ins = 32
    for outs, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        y = net.add("Relu", net.conv(x, ins, outs, 3, stride))
        y = net.squeeze_excite(net.conv(y, outs, outs, 3), outs)
        x = x if stride == 1 and ins == outs else net.conv(x, ins, outs, 1, stride)
        x, ins = net.add("Relu", net.add("Add", x, y)), outs
    return net.head(x, ins)


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
        images = random.normal(0, 1, (_SAMPLES + _TESTED, 3, _MADE, _MADE)).astype(np.float32)
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
    common |= {"io": "float"} if FORMATS[load_target(target).formats[0]].has_io else {}
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
            runner = FORMATS[name].runner
            assert runner is not None
            run = runner(Deployed(made.plan, exported, None, threads))
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

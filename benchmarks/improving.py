"""What improvement passes gain where rounding to nearest loses, on the zoo, beside other tools.

    python benchmarks/improving.py [--models resnet20,vit] [--bits W4A8,W4A4] [--presets fast,best]
    python benchmarks/improving.py --peers nncf=/envs/nncf/bin/python,aimet=/envs/aimet/bin/python

A row is a model at a width; a column is a preset (or passes: ``rounding+ranges``) or a tool. Each
cell: top-1 in ONNX Runtime, points lost to float with the paired 95 % interval, seconds. 512
CIFAR images or 200 of ImageNet calibrate, without labels; the settings are the same for every
model; the 5,000 or 300 test images are looked at once. Other tools run in environments of their
own, each by its script in ``benchmarks/peers``, and give a QDQ model that is run in the same way.

``--repvgg FILE`` adds a re-parameterised net that ``benchmarks/repvgg.py`` trains. ``--images 32``
calibrates on as many.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
from PIL import Image

import intact
from intact.data.preprocess import Preprocess
from intact.engines.exact_sums import exact_sums
from intact.numerics.metrics import accuracy_difference
from zoo import CALIBRATION, MODELS, NORMALIZED, TEST, ZOO, ZooModel

TENSOR = """format = 2
name = "per-tensor"
extends = "onnxruntime"
[weight]
granularity = "per_tensor"
"""
"""ONNX Runtime with one symmetric scale for all channels of a weight."""
WIDTHS: Mapping[str, Mapping[str, object]] = {
    "W8A8": {},
    "tensor": {"target": TENSOR},
    "W4A8": {"weight_bits": 4},
    "W4A4": {"weight_bits": 4, "activation_bits": 4},
    "pow2": {"target": "integer-pow2"},
}
LITE = ZooModel("efficientnet_lite1", Preprocess((127.0,), (1 / 128,)))
PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Images:
    """Images as a model takes them.

    Attributes:
        arrays: float32, ``[N, 3, rows, columns]``.
        labels: int64, ``[N]``.
    """

    arrays: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


@dataclass
class Cell:
    """What a method came to; accuracies in percent."""

    model: str
    bits: str
    method: str
    float_top1: float
    top1: float
    low: float
    high: float
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        """Write one line."""
        head = f"{self.model:20s} {self.bits:7s} {self.method:24s}"
        if self.error:
            return f"{head} {self.error}"
        lost = self.top1 - self.float_top1
        interval = f"[{self.low:+.2f}, {self.high:+.2f}]"
        figures = f"{self.float_top1:6.2f} {self.top1:6.2f} {lost:+6.2f} {interval:16s}"
        return f"{head} {figures} {self.seconds:6.0f} s"


@cache
def images_of(model: ZooModel) -> tuple[Images, Images]:
    """Read the calibration and the test images of a model."""
    if model.name == LITE.name:
        return _pictures("calib", model), _pictures("test", model)
    return _arrays(CALIBRATION, model, 512), _arrays(TEST, model, None)


def _arrays(path: Path, model: ZooModel, count: int | None) -> Images:
    with np.load(path) as file:
        pixels, labels = file["image"][:count], file["labels"][:count]
    return Images(np.asarray(model.preprocess("image", pixels), np.float32), labels)


def _pictures(part: str, model: ZooModel) -> Images:
    folder = ZOO / "imagenet"
    lines = (folder / f"{part}.csv").read_text(encoding="utf-8").split()[1:]
    names, labels = zip(*(line.split(",") for line in lines), strict=True)
    pixels = [np.asarray(Image.open(folder / part / name).convert("RGB")) for name in names]
    arrays = np.stack(pixels).transpose(0, 3, 1, 2)
    ready = np.asarray(model.preprocess("image", arrays), np.float32)
    return Images(ready, np.asarray(labels, np.int64))


def right(path: Path, images: Images, batch: int = 50) -> npt.NDArray[np.bool_]:
    """Run a model in ONNX Runtime; tell for each image whether its answer is right.

    Sums of two products do not saturate, also on processors without 8-bit dot products.
    """
    options = ort.SessionOptions()
    ready = ir.to_proto(exact_sums(ir.load(path), options)).SerializeToString()
    session = ort.InferenceSession(ready, options, providers=["CPUExecutionProvider"])
    (name,) = (each.name for each in session.get_inputs())
    found = []
    for start in range(0, len(images.labels), batch):
        scores = session.run(None, {name: images.arrays[start : start + batch]})[0]
        found.append(scores.argmax(1) == images.labels[start : start + batch])
    return np.concatenate(found)


@cache
def float_right(model: ZooModel, path: Path) -> npt.NDArray[np.bool_]:
    """Tell which test images the float model has right."""
    return right(path, images_of(model)[1])


def by_intact(
    model: ZooModel, path: Path, bits: str, method: str, folder: Path, images: int | None
) -> Path:
    """Quantize with a preset, or with passes joined by ``+``; return the deployed model."""
    options = dict(WIDTHS[bits])
    target = options.get("target", "onnxruntime")
    if target == TENSOR:
        target = folder / "per-tensor.toml"
        target.write_text(TENSOR, encoding="utf-8")
    options["target"] = target
    if method in ("fast", "balanced", "best"):
        options["preset"] = method
    else:
        options["improve"] = method.split("+")
    calibration = images_of(model)[0].arrays[:images]
    result = intact.quantize(
        path, {"image": calibration}, output=folder / "out", formats=["onnx_qdq"], **options
    )
    for each in result.improvements:
        record = each.improvement
        kept = "" if record.kept else ", rolled back"
        print(
            f"    {record.name}: {record.before:.1f} -> {record.after:.1f} dB{kept}, "
            f"{each.seconds:.0f} s",
            file=sys.stderr,
        )
    return folder / "out" / result.deployed_file


def by_peer(
    python: str,
    name: str,
    path: Path,
    bits: str,
    model: ZooModel,
    folder: Path,
    images: int | None,
) -> Path:
    """Quantize with another tool in its environment; return the QDQ model that it wrote.

    Raises:
        RuntimeError: It failed; the last line that it printed.
    """
    samples = folder / "calibration.npy"
    np.save(samples, images_of(model)[0].arrays[:images])
    written = folder / "peer.onnx"
    tool, _, method = name.partition(":")
    arguments = [str(PEERS / f"{tool}.py"), str(path), str(samples), str(written), bits, method]
    done = subprocess.run(
        [python, *arguments], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode or not written.is_file():
        last = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()[-1]
        raise RuntimeError(last[:120])
    return written


def measure(
    model: ZooModel,
    path: Path,
    bits: str,
    method: str,
    peers: Mapping[str, str],
    images: int | None,
) -> Cell:
    """Make one model and run it."""
    tool = method.partition(":")[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = float_right(model, path)
        start = time.perf_counter()
        try:
            if tool in peers:
                made = by_peer(peers[tool], method, path, bits, model, folder, images)
            else:
                made = by_intact(model, path, bits, method, folder, images)
        except (RuntimeError, intact.IntactError) as error:
            return Cell(model.name, bits, method, 0, 0, 0, 0, 0, str(error))
        seconds = time.perf_counter() - start
        found = right(made, images_of(model)[1])
    difference = accuracy_difference(reference, found)
    return Cell(
        model.name,
        bits,
        method,
        100 * float(reference.mean()),
        100 * float(found.mean()),
        100 * difference.low,
        100 * difference.high,
        seconds,
    )


def chosen(names: Sequence[str], repvgg: Path | None) -> list[tuple[ZooModel, Path]]:
    """Return the models with their files."""
    known = [*(each for each in MODELS if each.name != "mobilenetv2-raw"), LITE]
    found = [(each, each.path) for each in known]
    if repvgg is not None:
        found.append((ZooModel("repvgg", NORMALIZED), repvgg))
    return [(model, path) for model, path in found if not names or model.name in names]


def main() -> None:
    """Print a line for each cell as it is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="")
    parser.add_argument("--bits", default=",".join(WIDTHS))
    parser.add_argument("--presets", default="fast,balanced,best")
    parser.add_argument("--peers", default="", help="TOOL[:METHOD]=PYTHON,...")
    parser.add_argument("--repvgg", type=Path)
    parser.add_argument("--images", type=int, help="how many calibrate, if fewer")
    parser.add_argument("--json", type=Path, help="where the cells are written, too")
    given = parser.parse_args()
    listed = [part.rsplit("=", 1) for part in given.peers.split(",") if part]
    peers = {name.partition(":")[0]: python for name, python in listed}
    methods = [each for each in given.presets.split(",") if each] + [name for name, _ in listed]
    cells = []
    for model, path in chosen([each for each in given.models.split(",") if each], given.repvgg):
        for bits in given.bits.split(","):
            for method in methods:
                cells.append(measure(model, path, bits, method, peers, given.images))
                print(cells[-1], flush=True)
                if given.json is not None:
                    given.json.write_text(json.dumps([asdict(each) for each in cells], indent=1))


if __name__ == "__main__":
    main()

"""Training on the zoo: what is regained at few bits, what it costs, and whether the bits agree.

    python benchmarks/training.py [--rows resnet20:onnxruntime:4:4:lsq,...] [--epochs 10]
    python benchmarks/training.py --speed

A row is model:target:weight bits:activation bits:quantizers, with ``:nolabels`` to leave the labels
out; bits of 8 are the target's own. Trained on cifar10-train.npz alone, a tenth of which is held
out to choose the epoch. Top-1 on the 5,000 of cifar10-test.npz, in ONNX Runtime where the target is
deployed to it, else by the integer engine, with the paired 95 % interval of the difference to
float. Codes that differ: where fake quantizers in float32 give others than the target's
arithmetic, on 64 images, each layer on the target's own inputs. For OpenVINO also its own top-1 on
this machine, which saturates pairs where the CPU has no VNNI and the target is not openvino-avx2,
and how many convolutions it says that it computes in integers.

``--speed`` compares a training step of ResNet-20 (batch 64) with that of the same network in plain
torch, interleaved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import intact
from intact.formats.openvino.run import load_openvino
from intact.formats.openvino.write import OpenVinoModel
from intact.results.result import Result
from zoo import CALIBRATION, MODELS, TEST, ZOO, ZooModel, calibration_images

TRAIN = ZOO / "cifar10-train.npz"
ROWS = (
    "resnet20:onnxruntime:4:4:lsq",
    "resnet20:onnxruntime:3:3:lsq",
    "resnet20:onnxruntime:2:4:lsq",
    "mobilenetv2:onnxruntime:4:4:lsq",
    "mobilenetv2:integer-pow2:8:8:lsq",
    "vit:onnxruntime:4:4:lsq",
    "resnet20:openvino:8:8:lsq",
    "resnet20:openvino-avx2:8:8:lsq",
    "resnet20:onnxruntime:4:4:fixed",
    "resnet20:onnxruntime:4:4:lsq+",
    "resnet20:onnxruntime:4:4:pact",
    "resnet20:onnxruntime:4:4:lsq:nolabels",
)


@dataclass
class Row:
    """What a training came to; accuracies in percent."""

    row: str
    float_top1: float
    before: float
    after: float
    low: float
    high: float
    best_epoch: int
    seconds: float
    differing: int
    codes: int
    in_openvino: str = ""


def train(row: str, epochs: int, augment: tuple[str, ...], output: Path | None) -> Row:
    """Quantize, train and evaluate; store the result, if there is a folder for it."""
    name, target, weight_bits, activation_bits, quantizers, *rest = row.split(":")
    model = next(each for each in MODELS if each.name == name)
    widths = {"weight_bits": int(weight_bits), "activation_bits": int(activation_bits)}
    result = intact.quantize(
        model.path,
        CALIBRATION,
        target=target,
        preprocess=model.preprocess,
        **{key: bits for key, bits in widths.items() if bits != 8},
    )
    before = intact.evaluate(result, TEST)
    start = time.perf_counter()
    trained = intact.train(
        result,
        TRAIN,
        epochs=epochs,
        quantizers=quantizers,
        augment=augment,
        output=None if output is None else output / row.replace(":", "-"),
        label_weight=0.0 if "nolabels" in rest else None,
        report=lambda epoch: print(f"  {row}: {epoch}", file=sys.stderr, flush=True),
    )
    seconds = time.perf_counter() - start
    after = intact.evaluate(trained, TEST, float_model=model.path)
    assert before.accuracy is not None
    assert after.accuracy is not None
    assert trained.trained is not None
    differing, codes = _codes(trained, model)
    difference = after.accuracy.difference
    return Row(
        row,
        *after.accuracy.top1[:1],
        before.accuracy.top1[1],
        after.accuracy.top1[1],
        difference.low,
        difference.high,
        trained.trained.best,
        seconds,
        differing,
        codes,
        in_openvino(trained, model) if target.startswith("openvino") else "",
    )


def in_openvino(result: Result, model: ZooModel, batch: int = 100) -> str:
    """Run what is deployed; say its top-1, and how many convolutions are in integers."""
    exported = result.exports["openvino"]
    assert isinstance(exported, OpenVinoModel)
    runtime = load_openvino(exported)
    with np.load(TEST) as file:
        images, labels = file["image"], file["labels"]
    (name,) = (str(value.name) for value in result.plan.graph.inputs)
    right = 0
    for start in range(0, len(labels), batch):
        part = np.asarray(model.preprocess("image", images[start : start + batch]), np.float32)
        outputs, _ = runtime.run({name: part})
        scores = outputs[runtime.outputs[0]]
        right += int((scores.argmax(1) == labels[start : start + batch]).sum())
    convolutions = [each for each in runtime.executed if "Convolution" in each.kind]
    integers = sum(each.in_integers for each in convolutions)
    top1 = 100 * right / len(labels)
    return f"in OpenVINO {top1:.2f}, {integers} of {len(convolutions)} convolutions in integers"


def _codes(result: Result, model: ZooModel) -> tuple[int, int]:
    module = intact.to_torch(result)
    images = torch.from_numpy(calibration_images(model, 64))
    found = module.differing_codes(images).values()
    return sum(each.codes for each in found), sum(each.elements for each in found)


class _Block(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        stride = 1 if channels == width else 2
        self.first = nn.Conv2d(channels, width, 3, stride, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.beside = nn.Conv2d(channels, width, 1, stride) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second(torch.relu(self.first(x)))
        return torch.relu(inner + self.beside(x))


def plain_resnet20() -> nn.Module:
    """Return ResNet-20 without BatchNormalization, as it is deployed."""
    widths = [16] * 4 + [32] * 3 + [64] * 3
    blocks = [_Block(a, b) for a, b in itertools.pairwise(widths)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), *blocks, *head)


def speed(repeats: int, batch: int) -> dict[str, float]:
    """Time steps in turn; return the median ratios to plain torch."""
    model = next(each for each in MODELS if each.name == "resnet20")
    result = intact.quantize(
        model.path, CALIBRATION, preprocess=model.preprocess, weight_bits=4, activation_bits=4
    )
    images = torch.from_numpy(calibration_images(model, batch))
    modules: dict[str, nn.Module] = {"plain torch": plain_resnet20()}
    modules |= {each: intact.to_torch(result, quantizers=each) for each in ("fixed", "lsq", "lsq+")}
    without = intact.to_torch(result)
    without.enable_quantizers(False)
    modules["quantizers off"] = without
    times: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(repeats):
        for name, module in modules.items():
            times[name].append(_seconds(_step(module, images)))
    plain = times["plain torch"]
    return {
        name: statistics.median(a / b for a, b in zip(found, plain, strict=True))
        for name, found in times.items()
    } | {"seconds of plain torch": statistics.median(plain)}


def _step(module: nn.Module, images: Tensor) -> Callable[[], None]:
    def step() -> None:
        module.zero_grad(set_to_none=True)
        module(images).square().mean().backward()

    return step


def _seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    """Print a line for each row as it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--augment", default="flip,shift")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--append", type=Path, help="a file of JSON lines to add the rows to")
    parser.add_argument("--output", type=Path, help="a folder for the trained results")
    given = parser.parse_args()
    if given.speed:
        for name, ratio in speed(given.repeats, 64).items():
            print(f"{name:24} {ratio:8.3f}")
        return
    print("row, float, before, after [difference to float, 95 %], epoch, s, codes that differ")
    augment = tuple(each for each in given.augment.split(",") if each)
    for row in given.rows.split(","):
        found = train(row, given.epochs, augment, given.output)
        print(
            f"{found.row:40} {found.float_top1:6.2f} {found.before:6.2f} {found.after:6.2f} "
            f"[{found.low:+.2f}, {found.high:+.2f}] {found.best_epoch:3d} {found.seconds:6.0f} "
            f"{found.differing} of {found.codes} {found.in_openvino}",
            flush=True,
        )
        if given.append is not None:
            with given.append.open("a") as file:
                file.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()

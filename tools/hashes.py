"""Hash every file that intact writes, and the integers that it computes, to compare two commits.

A step that only moves code changes no bit::

    python tools/hashes.py --output before.txt
    ... the change ...
    python tools/hashes.py --against before.txt

The second run prints each line that differs, and its exit code is then 1. Both runs take the same
machine: a float model, and with it a scale, differs in its last bits between processors. One line
is a model, a target, a format, a file and its hash; a refusal stands with its text.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import intact  # noqa: E402 - see above
from intact.errors import IntactError  # noqa: E402
from intact.results.folder import STATISTICS  # noqa: E402
from intact.results.result import Result  # noqa: E402
from intact.targets import load_target, target_names  # noqa: E402
from tests.gallery.catalogue import GALLERY  # noqa: E402
from tests.models import ModelBuilder  # noqa: E402
from tests.nets.findings import RandomNet  # noqa: E402
from tests.nets.grown import grown_net  # noqa: E402
from tests.nets.nets import random_net  # noqa: E402

ZOO = Path(os.environ.get("INTACT_ZOO", ROOT.parent / "shared" / "zoo"))
CALIBRATED_ON, RUN_ON = 32, 4
"""Samples: what is compared is code, not accuracy."""

Arrays = Mapping[str, npt.NDArray[Any]]


class Sampler(Protocol):
    """Draws so many samples with a seed, by input."""

    def __call__(self, count: int, seed: int, /) -> Arrays:
        """Draw them."""


@dataclass(frozen=True)
class Case:
    """A model with its samples.

    Attributes:
        name: What its lines begin with.
        model: Builds or reads it.
        samples: Draws its samples.
    """

    name: str
    model: Callable[[], onnx.ModelProto]
    samples: Sampler


def exact_net() -> onnx.ModelProto:
    """Build a net whose sums are exact in float32, so that every processor has the same hashes."""
    b = ModelBuilder(seed=3)

    def weight(*shape: int) -> str:
        return b.constant((b.random.integers(-8, 9, shape) / 16).astype(np.float32))

    x = b.input("image", ["batch", 4, 8, 8])
    stem = b.node("Relu", b.node("Conv", x, weight(8, 4, 3, 3), weight(8), pads=[1, 1, 1, 1]))
    branch = b.node("Conv", stem, weight(8, 1, 3, 3), weight(8), pads=[1, 1, 1, 1], group=8)
    joined = b.node("Relu", b.node("Add", stem, branch))
    pooled = b.node("MaxPool", joined, kernel_shape=[2, 2], strides=[2, 2])
    flat = b.node("Reshape", pooled, b.ints(-1, 128))
    b.output(b.node("Gemm", flat, weight(10, 128), weight(10), transB=1, out="y"), ["batch", 10])
    return b.build()


def _exact_samples(count: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {"image": (random.integers(-8, 9, (count, 4, 8, 8)) / 4).astype(np.float32)}


EXACT = Case("exact", exact_net, _exact_samples)


def gallery() -> Iterator[Case]:
    """Return the families of models that are tested from end to end."""
    for name, described in GALLERY.items():
        yield Case(f"gallery/{name}", described.build, described.source)


def nets(count: int) -> Iterator[Case]:
    """Return the first nets of both generators."""
    for seed in range(count):
        drawn = random_net(seed)
        yield Case(f"net/{seed}", drawn.model, _seeded(drawn))
        grown = grown_net(seed)
        if grown.is_usable():
            yield Case(f"grown/{seed}", grown.model, _seeded(grown))


def _seeded(net: RandomNet) -> Sampler:
    return lambda count, seed: net.samples(count, seed=seed)


def zoo() -> Iterator[Case]:
    """Return the trained models of 32x32 images, where the folder is there."""
    images = ZOO / "cifar10-calib.npz"
    for name in ("resnet20", "mobilenetv2", "mlperf_resnet8", "vit"):
        path = ZOO / f"{name}.onnx"
        if path.exists():
            yield Case(f"zoo/{name}", partial(onnx.load, path), partial(_images, path, images))


def _images(model: Path, images: Path, count: int, seed: int) -> Arrays:
    first = onnx.load(model).graph.input[0].name
    pixels = np.load(images)["image"][count * (seed - 1) : count * seed].astype(np.float32)
    return {first: (pixels - 120) / 64}


def lines(case: Case, targets: Iterable[str]) -> Iterator[str]:
    """Hash what a case becomes on each target, in each of its formats."""
    model = case.model()
    samples, feeds = case.samples(CALIBRATED_ON, 1), case.samples(RUN_ON, 2)
    for target in targets:
        written: Result | None = None
        for name in load_target(target).formats:
            head = f"{case.name} {target} {name}"
            try:
                if written is None:
                    made = _quantized(model, samples, target, name)
                    written = made
                else:
                    made = intact.export(written, formats=[name])
                files = _files(made)
            except IntactError as error:
                yield f"{head} refused {_line(error)}"
                continue
            yield from (f"{head} {file} {_short(data)}" for file, data in files.items())
        if written is not None:
            yield from (f"{case.name} {target} {line}" for line in _codes(written, feeds))


def _quantized(model: onnx.ModelProto, samples: Arrays, target: str, name: str) -> Result:
    return intact.quantize(model, samples, target=target, formats=[name], threads=1)


def _files(result: Result) -> Mapping[str, bytes]:
    """Return what a result writes, but for statistics: their hash is in the plan's provenance."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "result"
        result.save(place)
        found = sorted(p for p in place.rglob("*") if p.is_file() and p.name != STATISTICS)
        return {str(path.relative_to(place)): path.read_bytes() for path in found}


def _codes(result: Result, feeds: Arrays) -> Iterator[str]:
    """Hash the integer engine's tensors: outputs and all between."""
    try:
        run = intact.execute(result, feeds, executor="integer", observe=None, threads=1)
    except IntactError as error:
        yield f"engine refused {_line(error)}"
        return
    for kind, arrays in (("output", run.outputs), ("tensor", run.tensors)):
        for name, array in arrays.items():
            head = f"{array.dtype}{list(array.shape)}".encode()
            yield f"engine {kind} {name} {_short(head + array.tobytes())}"


def _line(error: IntactError) -> str:
    """Return what an error says, in one line; a temporary folder has another name each time."""
    return " ".join(
        re.sub(rf"{re.escape(tempfile.gettempdir())}/[^/ ]+", "TMP", str(error)).split()
    )


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def differences(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return lines that only one of two lists has: ``-`` that of before, ``+`` that of now."""
    old, new = dict.fromkeys(before), dict.fromkeys(now)
    return [f"- {line}" for line in old if line not in new] + [
        f"+ {line}" for line in new if line not in old
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Hash; return 1 where something differs from the given list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the list goes")
    parser.add_argument("--against", type=Path, help="a list to compare with")
    parser.add_argument("--only", default="", help="cases whose name begins so, as gallery/")
    parser.add_argument("--target", action="append", choices=target_names(), help="repeatable")
    parser.add_argument("--nets", type=int, default=20, help="random nets of each generator")
    given = parser.parse_args(arguments)
    cases = [EXACT, *gallery(), *nets(given.nets), *zoo()]
    cases = [case for case in cases if case.name.startswith(given.only)]
    found: list[str] = []
    started = time.monotonic()
    for done, case in enumerate(cases, 1):
        found += lines(case, given.target or target_names())
        spent = time.monotonic() - started
        left = spent / done * (len(cases) - done)
        print(f"{case.name}: {len(found)} hashes, {left:.0f} s left", file=sys.stderr, flush=True)
    if given.output is not None:
        given.output.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    if given.against is None:
        return 0
    wrong = differences(given.against.read_text(encoding="utf-8").splitlines(), found)
    print("\n".join(wrong) if wrong else f"{len(found)} hashes, all equal")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

"""Work on a cluster: two workers against one, and what a hundred would take on paper.

    python benchmarks/cluster.py [--repeats 3] [--samples 2048]
        [--parts speed,reports,constants,paper]

1. speed: on local Ray, in turn, one worker and two, each with one thread: samples per second from
   the first shard that is counted to the last; what this program computes for a sample, which no
   number of workers makes shorter; and the load of the machine meanwhile.
2. reports: `evaluate` and `verify` of the EfficientNet-Lite1 likewise, in seconds with and without
   the start of the workers.
3. constants: seconds of one sample on one core, seconds of one merge, bytes of a reply, of a file
   and of the model; of an EfficientNet-Lite1 at 224x224 and a ResNet-20 at 32x32.
4. paper: from these constants, 10^6 images on 100 workers: the time of the workers, that of the
   merges here, and the bytes that travel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

import intact
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.analyze.verification.compare import Subject, compare
from intact.calibrate.assign import required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.collect_on import collect_on
from intact.calibrate.shards import SampleMap
from intact.calibrate.statistics import Statistics
from intact.data.preprocess import Preprocess
from intact.data.shards import Images, encode
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from intact.plan import build_plan
from intact.results.result import Result
from intact.targets import load_target
from intact.workers.ray_ import Connection
from zoo import MODELS, ZOO, calibration_images

IMAGES, WORKERS = 1_000_000, 100
SHARD = 1024
LINK = 1.25e9
"""Bytes a second of a 10 Gbit/s link, which all that this program sends and receives shares."""


class Case(NamedTuple):
    """A model, its samples, and what is observed."""

    name: str
    graph: Graph
    tensors: Sequence[str]
    samples: Callable[[int], Samples]
    files: Sequence[Path]


class Constants(NamedTuple):
    """What was measured of a case."""

    name: str
    sample_seconds: float
    float_seconds: float
    merge_seconds: float
    reply_bytes: int
    request_bytes: int
    file_bytes: int
    model_bytes: int


def cases() -> list[Case]:
    """List the cases that the zoo has."""
    folder = ZOO / "imagenet" / "calib"
    files = sorted(folder.glob("*.jpg"))
    lite = normalize(ZOO / "efficientnet_lite1.onnx")
    steps = Preprocess((127.0,), (1 / 128,))
    resnet = next(model for model in MODELS if model.name == "resnet20")
    small = normalize(resnet.path)
    pixels = calibration_images(resnet, 2048)

    def repeated(count: int) -> Samples:
        return open_samples({"image": np.resize(pixels, (count, *pixels.shape[1:]))}, small)

    return [
        Case(
            "efficientnet_lite1",
            lite,
            _observed(lite),
            lambda count: open_samples(folder, lite, preprocess=steps, limit=count),
            files,
        ),
        Case("resnet20", small, _observed(small), repeated, ()),
    ]


def _observed(graph: Graph) -> Sequence[str]:
    inputs = tuple(str(value.name) for value in graph.inputs)
    tensors = required_tensors(build_plan(graph, load_target("onnxruntime")))
    return tuple(dict.fromkeys((*inputs, *tensors)))


# ---- speed ---------------------------------------------------------------------------------------


def rate(case: Case, workers: int, samples: int) -> tuple[float, float]:
    """Return samples per second, and seconds of processor time of this program for each.

    From the first shard that is counted to the last.
    """
    seen: list[tuple[float, float, int]] = []
    with SampleMap("local", workers) as cluster:
        collect_on(
            cluster,
            case.graph,
            case.samples(samples),
            case.tensors,
            threads=1,
            progress=lambda done, _: seen.append((time.perf_counter(), time.process_time(), done)),
        )
    (began, here, first), (ended, there, last) = seen[0], seen[-1]
    return (last - first) / (ended - began), (there - here) / (last - first)


def print_speed(found: Sequence[Case], samples: int, repeats: int) -> None:
    """Table 1."""
    connection = Connection("local")
    connection.open()  # for all runs: Ray takes seconds to start
    table = Table(title="samples per second, one thread a worker, in turn; median of ratios")
    for heading in ("model", "samples", "1 worker", "2 workers", "ratio", "here, ms", "load"):
        table.add_column(heading, justify="right")
    for case in found:
        count = min(samples, len(case.files)) if case.files else samples
        rates = [(rate(case, 1, count), rate(case, 2, count)) for _ in range(repeats)]
        one, two = (statistics.median(r for r, _ in each) for each in zip(*rates, strict=True))
        ratio = statistics.median(second / first for (first, _), (second, _) in rates)
        here = statistics.median(seconds for _, (_, seconds) in rates)
        load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        table.add_row(
            case.name,
            str(count),
            f"{one:.1f}",
            f"{two:.1f}",
            f"{ratio:.2f}",
            f"{1e3 * here:.2f}",
            load,
        )
    connection.close()
    Console(width=120).print(table)


# ---- reports -------------------------------------------------------------------------------------


def seconds(result: Result, what: str, workers: int, samples: Samples) -> tuple[float, float]:
    """Return what a command takes, and for each sample behind the first shard."""
    seen: list[tuple[float, int]] = []
    counted = replace(samples, progress=lambda done, _: seen.append((time.perf_counter(), done)))
    began = time.perf_counter()
    with SampleMap("local", workers) as cluster:
        if what == "evaluate":
            evaluate_result(result, counted, batch=8, threads=1, timed=False, cluster=cluster)
        else:
            compare(Subject.of_result(result), counted, threads=1, cluster=cluster)
    ended = time.perf_counter()
    (first, before), (last, after) = seen[0], seen[-1]
    return ended - began, (last - first) / (after - before) if after > before else 0.0


def print_reports(case: Case, repeats: int) -> None:
    """Table 2."""
    steps = Preprocess((127.0,), (1 / 128,))
    result = intact.quantize(
        ZOO / "efficientnet_lite1.onnx", case.files[0].parent, preprocess=steps, samples=32
    )
    connection = Connection("local")
    connection.open()
    table = Table(title="seconds, one thread a worker, in turn; medians")
    for heading in (
        "command",
        "samples",
        "1 worker",
        "2 workers",
        "ratio",
        "of work alone",
        "load",
    ):
        table.add_column(heading, justify="right")
    for what, count in (("evaluate", 600), ("verify", 192)):
        files = [case.files[number % len(case.files)] for number in range(count)]
        samples = open_samples(files, case.graph, preprocess=steps)
        pairs = [
            [seconds(result, what, workers, samples) for workers in (1, 2)] for _ in range(repeats)
        ]
        one, two = (statistics.median(pair[each][0] for pair in pairs) for each in (0, 1))
        ratio = statistics.median(first[0] / second[0] for first, second in pairs)
        parts = [first[1] / second[1] for first, second in pairs if first[1] and second[1]]
        work = f"{statistics.median(parts):.2f}" if parts else "-"  # one shard tells nothing
        load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        row = (what, str(count), f"{one:.1f}", f"{two:.1f}", f"{ratio:.2f}", work, load)
        table.add_row(*row)
    connection.close()
    Console(width=120).print(table)


# ---- constants -----------------------------------------------------------------------------------


def measured(case: Case, repeats: int) -> Constants:
    """Measure the constants of a case; processor time, which other programs disturb least."""
    count = 64
    samples = case.samples(count)
    collect(case.graph, samples, case.tensors, threads=1)
    seconds, plain, merges = [], [], []
    whole = collect(case.graph, case.samples(len(case.files) or SHARD), case.tensors, threads=1)
    reply = whole.to_bytes(compressed=False)
    for _ in range(repeats):
        start = time.process_time()
        collect(case.graph, samples, case.tensors, threads=1)
        seconds.append((time.process_time() - start) / count)
        model = FloatModel(case.graph, threads=1)
        start = time.process_time()
        for rows, _ in samples.batches(32):
            model.run(rows)
        plain.append((time.process_time() - start) / count)
        merged = Statistics(case.graph.hash)
        merged.merge_bytes(reply)
        start = time.process_time()
        merged.merge_bytes(reply)
        merges.append(time.process_time() - start)
    shard = Images([f"train/n01440764/n01440764_{n:05}.JPEG" for n in range(SHARD)])
    sizes = [path.stat().st_size for path in case.files]
    import onnx_ir as ir

    return Constants(
        case.name,
        statistics.median(seconds),
        statistics.median(plain),
        statistics.median(merges),
        len(reply),
        len(encode(shard)),
        int(statistics.mean(sizes)) if sizes else 3 * 32 * 32 * 4,
        len(ir.to_proto(case.graph.model).SerializeToString()),
    )


def print_constants(found: Sequence[Constants]) -> None:
    """Table 3."""
    table = Table(title="constants")
    headings = (
        "model",
        "sample, ms",
        "float pass, ms",
        "merge, ms",
        "reply, MB",
        "file, kB",
        "model, MB",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(
            each.name,
            f"{1e3 * each.sample_seconds:.2f}",
            f"{1e3 * each.float_seconds:.2f}",
            f"{1e3 * each.merge_seconds:.1f}",
            f"{each.reply_bytes / 1e6:.2f}",
            f"{each.file_bytes / 1e3:.1f}",
            f"{each.model_bytes / 1e6:.1f}",
        )
    Console(width=120).print(table)


class Paper(msgspec.Struct):
    """What a run takes, from constants; seconds and bytes."""

    work: float
    merges: float
    requests: float
    replies: float
    files: float
    models: float

    @property
    def seconds(self) -> float:
        """What it takes: the workers or the merges, whichever is longer, and the model's way."""
        return max(self.work, self.merges, (self.requests + self.replies) / LINK) + (
            self.models / LINK
        )

    @property
    def seconds_sent(self) -> float:
        """The same where the files are sent too."""
        sent = (self.requests + self.replies + self.files) / LINK
        return max(self.work, self.merges, sent) + self.models / LINK


def paper(constants: Constants, images: int = IMAGES, workers: int = WORKERS) -> Paper:
    """Compute what a run takes."""
    shards = -(-images // SHARD)
    rounds = -(-shards // workers)  # the last round is not full
    return Paper(
        work=rounds * SHARD * constants.sample_seconds,
        merges=shards * constants.merge_seconds,
        requests=shards * constants.request_bytes,
        replies=shards * constants.reply_bytes,
        files=images * constants.file_bytes,
        models=workers * constants.model_bytes,
    )


def print_paper(found: Sequence[Constants]) -> None:
    """Table 4."""
    table = Table(title=f"{IMAGES:,} images, shards of {SHARD}, 10 Gbit/s here; on paper")
    headings = ("model", "workers", "workers, s", "merges, s", "replies, GB", "files, GB")
    for heading in (*headings, "in all, s", "files sent, s", "of one worker"):
        table.add_column(heading, justify="right")
    for each in found:
        alone = paper(each, workers=1).seconds
        for workers in (1, 10, WORKERS, 1000):
            run = paper(each, workers=workers)
            table.add_row(
                each.name,
                str(workers),
                f"{run.work:.0f}",
                f"{run.merges:.1f}",
                f"{run.replies / 1e9:.2f}",
                f"{run.files / 1e9:.0f}",
                f"{run.seconds:.0f}",
                f"{run.seconds_sent:.0f}",
                f"1/{alone / run.seconds:.1f}",
            )
    Console(width=140).print(table)


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--parts", default="speed,reports,constants,paper")
    arguments = parser.parse_args()
    parts, found = arguments.parts.split(","), cases()
    if "speed" in parts:
        print_speed(found, arguments.samples, arguments.repeats)
    if "reports" in parts:
        print_reports(found[0], arguments.repeats)
    if {"constants", "paper"} & set(parts):
        constants = [measured(case, arguments.repeats) for case in found]
        print_constants(constants)
        print_paper(constants)


if __name__ == "__main__":
    main()

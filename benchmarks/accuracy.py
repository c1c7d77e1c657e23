"""Accuracy, size and speed on the zoo: float against int8, the target's default method.

    python benchmarks/accuracy.py [--target NAME] [--method NAME] [--models a,b] [--json]

512 calibration images, top-1 on cifar10-test with the paired 95 % interval, logit SQNR, and the
latency of batch 100 on 2 threads as a ratio of runs in turn.
"""

from __future__ import annotations

import argparse
import json

import msgspec
from rich.console import Console
from rich.table import Table

import intact
from intact.analyze.evaluation.figures import Evaluation
from intact.engines.cpu import detect_cpu
from zoo import CALIBRATION, MODELS, TEST, ZooModel

LIMITS = {True: 0.3, False: 0.5}
"""Points that may be lost by CNNs and by others."""


def measure(model: ZooModel, target: str, method: str | None) -> Evaluation:
    """Quantize one model in memory and evaluate it."""
    result = intact.quantize(
        model.path,
        CALIBRATION,
        target=target,
        method=method,
        preprocess=model.preprocess,
        threads=2,
    )
    return intact.evaluate(result, TEST, batch=100, threads=2)


def main() -> None:
    """Print one row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="onnxruntime")
    parser.add_argument("--method")
    parser.add_argument("--models", default=",".join(model.name for model in MODELS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.models.split(",")
    found = {m: measure(m, arguments.target, arguments.method) for m in MODELS if m.name in wanted}
    if arguments.json:
        print(
            json.dumps(
                {model.name: msgspec.to_builtins(row) for model, row in found.items()}, indent=1
            )
        )
        return
    cpu = detect_cpu()
    method = arguments.method or "default method"
    table = Table(title=f"{arguments.target}, {method}, {cpu.name} ({cpu.instruction_set})")
    for heading in (
        "model",
        "float",
        "int8",
        "change [95 %]",
        "within",
        "SQNR dB",
        "size",
        "ms/100",
        "speed-up",
    ):
        table.add_column(heading, justify="right")
    for model, row in found.items():
        if row.accuracy is None:
            continue
        points = row.accuracy.difference
        table.add_row(
            model.name,
            *(f"{value:.2f}" for value in row.accuracy.top1),
            f"{points.difference:+.2f} [{points.low:+.2f}, {points.high:+.2f}]",
            "yes" if -points.difference <= LIMITS[model.is_cnn] else "NO",
            f"{row.sqnr_db:.1f}",
            f"{row.bytes[0] / row.bytes[1]:.2f}x",
            f"{row.latency_ms[0]:.2f} -> {row.latency_ms[1]:.2f}",
            f"{row.speedup:.2f}x",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

"""Where Q/DQ stand: intact's choice beside pairs placed by hand, in ONNX Runtime.

    python benchmarks/placement.py [--patterns a,b] [--batches 1,8] [--threads 2] [--seconds 2]
        [--json]

Each net is one pattern (`by_hand.py`): a residual chain, a Concat of unlike ranges, a squeeze and
excitation, depthwise convolutions with HardSwish, transposes, the two halves of a transformer,
poolings and Resize. Pairs are placed by hand in several ways; the fastest way counts. It is chosen
first, and then timed again in turn with the float model, `intact.quantize` and the same with
`fastest`, all loaded as applications load them, in one process. Where intact's takes more than 5 %
longer, the kernels of both follow (`--json` always has them). SQNR is that of the output on
samples that calibration did not see; by hand, limits are minimum and maximum. Machines that do
other work besides are noisy: compare ratios, repeat, and trust kernels more than small differences.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

import intact
from by_hand import PATTERNS, Pattern, place, ranges
from intact.engines.latency import in_turn, lower_quartiles
from intact.formats.onnx_qdq.executed import profile_kernels
from intact.numerics.metrics import sqnr_db
from latency import TARGET, session

_SAMPLES, _TESTED = 32, 16
_SLOWER = 1.05
"""Times of the placement by hand beyond which kernels are shown."""
_PROFILED = 20
_INTACT = ("intact", "fastest")

Samples: TypeAlias = npt.NDArray[np.float32]
Kernels: TypeAlias = dict[str, tuple[int, float]]
"""By the operator that the runtime made: how many, and milliseconds in all."""


@dataclass
class Row:
    """One pattern at one batch; `variants` are those by hand, `by hand` is the fastest of them."""

    pattern: str
    batch: int
    variant: str
    variants: dict[str, float] = field(default_factory=dict)
    ms: dict[str, float] = field(default_factory=dict)
    ratio: dict[str, float] = field(default_factory=dict)
    db: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, Kernels] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A float model, its placements by hand, and samples."""

    name: str
    path: Path
    variants: Mapping[str, Path]
    calibration: Samples
    test: Samples


def prepare(name: str, pattern: Pattern, folder: Path) -> Case:
    """Write the float model and its placements by hand."""
    model, roles = pattern.build()
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim][1:]
    random = np.random.default_rng(7)
    samples = random.normal(0, 1, (_SAMPLES + _TESTED, *shape)).astype(np.float32)
    limits = ranges(model, samples[:_SAMPLES])
    variants = {}
    for at, (title, variant) in enumerate(pattern.variants.items()):
        variants[title] = folder / f"{name}.{at}.onnx"
        onnx.save(place(model, limits, roles, variant), variants[title])
    return Case(name, path, variants, samples[:_SAMPLES], samples[_SAMPLES:])


def times(
    paths: Mapping[str, Path], feeds: Mapping[str, Samples], threads: int, seconds: float
) -> dict[str, float]:
    """Return milliseconds of each model, run in turn."""
    loaded = [session(path, threads) for path in paths.values()]
    runs = [lambda each=each: each.run(None, feeds) for each in loaded]
    rounds = in_turn(runs, seconds=seconds * len(runs))
    return {k: 1e3 * each for k, each in zip(paths, lower_quartiles(rounds), strict=True)}


def measure(case: Case, batch: int, threads: int, seconds: float, folder: Path) -> Row:
    """Quantize both ways, choose among the placements by hand, and time all in turn."""
    feeds = {"x": np.resize(case.test, (batch, *case.test.shape[1:]))}
    variants = times(case.variants, feeds, threads, seconds / 2)
    best = min(variants, key=variants.__getitem__)
    paths = {"float": case.path, "by hand": case.variants[best]}
    plain: dict[str, Any] = {}
    timed: dict[str, Any] = {
        "fastest": True,
        "fastest_batch": batch,
        "timings": folder / "timings.json",
    }
    for way, more in zip(_INTACT, (plain, timed), strict=True):
        out = folder / f"{case.name}.{way}.{batch}"
        made = intact.quantize(
            case.path,
            {"x": case.calibration},
            target=TARGET,
            output=out,
            threads=threads,
            **more,
        )
        paths[way] = out / made.deployed_file
    ms = times(paths, feeds, threads, seconds)
    row = Row(case.name, batch, best, variants, ms)
    row.ratio = {way: ms[way] / ms["by hand"] for way in _INTACT}
    outputs = {
        way: session(path, threads).run(None, {"x": case.test})[0] for way, path in paths.items()
    }
    row.db = {way: sqnr_db(outputs["float"], outputs[way]) for way in ("by hand", *_INTACT)}
    row.kernels = {
        way: kernels_of(path, feeds, threads) for way, path in paths.items() if way != "float"
    }
    return row


def kernels_of(path: Path, feeds: Mapping[str, Samples], threads: int) -> Kernels:
    """Return what the runtime makes of a model, what takes longest first."""
    found: Kernels = {}
    for each in profile_kernels(ir.load(path), feeds, runs=_PROFILED, threads=threads):
        count, taken = found.get(each.op_type, (0, 0.0))
        found[each.op_type] = count + 1, taken + 1e3 * each.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def show(rows: Sequence[Row]) -> None:
    """Print the table, and below it the kernels of what is slower than by hand."""
    table = Table("pattern", "batch", "by hand")
    for heading in (
        *("float ms", "by hand ms", "intact ms", "of by hand", "--fastest ms", "of by hand"),
        *("by hand dB", "intact dB", "--fastest dB"),
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [row.pattern, str(row.batch), row.variant]
        cells += [f"{row.ms[way]:.2f}" for way in ("float", "by hand")]
        for way in _INTACT:
            cells += [f"{row.ms[way]:.2f}", f"{row.ratio[way]:.2f}"]
        table.add_row(*cells, *(f"{each:.1f}" for each in row.db.values()))
    console = Console(width=170)
    console.print(table)
    for row in rows:
        slower = [way for way in _INTACT if row.ratio[way] > _SLOWER]
        for way in ("by hand", *slower) if slower else ():
            kernels = row.kernels[way]
            listed = ", ".join(
                f"{count} {name} {taken:.3f}" for name, (count, taken) in kernels.items()
            )
            console.print(f"{row.pattern}, batch {row.batch}, {way}, ms: {listed}")


def main() -> None:
    """Measure, print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patterns", default="", help=f"of {', '.join(PATTERNS)}")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each model")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted = [name for name in given.patterns.split(",") if name] or list(PATTERNS)
    for name in wanted:
        if name not in PATTERNS:
            parser.error(f"no pattern {name!r}; there are {', '.join(PATTERNS)}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            case = prepare(name, PATTERNS[name], Path(folder))
            for batch in map(int, given.batches.split(",")):
                row = measure(case, batch, given.threads, given.seconds, Path(folder))
                rows.append(row)
                if given.json:
                    print(json.dumps(asdict(row)), flush=True)
                else:
                    print(f"{name}, batch {batch}: done", file=sys.stderr)
    if not given.json:
        show(rows)


if __name__ == "__main__":
    main()

"""A small result with odd names and a seeded fault, for tests of its report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

import intact
from intact.analyze.report import figures
from tests.models import ModelBuilder

EVIL = "</script><script>document.title = 'broken'</script>&amp;\u2028\"'"
"""A name that would end the element that holds it, and run."""


def evil_model() -> onnx.ModelProto:
    """Two convolutions, one with a name that is a script, and a layer that stays float.

    An Identity with such a name is folded into what reads it.
    """
    b = ModelBuilder(seed=3)
    x = b.input("image", ["N", 3, 8, 8])
    y = b.node("Relu", b.conv(x, 3, 8), name=EVIL)
    y = b.node("Relu", b.conv(y, 8, 8), name="block/2/relu")
    y = b.node("GlobalAveragePool", y, name="pool")
    y = b.node("Identity", y, name=f"{EVIL} gone")
    b.output(b.node("Flatten", y, name="flatten"), ["N", 8])
    return b.build()


def samples(count: int = 16) -> npt.NDArray[np.float32]:
    """Inputs of `evil_model`, with labels that mean nothing."""
    return np.random.default_rng(0).normal(size=(count, 3, 8, 8)).astype(np.float32)


def write_result(folder: Path) -> Path:
    """Quantize with thresholds that clip a tenth of the values; return the folder."""
    intact.quantize(
        evil_model(),
        samples(),
        method="percentile",
        method_options={"percentile": 90},
        keep_float=["GlobalAveragePool"],
        preset="fast",
        output=folder / "out",
    )
    return folder / "out"


def searched() -> figures.Search:
    """A search of twelve trials."""
    scores = [90.0 - 0.5 * number if number % 3 else None for number in range(12)]
    trials = tuple(
        figures.Trial(number, 1000.0 - 40 * number, score, number % 4 != 0, number in (1, 5))
        for number, score in enumerate(scores)
    )
    return figures.Search(
        "greedy, trial 5", "out.search.jsonl", "greedy", "accuracy", "bytes", 256, 85.0, None, 5,
        trials, 12,
    )  # fmt: skip


def trained() -> figures.Training:
    """A training of three epochs."""
    epochs = tuple(
        figures.Epoch(n, None if n == 0 else 1 / n, 1 / (n + 1), 80.0 + n) for n in range(4)
    )
    return figures.Training("lsq, best of 3 epochs: 3", 3, epochs)

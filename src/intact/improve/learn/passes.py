"""Learned rounding as improvement passes: options by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from intact.data.stream import Samples
from intact.improve.learn.reconstruct import Reconstruction, adaround, reconstruct
from intact.plan import QuantizedGraph
from intact.plan.gains import Report, unreported


def by_blocks(
    plan: QuantizedGraph, samples: Samples, *, report: Report = unreported, **options: Any
) -> QuantizedGraph:
    """Learn block by block; the options are those of `Reconstruction`."""
    return reconstruct(plan, samples, options=_read(options), report=report)


def by_layers(
    plan: QuantizedGraph, samples: Samples, *, report: Report = unreported, **options: Any
) -> QuantizedGraph:
    """Learn layer by layer; the options are those of `Reconstruction`."""
    return adaround(plan, samples, options=_read(options), report=report)


def _read(options: dict[str, Any]) -> Reconstruction:
    """Read the options; the threads stay what they are, because results depend on them."""
    known = {name: value for name, value in options.items() if name != "threads"}
    folder = known.pop("folder", None)
    return Reconstruction(**known, folder=None if folder is None else Path(folder))

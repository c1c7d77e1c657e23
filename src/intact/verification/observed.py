"""Tensors recorded on a device against the integer engine, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.plan import QuantizedGraph
from intact.program import Array, Program
from intact.program.lower import lower
from intact.run.cpu import detect_cpu
from intact.run.session import Feeds
from intact.verification.beside import EngineBeside
from intact.verification.feeding import stored_feeds
from intact.verification.records import named, recorded
from intact.verification.report import Verification, overflow_reports

_BATCH = 16
"""Samples run at once: every activation of a batch is held, several times."""


def verify_observed(
    plan: QuantizedGraph,
    feeds: Feeds,
    dump: Mapping[str, npt.NDArray[Any]],
    *,
    threads: int = 0,
    device: str = "recorded",
) -> Verification:
    """Compare tensors that were recorded on a device with the integers that the plan says.

    ``layers`` are teacher-forced with what was recorded: a layer of which the inputs were recorded
    too is compared alone, another together with what lies before it.

    Args:
        plan: The plan that the device runs.
        feeds: What the device was fed, by input name: all samples.
        dump: Recorded arrays by the name of a tensor of the model, or of the lowered program.
            Integers are codes; floats are the numbers that codes stand for, and count as the
            nearest. Axes lie as in the model or with the channels last, told apart by the shape;
            where both fit, as they agree best. A batch of one may lack its axis.
        threads: Threads of float islands; 0 lets their runtime choose.
        device: What to call the device in the report.

    Raises:
        DataError: There is nothing to compare, a name is no tensor of the plan (the nearest is
            offered) or that of a constant, or an array fits no layout of its tensor.
    """
    program = lower(plan)
    found = named(plan, program, dump)
    if not found.tensors:
        raise DataError("no recorded tensor can be compared", remedy="record what layers hand out")
    beside = EngineBeside(program, found.tensors.values(), threads=threads)
    given = stored_feeds(program, feeds)
    count = len(next(iter(given.values())))
    parts = list(_parts(program, given))
    first = {name: array[parts[0]] for name, array in given.items()}
    expected = beside.engine.run(first, [t.name for t in found.tensors.values()]).tensors
    records = {
        tensor.name: recorded(name, np.asarray(dump[name]), tensor, expected[tensor.name], count)
        for name, tensor in found.tensors.items()
    }
    for part in parts:
        batch = {name: array[part] for name, array in given.items()}
        seen = {
            name: record.codes[part] if len(parts) > 1 else record.codes
            for name, record in records.items()
        }
        beside.add(batch, seen)
    for layer in (*beside.layers, *beside.end_to_end):
        layer.layout = records[layer.tensor].layout
    return Verification(
        target=plan.target.name,
        runtime=device,
        cpu=detect_cpu(),
        samples=count,
        layers=beside.layers,
        end_to_end=beside.end_to_end,
        in_float=dict(program.in_float),
        not_compared=found.unheld,
        overflows=overflow_reports(beside.engine),
    )


def _parts(program: Program, feeds: Mapping[str, Array]) -> Iterator[slice]:
    """Cut the samples into batches; those of a model of fixed size are one."""
    count = len(next(iter(feeds.values())))
    fixed = any(tensor.shape[:1] != (None,) for tensor in program.inputs.values())
    size = count if fixed else _BATCH
    for start in range(0, max(count, 1), max(size, 1)):
        yield slice(start, start + size)

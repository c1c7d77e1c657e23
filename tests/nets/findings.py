"""What is wrong with a net on a target: exported, loaded, run in the runtime, compared."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import onnx

from intact.analyze.verification.subject import batch_size_of, batches_of
from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.data.batching import Batch
from intact.data.sources import open_samples
from intact.errors import ExportError, IntactError, MissingExtraError
from intact.formats.base.format import Deployed, Exported, Io
from intact.formats.base.report import Verification
from intact.formats.registry import FORMATS
from intact.graph import normalize
from intact.plan import QuantizedGraph, build_plan
from intact.targets import Target, load_target, target_names

FLOOR_DB = 15.0
"""The least agreement of what runs with the engine, or else with the simulation, where layers agree
by themselves: a rare difference of one step grows through the layers behind it."""


class RandomNet(Protocol):
    """A net of either generator."""

    def model(self) -> onnx.ModelProto:
        """Return the model."""

    def samples(self, count: int, *, seed: int = 1) -> dict[str, npt.NDArray[np.float32]]:
        """Draw samples, by input, along axis 0."""

    def operators(self) -> set[str]:
        """Return what the net is made of."""

    def without(self, operators: Collection[str]) -> Self:
        """Return the net that is left without some operators."""


AnyNet = TypeVar("AnyNet", bound=RandomNet)
Part = TypeVar("Part")

Pair = tuple[str, str]
"""Target and format."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a net.

    Attributes:
        pair: Target and format.
        kind: In a word: crash, refused by the runtime, bits, agreement.
        text: What was seen.
        largest: Of bits, the largest difference, in steps.
        share: Of bits, the largest share of the values of one tensor that differ; where one or two
            differ, 0.
    """

    pair: Pair
    kind: str
    text: str
    largest: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        return f"{'/'.join(self.pair)}: {self.kind}: {self.text}"


@cache
def pairs() -> tuple[Pair, ...]:
    """Every target with every format that it can be exported to."""
    return tuple(
        (name, format_name)
        for name in target_names()
        for format_name in load_target(name).formats
        if FORMATS[format_name].runtime is not None
    )


def check(
    net: RandomNet, pair: Pair, *, refused: Callable[[bool], None] = lambda _: None
) -> list[Finding]:
    """Export a net, run it and compare; return what is wrong.

    Args:
        net: The net.
        pair: Target and format.
        refused: Called where intact refuses the net, which is not wrong, or the runtime is missing;
            tells whether parts of the net may do.
    """
    return list(_check(net, pair, refused))


def _check(net: RandomNet, pair: Pair, refused: Callable[[bool], None]) -> Iterator[Finding]:
    target, name = load_target(pair[0]), pair[1]
    try:
        plan = build_plan(normalize(net.model()), target)
        if not any(each.quantized for each in plan.decisions.values()):
            return refused(False)  # `quantize` refuses it
        plan = calibrated(plan, net)
        exported = _written(plan, name)
    except IntactError:
        return refused(True)
    except Exception:
        yield Finding(pair, "crash", _last(traceback.format_exc()))
        return
    runtime = FORMATS[name].runtime
    if runtime is None:
        return
    try:
        found = runtime.verify(Deployed(plan, exported, threads=1), _batches(net, plan))
    except MissingExtraError:
        return refused(False)
    except ExportError as error:
        yield Finding(pair, "refused by the runtime", str(error))
        return
    except IntactError as error:
        yield Finding(pair, "not verified", f"{type(error).__name__}: {error}")
        return
    except Exception:
        yield Finding(pair, "crash", _last(traceback.format_exc()))
        return
    yield from _judged(pair, found)


def _written(plan: QuantizedGraph, name: str) -> Exported:
    """Write a plan with integers at its ends, or with floats where it has none there."""
    try:
        return FORMATS[name].writer.write(plan, Io.INT8)
    except IntactError:
        return FORMATS[name].writer.write(plan, Io.FLOAT)


def _batches(net: RandomNet, plan: QuantizedGraph) -> Iterator[Batch]:
    """Samples that calibration did not see, as a verification of users takes them."""
    samples = open_samples(net.samples(8, seed=2), plan.graph)
    return batches_of(samples, batch_size_of(samples, plan.graph))


def planned(net: RandomNet, target: Target) -> QuantizedGraph:
    """Return the calibrated plan of a net."""
    return calibrated(build_plan(normalize(net.model()), target), net)


def calibrated(plan: QuantizedGraph, net: RandomNet) -> QuantizedGraph:
    """Return a plan of a net with scales."""
    samples = open_samples(net.samples(16), plan.graph)
    tensors = required_tensors(plan) or tuple(samples.specs)
    statistics = collect(plan.graph, samples, tensors, threads=1)
    return assign(plan, statistics, Method.of(plan.target, "minmax", "minmax"))


def _judged(pair: Pair, found: Verification) -> Iterator[Finding]:
    wrong = [each for each in found.layers if each.mismatches]
    if wrong:
        parts = (f"{each.end or each.tensor} {each.mismatches} of {each.values}" for each in wrong)
        share = max(each.mismatches / each.values * (each.mismatches > 2) for each in wrong)
        largest = int(max(each.largest for each in wrong))
        yield Finding(pair, "bits", ", ".join(parts), largest, share)
    broken = {place for places in found.rules.values() for place in places}
    if broken:
        yield Finding(pair, "rules", f"{found.rules}")
    low = {n: db for n, db in found.outputs_sqnr_db.items() if not math.isnan(db) and db < FLOOR_DB}
    if low:
        yield Finding(pair, "agreement", f"{low} dB; {found.no_engine or 'engine'}")


def _last(trace: str) -> str:
    lines = [line.strip() for line in trace.strip().splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ") and "/intact/" in line]
    return f"{lines[-1]} at {places[-1] if places else '?'}"[:400]


def shrunk(
    net: AnyNet, pair: Pair, kind: str, smaller: Callable[[AnyNet], Iterable[AnyNet]]
) -> AnyNet:
    """The smallest net with a finding of that kind that making it smaller leads to."""
    while True:
        for each in smaller(net):
            if any(found.kind == kind for found in check(each, pair)):
                net = each
                break
        else:
            return net


def shorter(parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    """Yield what is left of a sequence without one half, then without one of smaller parts."""
    size = max(1, len(parts) // 2)
    while size and parts:
        for start in range(len(parts) - size, -1, -size):
            yield (*parts[:start], *parts[start + size :])
        size //= 2

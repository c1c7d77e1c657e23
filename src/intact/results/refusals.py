"""Collects why targets refuse a model, and asks formats about its structure before samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import msgspec
import numpy as np

from intact.calibrate.assign import assign, required_tensors
from intact.calibrate.method import Method
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.errors import CalibrationError, ExportError, IntactError, PlanError, UsageError
from intact.formats.base.format import Io
from intact.formats.registry import FORMATS, of_its_targets
from intact.numerics.histogram import accumulate, new_workspace
from intact.plan import QuantizedGraph


class Refusals(msgspec.Struct):
    """Errors by the name of the target that they are of.

    Attributes:
        collects: Whether errors are kept; otherwise they go on to whoever called.
        errors: Those that were kept.
    """

    collects: bool = True
    errors: dict[str, IntactError] = msgspec.field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Keep what is wrong with one target; a wrong call is wrong for all of them."""
        try:
            yield
        except UsageError:
            raise
        except IntactError as error:
            if not self.collects:
                raise
            self.errors[name] = error

    def refuse_all(self, done: str = "made") -> NoReturn:
        """Raise what was kept, where nothing else is left.

        Args:
            done: What could be done with none of the targets, in a word.

        Raises:
            IntactError: The one error, or all of them as one.
        """
        said = {error.with_flags for error in self.errors.values()}
        # Targets that refuse for one reason give one sentence, in the type of its error.
        if len(said) == 1:
            raise next(iter(self.errors.values()))
        named = [f"{name}: {error.with_flags}" for name, error in self.errors.items()]
        raise ExportError(f"none of the targets can be {done}: {'; '.join(named)}", listed=named)


def refuse_structure(plan: QuantizedGraph, formats: Iterable[str], io: Io = Io.INT8) -> None:
    """Refuse a plan that some format cannot write, whatever samples show.

    It is written once as if each tensor reached from -1 to 1; only formats that tell what is due to
    nodes and shapes alone are asked.

    Args:
        plan: Without scales; not changed.
        formats: What it is to be written in.
        io: What its ends are to hold, where the format leaves a choice.

    Raises:
        ExportError: A format cannot express it; all that it cannot is listed.
    """
    writers = {name: FORMATS[name].writer for name in formats if FORMATS[name].writer.foresees}
    if not writers:
        return
    try:
        method = Method.of(plan.target, "minmax", "minmax")
        # Writers want scales; any will do, because those that are asked look at nodes and shapes
        # only.
        scaled = assign(plan, _as_if_observed(plan), method)
    except (CalibrationError, PlanError):  # levels of another kind, told by who assigns scales
        return
    for name, writer in writers.items():
        try:
            with of_its_targets(name, plan.target):
                writer.refuse(scaled, io)
        except PlanError:  # levels without integer arithmetic
            continue


def _as_if_observed(plan: QuantizedGraph) -> Statistics:
    one = TensorStatistics()
    ends = np.array([[-1, 1]], np.float32)
    one.add(accumulate(ends, one.counts, new_workspace()))
    return Statistics(plan.graph.hash, dict.fromkeys(required_tensors(plan), one))

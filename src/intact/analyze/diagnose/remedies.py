"""Turns remedies of findings into commands, runs them, and measures what they gain."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from intact.analyze.diagnose.deployed import runtime_of
from intact.analyze.diagnose.diagnosis import decibels_of
from intact.analyze.diagnose.findings import RUN, SIMULATION, Finding, Remedy
from intact.analyze.diagnose.rehearsal import Rehearsal
from intact.analyze.diagnose.runtime import speedup
from intact.data.stream import Samples
from intact.engines.executor import simulated_run
from intact.errors import DataError, IntactError, UsageError
from intact.formats.registry import expressible
from intact.improve.passes import Request
from intact.limits import RUN_AT_ONCE
from intact.recipe.commands import command_line
from intact.recipe.file import COMMAND, recipe_options
from intact.recipe.options import QuantizeCommand, QuantizeOptions
from intact.recipe.reports import DiagnoseOptions
from intact.results.result import Result
from intact.results.samples import open_for_result
from intact.targets import Target

_MENDED = "mended"
"""Folder that a remedy writes to."""
_LISTS = ("improve", "keep_float")
"""Options that a remedy adds to, and does not replace."""
_TABLES = ("bits",)
"""Options by name that a remedy changes, and leaves those of other names."""
_INSTEAD_OF = {"improve": ("preset",), "preset": ("improve",), "method": ("method_options",)}
"""Options that one of a remedy stands in the place of."""
_LEAST_GAIN = {"dB": 0.5, "points": 0.5, "times": 0.1}
"""What a remedy must gain to be offered, by unit."""
_ENOUGH = 0.9
"""Part of what the best remedy regains that a cheaper one is to regain."""
_ANY = "onnxruntime"
"""A target, where the model's own is not named."""


def options_that_made(result: Result) -> dict[str, Any] | None:
    """Return the options that made a result; None where `quantize` did not make it from files.

    Of a result made in Python the recipe may lack what was given as objects: then no command can
    make it again.
    """
    try:
        table = tomllib.loads(result.recipe)
        command = table.pop(COMMAND, "")
        known = recipe_options(QuantizeOptions)
        # The recipe of a result is anybody's file: only options that a recipe may have are taken,
        # and checked.
        known = {name: each for name, each in known.items() if each.recorded}
        values = {name: known[name].checked(value) for name, value in table.items()}
    except (ValueError, KeyError, UsageError):  # of another version, or changed by hand
        return None
    return values if command == "quantize" and {"model", "data"} <= set(values) else None


def with_command(
    finding: Finding,
    made_by: Mapping[str, Any] | None,
    ran: Sequence[str] = (),
    rehearsal: Rehearsal | None = None,
) -> Finding:
    """Write a remedy as a command, or in words where no command does it.

    Of those whose gain can be simulated, the cheapest is offered that regains 90 % of what the best
    of them does: they come cheapest first. Where none can be simulated, it is the first, without a
    gain: that is to be measured. What does not help or would be refused is not offered.

    Args:
        finding: The finding.
        made_by: The options that made the result; None where they are not known.
        ran: The improvement passes that the result has: a remedy adds to them.
        rehearsal: Plans commands, and simulates them.
    """
    open_ones: list[Finding] = []
    measured: list[tuple[float, Finding]] = []
    takes = _takes_all if rehearsal is None else rehearsal.takes
    for each in _remedies(finding, made_by, ran, takes):
        # What a check has measured itself is the gain of the first.
        known = finding if each.remedy is finding.remedies[0] else _without_gain(finding)
        offered = msgspec.structs.replace(known, remedy=each.text)
        if each.values is None or rehearsal is None:
            open_ones.append(offered)
            continue
        gain = rehearsal.gain(each.values) if finding.unit == "dB" else None
        if gain is None:
            open_ones.append(offered)
        else:
            measured.append((gain, offered))
    best = max((gain for gain, _ in measured), default=0.0)
    # In the order of the finding, which is that of their cost.
    for gain, offered in measured:
        if gain >= max(_LEAST_GAIN["dB"], best * _ENOUGH):
            return msgspec.structs.replace(offered, gain=gain, measured=SIMULATION)
    if open_ones:
        return open_ones[0]
    return _without_gain(finding)


def _without_gain(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, gain=None, measured="")


class TriedRemedies:
    """Runs the commands of findings, each in a process of its own, until the time is over.

    Args:
        options: The options of the call of `diagnose`.
        result: The result.
        samples: The samples that it is measured on.
        seconds: Time for all commands together.
    """

    def __init__(
        self, options: DiagnoseOptions, result: Result, samples: Samples, *, seconds: float
    ) -> None:
        self._options, self._result, self._samples = options, result, samples
        self._end = time.monotonic() + seconds

    def best(
        self, finding: Finding, made_by: Mapping[str, Any] | None, rehearsal: Rehearsal
    ) -> Finding:
        """Return a finding with the first remedy that helps, and its gain.

        What does not help is not offered. What could not be tried in time is, which the evidence
        says, with the gain that was simulated where there is one. A command that fails is told in
        the evidence, and the next remedy goes on.
        """
        failed, reason = "", _not_to_be_run(made_by)
        given, finding = finding, _without_gain(finding)
        ran = self._result.plan.provenance.improve
        for each in _remedies(finding, made_by, ran, rehearsal.takes):
            changed = msgspec.structs.replace(
                finding, remedy=each.text, evidence=finding.evidence + failed
            )
            if each.values is not None and reason:
                evidence = f"{changed.evidence}; the remedy is not tried: {reason}"
                return msgspec.structs.replace(changed, evidence=evidence)
            # One clock for all findings: the first may take most of it.
            left = self._end - time.monotonic()
            if each.values is None:
                return changed
            try:
                if left <= 0:
                    raise subprocess.TimeoutExpired(each.text, 0)
                gain = self._gain(each.text, finding.unit, left)
            except subprocess.TimeoutExpired:
                how = "begun" if left <= 0 else "finished"
                unfinished = f"; the time was over before its trial was {how}"
                known = with_command(given, made_by, ran, rehearsal)
                kept = known if known.gain is not None else changed
                evidence = finding.evidence + failed + unfinished
                return msgspec.structs.replace(kept, evidence=evidence)
            except (IntactError, _CommandError) as error:
                failed += f"; `{each.text}` was tried and fails: {error}"
                continue
            if gain >= _LEAST_GAIN[finding.unit]:
                return msgspec.structs.replace(changed, gain=gain, measured=RUN)
        return msgspec.structs.replace(finding, evidence=finding.evidence + failed)

    def _gain(self, command: str, unit: str, seconds: float) -> float:
        """Run a command, and return what its result has more than this one."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / _MENDED
            words = [*shlex.split(command)[1:-1], str(folder)]  # its last word is the folder
            done = subprocess.run(
                # `-P`, so that no module of the working directory is imported; a list and no shell.
                [sys.executable, "-P", "-m", "intact", *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
                errors="replace",
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["nothing said"]
                raise _CommandError(lines[-1][:200])
            # Loaded inside of the folder's life, since arrays are mapped.
            mended = Result.load(folder)
            return self._figure(mended, self._samples_of(mended), unit) - self._figure(
                self._result, self._samples, unit
            )

    def _samples_of(self, mended: Result) -> Samples:
        """Open the samples as another result wants them, or draw the same ones."""
        data, limit = self._options.data, self._options.samples
        if data is None:
            return self._samples
        labels = self._options.labels
        return open_for_result(self._options, data, mended, limit=limit, labels=labels)

    def _figure(self, result: Result, samples: Samples, unit: str) -> float:
        """Return accuracy in points, times as fast as float, or the worst output's dB."""
        if unit == "points":
            return _accuracy(result, samples)
        if unit == "times":
            feeds, _ = next(iter(samples.batches(samples.batch_size(RUN_AT_ONCE))))
            return speedup(result.plan.graph, runtime_of(result), feeds)
        found = decibels_of(result.plan, samples, threads=self._options.threads)
        return min(found.values(), default=0.0)


def _not_to_be_run(made_by: Mapping[str, Any] | None) -> str:
    """Say why nothing is run with the options of a recipe, which may be anybody's; "" if it may be.

    A function would be imported, and a folder of a pass written.
    """
    if made_by is None:
        return ""
    data = str(made_by["data"])
    # `module:function` would be imported; a file of that name is data.
    if ":" in data and not os.path.exists(data):  # noqa: PTH110 - as of `open_samples`
        return f"the recipe's data {data} are code"
    if any("folder" in dict(Request.of(each).options) for each in made_by.get("improve") or ()):
        return "the recipe names a folder that a pass writes"
    return ""


class _CommandError(Exception):
    """A command failed; its message is its last line."""


def _accuracy(result: Result, samples: Samples) -> float:
    """Return the part of the samples whose class the simulation finds, in percent."""
    run = simulated_run(result.plan)
    output = str(result.plan.graph.outputs[0].name)
    chosen = [
        run(feeds)[output][:count].argmax(axis=1)
        for feeds, count in samples.batches(samples.batch_size(RUN_AT_ONCE))
    ]
    labels = samples.labels()  # of the samples that were read last
    if labels is None:
        raise DataError("the samples have no labels", remedy="give --labels")
    classes = np.concatenate(chosen)
    if classes.shape != labels.shape:
        raise DataError("the first output is no score for each class", remedy="give no labels")
    return 100 * float(np.mean(classes == labels))


class _Offer(NamedTuple):
    """A remedy that can be said.

    Attributes:
        remedy: The remedy.
        text: A command, or what to do.
        values: The options of the command by name; None where it is none.
    """

    remedy: Remedy
    text: str
    values: Mapping[str, Any] | None


Takes: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Tells whether a call with these options makes a result."""


def _takes_all(_: Mapping[str, Any]) -> bool:
    return True


def _remedies(
    finding: Finding, made_by: Mapping[str, Any] | None, ran: Sequence[str], takes: Takes
) -> Iterator[_Offer]:
    """Yield the remedies that can be said, with floats at the ends where nodes need these."""
    for remedy in finding.remedies:
        if remedy.text:
            yield _Offer(remedy, remedy.text, None)
        elif made_by is not None:
            values = changed_options(remedy, made_by, ran)
            if values is not None and not takes(values):
                more = Remedy(options={**remedy.options, "io": "float"})
                is_of_nodes = "keep_float" in remedy.options
                values = changed_options(more, made_by, ran) if is_of_nodes else None
                values = values if values is not None and takes(values) else None
            if values is not None:
                yield _Offer(remedy, command_line("quantize", QuantizeCommand, values), values)


def changed_options(
    remedy: Remedy, made_by: Mapping[str, Any], ran: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Return the options of a call that makes a result with a remedy.

    None where they change nothing, keep layers in float for a format that has none, or would be
    refused: a command that is offered is one that runs.

    Args:
        remedy: The remedy.
        made_by: The options that made the result.
        ran: The improvement passes that it has: those of a preset are named where one is added.
    """
    if "keep_float" in remedy.options and not expressible(made_by.get("formats") or ()).floats:
        return None
    before = dict(made_by)
    if remedy.options.get("improve"):
        if set(remedy.options["improve"]) <= set(ran):
            return None
        # Naming passes turns the preset off, so those that it ran are named too.
        before["improve"] = tuple(dict.fromkeys((*ran, *(before.get("improve") or ()))))
    changed = _merge_options(remedy, before)
    changed["output"] = _MENDED
    # An option at its default is the same as none.
    is_same = _without_defaults(changed) == _without_defaults({**made_by, "output": _MENDED})
    return None if is_same or not _is_accepted(changed) else changed


def _merge_options(remedy: Remedy, made_by: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(made_by)
    for other in [other for name in remedy.options for other in _INSTEAD_OF.get(name, ())]:
        changed.pop(other, None)
    for name, value in remedy.options.items():
        if value is None:
            changed.pop(name, None)
        elif name in _LISTS:
            changed[name] = tuple(dict.fromkeys((*(changed.get(name) or ()), *value)))
        elif name in _TABLES:
            changed[name] = {**(changed.get(name) or {}), **value}
        else:
            changed[name] = value
    return changed


def _without_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    known = recipe_options(QuantizeCommand)
    return {
        name: value
        for name, value in values.items()
        if name not in known or known[name].required or value != known[name].default
    }


def _is_accepted(values: Mapping[str, Any]) -> bool:
    """Tell whether `quantize` takes options together, as far as no model is needed to see it."""
    from intact.results.request import refuse_unlike

    try:
        options = QuantizeCommand(**values)
        target = options.target or _ANY
        first = target if isinstance(target, str | Path | Target) else target[0]
        refuse_unlike(options, first)
    except IntactError:
        return False
    return True

"""Diagnosis of a result: its samples are opened, and remedies become commands."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from intact.analyze.diagnose.diagnosis import Diagnosis, diagnose_plan
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.errors import UsageError
from intact.flow.preprocessing import steps_for
from intact.flow.result import Result
from intact.flow.result_samples import open_for_result
from intact.flow.sources import load_result
from intact.recipe.command_line import command_line
from intact.recipe.file import COMMAND, recipe_options
from intact.recipe.options import QuantizeCommand, QuantizeOptions
from intact.recipe.reports import DiagnoseOptions

_DRAWN = 32
"""Samples that are drawn where there are no data."""
_MENDED = "mended"
"""Folder that a remedy writes to."""
_LISTS = ("improve", "keep_float")
"""Options that a remedy adds to, and does not replace."""


def diagnose(options: DiagnoseOptions) -> Diagnosis:
    """Find out what is wrong with a result.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    loaded = load_result(options.result)
    if options.data is None:
        samples, preprocess = loaded.draw_samples(_DRAWN), loaded.preprocess
    else:
        preprocess = steps_for(options, options.data, loaded.preprocess)
        samples = open_for_result(
            options, options.data, loaded, limit=options.samples, labels=options.labels
        )
    found = diagnose_plan(
        loaded.plan,
        loaded.statistics,
        samples,
        preprocess=preprocess,
        is_drawn=options.data is None,
        threads=options.threads,
    )
    made_by = _made_by(loaded)
    findings = tuple(_with_command(each, made_by) for each in found.findings)
    return msgspec.structs.replace(found, findings=findings)


def _made_by(result: Result) -> dict[str, Any] | None:
    """Return the options that made a result; None where `quantize` did not make it from files.

    Of a result made in Python the recipe may lack what was given as objects: then no command can
    make it again.
    """
    try:
        table = tomllib.loads(result.recipe)
        command = table.pop(COMMAND, "")
        known = recipe_options(QuantizeOptions)
        values = {name: known[name].checked(value) for name, value in table.items()}
    except (ValueError, KeyError, UsageError):  # of another version, or changed by hand
        return None
    return values if command == "quantize" and {"model", "data"} <= set(values) else None


def _with_command(finding: Finding, made_by: Mapping[str, Any] | None) -> Finding:
    """Write the first remedy as a command, or in words where no command does it."""
    for remedy in finding.remedies:
        if remedy.text:
            return msgspec.structs.replace(finding, remedy=remedy.text)
        command = "" if made_by is None else _command(remedy, made_by)
        if command:
            return msgspec.structs.replace(finding, remedy=command)
    return finding


def _command(remedy: Remedy, made_by: Mapping[str, Any]) -> str:
    """Write the command that makes a result with other options; "" where they change nothing."""
    changed = dict(made_by)
    for name, value in remedy.options.items():
        if value is None:
            changed.pop(name, None)
        elif name in _LISTS:
            changed[name] = tuple(dict.fromkeys((*(changed.get(name) or ()), *value)))
        else:
            changed[name] = value
    if changed == dict(made_by):
        return ""
    return command_line("quantize", QuantizeCommand, {**changed, "output": _MENDED})

"""Declares the commands that make results: quantize, import, search, train, export."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intact.cli.parameters import Command, GivenOptions
from intact.cli.phases import LOADING, current
from intact.errors import SearchError, UsageError
from intact.recipe.options import (
    ExportCommand,
    ExportOptions,
    ImportCommand,
    ImportOptions,
    QuantizationOptions,
    QuantizeCommand,
    ReplayOptions,
    SearchCommand,
    SearchOptions,
)
from intact.recipe.training import TrainCommand, TrainOptions

if TYPE_CHECKING:
    from intact.recipe.groups import OutputOptions
    from intact.results.result import Result, Results

_LATER = ("accuracy", "verification")
"""Parts of a report that only the command `report` measures."""


def _quantize(given: GivenOptions[QuantizeCommand]) -> None:
    """Quantize a float model for a target, or for several.

    Of several, one that cannot take the model leaves no folder, and ends with 1; the others are
    written.

    Example: intact quantize model.onnx --data photos/ --normalize imagenet --output out/
    """
    options = given.options
    _require_report_extra(options)
    made: Result | Results
    if isinstance(options.target, list):
        made = given.call("quantize_for", QuantizationOptions, targets=options.target)
    else:
        made = given.call("quantize", QuantizationOptions, target=options.target)
    from intact.cli import show

    show.results(
        made,
        seconds=current().elapsed,
        as_json=options.as_json,
        explain=options.explain,
    )
    _write_reports(made, options, quiet=options.as_json)
    if isinstance(made, Mapping) and made.refused:
        raise click.exceptions.Exit(1)


def _import(given: GivenOptions[ImportCommand]) -> None:
    """Read a model that others quantized (ONNX, TFLite, Tengine); its scales stay as they are.

    With --data, nodes that it left in float are quantized too where the target can.

    Example: intact import model.qdq.onnx --normalize imagenet --output out/
    """
    options = given.options
    _require_report_extra(options)
    result = given.call("read_quantized", ImportOptions)
    from intact.cli import show

    show.result(result, seconds=current().elapsed, as_json=options.as_json)
    _write_reports(result, options, quiet=options.as_json)


def _search(given: GivenOptions[SearchCommand]) -> None:
    """Search for the best strategy: which tensors are quantized, and with how many bits.

    Ctrl-C ends the search and keeps the best that was found.

    Example: intact search model.onnx -d calib.npz --max-drop 0.5 --minimize bytes -o out/
    """
    from intact import api
    from intact.cli import show_search

    options = given.options
    _require_report_extra(options)
    if options.replay is not None:
        _replay(given)
        return
    if options.trial != "best":
        raise UsageError("--trial without --replay", remedy="name the log with --replay")
    if options.data is None:
        raise UsageError("there is nothing to search on", remedy="give samples with --data")
    try:
        # Not by `given.call`: a search shows its trials on a display of its own, and there can be
        # only one at a time.
        with show_search.live(quiet=options.as_json, at_most=options.samples) as shown:
            progress, report = shown
            arguments = given.of(SearchOptions)
            found = api.search_strategy(**arguments, progress=progress, report=report)
    except KeyboardInterrupt as interrupt:
        # The search's own interrupt says what it could not keep; any other is an ordinary Ctrl-C.
        if not interrupt.args:
            raise
        raise SearchError(str(interrupt)) from interrupt
    show_search.found(found, seconds=current().elapsed, as_json=options.as_json)
    _write_reports(found.result, options, quiet=options.as_json)


def _replay(given: GivenOptions[SearchCommand]) -> None:
    """Realize a strategy of a log."""
    from intact import api
    from intact.cli import show

    options = given.options
    if options.resume:
        raise UsageError("--replay and --resume", remedy="give one of the two")
    arguments = {**given.of(ReplayOptions), "log": options.replay}
    result = api.replay_strategy(**arguments)
    show.result(result, seconds=current().elapsed, as_json=options.as_json)
    _write_reports(result, options, quiet=options.as_json)


def _train(given: GivenOptions[TrainCommand]) -> None:
    """Train a result with the arithmetic of its target, so that less is lost; needs torch.

    The float model is the teacher: labels are not needed, and used where there are some. A training
    that was killed goes on with --resume.

    Example: intact train out/ --data train.npz --epochs 10 --output trained/
    """
    from intact.cli import show_training

    options = given.options
    _require_report_extra(options)
    report = show_training.reporting(quiet=options.as_json)
    result = given.call("train", TrainOptions, "reading the result", report=report)
    show_training.trained(result, seconds=current().elapsed, as_json=options.as_json)
    _write_reports(result, options, quiet=options.as_json)


def _export(given: GivenOptions[ExportCommand]) -> None:
    """Write the plan of a result in other formats; nothing is calibrated again.

    Example: intact export out/ --format tflite --output tflite/
    """
    from intact import api
    from intact.cli import show

    _require_report_extra(given.options)
    start = time.perf_counter()
    result = api.export(**given.of(ExportOptions))
    show.result(result, seconds=time.perf_counter() - start, as_json=given.options.as_json)
    _write_reports(result, given.options, quiet=given.options.as_json)


def _require_report_extra(options: OutputOptions) -> None:
    """Check early that a report that is asked for can be written.

    Raises:
        MissingExtraError: The extra ``report`` is not installed.
    """
    if options.with_report:
        from intact.analyze.report.layout import require_layout

        require_layout()


def _write_reports(
    made: Result | Mapping[str, Result], options: OutputOptions, *, quiet: bool
) -> None:
    """Write the reports of results that were just made, where they are asked for.

    Args:
        made: A result with its folder, or one for each target.
        options: As they were given.
        quiet: Print nothing.
    """
    if not options.with_report:
        return
    from intact import api
    from intact.cli import show
    from intact.cli.phases import is_quiet
    from intact.cli.printing import progress as shown
    from intact.results.folder import report_in

    # Not every command has these options: `export` reads no samples.
    given = {name: getattr(options, name, None) for name in ("data", "skip_bad", "threads")}
    arguments: dict[str, Any] = {name: value for name, value in given.items() if value}
    quiet = quiet or is_quiet()
    for result in made.values() if isinstance(made, Mapping) else [made]:
        with shown(LOADING, quiet=quiet) as progress:
            found = api.report(result, leave_out=_LATER, progress=progress, **arguments)
        if not quiet:
            show.report(found, report_in(result.folder or Path()), as_json=False)


QUANTIZE = Command("quantize", QuantizeCommand, _quantize, timed=True)
IMPORT = Command("import", ImportCommand, _import, timed=True)
SEARCH = Command("search", SearchCommand, _search, timed=True)
TRAIN = Command("train", TrainCommand, _train, timed=True)
EXPORT = Command("export", ExportCommand, _export)

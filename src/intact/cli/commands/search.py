"""The command that searches: ``search``."""

from __future__ import annotations

from intact.cli.commands import report as pages
from intact.cli.parameters import Command, Given
from intact.cli.phases import current
from intact.errors import SearchError, UsageError
from intact.recipe.options import ReplayOptions, SearchCommand, SearchOptions


def _search(given: Given[SearchCommand]) -> None:
    """Search for the best strategy: which tensors are quantized, and with how many bits.

    Ctrl-C ends the search and keeps the best that was found.

    Example: intact search model.onnx -d calib.npz --max-drop 0.5 --minimize bytes -o out/
    """
    from intact import api
    from intact.cli import show_search

    options = given.options
    pages.require(options)
    if options.replay is not None:
        _replay(given)
        return
    if options.trial != "best":
        raise UsageError("--trial without --replay", remedy="name the log with --replay")
    if options.data is None:
        raise UsageError("there is nothing to search on", remedy="give samples with --data")
    try:
        with show_search.live(quiet=options.as_json, at_most=options.samples) as shown:
            progress, report = shown
            arguments = given.of(SearchOptions)
            found = api.search_strategy(**arguments, progress=progress, report=report)
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            raise
        raise SearchError(str(interrupt)) from interrupt
    show_search.found(found, seconds=current().elapsed, as_json=options.as_json)
    pages.write(found.result, options, quiet=options.as_json)


def _replay(given: Given[SearchCommand]) -> None:
    """Realize a strategy of a log."""
    from intact import api
    from intact.cli import show

    options = given.options
    if options.resume:
        raise UsageError("--replay and --resume", remedy="give one of the two")
    arguments = {**given.of(ReplayOptions), "log": options.replay}
    result = api.replay_strategy(**arguments)
    show.result(result, seconds=current().elapsed, as_json=options.as_json)
    pages.write(result, options, quiet=options.as_json)


SEARCH = Command("search", SearchCommand, _search, timed=True)

"""Writes the files of a report beside its page: CSV, and node data for Model Explorer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from intact._files import write_whole
from intact.analyze.layers import ModelErrors
from intact.analyze.report.model_explorer import node_data
from intact.analyze.report.tables import csv_of, node_figures
from intact.errors import OutputError
from intact.plan import QuantizedGraph
from intact.recipe.reports import ReportOptions


def check_tables(options: ReportOptions) -> None:
    """Refuse files that cannot be written, before anything is measured.

    Raises:
        OutputError: A folder is missing, or the name is that of a folder.
    """
    for flag, path in (
        ("--output", options.output),
        ("--csv", options.csv),
        ("--model-explorer", options.model_explorer),
    ):
        if path is not None:
            check_file(Path(path), flag)


def check_file(path: Path, flag: str) -> None:
    """Refuse a file that cannot be written.

    Raises:
        OutputError: Its folder is missing, or it is a folder.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{flag} {path}: is a folder", remedy="name a file")
        if not path.parent.is_dir():
            raise OutputError(
                f"{flag} {path}: there is no folder {path.parent}",
                remedy="make it first, or name another",
            )
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise OutputError(f"{flag}: cannot be written ({error})", remedy="name a file") from error


def write_tables(
    options: ReportOptions, plan: QuantizedGraph, errors: ModelErrors | None
) -> dict[str, str]:
    """Write the tables that are asked for.

    Returns:
        What is in each file, by its path.

    Raises:
        OutputError: A file cannot be written.
    """
    found = {}
    for path, content, what in _tables(options, plan, errors):
        write_whole(path, content)
        found[str(path)] = what
    return found


def _tables(
    options: ReportOptions, plan: QuantizedGraph, errors: ModelErrors | None
) -> Iterator[tuple[Path, bytes, str]]:
    if options.csv is not None:
        yield Path(options.csv), csv_of(node_figures(plan, errors)), "figures of nodes"
    if options.model_explorer is not None:
        path = Path(options.model_explorer)
        for number, (name, content) in enumerate(node_data(plan, errors).items()):
            # The viewer takes one figure from a file; the first has the name that was given.
            of = path if number == 0 else path.with_name(f"{path.stem}.{name}{path.suffix}")
            yield of, content, f"node data for Model Explorer: {name.replace('_', ' ')}"

"""Which command has which flag."""

from __future__ import annotations

from collections.abc import Mapping

from intact.recipe.declare import Options, options_of
from intact.recipe.options import ExportCommand, ImportCommand, QuantizeCommand, SearchCommand
from intact.recipe.reports import (
    CompareCommand,
    ConvertRangesCommand,
    DiagnoseCommand,
    EvaluateCommand,
    InspectCommand,
    ReportCommand,
    RunCommand,
    VerifyCommand,
)
from intact.recipe.training import TrainCommand

RECIPES: Mapping[str, type[Options]] = {
    "quantize": QuantizeCommand,
    "import": ImportCommand,
    "search": SearchCommand,
    "export": ExportCommand,
    "evaluate": EvaluateCommand,
    "diagnose": DiagnoseCommand,
    "compare": CompareCommand,
    "report": ReportCommand,
    "run": RunCommand,
    "verify": VerifyCommand,
    "inspect": InspectCommand,
    "convert-ranges": ConvertRangesCommand,
    "train": TrainCommand,
}
"""The commands with options of models, those first that make a result."""


def owner_of(flag: str, command: str) -> str:
    """Name the command that has a flag; nothing where the current one has it, or none does.

    >>> owner_of("--keep-float", "export")
    'quantize'
    >>> owner_of("--keep-float", "import")
    ''
    """
    current = RECIPES.get(command)
    if current is None or flag in flags_of(current):
        return ""
    return next((name for name, recipe in RECIPES.items() if flag in flags_of(recipe)), "")


def flags_of(recipe: type[Options]) -> frozenset[str]:
    """List the flags of a command."""
    options = options_of(recipe).values()
    return frozenset(flag for each in options for flag in (each.flag, each.off) if flag)

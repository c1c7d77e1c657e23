"""The commands that make results of models: ``quantize`` and ``import``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from intact.cli.commands import report as pages
from intact.cli.parameters import Command, Given
from intact.cli.phases import current
from intact.recipe.options import (
    ImportCommand,
    ImportOptions,
    QuantizationOptions,
    QuantizeCommand,
)

if TYPE_CHECKING:
    from intact.results.result import Result, Results


def _quantize(given: Given[QuantizeCommand]) -> None:
    """Quantize a float model for a target, or for several.

    Of several, one that cannot take the model leaves no folder, and ends with 1; the others are
    written.

    Example: intact quantize model.onnx --data photos/ --normalize imagenet --output out/
    """
    options = given.options
    pages.require(options)
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
    pages.write(made, options, quiet=options.as_json)
    if isinstance(made, Mapping) and made.refused:
        raise click.exceptions.Exit(1)


def _import(given: Given[ImportCommand]) -> None:
    """Read a model that others quantized (ONNX, TFLite, Tengine); its scales stay as they are.

    With --data, nodes that it left in float are quantized too where the target can.

    Example: intact import model.qdq.onnx --normalize imagenet --output out/
    """
    options = given.options
    pages.require(options)
    result = given.call("read_quantized", ImportOptions)
    from intact.cli import show

    show.result(result, seconds=current().elapsed, as_json=options.as_json)
    pages.write(result, options, quiet=options.as_json)


QUANTIZE = Command("quantize", QuantizeCommand, _quantize, timed=True)
IMPORT = Command("import", ImportCommand, _import, timed=True)

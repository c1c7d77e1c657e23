"""The commands that convert: results into other formats, scales into ranges."""

from __future__ import annotations

import time

from intact.cli.commands import report as pages
from intact.cli.parameters import Command, Given
from intact.recipe.options import ExportCommand, ExportOptions
from intact.recipe.reports import ConvertRangesCommand, ConvertRangesOptions


def _export(given: Given[ExportCommand]) -> None:
    """Write the plan of a result in other formats; nothing is calibrated again.

    Example: intact export out/ --format tflite --output tflite/
    """
    from intact import api
    from intact.cli import show

    pages.require(given.options)
    start = time.perf_counter()
    result = api.export(**given.of(ExportOptions))
    show.result(result, seconds=time.perf_counter() - start, as_json=given.options.as_json)
    pages.write(result, given.options, quiet=given.options.as_json)


def _convert_ranges(given: Given[ConvertRangesCommand]) -> None:
    """Turn a scale and zero point into the range of the codes, or a range into those.

    The ends of a FakeQuantize give back the scale and zero point that they were made of.

    Example: intact convert-ranges --scale 0.1 --zero-point -3

    Example: intact convert-ranges --low -1.28 --high 1.27 --symmetric
    """
    from intact import api
    from intact.cli.printing import print_json, say

    found = api.convert_ranges(**given.of(ConvertRangesOptions))
    if given.options.as_json:
        print_json(
            {
                "scale": float(found.scale),
                "zero_point": found.zero_point,
                "low": found.low,
                "high": found.high,
                "quant_min": found.quant_min,
                "quant_max": found.quant_max,
            }
        )
        return
    say(f"scale {found.scale!s}, zero point {found.zero_point}")
    say(f"low {found.low!r}, high {found.high!r}")
    say(f"[dim]codes {found.quant_min} to {found.quant_max}[/]")


EXPORT = Command("export", ExportCommand, _export)
CONVERT_RANGES = Command("convert-ranges", ConvertRangesCommand, _convert_ranges)

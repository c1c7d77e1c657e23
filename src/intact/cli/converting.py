"""The commands that turn one form into another: results into other formats, scales into ranges."""

from __future__ import annotations

from typing import Annotated

import typer

from intact.cli.options import AsJson, EndsIo, Folder, Formats
from intact.cli.quantizing import Output


def export(
    folder: Folder,
    output: Output,
    formats: Formats = None,
    io: EndsIo = "int8",
    as_json: AsJson = False,
) -> None:
    """Write the plan of a result in other formats; nothing is calibrated again.

    Example: intact export out/ --format tflite --output tflite/
    """
    import time

    from intact import api
    from intact.cli import show

    start = time.perf_counter()
    result = api.export(folder, formats=formats, io=io, output=output)
    show.result(result, seconds=time.perf_counter() - start, as_json=as_json)


def convert_ranges(
    scale: Annotated[
        float | None, typer.Option(help="Scale: what one step between two codes stands for.")
    ] = None,
    zero_point: Annotated[int, typer.Option(help="The code of 0.")] = 0,
    low: Annotated[float | None, typer.Option(help="What the smallest code stands for.")] = None,
    high: Annotated[float | None, typer.Option(help="What the largest code stands for.")] = None,
    bits: Annotated[int, typer.Option(min=2, max=16, help="Width of the codes.")] = 8,
    signed: Annotated[
        bool, typer.Option("--signed/--unsigned", help="Codes of both signs, or from 0.")
    ] = True,
    narrow: Annotated[
        bool, typer.Option("--narrow", help="Leave out the lowest signed code: -127 to 127.")
    ] = False,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="The zero point is 0.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a scale and zero point into the range that the codes hold, or a range into those.

    Example: intact convert-ranges --scale 0.1 --zero-point -3
    """
    from intact import api
    from intact.cli.printing import print_json, say

    found = api.convert_ranges(
        scale=scale,
        zero_point=zero_point,
        low=low,
        high=high,
        bits=bits,
        signed=signed,
        narrow=narrow,
        symmetric=symmetric,
    )
    if as_json:
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

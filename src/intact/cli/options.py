"""The options that commands share, and what their text means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intact.errors import UsageError

if TYPE_CHECKING:
    from intact.plan import Overrides
    from intact.samples.preprocess import Preprocess

ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An .onnx file.", show_default=False)
]
Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A folder that `intact quantize` wrote.", show_default=False
    ),
]
TargetName = Annotated[
    str,
    typer.Option(
        "--target", "-t", metavar="NAME|FILE.toml", help="The hardware: see `intact targets`."
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        "-d",
        metavar="FILE|MODULE:FUNCTION",
        help="Samples: .npz keyed by input name (and `labels`), .npy, or a function of dicts.",
        show_default=False,
    ),
]
Mean = Annotated[
    str,
    typer.Option(
        metavar="M[,M...]", help="Subtracted from the samples, one number or one a channel."
    ),
]
Scale = Annotated[str, typer.Option(metavar="S[,S...]", help="Multiplied after that.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of the runtime; 0 takes all cores.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
KeepFloat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE|TYPE", help="Leave a node, or all of an op type, in float. Repeatable."
    ),
]
Bits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE=N",
        help="Bits of a node's weight (of its output if it has none); NODE.weight, NODE.input "
        "and NODE.output name one. Repeatable.",
    ),
]
WeightBits = Annotated[int | None, typer.Option(help="Bits of all weights.")]
ActivationBits = Annotated[int | None, typer.Option(help="Bits of all activations.")]


def overrides_from(
    keep_float: list[str] | None,
    bits: list[str] | None,
    weight_bits: int | None,
    activation_bits: int | None,
) -> Overrides:
    """Return what the overriding options ask for."""
    from intact.plan import Overrides

    widths = {}
    for item in bits or ():
        place, mark, number = item.rpartition("=")
        if not mark or not number.isdecimal():
            raise UsageError(f"--bits {item!r}", remedy="write NODE=N, for instance conv1=4")
        if place in widths:
            raise UsageError(f"--bits {item!r}: {place} is given twice", remedy="keep one")
        widths[place] = int(number)
    return Overrides(tuple(keep_float or ()), widths, weight_bits, activation_bits)


def method_options_from(items: list[str] | None) -> dict[str, float]:
    """Return the numbers of ``--method-option NAME=NUMBER``."""
    options = {}
    for item in items or ():
        name, mark, number = item.partition("=")
        try:
            if mark and name:
                options[name] = float(number)
                continue
        except ValueError:
            pass
        raise UsageError(
            f"--method-option {item!r}", remedy="write NAME=NUMBER, for instance percentile=99.9"
        )
    return options


def preprocess_from(mean: str, scale: str, kept: Preprocess | None = None) -> Preprocess | None:
    """Return what the options say; what is left out stays as it was when calibrating."""
    from intact.samples.preprocess import Preprocess

    if not mean and not scale:
        return None
    kept = kept or Preprocess()
    return Preprocess(
        _numbers("--mean", mean) if mean else kept.mean,
        _numbers("--scale", scale) if scale else kept.scale,
    )


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text!r}", remedy="give numbers separated by commas") from None
